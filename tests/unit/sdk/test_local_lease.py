"""The worker is the first to know that its lease is over, whatever the network does."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.sdk import local_lease
from liveness.sdk.local_lease import LocalLease

LEASE_MS = 10_000
GRACE_MS = 3_000


@dataclass(frozen=True)
class Exchange:
    """Something sent that the server may answer. Times between the steps, in milliseconds."""

    gap_ms: int
    """Since the last one was sent."""
    way_ms: int
    """Until the server applied it."""
    back_ms: int | None
    """Until the answer was there; None if it got lost."""


exchanges = st.lists(
    st.builds(
        Exchange,
        st.integers(0, LEASE_MS),
        st.integers(0, 2 * LEASE_MS),
        st.none() | st.integers(0, 2 * LEASE_MS),
    ),
    max_size=12,
)


@given(exchanges, st.integers(0, 40 * LEASE_MS))
def test_the_lease_is_never_trusted_longer_than_the_server_keeps_it(
    story: list[Exchange], now_ms: int
) -> None:
    """The server keeps it for a whole lease after it last applied a heartbeat; answers come late, in any order, or
    never."""
    known, sent_ms, kept_until_ms = LocalLease(), 0, 0
    answers = []
    for exchange in story:
        sent_ms += exchange.gap_ms
        applied_ms = sent_ms + exchange.way_ms
        if applied_ms <= now_ms:
            kept_until_ms = max(kept_until_ms, applied_ms + LEASE_MS)
        if exchange.back_ms is not None:
            answers.append((applied_ms + exchange.back_ms, sent_ms))
    for answered_ms, first_sent_ms in sorted(answers):
        if answered_ms <= now_ms:
            known = local_lease.renewed(known, first_sent_ms, LEASE_MS)
    assert not local_lease.is_valid(known, now_ms) or now_ms < kept_until_ms


@given(st.lists(st.tuples(st.integers(1, GRACE_MS), st.booleans()), min_size=1, max_size=20), st.data())
def test_the_grace_is_never_trusted_longer_than_the_server_waits(
    answered: list[tuple[int, bool]], data: st.DataObject
) -> None:
    """The server counts from when it saw the stream break, which is after it answered for the last time."""
    known, at_ms, seen_ms = (
        local_lease.attach_requested(local_lease.renewed(LocalLease(), 0, LEASE_MS), GRACE_MS, 0),
        0,
        0,
    )
    for gap_ms, is_ping in answered:
        at_ms += gap_ms
        seen_ms = at_ms + data.draw(st.integers(0, 50))
        known = (
            local_lease.ping_answered(known, at_ms)
            if is_ping
            else local_lease.renewed(known, at_ms, LEASE_MS)
        )
    broken_ms = seen_ms + data.draw(st.integers(0, LEASE_MS))
    assert local_lease.deadline_ms(known) < broken_ms + GRACE_MS


@given(st.integers(100, 3_600_000))
def test_a_fence_that_was_just_renewed_is_open(lease_ms: int) -> None:
    """Otherwise no work would ever be done."""
    known = local_lease.renewed(LocalLease(), 5_000, lease_ms)
    assert local_lease.is_valid(known, 5_000 + lease_ms // 2)


def test_at_the_deadline_it_is_shut() -> None:
    known = local_lease.renewed(LocalLease(), 1_000, LEASE_MS)
    deadline_ms = local_lease.deadline_ms(known)
    assert local_lease.is_valid(known, deadline_ms - 1)
    assert not local_lease.is_valid(known, deadline_ms)


@pytest.mark.parametrize(
    ("lease_ms", "margin_ms"), [(500, 20), (1_000, 20), (10_000, 200), (3_600_000, 72_000)]
)
def test_the_margin_is_a_fiftieth_and_at_least_twenty_milliseconds(lease_ms: int, margin_ms: int) -> None:
    assert local_lease.deadline_ms(local_lease.renewed(LocalLease(), 0, lease_ms)) == lease_ms - margin_ms


def test_nothing_is_trusted_before_the_first_acknowledgement() -> None:
    assert not local_lease.is_valid(LocalLease(), 0)


def test_a_late_answer_to_an_old_heartbeat_does_not_shorten_the_trust() -> None:
    known = local_lease.renewed(LocalLease(), 8_000, LEASE_MS)
    assert local_lease.renewed(known, 2_000, 1_000) == known


def test_the_earlier_of_both_deadlines_counts() -> None:
    known = local_lease.attach_requested(local_lease.renewed(LocalLease(), 0, LEASE_MS), GRACE_MS, 0)
    assert local_lease.deadline_ms(known) == GRACE_MS - 60
    for ping_ms in range(0, 20_000, 1_000):
        known = local_lease.ping_answered(known, ping_ms)
    assert local_lease.deadline_ms(known) == LEASE_MS - 200, "pings renew no lease"


def test_a_heartbeat_keeps_the_grace_away_too() -> None:
    known = local_lease.renewed(
        local_lease.attach_requested(local_lease.renewed(LocalLease(), 0, LEASE_MS), GRACE_MS, 0),
        2_000,
        LEASE_MS,
    )
    assert local_lease.deadline_ms(known) == 2_000 + GRACE_MS - 60


def test_a_stream_that_the_server_closed_means_nothing() -> None:
    known = local_lease.stream_closed_by_server(
        local_lease.attach_requested(local_lease.renewed(LocalLease(), 0, LEASE_MS), GRACE_MS, 0)
    )
    assert local_lease.deadline_ms(known) == LEASE_MS - 200


def test_a_stream_cannot_break_before_it_is_opened() -> None:
    """After a server was away for longer than the grace, say, and the heartbeat it answered first was an old one."""
    known = local_lease.attach_requested(local_lease.renewed(LocalLease(), 0, LEASE_MS), GRACE_MS, 5_000)
    assert local_lease.deadline_ms(known) == 5_000 + GRACE_MS - 60


def test_asking_again_gains_no_time() -> None:
    """The stream that was asked for first may have been opened, and may have broken since."""
    known = local_lease.attach_requested(local_lease.renewed(LocalLease(), 0, LEASE_MS), GRACE_MS, 1_000)
    assert local_lease.deadline_ms(
        local_lease.attach_requested(known, GRACE_MS, 2_000)
    ) == local_lease.deadline_ms(known)


def test_a_stream_that_the_server_closed_does_not_speak_for_an_older_one() -> None:
    """On another node, which has not noticed yet that it is broken, and will count from then on."""
    known = local_lease.attach_requested(local_lease.renewed(LocalLease(), 0, LEASE_MS), GRACE_MS, 0)
    asked_elsewhere = local_lease.attach_requested(known, GRACE_MS, 1_000)
    assert local_lease.stream_closed_by_server(asked_elsewhere) == asked_elsewhere
    standing_elsewhere = local_lease.attached(asked_elsewhere, GRACE_MS, 1_000)
    assert local_lease.deadline_ms(standing_elsewhere) == 1_000 + GRACE_MS - 60
    assert local_lease.deadline_ms(local_lease.stream_closed_by_server(standing_elsewhere)) == LEASE_MS - 200


def test_a_stream_that_was_granted_no_grace_costs_nothing() -> None:
    known = local_lease.attach_requested(local_lease.renewed(LocalLease(), 0, LEASE_MS), GRACE_MS, 0)
    assert local_lease.deadline_ms(local_lease.attached(known, None, 1_000)) == LEASE_MS - 200


def test_a_grace_longer_than_the_lease_is_the_lease() -> None:
    known = local_lease.attach_requested(local_lease.renewed(LocalLease(), 0, 1_000), 5_000, 0)
    assert local_lease.deadline_ms(known) == 980


def test_a_lease_that_the_server_ended_is_over_until_the_next_acknowledgement() -> None:
    known = local_lease.lease_ended(local_lease.renewed(LocalLease(), 1_000, LEASE_MS))
    assert not local_lease.is_valid(known, 1_001)
    assert local_lease.is_valid(local_lease.renewed(known, 1_500, LEASE_MS), 1_501)
