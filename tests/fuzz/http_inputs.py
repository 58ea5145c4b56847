"""Random HTTP requests as raw bytes, for all routes: valid ones, nearly valid ones, and plain nonsense.

    inputs = HttpInputs(seed=7)
    for _ in range(1_000):
        await send(port, inputs.next())

The same seed draws the same inputs. Each has at most `INPUT_BYTES_MAX` bytes, so any number of them costs bounded time.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import quote

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from liveness.http.endpoints import WHOLE_BODY, Endpoint, endpoints_of
from liveness.http.fields import FieldPath
from liveness.http.openapi import SERVICES
from liveness.http.session_cookie import NAME as SESSION_COOKIE
from tests.fuzz.credentials import Credentials

INPUT_BYTES_MAX = 80 * 1024
DEPTH_MAX = 4
ANSWER_BYTES_MAX = 64 * 1024
OTHER_PATHS = (
    "/",
    "/healthz",
    "/readyz",
    "/metrics",
    "/openapi.json",
    "/app.js",
    "/nowhere",
    "*",
    "",
    "//",
    "/v1/%2e%2e",
    "/api/web/worker/status",
    "/api/web/worker/status?page_size=2&statuses=FAILED",
    "/api/web/worker/restart",
    "/api/v1/info",
    "/api/worker/pools?runtime=cpu&status=ready",
    "/api/metrics/query?component_name=a&metric_name=m&limit=5",
)
NOETL_PATHS = (
    ("POST", "/api/worker/pool/register"),
    ("POST", "/api/worker/pool/heartbeat"),
    ("DELETE", "/api/worker/pool/deregister"),
    ("POST", "/api/runtime/register"),
    ("POST", "/api/runtime/deregister"),
    ("POST", "/api/metrics/report"),
)
NOETL_FIELDS = (
    "name", "runtime", "uri", "status", "capacity", "labels", "pid", "hostname", "meta", "component_type", "kind", "registration",
    "component_name", "metrics", "base_url",
)  # fmt: skip
NOETL_SAMPLE_FIELDS = (
    "metric_name",
    "metric_type",
    "metric_value",
    "labels",
    "timestamp",
    "help_text",
    "unit",
)
TEXTS = (
    "", "a", "orders", "w", "w-1", "\0", "\ud800", "ä", "\U0001f600", "..", "a/b", "%", "%00", "null", "-1", "x" * 300, "x" * 5_000,
    "WyJ", "2024-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999Z", "5s", "-5s", "0.0000000001s", "315576000001s", "1e9s", "NaN",
)  # fmt: skip
NUMBERS = (
    0,
    1,
    -1,
    2,
    7,
    1.5,
    1e308,
    -0.0,
    2**31 - 1,
    2**31,
    -(2**31) - 1,
    2**53,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    10**30,
)
RAW_JSON = (
    b"", b" ", b"{", b"}", b"[]", b"[", b"null", b"true", b"5", b'"a"', b'""', b"{}{}", b'{"a"}', b'{"a":}', b"\xff\xfe", b"\xef\xbb\xbf{}",
    b"{,}", b"[1,]", b"NaN", b"-Infinity", b"1e999999", b'"\\ud800"', b"[" * 2_000, b'{"a":' * 900, b'{"a":1,"a":2}', b"{}\0",
)  # fmt: skip
HEADERS = (
    b"Content-Type: application/json", b"Content-Type: text/plain", b"Content-Type:", b"Content-Type: application/json; charset=latin-1",
    b"Content-Encoding: gzip", b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: identity",
    b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: +1", b"Content-Length: 99999999999999999999999", b"Content-Length: 1, 1",
    b"Content-Length: 0x5", b"Expect: 100-continue", b"Expect: nonsense", b"Connection: close", b"Connection: keep-alive, Upgrade",
    b"Upgrade: websocket", b"Upgrade: h2c", b"Host: evil.example", b"Host:", b"Host: [::1", b"Origin: http://evil.example", b"Origin: null",
    b"Origin: http://[", b"Sec-Fetch-Site: cross-site", b"Last-Event-ID: nonsense", b"Last-Event-ID: \xff", b"X-Timeout: 1ms",
    b"X-Timeout: never", b"X-Timeout: 5s", b"traceparent: \x7f", b"traceparent: 00-" + b"1" * 32 + b"-" + b"1" * 16 + b"-01", b"no colon",
    b": no name", b"Sp ace: a", b"Folded: a\r\n b", b"A: \0", b"If-None-Match: *", b"Range: bytes=0-", b"X: " + b"y" * 9_000, b"",
)  # fmt: skip


@dataclass(frozen=True)
class HttpInput:
    parts: tuple[bytes, ...]
    """Sent one after the other, each in a packet of its own where the system allows."""
    ends: bool
    """Whether the client ends its side after the last part."""


class HttpInputs:
    def __init__(self, seed: int, *, has_credentials: bool = False) -> None:
        """`has_credentials`: for servers that ask who calls."""
        self._random = random.Random(seed)
        self._credentials = Credentials(seed) if has_credentials else None
        self._is_tame = False
        """Whether the request that is being drawn has ordinary values only, so that many are accepted."""
        self._endpoints = tuple(endpoints_of(SERVICES))
        self._kinds: tuple[tuple[Callable[[], bytes], int], ...] = (
            (self._request, 10),
            (self._damaged, 4),
            (self._pipelined, 1),
            (self._junk, 1),
            (self._noetl, 1),
            *(((self._sign_in, 1),) if has_credentials else ()),
        )

    def next(self) -> HttpInput:
        kinds, weights = zip(*self._kinds, strict=True)
        [draw] = self._random.choices(kinds, weights)
        data = draw()[:INPUT_BYTES_MAX]
        cuts = sorted(
            self._random.randrange(len(data) + 1) for _ in range(self._random.choice((0, 0, 0, 1, 3)))
        )
        edges = [0, *cuts, len(data)]
        parts = tuple(data[start:end] for start, end in pairwise(edges) if end > start)
        return HttpInput(parts, self._flip(0.3))

    # -- whole requests

    def _request(self) -> bytes:
        random = self._random
        self._is_tame = random.random() < 0.4
        endpoint = random.choice(self._endpoints)
        body = self._body(endpoint)
        if self._odd(0.1):
            verb = random.choice(
                (
                    "GET",
                    "HEAD",
                    "POST",
                    "PUT",
                    "DELETE",
                    "PATCH",
                    "OPTIONS",
                    "CONNECT",
                    "TRACE",
                    "get",
                    "X" * 50,
                )
            )
        else:
            verb = endpoint.verb
        target = random.choice(OTHER_PATHS) if self._flip(0.05) else self._target(endpoint)
        headers = [b"Host: localhost"]
        if verb != "GET" or self._flip(0.1):
            headers.append(b"Content-Type: application/json")
        if self._odd(0.2):
            headers += random.choices(HEADERS, k=random.randint(1, 4))
        if self._flip(0.02):
            headers += [b"X-%d: a" % number for number in range(random.choice((90, 150, 2_000)))]
        if self._flip(0.15):
            headers.append(b"Transfer-Encoding: chunked")
            body = self._chunked(body)
        elif body or verb != "GET":
            length = len(body) if self._flip(0.95) else random.choice((0, 1, len(body) + 1, 2**40))
            headers.append(b"Content-Length: %d" % length)
        headers += self._who_calls()
        random.shuffle(headers)
        version = (
            b"HTTP/1.1" if self._flip(0.97) else random.choice((b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9", b""))
        )
        line = verb.encode() + b" " + target.encode("utf-8", "surrogatepass") + b" " + version
        return b"\r\n".join([line, *headers, b"", b""]) + body

    def _who_calls(self) -> list[bytes]:
        """The header or the cookie that says who calls; a browser sends a cookie only."""
        credentials, random = self._credentials, self._random
        if credentials is None:
            return []
        if self._flip(0.8):
            return [b"Authorization: " + _header(value) for _, value in credentials.headers(random)]
        return [f"Cookie: {SESSION_COOKIE}={credentials.value(random)}".encode("latin-1", "replace")]

    def _sign_in(self) -> bytes:
        """What a browser sends when a person signs in or out, or asks who is signed in."""
        assert self._credentials is not None
        random = self._random
        path = random.choice(("/auth/sign-in", "/auth/sign-in", "/auth/sign-out", "/auth/session"))
        body = random.choice(
            (
                json.dumps({"token": self._credentials.value(random)}).encode(),
                json.dumps({"token": self._scalar()}).encode(),
                json.dumps({"everywhere": random.choice((True, False, self._scalar()))}).encode(),
                random.choice(RAW_JSON),
            )
        )
        verb = b"GET" if path.endswith("session") and self._flip(0.8) else b"POST"
        length = b"Content-Length: %d" % len(body)
        headers = [b"Host: localhost", b"Content-Type: application/json", length, *self._who_calls()]
        return b"\r\n".join([b"%b %b HTTP/1.1" % (verb, path.encode()), *headers, b"", b""]) + body

    def _noetl(self) -> bytes:
        """What a client of the NoETL door sends."""
        random = self._random
        verb, path = random.choice(NOETL_PATHS)
        known = {"name": "a", "component_name": "a", "runtime": "cpu", "uri": "u", "pid": 7, "hostname": "h"}
        body = {
            **known,
            "metrics": [{"metric_name": "m", "metric_value": 1.5} for _ in range(random.randrange(3))],
        }
        for field in random.sample(NOETL_FIELDS, random.choice((0, 1, 1, 3))):
            body[field] = self._scalar()
        if self._flip(0.2):
            body["metrics"] = [
                {field: self._scalar() for field in NOETL_SAMPLE_FIELDS} for _ in range(random.randrange(4))
            ]
        content = json.dumps(body).encode() if self._flip(0.9) else random.choice(RAW_JSON)
        length = b"Content-Length: %d" % len(content)
        headers = [b"Host: localhost", b"Content-Type: application/json", length, *self._who_calls()]
        return (
            b"\r\n".join([b"%b %b HTTP/1.1" % (verb.encode(), path.encode()), *headers, b"", b""]) + content
        )

    def _pipelined(self) -> bytes:
        return b"".join(self._request()[:8_000] for _ in range(self._random.randint(2, 5)))

    def _damaged(self) -> bytes:
        """A request with some bytes changed, left out or repeated."""
        data = bytearray(self._request())
        for _ in range(self._random.randint(1, 6)):
            at = self._random.randrange(len(data))
            match self._random.randrange(4):
                case 0:
                    data[at] = self._random.randrange(256)
                case 1:
                    del data[at : at + self._random.randint(1, 20)]
                case 2:
                    data[at:at] = data[at : at + self._random.randint(1, 20)]
                case _:
                    data[at:at] = self._random.choice(
                        (b"\r\n", b"\n", b"\r\n\r\n", b"\0", b'"', b"[", b"{", b"}", b":", b"%")
                    )
            if not data:
                return b"\r\n"
        return bytes(data)

    def _junk(self) -> bytes:
        return self._random.choice(
            (
                self._random.randbytes(self._random.randint(1, 3_000)),
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + self._random.randbytes(200),
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + self._random.randbytes(50),
                b"\r\n" * 5_000,
                b"GET " + b"a" * 70_000,
                b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 10_000,
            )
        )

    # -- their parts

    def _target(self, endpoint: Endpoint) -> str:
        segments = [
            quote(self._text(), safe="", errors="replace") if isinstance(segment, FieldPath) else segment
            for segment in endpoint.segments
        ]
        if not self._odd(0.3):  # so that most requests meet each other's workers
            segments = [
                self._random.choice(("w", "w-1", "1")) if isinstance(spec, FieldPath) and spec.leaf.name != "namespace" else
                "orders" if isinstance(spec, FieldPath) else spec
                for spec in endpoint.segments
            ]  # fmt: skip
        target = "/" + "/".join(segments)
        if self._odd(0.4):
            names = [field.name for field in endpoint.method.input_type.fields]
            pairs = []
            for _ in range(self._random.choice((1, 1, 2, 5, 50))):
                name = self._random.choice([*names, "filter.states", "id.run_id", "filter.", "a.b.c", ""])
                value = quote(str(self._scalar()), safe="", errors="replace") if self._flip(0.95) else "%zz"
                pairs.append(f"{name}={value}")
            target += "?" + "&".join(pairs)
        return target

    def _body(self, endpoint: Endpoint) -> bytes:
        if self._odd(0.1):
            return self._random.choice(RAW_JSON)
        if not endpoint.body:
            return b"" if self._flip(0.9) else b"{}"
        message = endpoint.method.input_type
        if endpoint.body != WHOLE_BODY:
            field = message.fields_by_name[endpoint.body]
            assert field.message_type is not None
            message = field.message_type
        value = self._message(message, 0) if self._flip(0.95) else self._scalar()
        if isinstance(value, dict) and self._flip(0.7):
            for segment in endpoint.segments:  # the path says them already
                if isinstance(segment, FieldPath):
                    value.pop(segment.leaf.name, None)
        return json.dumps(value).encode()

    def _message(self, message: Descriptor, depth: int) -> Any:
        if not message.full_name.startswith("liveness."):
            return self._scalar()
        value: dict[str, Any] = {}
        for field in message.fields:
            if self._flip(0.35):
                name = field.camelcase_name if self._flip(0.1) else field.name
                value[name] = self._field(field, depth)
                if self._odd(0.01):
                    value[field.camelcase_name] = value[name]
        if self._odd(0.03):
            value[self._text()] = self._scalar()
        return value

    def _field(self, field: FieldDescriptor, depth: int) -> Any:
        if self._odd(0.03):
            return self._scalar()
        nested = field.message_type
        if nested is not None and nested.GetOptions().map_entry:
            return {self._text(): self._text() for _ in range(self._random.choice((0, 1, 3, 200)))}
        if field.is_repeated:
            return [
                self._single(field, depth + 1)
                for _ in range(self._random.choice((0, 1, 2, 5, 5, 300 if depth == 0 else 3)))
            ]
        return self._single(field, depth + 1)

    def _single(self, field: FieldDescriptor, depth: int) -> Any:
        if field.message_type is not None:
            return {} if depth > DEPTH_MAX else self._message(field.message_type, depth)
        if self._odd(0.1):
            return self._scalar()
        if field.enum_type is not None:
            names = [*field.enum_type.values_by_name]
            return self._random.choice(names if self._is_tame else [*names, 0, 1, 99, -1])
        match field.cpp_type:
            case FieldDescriptor.CPPTYPE_BOOL:
                return self._flip(0.5)
            case FieldDescriptor.CPPTYPE_STRING:
                return self._text()
            case _:
                return 1 if self._is_tame else self._random.choice(NUMBERS)

    def _scalar(self) -> Any:
        if self._is_tame:
            return self._random.choice(("5s", "a", 1))
        if self._flip(0.02):
            return _nested(self._random.choice((100, 300, 900)), self._flip(0.5))
        return self._random.choice(
            (self._text(), self._random.choice(NUMBERS), None, True, [], {}, [[]], [{}], {"a": []})
        )

    def _text(self) -> str:
        return (
            self._random.choice(TEXTS)
            if self._flip(0.5) and not self._is_tame
            else self._random.choice(("w", "w-1", "orders", "q", "a"))
        )

    def _chunked(self, body: bytes) -> bytes:
        cut = self._random.randint(0, len(body))
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:cut], body[cut:]) if part)
        end = (
            b"0\r\n\r\n"
            if self._flip(0.9)
            else self._random.choice((b"", b"0\r\nX: a\r\n\r\n", b"-1\r\n", b"fffffffff\r\n", b"zz\r\n"))
        )
        return chunks + end

    def _odd(self, probability: float) -> bool:
        return not self._is_tame and self._flip(probability)

    def _flip(self, probability: float) -> bool:
        return self._random.random() < probability


def _header(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _nested(depth: int, lists: bool) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if lists else {"a": value}
    return value


async def send(
    port: int, http_input: HttpInput, *, host: str = "127.0.0.1", timeout_s: float = 1.0
) -> list[int]:
    """Send an input, and return the status codes of the answers that come within the time. The connection ends then."""
    received = bytearray()
    reader, writer = await asyncio.open_connection(host, port)
    try:
        async with asyncio.timeout(timeout_s):
            for part in http_input.parts:
                writer.write(part)
                await writer.drain()
            if http_input.ends:
                writer.write_eof()
            while len(received) < ANSWER_BYTES_MAX and not (received and not http_input.ends):
                data = await reader.read(ANSWER_BYTES_MAX)
                if not data:
                    break
                received += data
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.transport.abort()
    return [int(code) for code in re.findall(rb"HTTP/1\.1 ([0-9]{3})", received)]
