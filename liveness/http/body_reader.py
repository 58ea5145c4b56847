"""Reads request bodies, with limits on size, time and speed for each, and a limit on the size of all together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from google.protobuf.descriptor import MethodDescriptor
from starlette.requests import Request

from liveness.http.client_shares import ClientShares, client_of
from liveness.http.errors import HttpError, http_error

KIB = 1024
MIB = 1024 * KIB
BODY_BYTES_MAX = 64 * KIB
BODY_BYTES_MAX_OF_METHOD = {
    "RecordWorkerHeartbeats": 4 * MIB,  # up to 1,000 heartbeats
    "RecordWorkerHeartbeat": 4 * MIB,  # with full_bindings it names up to 1,000 activities with their tokens
    "ScheduleActivity": 512 * KIB,  # a payload has 256 KiB at most, and base64 adds a third
    "CompleteActivity": 512 * KIB,
    "ReportMetrics": 2 * MIB,  # up to 1,000 samples
    "PollActivity": 512 * KIB,  # it names up to 1,000 activity types
}
TOTAL_BYTES_MAX = 64 * MIB
READ_TIMEOUT_S = 60.0
START_TIMEOUT_S = 10.0
"""How long a body may take, apart from the time that its bytes are given by `BYTES_PER_S_MIN`."""
BYTES_PER_S_MIN = 16 * KIB


def body_bytes_max(method: MethodDescriptor) -> int:
    return BODY_BYTES_MAX_OF_METHOD.get(method.name, BODY_BYTES_MAX)


class BodyReader:
    def __init__(
        self,
        total_bytes_max: int = TOTAL_BYTES_MAX,
        read_timeout_s: float = READ_TIMEOUT_S,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        self._shares = ClientShares(total_bytes_max)
        self._read_timeout_s = read_timeout_s
        self._start_timeout_s = min(start_timeout_s, read_timeout_s)

    @asynccontextmanager
    async def read(self, request: Request, bytes_max: int) -> AsyncIterator[bytes]:
        """Yield the body. It counts towards the total, and the client's share of it, until the block ends."""
        length = request.headers.get("content-length", "")
        if length.isdecimal() and (len(length) > 20 or int(length) > bytes_max):
            raise _too_large(bytes_max)
        client = client_of(request.scope.get("client"))
        parts: list[bytes] = []
        size = taken = 0
        try:
            try:
                async with asyncio.timeout(self._start_timeout_s) as deadline:
                    first_deadline_s = deadline.when()
                    assert first_deadline_s is not None
                    async for part in request.stream():
                        size += len(part)
                        if size > bytes_max:
                            raise _too_large(bytes_max)
                        if not self._shares.try_take(client, len(part)):
                            raise _buffer_full()
                        taken += len(part)
                        parts.append(part)
                        deadline.reschedule(first_deadline_s + self._more_time_for(size))
            except TimeoutError:
                raise self._too_slow() from None
            yield b"".join(parts)
        finally:
            self._shares.give_back(client, taken)

    def _more_time_for(self, size: int) -> float:
        """A slow client must not hold the memory of its body longer than a line of 16 KiB/s needs."""
        return min(size / BYTES_PER_S_MIN, self._read_timeout_s - self._start_timeout_s)

    def _too_slow(self) -> HttpError:
        return http_error(
            408,
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "BODY_TOO_SLOW",
            f"A body must begin within {self._start_timeout_s:g} s, go on at {BYTES_PER_S_MIN // KIB} KiB/s at least, and "
            f"arrive within {self._read_timeout_s:g} s.",
            headers={"Connection": "close"},
        )


def _too_large(bytes_max: int) -> HttpError:
    size = f"{bytes_max // MIB} MiB" if bytes_max >= MIB else f"{bytes_max // KIB} KiB"
    return http_error(
        413,
        grpc.StatusCode.INVALID_ARGUMENT,
        "BODY_TOO_LARGE",
        f"The body of this call may be at most {size}.",
        headers={"Connection": "close"},
    )


def _buffer_full() -> HttpError:
    return http_error(
        503,
        grpc.StatusCode.UNAVAILABLE,
        "TOO_MANY_BODIES",
        "The bodies of other requests fill the memory that is reserved for them, or this client's share of it; try again.",
        headers={"Connection": "close"},
        retry_after_s=1,
    )
