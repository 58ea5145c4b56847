"""Recovery of a shard's workers from the store: their rows, then the checkpoint, then the log after it."""

from __future__ import annotations

from liveness.domain.events import WorkerEvent
from liveness.domain.fold import apply_renewal, evolve
from liveness.domain.keys import WorkerKey
from liveness.domain.worker import Worker, intern_ms
from liveness.store.api import ShardSnapshot
from liveness.store.codec import LogEntry, RenewalBatch, RenewalState


def with_renewal_state(worker: Worker, renewal_state: RenewalState) -> Worker:
    """Apply the renewals that the checkpoint contains and the worker's row does not."""
    wall_offset_ms = renewal_state.wall_offset_ms
    return worker._replace(
        sequence=renewal_state.sequence,
        renewed_ms=renewal_state.renewed_ms,
        deadline_ms=renewal_state.renewed_ms + worker.granted_ms,
        successes=renewal_state.successes,
        errors=renewal_state.errors,
        resync=renewal_state.resync,
        wall_offset_ms=None if wall_offset_ms is None else intern_ms(wall_offset_ms),
        # A checkpoint of a version that did not count them has none.
        heartbeats=max(worker.heartbeats, renewal_state.heartbeats),
    )


def renewal_state_of(worker: Worker) -> RenewalState:
    return RenewalState(
        worker.number, worker.sequence, worker.renewed_ms, worker.successes, worker.errors, worker.resync,
        worker.wall_offset_ms, worker.heartbeats,
    )  # fmt: skip


class RecoveredWorkers:
    """The workers as of the end of the log, and the set of those whose rows are older."""

    def __init__(self, snapshot: ShardSnapshot) -> None:
        self.workers: dict[WorkerKey, Worker] = {}
        self.stale_rows: set[WorkerKey] = set()
        """Workers whose rows lack more than renewals."""
        self._row_seqs: dict[WorkerKey, int] = {}
        self._keys: dict[int, WorkerKey] = {}
        workers, row_seqs, keys = self.workers, self._row_seqs, self._keys
        for key, (worker, as_of_seq) in snapshot.workers.items():
            workers[key] = worker
            row_seqs[key] = as_of_seq
            keys[worker.number] = key
        assert len(keys) == len(workers), "a worker's number is its own"
        self._apply_checkpoint(snapshot)
        for entry in snapshot.tail:
            self._apply(entry)
        self._estimate_wall_offsets(snapshot)

    def _apply_checkpoint(self, snapshot: ShardSnapshot) -> None:
        for renewal_state in snapshot.renewal_states:
            key = self._keys.get(renewal_state.number)
            # A row written after the checkpoint knows more than the checkpoint.
            if key is not None and self._row_seqs[key] <= snapshot.checkpoint_seq:
                self.workers[key] = with_renewal_state(self.workers[key], renewal_state)

    def _apply(self, entry: LogEntry) -> None:
        event = entry.event
        if isinstance(event, RenewalBatch):
            self._renew(entry, event)
        elif entry.worker is not None:
            assert entry.namespace is not None
            self._evolve(entry, WorkerKey(entry.namespace, entry.worker), event)  # type: ignore[arg-type]

    def _renew(self, entry: LogEntry, renewals: RenewalBatch) -> None:
        workers, keys, row_seqs, seq = self.workers, self._keys, self._row_seqs, entry.seq
        wall_offset_ms = intern_ms(entry.wall_ms - entry.observed_ms)
        for number, renewal in zip(*renewals, strict=True):
            key = keys.get(number)
            if key is not None and seq > row_seqs[key]:  # else forgotten since, or contained in its row
                workers[key] = apply_renewal(workers[key], renewal, wall_offset_ms)

    def _evolve(self, entry: LogEntry, key: WorkerKey, event: WorkerEvent) -> None:
        worker = self.workers.get(key)
        if worker is None or entry.seq <= self._row_seqs[key]:
            # A worker's row is written with the event that creates the worker, and contains all earlier events.
            return
        after = evolve(worker, event, entry.seq, entry.wall_ms)
        assert after is not None, "forgetting a worker deletes its row in the same transaction"
        self.workers[key] = after
        self.stale_rows.add(key)

    def _estimate_wall_offsets(self, snapshot: ShardSnapshot) -> None:
        """Estimate when the last heartbeat came of workers whose rows were written by a version that did not store it:
        as if the clocks had run evenly between it and the last entry of the log before the take-over."""
        wall_offset_ms = snapshot.taken_wall_ms - snapshot.observed_ms
        if snapshot.tail:
            wall_offset_ms = snapshot.tail[-1].wall_ms - snapshot.tail[-1].observed_ms
        for key, worker in self.workers.items():
            if worker.wall_offset_ms is None:
                self.workers[key] = worker._replace(wall_offset_ms=wall_offset_ms)
