"""Checks every commit: sequence, folding, recovery and reschedules."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from liveness.clock import ManualClock
from liveness.domain.events import (
    ActivityCancelRequested,
    ActivityMadeAvailable,
    BindingsChanged,
    SessionReplaced,
    WorkerDeactivated,
    WorkerRegistered,
    WorkerResurrected,
)
from liveness.domain.fold import evolve
from liveness.domain.keys import ActivityId, WorkerKey, shard_of
from liveness.domain.worker import BoundActivity, Worker
from liveness.engine.recovery import RecoveredWorkers
from liveness.store.api import ShardCommit, ShardSnapshot
from liveness.store.codec import LogEntry, RenewalBatch, RenewalState
from tests.databases import SHARD_COUNT
from tests.integration.store.faulty_store import CommitObserver
from tests.model.workers.model import ModelClock

Taken = tuple[str, str, int, BoundActivity]
"""Namespace, worker, lease epoch and the lost activity."""


class Effect(NamedTuple):
    """An attempt that a worker lost with its lease and that was made available again."""

    namespace: str
    worker: str
    epoch: int
    activity: ActivityId
    attempt: int


class ShardLog:
    def __init__(self) -> None:
        self.entries: list[LogEntry] = []
        self.workers: dict[WorkerKey, Worker] = {}
        """The workers folded from the entries."""
        self.numbers: dict[int, WorkerKey] = {}
        self.rows: dict[WorkerKey, tuple[Worker, int]] = {}
        self.checkpoint: tuple[int, list[RenewalState]] = (0, [])

    def add(self, entry: LogEntry) -> None:
        assert entry.seq == len(self.entries) + 1, "a shard's sequence has no gap and no repeat"
        self.entries.append(entry)
        event = entry.event
        if isinstance(event, RenewalBatch):
            for number, renewal in zip(event.worker_numbers, event.renewals, strict=True):
                key = self.numbers[number]
                wall_ms = entry.wall_ms - entry.observed_ms + renewal.at_ms
                self._keep(key, evolve(self.workers[key], renewal, entry.seq, wall_ms))
        elif entry.worker is not None:
            key = WorkerKey(entry.namespace or "", entry.worker)
            after = evolve(self.workers.get(key), event, entry.seq, entry.wall_ms)  # type: ignore[arg-type]
            self._keep(key, after)

    def _keep(self, key: WorkerKey, worker: Worker | None) -> None:
        if worker is None:
            del self.workers[key]
        else:
            self.workers[key] = worker
            self.numbers[worker.number] = key

    def recovered(self) -> dict[WorkerKey, Worker]:
        """Return the workers that recovery would give after a crash at this commit."""
        checkpoint_seq, renewal_states = self.checkpoint
        checkpointed = {state.number: state for state in renewal_states}
        workers, row_seqs = {}, {}
        for key, (worker, as_of_seq) in self.rows.items():
            state = checkpointed.get(worker.number)
            if as_of_seq > checkpoint_seq:
                row_seqs[key] = as_of_seq
            elif state is not None:
                worker = worker._replace(
                    sequence=state.sequence,
                    renewed_ms=state.renewed_ms,
                    successes=state.successes,
                    errors=state.errors,
                    resync=state.resync,
                    wall_offset_ms=state.wall_offset_ms,
                    heartbeats=state.heartbeats,
                )
            workers[key] = worker
        snapshot = ShardSnapshot(
            shard_id=0,
            epoch=1,
            last_seq=len(self.entries),
            observed_ms=0,
            taken_wall_ms=0,
            takeovers=(0,),
            checkpoint_seq=checkpoint_seq,
            workers=workers,
            row_seqs=row_seqs,
            tail=self.entries[checkpoint_seq:],
            activities={},
        )
        return RecoveredWorkers(snapshot).workers


class CommitChecker(CommitObserver):
    def __init__(self, clock: ManualClock, grace_ms: int) -> None:
        self._clock = clock
        self._grace_ms = grace_ms
        self.shards = [ShardLog() for _ in range(SHARD_COUNT)]
        self.clocks = [ModelClock() for _ in range(SHARD_COUNT)]
        self.taken: list[Taken] = []
        self.made_available: Counter[Effect] = Counter()
        self._held: defaultdict[WorkerKey, dict[ActivityId, BoundActivity]] = defaultdict(dict)
        self._epochs: dict[WorkerKey, int] = {}
        self._cancelling: ActivityCancelRequested | None = None
        self.deaths: Counter[str] = Counter()
        self.false_deaths: Counter[str] = Counter()
        self._sessions: dict[WorkerKey, str] = {}
        self._died_with: dict[WorkerKey, str] = {}

    def on_take_over(self, snapshot: ShardSnapshot, entry: LogEntry) -> None:
        shard = self.shards[snapshot.shard_id]
        shard.add(entry)
        self.clocks[snapshot.shard_id].taken_over(
            snapshot.observed_ms, self._clock.monotonic_ms(), self._grace_ms
        )
        copied = snapshot._replace(workers=dict(snapshot.workers))  # recovery changes them
        assert RecoveredWorkers(copied).workers == shard.workers, "recovered workers equal the folded log"

    def on_committed(self, commits: Sequence[ShardCommit]) -> None:
        for commit in commits:
            shard = self.shards[commit.shard_id]
            taken: list[Taken] = []
            for entry in commit.entries:
                shard.add(entry)
                taken += self._taken_with(entry)
                self._count_deaths(entry)
                self._count_effects(entry)
            assert commit.last_seq == len(shard.entries)
            asked = [
                (task.namespace, task.worker, task.epoch, task.activity)
                for new in commit.new_tasks
                for task in new.batch.tasks()
            ]
            assert Counter(asked) == Counter(taken), (
                "each lost binding is rescheduled once, in the same transaction"
            )
            for new in commit.new_tasks:
                for shard_id, task in new.with_shard_ids():
                    assert shard_id == shard_of(task.namespace, task.activity.workflow_id, SHARD_COUNT)
            self.taken += taken
            self._project(shard, commit)
            assert shard.recovered() == shard.workers, "recovery from any prefix equals the folded log"
            self.clocks[commit.shard_id].committed(commit.observed_ms, self._clock.monotonic_ms())

    def _project(self, shard: ShardLog, commit: ShardCommit) -> None:
        for key, row in commit.workers.items():
            if row is None:
                # A worker that registered and was forgotten in one commit has no row yet.
                shard.rows.pop(key, None)
            else:
                shard.rows[key] = row
        if commit.checkpoint is not None:
            shard.checkpoint = commit.checkpoint

    def _taken_with(self, entry: LogEntry) -> list[Taken]:
        event = entry.event
        if entry.worker is None:
            return []
        key = WorkerKey(entry.namespace or "", entry.worker)
        before, epoch = dict(self._held[key]), self._epochs.get(key, 0)
        gone: dict[ActivityId, BoundActivity] = {}
        if isinstance(event, WorkerRegistered | WorkerResurrected | SessionReplaced):
            self._held[key] = {activity.id: activity for activity in event.bindings}
            self._epochs[key] = event.epoch
            if isinstance(event, WorkerRegistered):
                assert event.epoch > epoch, "a key never gets a fencing token twice, whatever was forgotten"
            else:
                assert event.epoch == epoch + 1, "each activation raises the fencing token"
            gone = {id: activity for id, activity in before.items() if id not in self._held[key]}
        elif isinstance(event, BindingsChanged):
            kept = {id: activity for id, activity in before.items() if id not in event.unbound}
            self._held[key] = {**kept, **{activity.id: activity for activity in event.bound}}
        elif isinstance(event, WorkerDeactivated):
            gone, self._held[key] = before, {}
        return [(*key, epoch, activity) for activity in gone.values()]

    def _count_deaths(self, entry: LogEntry) -> None:
        """Count deaths by silence, and those that the return of the same session refutes."""
        event, key = entry.event, WorkerKey(entry.namespace or "", entry.worker or "")
        if isinstance(event, WorkerDeactivated):
            if event.reason.name in ("LEASE_EXPIRED", "DISCONNECTED"):
                self.deaths[key.namespace] += 1
                self._died_with[key] = self._sessions[key]
                assert event.certificate is not None
                assert event.certificate.session_id == self._sessions[key]
                assert event.certificate.epoch == self._epochs[key]
            else:
                assert event.certificate is None
        elif isinstance(event, WorkerRegistered | WorkerResurrected | SessionReplaced):
            died_with = self._died_with.pop(key, "")
            if isinstance(event, WorkerResurrected) and died_with and died_with == event.session_id:
                self.false_deaths[key.namespace] += 1
            self._sessions[key] = event.session_id

    def _count_effects(self, entry: LogEntry) -> None:
        event = entry.event
        if isinstance(event, ActivityCancelRequested):
            self._cancelling = event
        elif isinstance(event, ActivityMadeAvailable):
            asked = self._cancelling
            assert asked is not None
            assert (asked.run_id, asked.activity_id) == (event.run_id, event.activity_id)
            id = ActivityId(entry.workflow_id or "", asked.run_id, asked.activity_id)
            effect = Effect(entry.namespace or "", asked.worker, asked.epoch, id, asked.attempt)
            self.made_available[effect] += 1
            assert self.made_available[effect] == 1, "one effect per activity, attempt and lease"
