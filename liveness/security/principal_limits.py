"""Limits of each principal: calls and bytes per second, open streams, and connections. They are per server process.

Calls and bytes have a leaky bucket each, kept as the time at which it will be empty: one addition and one comparison a call.

gRPC does not tell when a connection is closed, so that one counts for a minute after the last call on it. A client that connects
for every call is still far below the limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from liveness.clock import Clock
from liveness.domain.errors import RateLimited, TooManyConnections, TooManyStreams

PRINCIPALS_MAX = 10_000
PRUNE_INTERVAL_MS = 1_000
BYTES_BURST_MS = 2_000
RETRY_MS_MIN = 50
CONNECTION_MS = 60_000
"""A connection counts for this long after the last call on it."""
OTHERS = "(others)"

CALLS = "calls"
BYTES = "bytes"
STREAMS = "streams"
CONNECTIONS = "connections"
REASONS = (CALLS, BYTES, STREAMS, CONNECTIONS)


class LimitSettings(Protocol):
    """The settings of servers and frontends that limit principals."""

    @property
    def principal_calls_per_s(self) -> float: ...

    @property
    def principal_calls_burst(self) -> int: ...

    @property
    def principal_bytes_per_s(self) -> float: ...

    @property
    def principal_streams_max(self) -> int: ...

    @property
    def principal_connections_max(self) -> int: ...


class _Buckets:
    __slots__ = ("bytes_until_ms", "calls_until_ms", "connections", "prune_ms", "streams")

    def __init__(self) -> None:
        self.calls_until_ms = 0.0
        self.bytes_until_ms = 0.0
        self.streams = 0
        self.connections: dict[str, int] = {}
        """When the last call came, by connection."""
        self.prune_ms = 0
        """When connections that are over may be searched for again."""


class PrincipalLimits:
    def __init__(
        self,
        clock: Clock,
        *,
        calls_per_s: float = 0,
        calls_burst: int = 0,
        bytes_per_s: float = 0,
        streams_max: int = 0,
        connections_max: int = 0,
    ) -> None:
        """0 is no limit. `calls_burst`: so many calls may come at once."""
        self._now_ms = clock.monotonic_ms
        self._ms_per_call = 1_000 / calls_per_s if calls_per_s else 0.0
        self._calls_ahead_ms = self._ms_per_call * max(1, calls_burst)
        self._ms_per_byte = 1_000 / bytes_per_s if bytes_per_s else 0.0
        self._streams_max = streams_max
        self._connections_max = connections_max
        self._by_name: dict[str, _Buckets] = {}
        self._prune_ms = 0
        """When those that are idle may be searched for again."""
        self.refused: Counter[str] = Counter(dict.fromkeys(REASONS, 0))

    def admit(self, name: str, size: int, connection: str = "") -> None:
        """Count a call of `size` bytes, or refuse it. A call that is larger than the limit is admitted, and those after it
        wait. `connection`: the one on which it came, by the name of its other end; empty if that is not counted."""
        buckets = self._by_name.get(name)
        if buckets is None:
            buckets = self._add(name)
        now_ms = self._now_ms()
        calls_ms, bytes_ms = buckets.calls_until_ms, buckets.bytes_until_ms
        if calls_ms < now_ms:
            calls_ms = now_ms
        if bytes_ms < now_ms:
            bytes_ms = now_ms
        calls_ms += self._ms_per_call
        if calls_ms - now_ms > self._calls_ahead_ms:
            self._refuse(CALLS, name, calls_ms - now_ms - self._calls_ahead_ms)
        if bytes_ms - now_ms > BYTES_BURST_MS:
            self._refuse(BYTES, name, bytes_ms - now_ms - BYTES_BURST_MS)
        if connection and self._connections_max:
            if connection not in buckets.connections:
                self._check_connections(buckets, name, now_ms)
            buckets.connections[connection] = now_ms
        buckets.calls_until_ms = calls_ms
        buckets.bytes_until_ms = bytes_ms + size * self._ms_per_byte

    @contextmanager
    def open_stream(self, name: str) -> Iterator[None]:
        """Count a stream for as long as it is open, or refuse it."""
        buckets = self._by_name.get(name) or self._add(name)
        if self._streams_max and buckets.streams >= self._streams_max:
            self.refused[STREAMS] += 1
            raise TooManyStreams(whose=name, limit=self._streams_max)
        buckets.streams += 1
        try:
            yield
        finally:
            buckets.streams -= 1

    def _check_connections(self, buckets: _Buckets, name: str, now_ms: int) -> None:
        """Refuse one more connection of a principal that has as many as it may have."""
        if len(buckets.connections) < self._connections_max:
            return
        if now_ms >= buckets.prune_ms:
            buckets.connections = {
                connection: used_ms
                for connection, used_ms in buckets.connections.items()
                if now_ms - used_ms < CONNECTION_MS
            }
            # The connection that is over first says when it is worth looking again.
            oldest_ms = min(buckets.connections.values(), default=now_ms)
            buckets.prune_ms = max(oldest_ms + CONNECTION_MS, now_ms + PRUNE_INTERVAL_MS)
        if len(buckets.connections) >= self._connections_max:
            self.refused[CONNECTIONS] += 1
            raise TooManyConnections(whose=name, limit=self._connections_max)

    def _refuse(self, reason: str, name: str, wait_ms: float) -> None:
        self.refused[reason] += 1
        raise RateLimited(whose=name, what=reason, retry_after_ms=max(RETRY_MS_MIN, int(wait_ms) + 1))

    def _add(self, name: str) -> _Buckets:
        now_ms = self._now_ms()
        if len(self._by_name) >= PRINCIPALS_MAX and now_ms >= self._prune_ms:
            self._prune_ms = now_ms + PRUNE_INTERVAL_MS
            self._by_name = {
                known: buckets
                for known, buckets in self._by_name.items()
                if buckets.streams or max(buckets.calls_until_ms, buckets.bytes_until_ms) > now_ms
            }
        if len(self._by_name) >= PRINCIPALS_MAX:
            name = OTHERS  # they share one limit, so that memory has one
        return self._by_name.setdefault(name, _Buckets())


def principal_limits(settings: LimitSettings, clock: Clock) -> PrincipalLimits:
    return PrincipalLimits(
        clock,
        calls_per_s=settings.principal_calls_per_s,
        calls_burst=settings.principal_calls_burst,
        bytes_per_s=settings.principal_bytes_per_s,
        streams_max=settings.principal_streams_max,
        connections_max=settings.principal_connections_max,
    )
