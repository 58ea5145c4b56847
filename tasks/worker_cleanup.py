"""WorkerCleanupTask: an INACTIVE worker did not come back in time."""

from __future__ import annotations

from liveness.domain.policy import Policy
from liveness.domain.reactions import WorkerCleanupTask
from liveness.domain.worker import Worker, WorkerState
from liveness.engine.shard import Shard
from liveness.tasks.contract import Done, NotYet, Stale, TimerOutcome


class WorkerCleanup:
    def validate(self, task: WorkerCleanupTask, worker: Worker) -> bool:
        return worker.state is WorkerState.INACTIVE and worker.epoch == task.epoch

    def execute(self, task: WorkerCleanupTask, shard: Shard, policy: Policy) -> TimerOutcome:
        due_ms = shard.workers[task.worker].deadline_ms
        if shard.now_ms() < due_ms:
            return NotYet(due_ms)
        return Done() if shard.clean_up(task.worker, policy) else Stale()
