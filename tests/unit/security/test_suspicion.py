"""The counters of suspicious calls are bounded, and forget."""

from __future__ import annotations

import pytest

from liveness.clock import ManualClock
from liveness.security import suspicion
from liveness.security.suspicion import OFFENDERS_MAX, THRESHOLDS, TOKENS_MAX, Suspicion, SuspicionCounters


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall_ms=3_600_000 * 1_000)


@pytest.fixture
def counters(clock: ManualClock) -> SuspicionCounters:
    return SuspicionCounters(clock)


def test_an_offender_is_reported_above_its_threshold_until_a_quiet_minute_is_over(
    clock: ManualClock, counters: SuspicionCounters
) -> None:
    threshold = THRESHOLDS[suspicion.CLUSTER_PORT]
    for _ in range(threshold):
        counters.count_cluster_port_refusal("10.0.0.1")
    assert counters.suspicions() == []
    counters.count_cluster_port_refusal("10.0.0.1")
    expected = [Suspicion(suspicion.CLUSTER_PORT, "", "10.0.0.1", threshold + 1)]
    assert counters.suspicions() == expected
    clock.move(60_000)
    assert counters.suspicions() == expected
    clock.move(60_000)
    assert counters.suspicions() == []


def test_a_burst_of_registrations(counters: SuspicionCounters) -> None:
    for _ in range(THRESHOLDS[suspicion.REGISTRATIONS]):
        counters.count_registration("shop")
    assert counters.suspicions() == []
    counters.count_registration("shop")
    [found] = counters.suspicions()
    assert (found.kind, found.namespace) == (suspicion.REGISTRATIONS, "shop")


def test_memory_is_bounded_however_many_offenders_there_are(counters: SuspicionCounters) -> None:
    for number in range(3 * OFFENDERS_MAX):
        counters.count_failed_sign_in(f"10.0.{number // 256}.{number % 256}")
        counters.note_token_use(f"token-{number}", "10.0.0.1")
        counters.note_token_use("shared", f"10.0.{number // 256}.{number % 256}")
    assert len(counters._minutes[suspicion.FAILED_SIGN_INS]._now) == OFFENDERS_MAX + 1
    assert len(counters._tokens._seen) == TOKENS_MAX
    assert max(map(len, counters._tokens._seen.values())) == THRESHOLDS[suspicion.SHARED_TOKEN] + 1
    assert counters.totals[suspicion.FAILED_SIGN_INS] == 3 * OFFENDERS_MAX


def test_a_token_is_reported_for_its_addresses_within_an_hour(
    clock: ManualClock, counters: SuspicionCounters
) -> None:
    for number in range(THRESHOLDS[suspicion.SHARED_TOKEN]):
        counters.note_token_use("shared", f"host-{number}")
        counters.note_token_use("shared", f"host-{number}")
    assert counters.suspicions() == []
    counters.note_token_use("shared", "one-more")
    [found] = counters.suspicions()
    assert (found.kind, found.who) == (suspicion.SHARED_TOKEN, "shared")
    assert counters.suspicions("shop") == []
    clock.move(2 * 3_600_000)
    assert counters.suspicions() == []
