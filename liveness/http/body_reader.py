"""Reads request bodies, with a limit for each and a limit for all together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from starlette.requests import Request

from liveness.http.errors import HttpError, http_error

BODY_BYTES_MAX = 16 * 1024 * 1024
TOTAL_BYTES_MAX = 64 * 1024 * 1024
READ_TIMEOUT_S = 60.0
"""How long a body may take to arrive. Without this, a client that vanished halfway would occupy the buffer for ever."""


class BodyReader:
    def __init__(
        self,
        body_bytes_max: int = BODY_BYTES_MAX,
        total_bytes_max: int = TOTAL_BYTES_MAX,
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        self._body_bytes_max = body_bytes_max
        self._total_bytes_max = total_bytes_max
        self._read_timeout_s = read_timeout_s
        self._buffered_bytes = 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the body. It counts towards the total until the block ends."""
        length = request.headers.get("content-length", "")
        if length.isdecimal() and len(length) <= 20 and int(length) > self._body_bytes_max:
            raise self._too_large()
        parts: list[bytes] = []
        size = 0
        try:
            try:
                async with asyncio.timeout(self._read_timeout_s):
                    async for part in request.stream():
                        size += len(part)
                        self._buffered_bytes += len(part)
                        if size > self._body_bytes_max:
                            raise self._too_large()
                        if self._buffered_bytes > self._total_bytes_max:
                            raise _buffer_full()
                        parts.append(part)
            except TimeoutError:
                raise self._too_slow() from None
            yield b"".join(parts)
        finally:
            self._buffered_bytes -= size

    def _too_large(self) -> HttpError:
        return http_error(
            413,
            grpc.StatusCode.INVALID_ARGUMENT,
            "BODY_TOO_LARGE",
            f"A body may be at most {self._body_bytes_max / 1024 / 1024:g} MiB.",
            headers={"Connection": "close"},
        )

    def _too_slow(self) -> HttpError:
        return http_error(
            408,
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "BODY_TOO_SLOW",
            f"A body must arrive within {self._read_timeout_s:g} s.",
            headers={"Connection": "close"},
        )


def _buffer_full() -> HttpError:
    return http_error(
        503,
        grpc.StatusCode.UNAVAILABLE,
        "TOO_MANY_BODIES",
        "The bodies of other requests fill the memory that is reserved for them; try again.",
        headers={"Connection": "close"},
        retry_after_s=1,
    )
