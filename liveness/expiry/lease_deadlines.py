"""Decides whether a worker's lease is over, why, and when it will be. `LeaseDeadlines.ended_by` alone decides that.

A lease ends by the first of its terms. All times are on the shard's observed clock.

| term | when | reason |
|---|---|---|
| silence | the lease's deadline; of an inherited lease, not before the take-over grace ends | LEASE_EXPIRED |
| broken stream | the disconnect grace after the break; of an inherited lease, not before the take-over grace ends | DISCONNECTED |
| drain | the limit that an operator set | DRAINED |

A lease is inherited until this owner of the shard applies a heartbeat of the worker. From then on the worker has found
its way here, and the take-over grace no longer concerns it.

`Shard.end_lease` turns a `LeaseEnd` into events. Between the two, `ExpiryThrottle` may hold deaths back during a storm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from liveness.domain.death_certificate import DEATH_REASONS
from liveness.domain.keys import WorkerKey
from liveness.domain.worker import NO_STANDING, InactiveReason, Worker, WorkerState
from liveness.expiry.disconnects import DisconnectedWorkers

TAKEOVER_GRACES_MAX = 3
"""How many take-overs in a row may delay a silent worker's expiry."""


class LeaseEnd(NamedTuple):
    """A lease that is over."""

    reason: InactiveReason
    """If several terms are over: silence before a broken stream before a drain."""
    due_ms: int
    """When the first term was over."""
    holdable_from_ms: int | None
    """When the lease was over by its own terms, without take-over graces. The length of a storm's hold counts from
    here, so that a restart does not lengthen it. None if no storm may hold the lease: an operator's limit is over."""

    @property
    def is_death(self) -> bool:
        return self.reason in DEATH_REASONS


class LeaseDeadlines:
    __slots__ = ("_disconnected", "_grace_until_ms", "takeovers")

    def __init__(
        self, disconnected: DisconnectedWorkers, takeovers: Sequence[int], grace_until_ms: int
    ) -> None:
        self._disconnected = disconnected
        self.takeovers = takeovers
        """When the shard was taken over, oldest first."""
        self._grace_until_ms = grace_until_ms
        """The end of the grace that follows the last take-over."""

    def ended_by(self, key: WorkerKey, worker: Worker, now_ms: int) -> LeaseEnd | None:
        """Return why and since when the lease is over; None while it goes on, or if the worker has none."""
        if worker.state is not WorkerState.ACTIVE or now_ms < (end_ms := self.lease_end_ms(key, worker)):
            return None
        terms = self._terms(key, worker, self._grace_until_ms)
        reasons = [reason for reason, due_ms in terms if due_ms <= now_ms]
        holdable_from_ms = None
        if InactiveReason.DRAINED not in reasons:
            holdable_from_ms = _earliest_ms(self._terms(key, worker, grace_until_ms=0))
        return LeaseEnd(reasons[0], end_ms, holdable_from_ms)

    def lease_end_ms(self, key: WorkerKey, worker: Worker) -> int:
        """Return when an ACTIVE worker's lease ends if nothing is heard of the worker."""
        if worker.standing is NO_STANDING:
            # The same, faster: only silence ends the leases of nearly all workers.
            return self._silence_ends_ms(worker, self._grace_until_ms)
        return _earliest_ms(self._terms(key, worker, self._grace_until_ms))

    def next_check_ms(self, key: WorkerKey, worker: Worker, now_ms: int) -> int:
        """Return when the timer of an ACTIVE worker fires: when its lease ends if nothing is heard, or before.

        A renewal does not touch the timer, so the timer must never be later than the end of the lease after a renewal.
        While the take-over grace delays the end, a renewal may bring it forward, to one lease from the renewal."""
        deadline_ms = worker.deadline_ms
        if deadline_ms >= self._grace_until_ms and worker.standing is NO_STANDING:
            return deadline_ms  # the same as below, for nearly all workers of a shard that is taken
        end_ms = self.lease_end_ms(key, worker)
        return end_ms if end_ms <= deadline_ms else min(end_ms, now_ms + worker.granted_ms)

    def _terms(self, key: WorkerKey, worker: Worker, grace_until_ms: int) -> list[tuple[InactiveReason, int]]:
        """Return what may end the lease, and when, in the order in which reasons take precedence."""
        terms = [(InactiveReason.LEASE_EXPIRED, self._silence_ends_ms(worker, grace_until_ms))]
        standing = worker.standing
        if standing.grace_ms and key in self._disconnected:
            disconnect_ends_ms = self._disconnected[key] + standing.grace_ms
            if self._is_inherited(worker.renewed_ms):
                disconnect_ends_ms = max(disconnect_ends_ms, grace_until_ms)
            terms.append((InactiveReason.DISCONNECTED, disconnect_ends_ms))
        if standing.drain_deadline_ms:
            terms.append((InactiveReason.DRAINED, standing.drain_deadline_ms))
        return terms

    def with_takeover_grace(self, end_ms: int, heard_ms: int) -> int:
        """Return when a time ends that would be over at `end_ms`, and whose owner was last heard of at `heard_ms`: not before
        the grace that follows a take-over, as with leases."""
        return self._with_grace(end_ms, heard_ms, self._grace_until_ms)

    def _silence_ends_ms(self, worker: Worker, grace_until_ms: int) -> int:
        return self._with_grace(worker.deadline_ms, worker.renewed_ms, grace_until_ms)

    def _with_grace(self, end_ms: int, heard_ms: int, grace_until_ms: int) -> int:
        if end_ms >= grace_until_ms or not self._is_inherited(heard_ms):
            return end_ms
        takeovers_in_silence = sum(at_ms > heard_ms for at_ms in self.takeovers)
        return end_ms if takeovers_in_silence > TAKEOVER_GRACES_MAX else grace_until_ms

    def _is_inherited(self, heard_ms: int) -> bool:
        """Return whether an earlier owner heard it, and so granted the lease. Its last commit may fall into the very millisecond
        of the take-over, so a lease of that millisecond counts as inherited."""
        return bool(self.takeovers) and heard_ms <= self.takeovers[-1]


def _earliest_ms(terms: list[tuple[InactiveReason, int]]) -> int:
    return min([due_ms for _, due_ms in terms])
