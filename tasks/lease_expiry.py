"""LeaseExpiryTask: end a lease that is over, or look again when it will be."""

from __future__ import annotations

from liveness.domain.policy import Policy
from liveness.domain.reactions import LeaseExpiryTask
from liveness.engine.shard import Shard
from liveness.expiry.lease_deadlines import LeaseEnd
from liveness.tasks.contract import Done, NotYet, TimerOutcome


def expire_lease(task: LeaseExpiryTask, end: LeaseEnd | None, shard: Shard, policy: Policy) -> TimerOutcome:
    """`end`: what `Shard.lease_ended_by` returned in this tick."""
    if end is None:
        worker = shard.workers[task.worker]
        return NotYet(shard.lease_deadlines.next_check_ms(task.worker, worker, shard.now_ms()))
    shard.end_lease(task.worker, end, policy)
    return Done()
