"""The calls that the native edge hands to Python: each is the context that its handler sees, as one of grpc.aio would be."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn, Protocol

import grpc

from liveness.clock import SystemClock

Metadata = Sequence[tuple[str, str | bytes]]

EXPIRED = "Deadline Exceeded"
MESSAGES_PER_TURN = 16
"""A stream that always has more to send lets others run after so many messages."""
FIRST_MESSAGE_S_MAX = 0.5
"""How long the refusal of a stream waits for the client's first message."""
CERTIFICATES_KEPT = 1_000
OK = grpc.StatusCode.OK
_CODES = {code.value[0]: code for code in grpc.StatusCode}

_monotonic_ms = SystemClock().monotonic_ms


class Headers(Protocol):
    """The header block of one or more calls of a connection."""

    metadata: tuple[tuple[str, str | bytes], ...]
    peer: str
    connection: int
    certificate: bytes | None
    """In DER; None if the client showed none."""
    caller: object | None
    """What Python remembers with it."""


class NativeEdge(Protocol):
    """`liveness_edge.Edge`, as far as it is used here."""

    stream_buffer_bytes: int

    def bind(self, host: str, port: int) -> int: ...
    def set_tls(
        self, certificate_chain: bytes, key: bytes, client_ca: bytes | None, client_auth: str
    ) -> None: ...
    def start(
        self,
        *,
        unary: Sequence[tuple[str, int]],
        streaming: Sequence[tuple[str, int]],
        prefixes: Sequence[tuple[str, int]],
    ) -> None: ...
    def fileno(self) -> int: ...
    def take(self) -> list[tuple[Any, ...]]: ...
    def answer(self, answers: list[tuple[int, bytes]]) -> None: ...
    def send(self, id: int, message: bytes) -> int: ...  # the module's name for it
    def release(self, id: int, message_bytes: int) -> None: ...
    def initial_metadata(self, id: int, metadata: Metadata) -> None: ...
    def finish(self, id: int, code: int, message: str, trailing: Metadata) -> None: ...
    def stop_accepting(self) -> None: ...
    def drain(self) -> None: ...
    def open_calls(self) -> int: ...
    def close(self) -> None: ...
    def stats(self) -> dict[str, int]: ...


class EdgeCall:
    """A call in progress."""

    __slots__ = (
        "_callbacks",
        "_code",
        "_details",
        "_edge",
        "_trailing",
        "_was_cancelled",
        "deadline_ms",
        "headers",
        "id",
        "is_over",
        "task",
        "timer",
    )

    def __init__(self, edge: NativeEdge, id_: int, headers: Headers, deadline_ms: int) -> None:
        """`deadline_ms`: on the monotonic clock; 0 if there is none."""
        self._edge = edge
        self.id = id_
        self.headers = headers
        self.deadline_ms = deadline_ms
        self.task: asyncio.Task[Any] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.is_over = False
        """Whether it has got its status, or its client is gone."""
        self._code: Any = OK
        self._details = ""
        self._trailing: Metadata = ()
        self._was_cancelled = False
        self._callbacks: list[Callable[[Any], None]] = []

    # -- what the caller said

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self.headers.metadata

    def peer(self) -> str:
        return self.headers.peer

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        certificate = self.headers.certificate
        return {} if certificate is None else describe_certificate(certificate)

    def peer_identity_key(self) -> str | None:
        return "x509_common_name" if self.headers.certificate is not None else None

    def peer_identities(self) -> Iterable[bytes] | None:
        return self.auth_context().get("x509_common_name")

    def time_remaining(self) -> float | None:
        """In seconds; None without a deadline."""
        return max(0, self.deadline_ms - _monotonic_ms()) / 1_000 if self.deadline_ms else None

    # -- what the handler says

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> Any:
        return self._code

    def set_details(self, details: str) -> None:
        self._details = details

    def details(self) -> str:
        return self._details

    def set_trailing_metadata(self, trailing_metadata: Metadata) -> None:
        self._trailing = tuple(trailing_metadata)

    def trailing_metadata(self) -> Metadata:
        return self._trailing

    async def send_initial_metadata(self, initial_metadata: Metadata) -> None:
        if not self.is_over:
            self._edge.initial_metadata(self.id, tuple(initial_metadata))

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()
    ) -> NoReturn:
        if code is OK:
            code, details = grpc.StatusCode.UNKNOWN, ""
        self._code, self._details = code, details
        self.finish(code, details, tuple(trailing_metadata) or self._trailing)
        raise grpc.aio.AbortError("the call was aborted by its handler")

    def set_compression(self, compression: grpc.Compression) -> None:
        """Answers are not compressed."""

    def disable_next_message_compression(self) -> None:
        """Answers are not compressed."""

    # -- how it ends

    def cancelled(self) -> bool:
        return self._was_cancelled

    def done(self) -> bool:
        return self.is_over

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self.is_over:
            callback(self)
        else:
            self._callbacks.append(callback)

    @property
    def has_only_message(self) -> bool:
        """Whether the handler said nothing beside its answer."""
        return self._code is OK and not self._trailing

    def finish_with_own_status(self) -> None:
        """End the call as its handler has set its status."""
        code = self._code if isinstance(self._code, grpc.StatusCode) else _CODES[int(self._code)]
        self.finish(code, self._details, self._trailing)

    def finish(self, code: grpc.StatusCode, details: str, trailing: Metadata = ()) -> None:
        if not self.is_over:
            number: Any = code.value[0]
            self._edge.finish(self.id, number, details, trailing)
            self.end()

    def cancel(self) -> None:
        """The client withdrew the call, or is gone."""
        if not self.is_over:
            self._was_cancelled = True
            self.end()
            if self.task is not None:
                self.task.cancel()

    def expire(self) -> None:
        """The call's deadline is over."""
        if not self.is_over:
            self._was_cancelled = True
            self.finish(grpc.StatusCode.DEADLINE_EXCEEDED, EXPIRED)
            if self.task is not None:
                self.task.cancel()

    def end(self) -> None:
        self.is_over = True
        if self.timer is not None:
            self.timer.cancel()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


