"""When an ACTIVE worker's lease ends, if nothing happens. Times are on the shard's observed clock."""

from __future__ import annotations

from collections.abc import Sequence

from liveness.domain.keys import WorkerKey
from liveness.domain.worker import Worker
from liveness.expiry.disconnects import DisconnectedWorkers

TAKEOVER_GRACES_MAX = 3
"""How many take-overs in a row may hold up a silent worker's expiry."""


class LeaseDeadlines:
    __slots__ = ("_disconnected", "_grace_until_ms", "takeovers")

    def __init__(
        self, disconnected: DisconnectedWorkers, takeovers: Sequence[int], grace_until_ms: int
    ) -> None:
        self._disconnected = disconnected
        self.takeovers = takeovers
        self._grace_until_ms = grace_until_ms

    def expiry_ms(self, worker: Worker) -> int:
        """When a silent worker's lease may be ended: its deadline, or after the grace that follows a take-over."""
        if worker.deadline_ms >= self._grace_until_ms:
            return worker.deadline_ms
        takeovers_in_silence = sum(at_ms > worker.renewed_ms for at_ms in self.takeovers)
        return worker.deadline_ms if takeovers_in_silence > TAKEOVER_GRACES_MAX else self._grace_until_ms

    def death_due_ms(self, key: WorkerKey, worker: Worker) -> int:
        """When the worker is declared dead."""
        due_ms, grace_ms = self.expiry_ms(worker), worker.standing.grace_ms
        if grace_ms and key in self._disconnected:
            return min(due_ms, max(self._disconnected[key] + grace_ms, self._grace_until_ms))
        return due_ms

    def death_due_ignoring_takeovers_ms(self, key: WorkerKey, worker: Worker) -> int:
        """The same by the lease's own terms, whoever may have taken the shard over since."""
        grace_ms = worker.standing.grace_ms
        if grace_ms and key in self._disconnected:
            return min(worker.deadline_ms, self._disconnected[key] + grace_ms)
        return worker.deadline_ms

    def lease_end_ms(self, key: WorkerKey, worker: Worker) -> int:
        """By whichever of its terms comes first."""
        due_ms, drain_ms = self.death_due_ms(key, worker), worker.standing.drain_deadline_ms
        return min(due_ms, drain_ms) if drain_ms else due_ms
