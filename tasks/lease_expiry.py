"""LeaseExpiryTask: a worker fell silent for its whole lease, its stream stayed broken, or its drain took too long."""

from __future__ import annotations

from liveness.domain.policy import Policy
from liveness.domain.reactions import LeaseExpiryTask
from liveness.domain.worker import Worker, WorkerState
from liveness.engine.shard import Shard
from liveness.tasks.contract import Done, NotYet, Stale, TimerOutcome


class LeaseExpiry:
    def validate(self, task: LeaseExpiryTask, worker: Worker) -> bool:
        return worker.state is WorkerState.ACTIVE and worker.epoch == task.epoch

    def execute(self, task: LeaseExpiryTask, shard: Shard, policy: Policy) -> TimerOutcome:
        due_ms = shard.lease_deadlines.lease_end_ms(task.worker, shard.workers[task.worker])
        if shard.now_ms() < due_ms:
            return NotYet(due_ms)
        return Done() if shard.expire_lease(task.worker, policy) else Stale()
