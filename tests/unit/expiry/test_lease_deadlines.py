"""Whether a lease is over, why, and when: one table for all terms of a lease and their combinations.

The lease in the table was renewed at 1,000 and granted for 10,000 ms, so silence ends it at 11,000.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import pytest

from liveness.domain import decider
from liveness.domain.events import WorkerDeactivated
from liveness.domain.keys import WorkerKey
from liveness.domain.policy import Policy
from liveness.domain.worker import InactiveReason, Standing, Worker, WorkerState
from liveness.expiry.disconnects import DisconnectedWorkers
from liveness.expiry.lease_deadlines import TAKEOVER_GRACES_MAX, LeaseDeadlines, LeaseEnd
from tests.unit.domain.worker_scenario import registered

KEY = WorkerKey("default", "w1")
RENEWED_MS, GRANTED_MS = 1_000, 10_000
DEADLINE_MS = RENEWED_MS + GRANTED_MS
SILENCE, DISCONNECT, DRAIN = (
    InactiveReason.LEASE_EXPIRED,
    InactiveReason.DISCONNECTED,
    InactiveReason.DRAINED,
)


class Lease(NamedTuple):
    takeovers: tuple[int, ...] = ()
    grace_until_ms: int = 0
    """End of the grace that follows the last take-over."""
    broken_ms: int | None = None
    """When the worker's stream broke."""
    disconnect_grace_ms: int = 0
    drain_ms: int = 0
    state: WorkerState = WorkerState.ACTIVE

    @property
    def worker(self) -> Worker:
        return registered().known._replace(
            state=self.state,
            granted_ms=GRANTED_MS,
            renewed_ms=RENEWED_MS,
            deadline_ms=DEADLINE_MS,
            standing=Standing(grace_ms=self.disconnect_grace_ms, drain_deadline_ms=self.drain_ms),
        )

    def deadlines(self) -> LeaseDeadlines:
        disconnected = DisconnectedWorkers()
        if self.broken_ms is not None:
            disconnected[KEY] = self.broken_ms
        return LeaseDeadlines(disconnected, self.takeovers, self.grace_until_ms)

    def ended_by(self, now_ms: int) -> LeaseEnd | None:
        return self.deadlines().ended_by(KEY, self.worker, now_ms)

    def end_ms(self) -> int:
        return self.deadlines().lease_end_ms(KEY, self.worker)


PLAIN = Lease()
TAKEN_OVER = Lease(takeovers=(5_000,), grace_until_ms=15_000)
TAKEN_OVER_LONG_AGO = Lease(takeovers=(5_000,), grace_until_ms=9_000)
LAST_GRACE = Lease(takeovers=(0, 2_000, 3_000, 4_000), grace_until_ms=14_000)
NO_GRACE_LEFT = Lease(takeovers=(1_001, 2_000, 3_000, 4_000), grace_until_ms=14_000)
GRANTED_HERE = Lease(takeovers=(999,), grace_until_ms=15_000)
RENEWED_AT_TAKE_OVER = Lease(takeovers=(1_000,), grace_until_ms=15_000)
BROKEN = Lease(broken_ms=3_000, disconnect_grace_ms=2_000)
BROKEN_LATE = Lease(broken_ms=10_000, disconnect_grace_ms=2_000)
BROKEN_WITHOUT_GRACE = Lease(broken_ms=3_000)
BROKEN_AND_TAKEN_OVER = BROKEN._replace(takeovers=(2_000,), grace_until_ms=8_000)
BROKEN_AND_GRANTED_HERE = BROKEN._replace(takeovers=(999,), grace_until_ms=8_000)
BROKEN_AND_NO_GRACE_LEFT = NO_GRACE_LEFT._replace(broken_ms=4_500, disconnect_grace_ms=2_000)
ATTACHED = Lease(disconnect_grace_ms=2_000)
DRAINING = Lease(drain_ms=6_000)
DRAINING_LONG = Lease(drain_ms=20_000)
DRAINING_AND_TAKEN_OVER = TAKEN_OVER._replace(drain_ms=6_000)
DRAINING_AND_BROKEN = BROKEN._replace(drain_ms=7_000)
EVERYTHING = Lease((5_000,), 15_000, broken_ms=6_000, disconnect_grace_ms=2_000, drain_ms=12_000)

