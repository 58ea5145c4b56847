"""Fires due timers: pop → validate → execute → arm again or let go."""

from __future__ import annotations


from liveness.domain.keys import WorkerKey
from liveness.domain.reactions import LeaseExpiryTask, TimerTask, WorkerCleanupTask, timer_of
from liveness.shard.node import Node
from liveness.shard.shard import Shard
from tasks.contract import NotYet, Stale, TimerExecutor, TimerOutcome
from tasks.lease_expiry import LeaseExpiry
from tasks.timers import TimerHeap
from tasks.worker_cleanup import WorkerCleanup

FIRED_PER_PULSE_MAX = 2_000
"""Per shard: after so many, heartbeats get their turn before the rest."""

EXECUTORS: dict[type[TimerTask], TimerExecutor[TimerTask]] = {
    LeaseExpiryTask: LeaseExpiry(),
    WorkerCleanupTask: WorkerCleanup(),
}  # type: ignore[dict-item]  # each executor is paired with its own task type here and nowhere else


class TimerRunner:
    def __init__(self) -> None:
        self._heaps: dict[int, TimerHeap] = {}

    def fresh_heap(self, shard_id: int) -> TimerHeap:
        """For a shard that was just taken; what an earlier owner of the id had armed is gone."""
        self._heaps[shard_id] = TimerHeap()
        return self._heaps[shard_id]

    def attach(self, node: Node) -> None:
        node.on_pulse.append(lambda: self.fire_due(node))

    def fire_due(self, node: Node) -> None:
        for shard in node.shards():
            heap = self._heaps[shard.id]
            now_ms = shard.now_ms()
            for _ in range(FIRED_PER_PULSE_MAX):
                key = heap.pop_due(now_ms)
                if key is None:
                    break
                outcome = self._fire(shard, key, node)
                if isinstance(outcome, NotYet):
                    heap.arm(key, outcome.due_ms)

    def _fire(self, shard: Shard, key: WorkerKey, node: Node) -> TimerOutcome:
        worker = shard.workers.get(key)
        task = timer_of(key, worker) if worker is not None else None
        if worker is None or task is None:
            return Stale()
        executor = EXECUTORS[type(task)]
        if not executor.validate(task, worker):
            return Stale()
        return executor.execute(task, shard, node.policies.of(key.namespace))
