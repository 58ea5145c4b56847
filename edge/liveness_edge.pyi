"""The native edge: HTTP/2 and gRPC on a thread of its own, without the interpreter lock.

Python takes the calls that have arrived, many at a time, and gives the answers back, many at a time.
"""

from collections.abc import Sequence
from typing import Any, Final

CALL: Final = 0
"""(CALL, id, method, headers, deadline_ms, message): a unary call with its whole request."""
OPEN: Final = 1
"""(OPEN, id, method, headers, deadline_ms): a streaming call begins. If it came by a prefix, `method` is -1, and the path follows."""
MESSAGE: Final = 2
"""(MESSAGE, id, message): a message of a streaming call. `release` says when there is room for more."""
HALF_CLOSE: Final = 3
"""(HALF_CLOSE, id): the client of a streaming call sends no further message."""
CANCEL: Final = 4
"""(CANCEL, id): the client cancelled the call, or its connection is gone. Nothing follows, and answers to it are ignored."""
WRITABLE: Final = 5
"""(WRITABLE, id): what `send` returned was more than `stream_buffer_bytes`; now there is room again."""

class Headers:
    """The metadata of a call. All calls of a connection whose metadata are equal share one object: what follows from them can be kept in it."""

    metadata: tuple[tuple[str, str | bytes], ...]
    """As gRPC shows it to handlers: without what belongs to the protocol (te, content-type, grpc-timeout and the like)."""
    peer: str
    """ipv4:127.0.0.1:5000, ipv6:%5B::1%5D:5000 or unix:"""
    connection: int
    """The number of the connection, from 1 on."""
    certificate: bytes | None
    """The client's certificate that was verified, as DER."""
    caller: Any
    """None until Python sets it. Other attributes may be set, too."""

    def __setattr__(self, name: str, value: Any) -> None: ...
    def __getattr__(self, name: str) -> Any: ...

class Edge:
    """One gRPC server. All methods may be called from any thread; none of them waits for the network, except `close`."""

    stream_buffer_bytes: int

    def __init__(
        self,
        *,
        connections_max: int = 10_000,
        streams_max: int = 1_000,
        header_bytes_max: int = 16_384,
        waiting_calls_max: int = 10_000,
        waiting_bytes_max: int = 67_108_864,
        unfinished_bytes_max: int = 33_554_432,
        unfinished_bytes_in_all_max: int = 536_870_912,
        unread_bytes_max: int = 67_108_864,
        unread_bytes_in_all_max: int = 536_870_912,
        stream_buffer_bytes: int = 262_144,
        handshake_timeout_ms: int = 10_000,
        message_timeout_ms: int = 60_000,
        write_timeout_ms: int = 60_000,
        idle_ms_max: int = 300_000,
        ping_interval_ms_min: int = 5_000,
        keepalive_ms: int = 60_000,
        keepalive_timeout_ms: int = 20_000,
        rapid_resets_max: int = 2_000,
        control_frames_max: int = 2_000,
    ) -> None:
        """
        connections_max: further ones are closed at once.
        streams_max: calls that are open on one connection.
        waiting_calls_max, waiting_bytes_max: what waits for `take`; above it, the edge reads no socket.
        unfinished_bytes_max, unfinished_bytes_in_all_max: parts of messages of one connection, and of all; above it, RESOURCE_EXHAUSTED.
        unread_bytes_max: answers that one client has not read; above it, its connection is closed.
        unread_bytes_in_all_max: of all clients; above it, the connection with the most is closed.
        stream_buffer_bytes: what one streaming call may have under way in each direction, before it must wait.
        handshake_timeout_ms: for TLS and the first frame, and for each block of headers.
        message_timeout_ms: for a message that has begun.
        write_timeout_ms: a client that reads nothing of an answer for so long is given up.
        idle_ms_max: for a connection without calls.
        ping_interval_ms_min: between a client's pings without data; the third that comes sooner closes the connection.
        keepalive_ms, keepalive_timeout_ms: the edge's own pings on silent connections with calls.
        rapid_resets_max: calls that a client cancels within a second after it made them: so many at once, a tenth of it per second.
        control_frames_max: frames without content (SETTINGS, PING, WINDOW_UPDATE, empty DATA, …): so many more than calls and data justify, a tenth of it per second.
        """

    def bind(self, host: str, port: int) -> int:
        """Returns the port. `host` may be unix:PATH: such a listener never speaks TLS. Raises OSError."""

    def set_tls(self, certificate_chain: bytes, key: bytes, client_ca: bytes | None, client_auth: str) -> None:
        """For handshakes that begin from now on. PEM; `client_auth` is none, optional or required. The first call comes before `start`. Raises ValueError."""

    def start(
        self,
        *,
        unary: Sequence[tuple[str, int]],
        streaming: Sequence[tuple[str, int]],
        prefixes: Sequence[tuple[str, int]] = (),
    ) -> None:
        """Accept connections. Each path comes with the most bytes that a message of it may have; `method` in events is the place in the list.

        A path that is in neither list but begins with one of `prefixes` is a streaming call with method -1. Others are answered UNIMPLEMENTED.
        """

    def fileno(self) -> int:
        """Readable while `take` has something."""

    def take(self, events_max: int = 2_000) -> list[tuple[Any, ...]]:
        """What has arrived, in order. Raises RuntimeError if the edge's thread has ended with an error."""

    def answer(self, answers: list[tuple[int, bytes]]) -> None:
        """OK, with these messages, for unary calls. Calls that are over are ignored, here and below."""

    def send(self, id: int, message: bytes) -> int:
        """One message of any call. Returns how many bytes wait to be sent: above `stream_buffer_bytes`, WRITABLE will follow."""

    def release(self, id: int, message_bytes: int, messages: int = 1) -> None:
        """The handler of a streaming call has taken so many messages of so many bytes. While more than 64 or `stream_buffer_bytes` are not released,
        the edge reads no further message of the call."""

    def initial_metadata(self, id: int, metadata: Sequence[tuple[str, str | bytes]]) -> None:
        """Before the first message. Raises ValueError if gRPC does not allow a key or value."""

    def finish(self, id: int, code: int, message: str, trailing: Sequence[tuple[str, str | bytes]]) -> None:
        """The end of any call."""

    def stop_accepting(self) -> None: ...
    def drain(self) -> None:
        """Tell clients to go elsewhere (GOAWAY). Calls that were read go on; their answers go out, then their connections close."""

    def open_calls(self) -> int:
        """Calls that Python has been given or will be given, until their answer is written."""

    def close(self, flush_ms: int = 1_000) -> None:
        """End everything. Waits, at most so long, until answers that were given have left."""

    def stats(self) -> dict[str, int]:
        """Counters by name: connections, handshakes_failed, calls, bytes_read, bytes_written, refused_…, closed_…"""
