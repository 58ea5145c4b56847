"""A shard's state from what the store holds: checkpoint first, then the log after it."""

from __future__ import annotations

from liveness.domain.events import WorkerEvent
from liveness.domain.fold import evolve, renewed
from liveness.domain.keys import WorkerKey
from liveness.domain.worker import Worker
from liveness.store.api import ShardImage
from liveness.store.codec import LogEntry, Pulse, Renewals


def with_pulse(worker: Worker, pulse: Pulse) -> Worker:
    """The worker with the renewals that its row lacks and the checkpoint has."""
    return worker._replace(
        sequence=pulse.sequence,
        renewed_ms=pulse.renewed_ms,
        deadline_ms=pulse.renewed_ms + worker.granted_ms,
        successes=pulse.successes,
        errors=pulse.errors,
        resync=pulse.resync,
    )


def pulse_of(worker: Worker) -> Pulse:
    return Pulse(
        worker.number, worker.sequence, worker.renewed_ms, worker.successes, worker.errors, worker.resync
    )


class Recovered:
    """Workers as of the end of the log, and which of their rows lag behind."""

    def __init__(self, image: ShardImage) -> None:
        self.workers: dict[WorkerKey, Worker] = {}
        self.changed: set[WorkerKey] = set()
        """Their rows lack more than renewals."""
        self._as_of: dict[WorkerKey, int] = {}
        self._keys: dict[int, WorkerKey] = {}
        workers, as_of, keys = self.workers, self._as_of, self._keys
        for key, (worker, as_of_seq) in image.workers.items():
            workers[key] = worker
            as_of[key] = as_of_seq
            keys[worker.number] = key
        assert len(keys) == len(workers), "a worker's number is its own"
        self._apply_checkpoint(image)
        for entry in image.tail:
            self._apply(entry)

    def _apply_checkpoint(self, image: ShardImage) -> None:
        for pulse in image.pulses:
            key = self._keys.get(pulse.number)
            # A row written after the checkpoint knows more than the checkpoint.
            if key is not None and self._as_of[key] <= image.checkpoint_seq:
                self.workers[key] = with_pulse(self.workers[key], pulse)

    def _apply(self, entry: LogEntry) -> None:
        event = entry.event
        if isinstance(event, Renewals):
            self._renew(entry.seq, event)
        elif entry.worker is not None:
            assert entry.namespace is not None
            self._evolve(entry.seq, WorkerKey(entry.namespace, entry.worker), event)  # type: ignore[arg-type]

    def _renew(self, seq: int, renewals: Renewals) -> None:
        workers, keys, as_of = self.workers, self._keys, self._as_of
        for number, renewal in zip(*renewals, strict=True):
            key = keys.get(number)
            if key is not None and seq > as_of[key]:  # else forgotten since, or contained in its row
                workers[key] = renewed(workers[key], renewal)

    def _evolve(self, seq: int, key: WorkerKey, event: WorkerEvent) -> None:
        worker = self.workers.get(key)
        if worker is None or seq <= self._as_of[key]:
            # Its row is written with the event that makes it or brings it here; what precedes that is contained.
            return
        after = evolve(worker, event, seq)
        assert after is not None, "forgetting a worker deletes its row in the same transaction"
        self.workers[key] = after
        self.changed.add(key)
