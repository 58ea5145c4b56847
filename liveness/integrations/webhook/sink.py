"""The sink that ships with us: reschedules are posted to another engine, signed, so that it can run them.

It speaks HTTP on the event loop, not in threads: one deadline covers a whole exchange, however slowly the other side
talks, and an offer that is cancelled leaves nothing running. A delivery that was not answered with 2xx has failed;
trying again and giving up are the queue's. The connection goes straight to the URL: no proxy, no redirect.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from asyncio import IncompleteReadError, StreamReader
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from socket import gaierror
from urllib.parse import urlsplit

from liveness.clock import Clock
from liveness.domain.activity import Activity
from liveness.domain.keys import ActivityKey
from liveness.domain.reactions import ActivityRescheduleTask
from liveness.integrations.reschedule_message import delivery_id, payload
from liveness.integrations.webhook.signature import DELIVERY_HEADER, SIGNATURE_HEADER, sign
from liveness.tasks.sinks import SinkSelector, no_sink, queue_matcher

CONNECTIONS_MAX = 64
"""At a time. A batch of the queue is larger."""
# With the longest time-out that can be set, these stay below the time that the queue gives a sink.
CONNECTION_WAIT_S = 5.0
EXCERPT_WAIT_S = 1.0
LINE_BYTES_MAX = 16 * 1024
HEADERS_MAX = 100
RESPONSE_BYTES_MAX = 16 * 1024
EXCERPT_CHARS_MAX = 200


class WebhookFailed(Exception):
    """The receiver has not taken a delivery. Says who it is and why, and nothing of what is secret."""


def sink_selector(
    url: str, secret: str, timeout_s: float, queues: Iterable[str], clock: Clock
) -> SinkSelector:
    """`queues`: NAMESPACE/TASK_QUEUE each, where * alone stands for any. Without a URL, all stay in our matching."""
    if not url:
        return no_sink
    sink = WebhookSink(url, secret, timeout_s, clock)
    matches = queue_matcher(queues)
    return lambda namespace, task_queue: sink if matches(namespace, task_queue) else None


class WebhookSink:
    def __init__(self, url: str, secret: str, timeout_s: float, clock: Clock) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None, "the settings let no URL pass that has no host"
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname
        self._port = parts.port or (443 if self._tls else 80)
        authority = parts.netloc.rpartition("@")[2]
        self._display_name = f"{parts.scheme}://{authority}"
        """For people, without path and query, where many a receiver has a key."""
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._request_prefix = (
            f"POST {target} HTTP/1.1\r\n"
            f"Host: {authority}\r\n"
            f"User-Agent: liveness/{version('liveness')}\r\n"
            "Content-Type: application/json\r\n"
            "Connection: close\r\n"
        )
        self._secret = secret
        self._timeout_s = timeout_s
        self._clock = clock
        self._connection_slots = asyncio.Semaphore(CONNECTIONS_MAX)

    async def deliver(self, key: ActivityKey, activity: Activity, task: ActivityRescheduleTask) -> None:
        await self._acquire_connection()
        try:
            await self._deliver(delivery_id(task), payload(key, activity, task))
        finally:
            self._connection_slots.release()

    async def _acquire_connection(self) -> None:
        try:
            async with asyncio.timeout(CONNECTION_WAIT_S):
                await self._connection_slots.acquire()
        except TimeoutError:
            raise WebhookFailed(
                f"{self._display_name} is busy: {CONNECTIONS_MAX} deliveries wait for its answers"
            ) from None

    async def _deliver(self, delivery: str, body: bytes) -> None:
        writer = None
        try:
            # The time-out is the one of the answer; what comes after its head is not worth failing for.
            async with asyncio.timeout(self._timeout_s):
                reader, writer = await asyncio.open_connection(
                    self._host, self._port, ssl=self._tls, limit=LINE_BYTES_MAX
                )
                # Not waited for: who refuses a large delivery may answer before having read it.
                writer.write(self._request_head(delivery, body) + body)
                status, headers = await _read_response(reader)
            excerpt = await _read_excerpt(reader, headers)
        except TimeoutError:
            raise WebhookFailed(f"{self._display_name} did not answer within {self._timeout_s:g} s") from None
        except InvalidHttpResponse as error:
            raise WebhookFailed(f"{self._display_name} {error}") from None
        except OSError as error:
            what = "cannot be reached" if writer is None else "broke the connection"
            raise WebhookFailed(f"{self._display_name} {what}: {_reason(error)}") from error
        finally:
            if writer is not None:
                writer.transport.abort()
        if not 200 <= status < 300:
            redirects = ", but redirects are not followed" if 300 <= status < 400 else ""
            raise WebhookFailed(
                f"{self._display_name} answered {status}{redirects}" + (f": {excerpt}" if excerpt else "")
            )

    def _request_head(self, delivery: str, body: bytes) -> bytes:
        signature = sign(self._secret, body, self._clock.wall_ms() // 1_000)
        return (
            f"{self._request_prefix}"
            f"Content-Length: {len(body)}\r\n"
            f"{DELIVERY_HEADER}: {delivery}\r\n"
            f"{SIGNATURE_HEADER}: {signature}\r\n"
            "\r\n"
        ).encode()


# -- what is answered


class InvalidHttpResponse(Exception):
    """How the other side ended or garbled its answer."""


Headers = Mapping[bytes, bytes]


async def _read_response(reader: StreamReader) -> tuple[int, Headers]:
    status, headers = await _read_response_head(reader)
    while status < 200:  # the deadline ends this
        status, headers = await _read_response_head(reader)
    return status, headers


async def _read_response_head(reader: StreamReader) -> tuple[int, Headers]:
    line = await _read_line(reader)
    match = re.match(rb"HTTP/1\.[01] ([1-5][0-9]{2})[ \r\n]", line)
    if match is None:
        raise InvalidHttpResponse(
            "does not speak HTTP/1.1" if line else "closed the connection without an answer"
        )
    headers: dict[bytes, bytes] = {}
    for _ in range(HEADERS_MAX):
        name, _, value = (await _read_line(reader)).partition(b":")
        if not name.strip():
            return int(match[1]), headers
        headers[name.lower()] = value.strip()
    raise InvalidHttpResponse(f"answered with more than {HEADERS_MAX} headers")


async def _read_line(reader: StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ValueError:
        raise InvalidHttpResponse("answered with a line that is too long") from None


async def _read_excerpt(reader: StreamReader, headers: Headers) -> str:
    """The beginning of the text, for people, as far as it comes at once. Reading it also lets the receiver end in peace:
    closing on what was not read resets the connection."""
    try:
        async with asyncio.timeout(EXCERPT_WAIT_S):
            if b"chunked" in headers.get(b"transfer-encoding", b"").lower():
                size = int((await reader.readline()).partition(b";")[0], 16)  # the first chunk will do
            else:
                size = int(headers.get(b"content-length", RESPONSE_BYTES_MAX))
            text = await reader.readexactly(min(size, RESPONSE_BYTES_MAX))
    except IncompleteReadError as error:
        text = error.partial
    except (OSError, ValueError):
        return ""
    # One line without control characters: it ends up in logs and on terminals.
    words = "".join(c if c.isprintable() else " " for c in text.decode(errors="replace")).split()
    return " ".join(words)[:EXCERPT_CHARS_MAX]


def _reason(error: OSError) -> str:
    """Numbers of TLS and of name resolution are not those of the system."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError | gaierror) or not error.errno:
        return error.strerror or str(error)
    return os.strerror(error.errno)
