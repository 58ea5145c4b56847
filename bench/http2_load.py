"""Load from a bare HTTP/2 client that stays connected between windows of load.

It writes bytes that were made before and only counts the frames of the answers, so that it needs a few microseconds for a call
that costs a server hundreds: the server is what is measured, without h2load, too. Headers are written as gRPC's own clients
write them: those that every call has are in the table of the connection, an `authorization` header is sent in full each time.

An error carries no message, so an answer without one ends the measurement.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Iterable, Sequence

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 0x1, 0x1, 0x4
FRAME_BYTES_MAX = 16_384
WINDOW_BYTES = 65_535
"""The window of a connection at its start."""
ROOM_BYTES = (1 << 31) - 1 - WINDOW_BYTES
READ_BYTES = 1 << 18
SILENCE_S = 60
POST, SCHEME_HTTP = b"\x83", b"\x86"
AUTHORITY, PATH = 1, 4
"""Their positions in HTTP/2's table of headers that everybody knows; positions after 61 are those of the connection."""
FIRST_OWN = 62


class CallFailed(Exception):
    """A call was refused, or the connection broke."""


class Connection:
    """Sends one request again and again, `streams` at a time."""

    def __init__(
        self, address: str, path: str, body: bytes, streams: int, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.streams = streams
        self._next_stream = 1
        self._window = WINDOW_BYTES
        self._received = bytearray()
        self._answered_with_message: set[int] = set()
        common = (("content-type", "application/grpc"), ("te", "trailers"), ("user-agent", "bench"))
        literals = b"".join(b"\0" + _text(name.encode()) + _text(value.encode()) for name, value in headers)
        self._first_headers = (
            POST
            + SCHEME_HTTP
            + _indexed_name(PATH)
            + _text(path.encode())
            + _indexed_name(AUTHORITY)
            + _text(address.encode())
            + b"".join(b"\x40" + _text(name.encode()) + _text(value.encode()) for name, value in common)
            + literals
        )
        table = bytes(0x80 | position for position in range(FIRST_OWN, FIRST_OWN + 2 + len(common)))
        self._later_headers = POST + SCHEME_HTTP + table + literals
        message = b"\0" + struct.pack(">I", len(body)) + body
        self._parts = [message[at : at + FRAME_BYTES_MAX] for at in range(0, len(message), FRAME_BYTES_MAX)]
        self._bytes = len(message)
        self.socket.sendall(
            PREFACE + _frame(SETTINGS, 0, 0, b"") + _frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", ROOM_BYTES))
        )

    def send(self, calls: int) -> int:
        """Send as many of the calls as the window of the connection has room for."""
        written = bytearray()
        sent = 0
        while sent < calls and self._window >= self._bytes:
            stream = self._next_stream
            headers = self._later_headers if stream > 1 else self._first_headers
            written += _frame(HEADERS, END_HEADERS, stream, headers)
            for part in self._parts:
                written += _frame(DATA, END_STREAM if part is self._parts[-1] else 0, stream, part)
            self._window -= self._bytes
            self._next_stream += 2
            sent += 1
        if written:
            self.socket.sendall(written)
        return sent

    def receive(self) -> int:
        """Read what has arrived. Returns how many calls it ends."""
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise CallFailed("the server closed the connection")
        received = self._received
        received += data
        at, ended = 0, 0
        while len(received) - at >= 9:
            size = received[at] << 16 | received[at + 1] << 8 | received[at + 2]
            if len(received) - at < 9 + size:
                break
            kind, flags = received[at + 3], received[at + 4]
            stream = int.from_bytes(received[at + 5 : at + 9])
            if kind == DATA and size > 5:
                self._answered_with_message.add(stream)
            elif kind == HEADERS and flags & END_STREAM:
                if stream not in self._answered_with_message:
                    raise CallFailed("a call was answered with an error")
                self._answered_with_message.discard(stream)
                ended += 1
            elif kind in (RST_STREAM, GOAWAY):
                raise CallFailed("the server ended a call or the connection")
            else:
                self._control(kind, flags, stream, bytes(received[at + 9 : at + 9 + size]))
            at += 9 + size
        del received[:at]
        return ended

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload)
        elif kind in (PING, SETTINGS) and not flags & ACK:
            self.socket.sendall(_frame(kind, ACK, 0, payload if kind == PING else b""))

    def close(self) -> None:
        self.socket.close()


def run(connections: Iterable[Connection], calls: int) -> float:
    """Make so many calls on each connection. Returns the seconds."""
    left: dict[Connection, int] = {}
    waiting: dict[Connection, int] = {}
    start = time.perf_counter()
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            waiting[connection] = connection.send(min(calls, connection.streams))
            left[connection] = calls - waiting[connection]
        while any(waiting.values()) or any(left.values()):
            ready = selector.select(SILENCE_S)
            if not ready:
                raise CallFailed(f"no answer came for {SILENCE_S} s")
            for key, _ in ready:
                connection = key.data
                waiting[connection] -= connection.receive()
                if left[connection]:
                    room = min(left[connection], connection.streams - waiting[connection])
                    sent = connection.send(room)
                    waiting[connection] += sent
                    left[connection] -= sent
    return time.perf_counter() - start


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    size = len(payload)
    return struct.pack(">BHBBI", size >> 16, size & 0xFFFF, kind, flags, stream) + payload


def _text(value: bytes) -> bytes:
    """A string of HPACK: its length as a number with a prefix of 7 bits, then its bytes."""
    return _number(len(value), 7) + value


def _indexed_name(position: int) -> bytes:
    """A header whose name is known, to be kept in the connection's table."""
    return bytes((0x40 | position,))


def _number(value: int, bits: int) -> bytes:
    most = (1 << bits) - 1
    if value < most:
        return bytes((value,))
    written = bytearray((most,))
    value -= most
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
