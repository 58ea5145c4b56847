"""WorkerCleanupTask: clean up an INACTIVE worker that did not return within its cleanup delay."""

from __future__ import annotations

from liveness.domain.policy import Policy
from liveness.domain.reactions import WorkerCleanupTask
from liveness.engine.shard import Shard
from liveness.tasks.contract import Done, NotYet, TimerOutcome


def clean_up_worker(task: WorkerCleanupTask, shard: Shard, policy: Policy) -> TimerOutcome:
    if shard.clean_up(task.worker, policy):
        return Done()
    return NotYet(shard.workers[task.worker].deadline_ms)
