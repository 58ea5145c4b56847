"""Rates are exact for whoever arrives, and the memory for them is bounded."""

from __future__ import annotations

import pytest

from liveness.clock import ManualClock
from liveness.domain.errors import RateLimited
from liveness.domain.policy import Policy
from liveness.server import rate_limits
from liveness.server.rate_limits import Buckets, RateLimits


def admitted(limits: RateLimits, policy: Policy, clock: ManualClock, times: int, worker: str = "w") -> int:
    count = 0
    for _ in range(times):
        try:
            limits.admit(("orders", worker), policy, clock.monotonic_ms())
        except RateLimited:
            continue
        count += 1
    return count


def test_a_worker_has_fifty_heartbeats_a_second_by_default_and_a_burst_of_two_seconds() -> None:
    clock = ManualClock()
    limits = RateLimits(clock)
    policy = Policy()
    assert admitted(limits, policy, clock, 1_000) == 100
    for _ in range(10):
        clock.move(1_000)
        assert admitted(limits, policy, clock, 1_000) == 50
    assert admitted(limits, policy, clock, 1_000, "another") == 100
    clock.move(60_000)
    assert admitted(limits, policy, clock, 1_000) == 100, "a bucket holds no more than a burst"


@pytest.mark.parametrize("rate", [0.1, 5e-324, 1.7e308])
def test_extreme_rates_admit_the_first_heartbeat(rate: float) -> None:
    clock = ManualClock()
    limits = RateLimits(clock)
    assert admitted(limits, Policy(worker_heartbeat_rate=rate), clock, 50) == (50 if rate > 1 else 1)


def test_the_number_of_buckets_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "BUCKETS_MAX", 10)
    buckets: Buckets[str] = Buckets()
    for number in range(1_000):
        assert buckets.take(f"w{number}", 1, 100.0, 200.0) == 0
        assert len(buckets._newer) + len(buckets._older) <= 20
        # One that arrives again and again is never forgotten.
        assert bool(buckets.take("often", 1, 100.0, 200.0)) == (number >= 2)


def test_a_worker_may_change_its_session_ten_times_a_minute_after_a_burst_of_twenty() -> None:
    clock = ManualClock()
    limits = RateLimits(clock)

    def change(times: int) -> int:
        refused = 0
        for _ in range(times):
            try:
                limits.admit_session(("orders", "w"), Policy())
            except RateLimited:
                refused += 1
        return times - refused

    assert change(100) == 20
    clock.move(60_000)
    assert change(100) == 10
