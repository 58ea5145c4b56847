"""The webhook sink: it posts each reschedule, signed, to another engine that runs it.

The sink speaks HTTP on the event loop, not in threads: one deadline covers a whole exchange, however slowly the receiver
answers, and a cancelled delivery leaves nothing running. h11 writes the request and parses the response; connecting, time-outs
and bounds are handled here. Any answer but 2xx is a failed delivery; the task queue tries again and gives up.
The sink connects straight to the URL: it uses no proxy and follows no redirect.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from asyncio import StreamReader
from collections.abc import Iterable
from socket import gaierror
from urllib.parse import urlsplit

import h11

from liveness.clock import Clock
from liveness.domain.activity import Activity
from liveness.domain.keys import ActivityKey
from liveness.domain.reactions import ActivityRescheduleTask
from liveness.integrations.reschedule_message import delivery_id, payload
from liveness.integrations.webhook.signature import DELIVERY_HEADER, SIGNATURE_HEADER, sign
from liveness.tasks.sinks import SinkSelector, no_sink, queue_matcher
from liveness.version import VERSION

CONNECTIONS_MAX = 64
"""At a time. A batch of the queue is larger."""
# Together with the longest webhook_timeout_s, these stay below the time that the queue allows a sink.
CONNECTION_WAIT_S = 5.0
EXCERPT_WAIT_S = 1.0
HEAD_KIB_MAX = 16
RESPONSE_BYTES_MAX = 16 * 1024
EXCERPT_CHARS_MAX = 200


class WebhookFailed(Exception):
    """The receiver did not accept a delivery. The message names the receiver and the reason, and holds no secret."""


def sink_selector(
    url: str, secret: str, timeout_s: float, queues: Iterable[str], clock: Clock
) -> SinkSelector:
    """`queues`: NAMESPACE/TASK_QUEUE each, where * alone stands for any. An empty URL selects no sink at all."""
    if not url:
        return no_sink
    sink = WebhookSink(url, secret, timeout_s, clock)
    matches = queue_matcher(queues)
    return lambda namespace, task_queue: sink if matches(namespace, task_queue) else None


class WebhookSink:
    def __init__(self, url: str, secret: str, timeout_s: float, clock: Clock) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None, "the settings accept no URL without a host"
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname
        self._port = parts.port or (443 if self._tls else 80)
        authority = parts.netloc.rpartition("@")[2]
        self._display_name = f"{parts.scheme}://{authority}"
        """For people. Path and query are left out, since many receivers put a key there."""
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = [
            ("Host", authority),
            ("User-Agent", f"liveness/{VERSION}"),
            ("Content-Type", "application/json"),
            ("Connection", "close"),
        ]
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
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_KIB_MAX * 1024)
        request = self._request_bytes(http, delivery, body)
        writer = None
        try:
            # The time-out ends with the head of the answer, which holds the status; the text is only for people.
            async with asyncio.timeout(self._timeout_s):
                reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
                # Not drained: a receiver that refuses a large delivery may answer before it has read everything.
                writer.write(request)
                status = await _read_status(http, reader)
            excerpt = await _read_excerpt(http, reader)
        except TimeoutError:
            raise WebhookFailed(f"{self._display_name} did not answer within {self._timeout_s:g} s") from None
        except InvalidHttpResponse as error:
            raise WebhookFailed(f"{self._display_name} {error}") from None
        except OSError as error:
            failure = "cannot be reached" if writer is None else "broke the connection"
            raise WebhookFailed(f"{self._display_name} {failure}: {_reason(error)}") from error
        finally:
            if writer is not None:
                writer.transport.abort()
        if not 200 <= status < 300:
            redirects = ", but redirects are not followed" if 300 <= status < 400 else ""
            raise WebhookFailed(
                f"{self._display_name} answered {status}{redirects}" + (f": {excerpt}" if excerpt else "")
            )

    def _request_bytes(self, http: h11.Connection, delivery: str, body: bytes) -> bytes:
        headers = [
            *self._headers,
            ("Content-Length", str(len(body))),
            (DELIVERY_HEADER, delivery),
            (SIGNATURE_HEADER, sign(self._secret, body, self._clock.wall_ms() // 1_000)),
        ]
        head = http.send(h11.Request(method="POST", target=self._target, headers=headers))
        data = http.send(h11.Data(body))
        http.send(h11.EndOfMessage())
        assert head is not None
        assert data is not None
        return head + data


# -- reading the answer


class InvalidHttpResponse(Exception):
    """The receiver's answer is not HTTP. The message follows the receiver's name in a sentence."""


async def _next_event(http: h11.Connection, reader: StreamReader) -> h11.Event | type[h11.PAUSED]:
    while (event := http.next_event()) is h11.NEED_DATA:
        http.receive_data(await reader.read(RESPONSE_BYTES_MAX))
    return event  # type: ignore[return-value]


async def _read_status(http: h11.Connection, reader: StreamReader) -> int:
    try:
        event = await _next_event(http, reader)
        while isinstance(event, h11.InformationalResponse):  # the deadline ends this
            event = await _next_event(http, reader)
    except h11.RemoteProtocolError as error:
        if http.trailing_data == (b"", True):
            raise InvalidHttpResponse("closed the connection without an answer") from error
        if error.error_status_hint == 431:
            raise InvalidHttpResponse(f"answered with a head of more than {HEAD_KIB_MAX} KiB") from error
        raise InvalidHttpResponse("does not speak HTTP/1.1") from error
    assert isinstance(event, h11.Response), event
    return event.status_code


async def _read_excerpt(http: h11.Connection, reader: StreamReader) -> str:
    """Return the beginning of the answer's text, for people, as far as it arrives at once.

    Reading it also lets the receiver finish: closing a connection with unread data resets it.
    """
    text = b""
    try:
        async with asyncio.timeout(EXCERPT_WAIT_S):
            while len(text) < RESPONSE_BYTES_MAX and isinstance(
                event := await _next_event(http, reader), h11.Data
            ):
                text += event.data
    except (OSError, h11.RemoteProtocolError):
        pass  # the excerpt ends here, the status stands
    # One line without control characters: it ends up in logs and on terminals.
    words = "".join(c if c.isprintable() else " " for c in text.decode(errors="replace")).split()
    return " ".join(words)[:EXCERPT_CHARS_MAX]


def _reason(error: OSError) -> str:
    # The error numbers of TLS and of name resolution are not those of the operating system.
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError | gaierror) or not error.errno:
        return error.strerror or str(error)
    return os.strerror(error.errno)
