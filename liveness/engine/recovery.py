"""Recovery of a shard's workers from the store: their rows with the checkpoint, then the log after it."""

from __future__ import annotations

from liveness.domain.events import WorkerEvent
from liveness.domain.fold import apply_renewal, evolve
from liveness.domain.keys import WorkerKey
from liveness.domain.silences import SilenceCounts, SilenceKind
from liveness.domain.worker import intern_ms
from liveness.store.api import ShardSnapshot
from liveness.store.codec import LogEntry, RenewalBatch


class RecoveredWorkers:
    """The workers as of the end of the log, and the set of those whose rows are older. Takes the workers of the snapshot as its own
    and changes them."""

    def __init__(self, snapshot: ShardSnapshot) -> None:
        self.workers = snapshot.workers
        self.stale_rows: set[WorkerKey] = set()
        """Workers whose rows lack more than renewals."""
        self.silences = SilenceCounts(snapshot.observed_ms)
        """Of the renewals after the checkpoint, which counted those before it."""
        self._row_seqs = snapshot.row_seqs
        self._keys: dict[int, WorkerKey] = {}
        if any(
            isinstance(entry.event, RenewalBatch) for entry in snapshot.tail
        ):  # not after a shard was handed over
            self._keys = {worker.number: key for key, worker in self.workers.items()}
            assert len(self._keys) == len(self.workers), "a worker's number is its own"
        for entry in snapshot.tail:
            self._apply(entry)
        self._estimate_wall_offsets(snapshot)

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
            if key is not None and seq > row_seqs.get(
                key, 0
            ):  # else forgotten since, or contained in its row
                before = workers[key]
                workers[key] = apply_renewal(before, renewal, wall_offset_ms)
                granted_ms, silence_ms = before.shared.granted_ms, renewal.at_ms - before.renewed_ms
                if 2 * silence_ms > granted_ms:  # `is_notable`, without a call: there may be millions
                    wall_ms = renewal.at_ms + wall_offset_ms
                    self.silences.record(
                        key.namespace, SilenceKind.HEARTBEATS, wall_ms, granted_ms, silence_ms
                    )

    def _evolve(self, entry: LogEntry, key: WorkerKey, event: WorkerEvent) -> None:
        worker = self.workers.get(key)
        if worker is None or entry.seq <= self._row_seqs.get(key, 0):
            # A worker's row is written with the event that creates the worker, and contains all earlier events.
            return
        after = evolve(worker, event, entry.seq, entry.wall_ms)
        assert after is not None, "forgetting a worker deletes its row in the same transaction"
        self.workers[key] = after
        self.stale_rows.add(key)

    def _estimate_wall_offsets(self, snapshot: ShardSnapshot) -> None:
        """Estimate when the last heartbeat came of workers whose rows were written by a version that did not store it:
        as if the clocks had run evenly between it and the last entry of the log before the take-over."""
        without_offset = [key for key, worker in self.workers.items() if worker.wall_offset_ms is None]
        wall_offset_ms = snapshot.taken_wall_ms - snapshot.observed_ms
        if snapshot.tail:
            wall_offset_ms = snapshot.tail[-1].wall_ms - snapshot.tail[-1].observed_ms
        for key in without_offset:
            self.workers[key] = self.workers[key]._replace(wall_offset_ms=wall_offset_ms)
