"""uvicorn's HTTP protocol with limits on the head of a request, and reports to `Connections`.

uvicorn has no option for any of this: it lets a head take for ever, counts no header lines, accepts Content-Length together with
Transfer-Encoding, and fails with an exception if a body turns out malformed after the response has begun.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import grpc
import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from liveness.http.app import CLIENT_CERTIFICATE
from liveness.http.connections import Connections, OpenConnection
from liveness.http.errors import http_error
from liveness.http.guard import SECURITY_HEADERS
from liveness.http.json_output import json_bytes

HEAD_BYTES_MAX = 128 * 1024
"""Per request. A resume token contains a number for each shard, and may be in the request line or in a header."""
REQUEST_LINE_BYTES_MAX = 64 * 1024
HEADERS_MAX = 100
MESSAGE_CHARS_MAX = 200


class HeadLimits(h11.Connection):
    """Refuses requests by their head, before h11 parses it."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, HEAD_BYTES_MAX)
        self.problem: h11.RemoteProtocolError | None = None
        """Why the last request was refused."""

    def next_event(self) -> Any:
        try:
            if self.their_state is h11.IDLE:
                _check_lines(self.trailing_data[0])
            event = super().next_event()
            if isinstance(event, h11.Request):
                _check_framing(event)
        except h11.RemoteProtocolError as problem:
            self.problem = problem
            raise
        return event


def _check_lines(received: bytes) -> None:
    received = received.lstrip(b"\r\n")
    line_end = received.find(b"\n")
    if (len(received) if line_end < 0 else line_end) > REQUEST_LINE_BYTES_MAX:
        raise h11.RemoteProtocolError(
            f"the request line may have at most {REQUEST_LINE_BYTES_MAX} bytes", error_status_hint=414
        )
    if len(received) <= HEAD_BYTES_MAX and received.count(b"\n") <= HEADERS_MAX:
        return  # so there is no need to find the end of the head
    ends = [end for end in (received.find(b"\n\r\n"), received.find(b"\n\n")) if end >= 0]
    head_bytes = min(ends, default=len(received))
    if head_bytes > HEAD_BYTES_MAX:
        raise h11.RemoteProtocolError(
            f"its headers may have at most {HEAD_BYTES_MAX} bytes", error_status_hint=431
        )
    if received.count(b"\n", 0, head_bytes) > HEADERS_MAX:
        raise h11.RemoteProtocolError(f"it may have at most {HEADERS_MAX} headers", error_status_hint=431)


def _check_framing(request: h11.Request) -> None:
    names = {name for name, _ in request.headers}
    if {b"content-length", b"transfer-encoding"} <= names:
        # A proxy in front may believe the one, and this server the other: then they see different requests.
        raise h11.RemoteProtocolError("it has both Content-Length and Transfer-Encoding; send one of them")


class LimitedProtocol(H11Protocol):
    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        connections: Connections,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn: HeadLimits = HeadLimits()
        self._connections = connections
        self._connection: OpenConnection
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._connection = self._connections.find(transport.get_extra_info("peername"))
        self._connection.set_transport(transport)
        if (tls := transport.get_extra_info("ssl_object")) is not None:
            # Without a certificate that was verified, it is empty.
            self.app_state = {**self.app_state, CLIENT_CERTIFICATE: tls.getpeercert() or {}}
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if not self._is_refused:
            super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete and not self._is_refused:
            self._connections.set_busy(self._connection)

    def on_response_complete(self) -> None:
        self._connections.set_waiting(self._connection)
        super().on_response_complete()  # may begin with the next request

    def pause_writing(self) -> None:
        self._connections.set_stalled(self._connection)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._connections.set_flowing(self._connection)
        super().resume_writing()

    def shutdown(self) -> None:
        if self._is_refused:
            self.transport.abort()
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not valid HTTP, and read no further requests from this connection."""
        self._is_refused = True
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            # The body of a request that is being handled is malformed.
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.abort()
                return
        self._connections.set_waiting(self._connection)
        problem = self.conn.problem
        self.transport.write(_refusal(problem))
        if self.transport.can_write_eof():
            # Closing now would reset the connection if the client still sends, and the client might never see the answer.
            self.transport.write_eof()
            self.flow.resume_reading()
        else:
            self.transport.close()


_REASONS = {414: "REQUEST_LINE_TOO_LARGE", 431: "HEADERS_TOO_LARGE"}


def _refusal(problem: h11.RemoteProtocolError | None) -> bytes:
    code = 400 if problem is None else problem.error_status_hint
    status = HTTPStatus(code)
    message = f"The request is not valid HTTP: {str(problem)[:MESSAGE_CHARS_MAX]}."
    error = http_error(
        code, grpc.StatusCode.INVALID_ARGUMENT, _REASONS.get(code, "MALFORMED_REQUEST"), message
    )
    body = json_bytes(error.as_json())
    headers = {
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Cache-Control": "no-store",
        "Connection": "close",
        **SECURITY_HEADERS,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status.value} {status.phrase}\r\n{lines}\r\n".encode() + body