TABLE: dict[str, tuple[Lease, int, InactiveReason, int | None]] = {
    # the lease, when it ends, the reason at that moment, and since when a storm may hold it
    "silence": (PLAIN, 11_000, SILENCE, 11_000),
    "a take-over delays silence": (TAKEN_OVER, 15_000, SILENCE, 11_000),
    "a grace that ends before the lease changes nothing": (TAKEN_OVER_LONG_AGO, 11_000, SILENCE, 11_000),
    "the third take-over in silence still gives a grace": (LAST_GRACE, 14_000, SILENCE, 11_000),
    "the fourth take-over in silence gives none": (NO_GRACE_LEFT, 11_000, SILENCE, 11_000),
    "a take-over does not delay a lease that this owner granted": (GRANTED_HERE, 11_000, SILENCE, 11_000),
    "a lease of the millisecond of the take-over is inherited": (
        RENEWED_AT_TAKE_OVER, 15_000, SILENCE, 11_000,
    ),
    "a broken stream": (BROKEN, 5_000, DISCONNECT, 5_000),
    "silence before the disconnect grace is over": (BROKEN_LATE, 11_000, SILENCE, 11_000),
    "a broken stream without a grace means nothing": (BROKEN_WITHOUT_GRACE, 11_000, SILENCE, 11_000),
    "a grace without a broken stream means nothing": (ATTACHED, 11_000, SILENCE, 11_000),
    "a take-over delays a disconnect": (BROKEN_AND_TAKEN_OVER, 8_000, DISCONNECT, 5_000),
    "a take-over does not delay a disconnect if this owner granted the lease": (
        BROKEN_AND_GRANTED_HERE, 5_000, DISCONNECT, 5_000,
    ),
    "a take-over delays a disconnect, not an expired lease": (
        BROKEN_AND_NO_GRACE_LEFT, 11_000, SILENCE, 6_500,
    ),
    "the limit of a drain": (DRAINING, 6_000, DRAIN, None),
    "silence before the limit of a drain": (DRAINING_LONG, 11_000, SILENCE, 11_000),
    "a take-over does not delay the limit of a drain": (DRAINING_AND_TAKEN_OVER, 6_000, DRAIN, None),
    "a broken stream before the limit of a drain": (DRAINING_AND_BROKEN, 5_000, DISCONNECT, 5_000),
    "the limit of a drain while a take-over delays all else": (EVERYTHING, 12_000, DRAIN, None),
}  # fmt: skip


@pytest.mark.parametrize(("lease", "end_ms", "reason", "holdable_from_ms"), TABLE.values(), ids=TABLE)
def test_a_lease_ends_by_the_first_of_its_terms(
    lease: Lease, end_ms: int, reason: InactiveReason, holdable_from_ms: int | None
) -> None:
    assert lease.end_ms() == end_ms
    assert lease.ended_by(end_ms - 1) is None
    assert lease.ended_by(end_ms) == LeaseEnd(reason, end_ms, holdable_from_ms)


@pytest.mark.parametrize(
    ("lease", "now_ms", "end"),
    [
        (DRAINING_AND_BROKEN, 6_999, LeaseEnd(DISCONNECT, 5_000, 5_000)),
        (DRAINING_AND_BROKEN, 7_000, LeaseEnd(DISCONNECT, 5_000, None)),
        (DRAINING_AND_BROKEN, 11_000, LeaseEnd(SILENCE, 5_000, None)),
        (BROKEN, 11_000, LeaseEnd(SILENCE, 5_000, 5_000)),
        (DRAINING, 11_000, LeaseEnd(SILENCE, 6_000, None)),
        (EVERYTHING, 15_000, LeaseEnd(SILENCE, 12_000, None)),
        (BROKEN_AND_NO_GRACE_LEFT, 14_000, LeaseEnd(SILENCE, 11_000, 6_500)),
    ],
)
def test_when_several_terms_are_over_the_strongest_is_the_reason_and_the_first_is_the_time(
    lease: Lease, now_ms: int, end: LeaseEnd
) -> None:
    assert lease.ended_by(now_ms) == end


@pytest.mark.parametrize(
    ("lease", "check_ms"),
    [
        (PLAIN, 11_000),
        (TAKEN_OVER, 13_000),
        (GRANTED_HERE, 11_000),
        (BROKEN_AND_TAKEN_OVER, 8_000),
        (DRAINING, 6_000),
    ],
)
def test_the_timer_fires_before_a_renewal_could_end_the_lease_earlier(lease: Lease, check_ms: int) -> None:
    now_ms = 3_000
    assert lease.deadlines().next_check_ms(KEY, lease.worker, now_ms) == check_ms


@pytest.mark.parametrize("state", [WorkerState.INACTIVE, WorkerState.CLEANED_UP])
def test_a_worker_that_is_not_active_has_no_lease_that_could_end(state: WorkerState) -> None:
    assert EVERYTHING._replace(state=state).ended_by(2**60) is None


def test_silence_and_disconnects_are_deaths_and_drains_are_not() -> None:
    is_death = {reason: LeaseEnd(reason, 0, None).is_death for reason in (SILENCE, DISCONNECT, DRAIN)}
    assert is_death == {SILENCE: True, DISCONNECT: True, DRAIN: False}


def test_the_decider_ends_every_lease_that_is_over_and_for_the_same_reason() -> None:
    """`Shard.end_lease` relies on it."""
    takeovers = [tuple(range(2_000, 2_000 + count)) for count in range(TAKEOVER_GRACES_MAX + 2)]
    graces, breaks, drains = (0, 9_000, 14_000), (None, 3_000, 10_500), (0, 6_000, 12_000)
    found = set()
    for terms in product(takeovers, graces, breaks, (0, 2_000), drains):
        lease = Lease(*terms)
        for now_ms in (lease.end_ms(), 11_000, 12_500, 14_000):
            if (end := lease.ended_by(now_ms)) is not None:
                [event] = decide(lease, end, now_ms)
                assert event.reason is end.reason
                found.add(end.reason)
    assert found == {SILENCE, DISCONNECT, DRAIN}


def decide(lease: Lease, end: LeaseEnd, now_ms: int) -> tuple[WorkerDeactivated, ...]:
    worker, policy = lease.worker, Policy()
    if end.reason is SILENCE:
        return decider.expire_lease(worker, policy, now_ms)
    if end.reason is DISCONNECT:
        assert lease.broken_ms is not None
        return decider.disconnect(worker, policy, now_ms, lease.broken_ms)
    return decider.end_drain(worker, policy, now_ms)
