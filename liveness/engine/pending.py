"""The decisions of a shard that wait for the next commit, in log order."""

from __future__ import annotations

from collections.abc import Mapping

from liveness.diagnostics.heartbeat_history import HeartbeatHistory
from liveness.domain.activity import Activity
from liveness.domain.events import Event, LeaseRenewed
from liveness.domain.keys import ActivityKey, WorkerKey
from liveness.domain.progress import UnitKey, UnitProgress
from liveness.domain.verdicts import NO_VERDICTS, VerdictCounts
from liveness.domain.worker import Worker
from liveness.store.api import NewTaskBatch, ObjectKey, ShardCommit, StoredObject, TaskUpdate
from liveness.store.codec import LogEntry, RenewalBatch

SAME_OFFSET_MS = 1
"""By how much the difference of two clocks in whole milliseconds varies if both run evenly."""
OFFSET_DRIFT_MS_MAX = 100
"""How far the wall time of a renewal may be off while the observed clock stands still, because a row has one offset. Without it,
a commit that hangs would end in a row for every heartbeat that came meanwhile."""


class Pending:
    """Plain renewals gather in one open row, which closes when order demands it: before another event about a worker
    that is in it. So renewals come after all earlier events of their worker and before all later ones, and a shard's
    commit of nothing but renewals is one row. A row has every renewal, several of one worker in their order: recovery counts
    them.

    The row also closes when the offset of wall time to observed time changes: the row's two times give that offset, and
    with it the wall time of each of its renewals."""

    __slots__ = (
        "activities",
        "config",
        "earlier_renewals",
        "entries",
        "epoch_floor",
        "feed_seq",
        "heartbeat_history",
        "last_seq",
        "new_tasks",
        "objects",
        "progress",
        "renewals",
        "task_updates",
        "verdicts",
        "wall_offset_ms",
        "workers",
    )  # fmt: skip

    def __init__(self, last_seq: int, heartbeat_history: HeartbeatHistory, wall_offset_ms: int) -> None:
        self.last_seq = last_seq
        self.wall_offset_ms = wall_offset_ms
        """Wall time minus observed time of the renewals in the open row."""
        self.heartbeat_history = heartbeat_history
        self.feed_seq = 0
        """The sequence of the newest entry that is not plain renewals; 0 if there is none."""
        self.entries: list[LogEntry] = []
        self.renewals: dict[int, LeaseRenewed] = {}
        """The last renewal of each worker in the open row."""
        self.earlier_renewals: list[tuple[int, LeaseRenewed]] = []
        """Those before the last, which few workers have in one row."""
        self.workers: dict[WorkerKey, tuple[Worker, int] | None] = {}
        self.activities: dict[ActivityKey, Activity] = {}
        self.new_tasks: list[NewTaskBatch] = []
        self.task_updates: dict[int, TaskUpdate] = {}
        self.progress: dict[UnitKey, UnitProgress | None] = {}
        self.objects: dict[ObjectKey, StoredObject | None] = {}
        self.config: dict[str, Mapping[str, float]] = {}
        self.verdicts: dict[str, VerdictCounts] = {}
        self.epoch_floor: int | None = None
        """The shard's new epoch floor; None if it was not raised."""

    def add_verdict(self, namespace: str, verdict: VerdictCounts) -> None:
        if verdict is not NO_VERDICTS:
            self.verdicts[namespace] = self.verdicts.get(namespace, NO_VERDICTS) + verdict

    def wall_time(self, observed_ms: int, clock_ms: int) -> int:
        """Return the wall time that everything which happens now is recorded with: the clock's, or a millisecond beside
        it. `observed_ms` and `clock_ms` are the present observed time and the wall clock."""
        drift_ms = abs(clock_ms - observed_ms - self.wall_offset_ms)
        if drift_ms > SAME_OFFSET_MS and (drift_ms > OFFSET_DRIFT_MS_MAX or not self.renewals):
            self.close_renewals()
            self.wall_offset_ms = clock_ms - observed_ms
        return observed_ms + self.wall_offset_ms

    def add_renewal(self, number: int, event: LeaseRenewed) -> None:
        """Add a renewal of a worker that has one in the open row already."""
        self.earlier_renewals.append((number, self.renewals.pop(number)))
        self.renewals[number] = event

    def add(
        self, event: Event, *, number: int | None, namespace: str | None, worker: str | None, workflow_id: str | None,
        wall_ms: int, observed_ms: int,
    ) -> int:  # fmt: skip
        """Append an event that has a row of its own; returns its sequence."""
        if number in self.renewals:
            self.close_renewals()
        self.last_seq += 1
        self.feed_seq = self.last_seq
        self.entries.append(
            LogEntry(self.last_seq, namespace, worker, workflow_id, wall_ms, observed_ms, event)
        )
        return self.last_seq

    def close_renewals(self) -> None:
        if self.renewals:
            self.last_seq += 1
            numbers, events = list(self.renewals), list(self.renewals.values())
            if self.earlier_renewals:
                numbers = [number for number, _ in self.earlier_renewals] + numbers
                events = [event for _, event in self.earlier_renewals] + events
                self.earlier_renewals = []
            renewals = RenewalBatch(numbers, events)
            observed_ms = renewals.renewals[-1].at_ms
            wall_ms = observed_ms + self.wall_offset_ms
            self.entries.append(LogEntry(self.last_seq, None, None, None, wall_ms, observed_ms, renewals))
            self.heartbeat_history.record(renewals, self.wall_offset_ms)
            self.renewals = {}

    def commit(
        self, shard_id: int, epoch: int, after_seq: int, observed_ms: int, wall_ms: int
    ) -> ShardCommit:
        """Make the commit of everything that is pending. Call this once."""
        self.close_renewals()
        return ShardCommit(
            shard_id=shard_id,
            epoch=epoch,
            after_seq=after_seq,
            last_seq=self.last_seq,
            observed_ms=observed_ms,
            wall_ms=wall_ms,
            entries=self.entries,
            workers=self.workers,
            activities=self.activities,
            new_tasks=self.new_tasks,
            task_updates=self.task_updates,
            progress=self.progress,
            objects=self.objects,
            config=self.config,
            verdicts=self.verdicts,
            epoch_floor=self.epoch_floor,
        )
