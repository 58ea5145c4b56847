"""Just enough HTTP/2, written by hand, to send what no gRPC client sends."""

from __future__ import annotations

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, RST_STREAM, SETTINGS = 1, 3, 4
END_HEADERS = 4
CANCEL = 8


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _literal(name: bytes, value: bytes) -> bytes:
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call_headers(path: str) -> bytes:
    """POST over http, and what gRPC requires."""
    return (
        b"\x83\x86"
        + _literal(b":path", path.encode())
        + _literal(b":authority", b"localhost")
        + _literal(b"te", b"trailers")
        + _literal(b"content-type", b"application/grpc")
    )


def opened_and_reset(path: str, first_stream: int, count: int) -> bytes:
    headers, reset = call_headers(path), struct.pack(">I", CANCEL)
    return b"".join(
        frame(HEADERS, END_HEADERS, stream, headers) + frame(RST_STREAM, 0, stream, reset)
        for stream in range(first_stream, first_stream + 2 * count, 2)
    )
