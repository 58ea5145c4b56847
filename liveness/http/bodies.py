"""Bodies of requests: never more of one than is allowed, and never more of all together than memory has room for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from starlette.requests import Request

from liveness.http.refusals import Refusal, refusal

BODY_BYTES_MAX = 16 * 1024 * 1024
BODIES_BYTES_MAX = 64 * 1024 * 1024
ARRIVAL_S = 60.0
"""How long a body may take to arrive. Whoever vanished halfway, without a word, would otherwise keep its room for ever."""


class Bodies:
    def __init__(
        self,
        one_max: int = BODY_BYTES_MAX,
        all_max: int = BODIES_BYTES_MAX,
        arrival_s: float = ARRIVAL_S,
    ) -> None:
        self._one_max = one_max
        self._all_max = all_max
        self._arrival_s = arrival_s
        self._held = 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """The body, which counts for as long as the block lasts."""
        length = request.headers.get("content-length", "")
        if length.isdecimal() and len(length) <= 20 and int(length) > self._one_max:
            raise self._too_large()
        parts: list[bytes] = []
        size = 0
        try:
            try:
                async with asyncio.timeout(self._arrival_s):
                    async for part in request.stream():
                        size += len(part)
                        self._held += len(part)
                        if size > self._one_max:
                            raise self._too_large()
                        if self._held > self._all_max:
                            raise _too_much()
                        parts.append(part)
            except TimeoutError:
                raise self._too_slow() from None
            yield b"".join(parts)
        finally:
            self._held -= size

    def _too_large(self) -> Refusal:
        return refusal(
            413,
            grpc.StatusCode.INVALID_ARGUMENT,
            "BODY_TOO_LARGE",
            f"A body may have {self._one_max / 1024 / 1024:g} MiB at most.",
            headers={"Connection": "close"},
        )

    def _too_slow(self) -> Refusal:
        return refusal(
            408,
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "BODY_TOO_SLOW",
            f"A body may take {self._arrival_s:g} s to arrive.",
            headers={"Connection": "close"},
        )


def _too_much() -> Refusal:
    return refusal(
        503,
        grpc.StatusCode.UNAVAILABLE,
        "TOO_MANY_BODIES",
        "Other requests fill the memory that there is for their bodies; try again.",
        headers={"Connection": "close"},
        retry_after_s=1,
    )
