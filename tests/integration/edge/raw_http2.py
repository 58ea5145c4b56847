"""HTTP/2 frames by hand, to send what no decent client sends."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, _PUSH, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS = 0x1, 0x1, 0x4
ENHANCE_YOUR_CALM = 0xB


@dataclass(frozen=True, slots=True)
class Frame:
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def error_code(self) -> int:
        """Of GOAWAY."""
        return int.from_bytes(self.payload[4:8], "big")

    @property
    def last_stream(self) -> int:
        return int.from_bytes(self.payload[:4], "big")


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def header_block(path: str, *more: tuple[str, str]) -> bytes:
    """Literals that no table remembers."""
    headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "edge"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        *more,
    ]
    return b"".join(b"\x00" + _string(name) + _string(value) for name, value in headers)


def _string(text: str) -> bytes:
    length, shown = len(text), bytearray()
    if length < 127:
        shown.append(length)
    else:
        shown.append(127)
        length -= 127
        while length >= 128:
            shown.append(length % 128 + 128)
            length //= 128
        shown.append(length)
    return bytes(shown) + text.encode()


def message(content: bytes) -> bytes:
    return b"\x00" + struct.pack(">I", len(content)) + content


def call(stream: int, path: str, content: bytes, *more: tuple[str, str]) -> bytes:
    return frame(HEADERS, END_HEADERS, stream, header_block(path, *more)) + frame(
        DATA, END_STREAM, stream, message(content)
    )


class RawConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int, *, settings: bytes = b"", introduces_itself: bool = True) -> RawConnection:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        connection = cls(reader, writer)
        if introduces_itself:
            connection.send(PREFACE + frame(SETTINGS, payload=settings))
        return connection

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def frame(self) -> Frame | None:
        """None: the connection is closed."""
        try:
            head = await asyncio.wait_for(self._reader.readexactly(9), 20)
            payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return Frame(head[3], head[4], int.from_bytes(head[5:9], "big"), payload)

    async def find(self, kind: int) -> Frame | None:
        """The next frame of this kind; None if the connection is closed before."""
        while (found := await self.frame()) is not None:
            if found.kind == kind:
                return found
        return None

    async def closed(self) -> int | None:
        """Waits for the end of the connection. Returns the last error that was told before."""
        code = None
        while (found := await self.frame()) is not None:
            if found.kind == GOAWAY:
                code = found.error_code
        return code

    def close(self) -> None:
        self._writer.close()

    async def __aenter__(self) -> RawConnection:
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.close()
