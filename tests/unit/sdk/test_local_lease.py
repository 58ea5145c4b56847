"""The worker stops trusting its lease before the server ends it, whatever the network does."""

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
    """A message that the server may answer. The fields are the times between its steps, in milliseconds."""

    gap_ms: int
    """Since the previous message was sent."""
    to_server_ms: int
    """Until the server applied the message."""
    back_ms: int | None
    """Until the answer arrived; None if it was lost."""


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
    sent_exchanges: list[Exchange], now_ms: int
) -> None:
    """The server keeps a lease for its whole duration after the last applied heartbeat; answers arrive late,
    in any order, or never."""
    known, sent_ms, kept_until_ms = LocalLease(), 0, 0
    answers = []
    for exchange in sent_exchanges:
        sent_ms += exchange.gap_ms
        applied_ms = sent_ms + exchange.to_server_ms
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
    """The server counts from the moment it saw the stream break, which is after its last answer."""
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
def test_a_lease_that_was_just_renewed_is_valid(lease_ms: int) -> None:
    """Otherwise the worker could never do any work."""
    known = local_lease.renewed(LocalLease(), 5_000, lease_ms)
    assert local_lease.is_valid(known, 5_000 + lease_ms // 2)


def test_a_lease_is_invalid_from_its_deadline_on() -> None:
    known = local_lease.renewed(LocalLease(), 1_000, LEASE_MS)
    deadline_ms = local_lease.deadline_ms(known)
    assert local_lease.is_valid(known, deadline_ms - 1)
    assert not local_lease.is_valid(known, deadline_ms)


@pytest.mark.parametrize(
    ("lease_ms", "margin_ms"), [(500, 20), (1_000, 20), (10_000, 200), (3_600_000, 72_000)]
)
def test_the_margin_is_a_fiftieth_and_at_least_twenty_milliseconds(lease_ms: int, margin_ms: int) -> None:
    assert local_lease.deadline_ms(local_lease.renewed(LocalLease(), 0, lease_ms)) == lease_ms - margin_ms


def test_a_lease_is_invalid_before_the_first_acknowledgement() -> None:
    assert not local_lease.is_valid(LocalLease(), 0)


def test_a_late_answer_to_an_old_heartbeat_does_not_shorten_the_lease() -> None:
    known = local_lease.renewed(LocalLease(), 8_000, LEASE_MS)
    assert local_lease.renewed(known, 2_000, 1_000) == known


def test_the_earlier_of_lease_and_grace_is_the_deadline() -> None:
    known = local_lease.attach_requested(local_lease.renewed(LocalLease(), 0, LEASE_MS), GRACE_MS, 0)
    assert local_lease.deadline_ms(known) == GRACE_MS - 60
    for ping_ms in range(0, 20_000, 1_000):
        known = local_lease.ping_answered(known, ping_ms)
    assert local_lease.deadline_ms(known) == LEASE_MS - 200, "pings do not renew the lease"


def test_a_heartbeat_extends_the_grace() -> None:
    known = local_lease.renewed(
        local_lease.attach_requested(local_lease.renewed(LocalLease(), 0, LEASE_MS), GRACE_MS, 0),
        2_000,
        LEASE_MS,
    )
    assert local_lease.deadline_ms(known) == 2_000 + GRACE_MS - 60


def test_a_stream_closed_by_the_server_does_not_start_the_grace() -> None:
    known = local_lease.stream_closed_by_server(
        local_lease.attach_requested(local_lease.renewed(LocalLease(), 0, LEASE_MS), GRACE_MS, 0)
    )
    assert local_lease.deadline_ms(known) == LEASE_MS - 200


def test_the_end_of_the_server_that_counts_the_grace_leaves_the_lease() -> None:
    known = attached_at(0)
    assert local_lease.deadline_ms(known) == 2_940
    known = local_lease.server_ended(known, 2_939)
    assert local_lease.deadline_ms(known) == 9_800


def test_the_end_of_the_server_after_the_grace_comes_too_late() -> None:
    """The server may have ended the lease before."""
    known = attached_at(0)
    assert local_lease.server_ended(known, 2_940) == known


def test_the_end_of_the_server_says_nothing_about_a_stream_that_it_may_have_confirmed() -> None:
    known = local_lease.attach_requested(attached_at(0), GRACE_MS, 1_000)
    assert local_lease.server_ended(known, 1_500) == known


def attached_at(at_ms: int) -> LocalLease:
    known = local_lease.renewed(LocalLease(), at_ms, LEASE_MS)
    return local_lease.attached(local_lease.attach_requested(known, GRACE_MS, at_ms), GRACE_MS, at_ms)


def test_a_stream_cannot_break_before_it_is_opened() -> None:
    """For example after the server was unreachable for longer than the grace, and first answers an old
    heartbeat."""
    known = local_lease.attach_requested(local_lease.renewed(LocalLease(), 0, LEASE_MS), GRACE_MS, 5_000)
    assert local_lease.deadline_ms(known) == 5_000 + GRACE_MS - 60


def test_attaching_again_does_not_extend_the_deadline() -> None:
    """The stream that was requested first may have been opened and broken since."""
    known = local_lease.attach_requested(local_lease.renewed(LocalLease(), 0, LEASE_MS), GRACE_MS, 1_000)
    assert local_lease.deadline_ms(
        local_lease.attach_requested(known, GRACE_MS, 2_000)
    ) == local_lease.deadline_ms(known)


def test_closing_a_new_stream_does_not_clear_the_grace_of_an_older_one() -> None:
    """The older stream may be on another node, which has not noticed the break yet and will count from then
    on."""
    known = local_lease.attach_requested(local_lease.renewed(LocalLease(), 0, LEASE_MS), GRACE_MS, 0)
    requested_on_another_node = local_lease.attach_requested(known, GRACE_MS, 1_000)
    assert local_lease.stream_closed_by_server(requested_on_another_node) == requested_on_another_node
    attached_to_another_node = local_lease.attached(requested_on_another_node, GRACE_MS, 1_000)
    assert local_lease.deadline_ms(attached_to_another_node) == 1_000 + GRACE_MS - 60
    assert (
        local_lease.deadline_ms(local_lease.stream_closed_by_server(attached_to_another_node))
        == LEASE_MS - 200
    )


def test_a_stream_without_a_grace_does_not_shorten_the_deadline() -> None:
    known = local_lease.attach_requested(local_lease.renewed(LocalLease(), 0, LEASE_MS), GRACE_MS, 0)
    assert local_lease.deadline_ms(local_lease.attached(known, None, 1_000)) == LEASE_MS - 200


def test_a_grace_longer_than_the_lease_is_capped_by_the_lease() -> None:
    known = local_lease.attach_requested(local_lease.renewed(LocalLease(), 0, 1_000), 5_000, 0)
    assert local_lease.deadline_ms(known) == 980


def test_a_lease_ended_by_the_server_is_invalid_until_the_next_acknowledgement() -> None:
    known = local_lease.lease_ended(local_lease.renewed(LocalLease(), 1_000, LEASE_MS))
    assert not local_lease.is_valid(known, 1_001)
    assert local_lease.is_valid(local_lease.renewed(known, 1_500, LEASE_MS), 1_501)
