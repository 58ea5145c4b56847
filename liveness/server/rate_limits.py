"""Heartbeat rates: a token bucket per namespace and per worker, kept only where a limit is set."""

from __future__ import annotations

from collections.abc import Callable

from liveness.clock import Clock
from liveness.domain.errors import RateLimited
from liveness.domain.policy import Policy

BURST_S = 2.0
BUCKETS_MAX = 100_000
RETRY_MS_MAX = 3_600_000


class _Bucket:
    __slots__ = ("_tokens", "_updated_ms")

    def __init__(self, now_ms: int, burst: float) -> None:
        self._updated_ms = now_ms
        self._tokens = burst

    def take(self, now_ms: int, rate: float, burst: float) -> int:
        """Returns 0, or the milliseconds to wait for a token."""
        self._tokens = min(burst, self._tokens + (now_ms - self._updated_ms) * rate / 1_000)
        self._updated_ms = now_ms
        if self._tokens >= 1:
            self._tokens -= 1
            return 0
        return int(min((1 - self._tokens) / rate * 1_000, RETRY_MS_MAX)) + 1

    def refund(self) -> None:
        self._tokens += 1


class RateLimits:
    def __init__(self, clock: Clock, share: Callable[[], float] = lambda: 1.0) -> None:
        """`share`: the part of all shards that this node serves; it may use the same part of a namespace's rate."""
        self._clock = clock
        self._share = share
        self._buckets: dict[str | tuple[str, str], _Bucket] = {}

    def admit(self, key: tuple[str, str], policy: Policy) -> None:
        """Count one heartbeat, or refuse it without counting it."""
        worker_bucket = self._take(key, policy.worker_heartbeat_rate, f"worker {key[1]}")
        try:
            self._take(key[0], policy.namespace_heartbeat_rate * self._share(), f"namespace {key[0]}")
        except RateLimited:
            if worker_bucket is not None:
                worker_bucket.refund()
            raise

    def _take(self, bucket_key: str | tuple[str, str], rate: float, name: str) -> _Bucket | None:
        if not rate:
            return None
        now_ms, burst = self._clock.monotonic_ms(), max(1.0, rate * BURST_S)
        bucket = self._buckets.get(bucket_key)
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                # Bounds the memory. The evicted worker or namespace gets a full burst again.
                del self._buckets[next(iter(self._buckets))]
            bucket = self._buckets[bucket_key] = _Bucket(now_ms, burst)
        wait_ms = bucket.take(now_ms, rate, burst)
        if wait_ms:
            raise RateLimited(whose=name, retry_after_ms=wait_ms)
        return bucket