class EdgeStream(EdgeCall):
    """A call of which either side may send any number of messages."""

    __slots__ = (
        "_has_begun",
        "_has_ended",
        "_messages",
        "_sent_in_turn",
        "_status",
        "_status_timer",
        "_waiting_reader",
        "_waiting_writer",
    )

    def __init__(self, edge: NativeEdge, id_: int, headers: Headers, deadline_ms: int) -> None:
        super().__init__(edge, id_, headers, deadline_ms)
        self._messages: deque[bytes] = deque()
        self._has_begun = False
        """Whether the client has sent its first message, or said that there is none."""
        self._has_ended = False
        """Whether the client has sent its last message."""
        self._status: tuple[grpc.StatusCode, str, Metadata] | None = None
        """How the call ends once the client has begun."""
        self._status_timer: asyncio.TimerHandle | None = None
        self._waiting_reader: asyncio.Future[None] | None = None
        self._waiting_writer: asyncio.Future[None] | None = None
        self._sent_in_turn = 0

    # -- what arrives

    def message_arrived(self, message: bytes) -> None:
        self._has_begun = True
        if self._status is not None:
            self._send_status()
            return
        self._messages.append(message)
        _wake(self._waiting_reader)

    def half_closed(self) -> None:
        self._has_begun = self._has_ended = True
        if self._status is not None:
            self._send_status()
            return
        _wake(self._waiting_reader)

    def writable(self) -> None:
        _wake(self._waiting_writer)

    def end(self) -> None:
        super().end()
        if self._status_timer is not None:
            self._status_timer.cancel()
        self._has_ended = True
        self._messages.clear()
        _wake(self._waiting_reader)
        _wake(self._waiting_writer)

    # -- how it ends

    def finish(self, code: grpc.StatusCode, details: str, trailing: Metadata = ()) -> None:
        """A client that has not sent its first message yet gets a refusal with it: clients of grpc.aio report a message that they cannot
        send any more as INTERNAL, whatever the status."""
        if self.is_over or self._status is not None:
            return
        if self._has_begun or code is OK:
            super().finish(code, details, trailing)
            return
        self._status = code, details, trailing
        self._status_timer = asyncio.get_running_loop().call_later(FIRST_MESSAGE_S_MAX, self._send_status)

    def _send_status(self) -> None:
        if self._status is not None and not self.is_over:
            code, details, trailing = self._status
            super().finish(code, details, trailing)

    # -- for the handler

    async def next_message(self) -> bytes | None:
        """None after the last one."""
        while not self._messages:
            if self._has_ended:
                return None
            self._waiting_reader = asyncio.get_running_loop().create_future()
            await self._waiting_reader
        message = self._messages.popleft()
        self._edge.release(self.id, len(message))
        return message

    async def requests(self, parse: Callable[[bytes], Any] | None) -> AsyncIterator[Any]:
        while (message := await self.next_message()) is not None:
            yield message if parse is None else parse(message)

    async def send(self, message: bytes) -> None:
        """Send a message, and return when the client has taken enough of those before it."""
        if self.is_over:
            return
        if self._edge.send(self.id, message) > self._edge.stream_buffer_bytes:
            self._waiting_writer = asyncio.get_running_loop().create_future()
            await self._waiting_writer
            return
        self._sent_in_turn += 1
        if self._sent_in_turn >= MESSAGES_PER_TURN:
            self._sent_in_turn = 0
            await asyncio.sleep(0)


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


@lru_cache(maxsize=CERTIFICATES_KEPT)
def describe_certificate(der: bytes) -> Mapping[str, Sequence[bytes]]:
    """A client certificate, with the names that gRPC gives to its parts."""
    # Imported late: the library takes a tenth of a second to load, and without TLS nothing needs it.
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.x509.oid import NameOID

    certificate = x509.load_der_x509_certificate(der)
    described: dict[str, Sequence[bytes]] = {
        "transport_security_type": (b"ssl",),
        "x509_pem_cert": (certificate.public_bytes(serialization.Encoding.PEM),),
    }
    if common_names := certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME):
        described["x509_common_name"] = (_encoded(common_names[0].value),)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return described
    uris = [name.encode() for name in names.get_values_for_type(x509.UniformResourceIdentifier)]
    hosts = [name.encode() for name in names.get_values_for_type(x509.DNSName)]
    others = [str(address).encode() for address in names.get_values_for_type(x509.IPAddress)]
    others += [name.encode() for name in names.get_values_for_type(x509.RFC822Name)]
    described["x509_subject_alternative_name"] = (*hosts, *uris, *others)
    described["peer_uri"] = tuple(uris)
    described["peer_dns"] = tuple(hosts)
    return described


def _encoded(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()
