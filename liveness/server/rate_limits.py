"""Rates of heartbeats, per namespace and per worker, and of new sessions per worker.

Each rate is a token bucket, kept as one number: the moment until which the arrivals so far have used up the rate (GCRA, as ATM
networks call it). An arrival moves it by one interval; more than a burst ahead of the clock is refused. Every heartbeat
passes here, so a bucket that was not needed lately is forgotten: it is full by then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from liveness.clock import Clock
from liveness.domain.errors import RateLimited
from liveness.domain.policy import MINUTE_MS, SECOND_MS, Policy

BURST_PERIODS = 2
"""A bucket holds what its rate allows in so many seconds, or minutes if the rate is per minute; at least one arrival."""
BUCKETS_MAX = 50_000
"""In each of the two generations."""
RETRY_MS_MAX = 3_600_000
INTERVAL_MS_MAX = 1e12
"""Some 30 years: a lower rate would be lost in rounding."""

KeyT = TypeVar("KeyT")


class Buckets(Generic[KeyT]):
    """The buckets of many workers or namespaces, in two generations. A key that is used moves to the newer one. When that has
    its fill, the older one is dropped, so that memory is bounded; whoever was dropped has a full bucket again."""

    def __init__(self) -> None:
        self._newer: dict[KeyT, float] = {}
        self._older: dict[KeyT, float] = {}

    def take(self, key: KeyT, now_ms: int, interval_ms: float, burst_ms: float) -> float:
        """Count an arrival and return 0, or return the milliseconds to wait and count nothing. `interval_ms`: between arrivals
        at the full rate. `burst_ms`: the interval of as many arrivals as may come at once."""
        used_until_ms = self._newer.get(key)
        if used_until_ms is None:
            used_until_ms = self._older.get(key, 0.0)
            if len(self._newer) >= BUCKETS_MAX:
                self._newer, self._older = {}, self._newer
        if used_until_ms < now_ms:
            used_until_ms = now_ms
        used_until_ms += interval_ms
        if used_until_ms > now_ms + burst_ms:
            self._newer[key] = used_until_ms - interval_ms
            return used_until_ms - now_ms - burst_ms
        self._newer[key] = used_until_ms
        return 0

    def refund(self, key: KeyT, interval_ms: float) -> None:
        """Take back the arrival that was just counted."""
        self._newer[key] -= interval_ms


class RateLimits:
    def __init__(self, clock: Clock, share: Callable[[], float] = lambda: 1.0) -> None:
        """`share`: the part of all shards that this node serves; it may use the same part of a namespace's rate."""
        self._clock = clock
        self._share = share
        self._workers: Buckets[tuple[str, str]] = Buckets()
        self._namespaces: Buckets[str] = Buckets()
        self._sessions: Buckets[tuple[str, str]] = Buckets()
        self._policy: Policy | None = None
        """The policy of the last heartbeat, and the terms that follow from it: most heartbeats have the same."""
        self._interval_ms = self._burst_ms = 0.0

    def admit(self, key: tuple[str, str], policy: Policy, now_ms: int) -> None:
        """Count one heartbeat, or refuse it without counting it. `now_ms`: of the monotonic clock."""
        if policy is not self._policy:
            self._policy = policy
            self._interval_ms, self._burst_ms = _terms(policy.worker_heartbeat_rate, SECOND_MS)
        interval_ms = self._interval_ms
        if interval_ms and (wait_ms := self._workers.take(key, now_ms, interval_ms, self._burst_ms)):
            raise _refusal("heartbeats", f"worker {key[1]}", wait_ms)
        if policy.namespace_heartbeat_rate:
            namespace_rate = policy.namespace_heartbeat_rate * self._share()
            wait_ms = self._namespaces.take(key[0], now_ms, *_terms(namespace_rate, SECOND_MS))
            if wait_ms:
                if interval_ms:
                    self._workers.refund(key, interval_ms)
                raise _refusal("heartbeats", f"namespace {key[0]}", wait_ms)

    def admit_session(self, key: tuple[str, str], policy: Policy) -> None:
        """Count one new session or resurrection of a worker, or refuse it without counting it."""
        if rate := policy.worker_sessions_per_minute:
            wait_ms = self._sessions.take(key, self._clock.monotonic_ms(), *_terms(rate, MINUTE_MS))
            if wait_ms:
                raise _refusal("new sessions", f"worker {key[1]}", wait_ms)


def _terms(rate: float, period_ms: int) -> tuple[float, float]:
    """The interval between arrivals and the burst, in milliseconds; 0 if there is no limit."""
    if not rate:
        return 0.0, 0.0
    interval_ms = min(period_ms / rate, INTERVAL_MS_MAX)
    return interval_ms, max(float(BURST_PERIODS * period_ms), interval_ms)


def _refusal(what: str, whose: str, wait_ms: float) -> RateLimited:
    return RateLimited(what=what, whose=whose, retry_after_ms=int(min(wait_ms, RETRY_MS_MAX)) + 1)
