"""Fires due timers: pop → validate → execute → arm again or let go."""

from __future__ import annotations

from typing import TypeVar

from liveness.domain.activity import timer_of as activity_timer_of
from liveness.domain.keys import ActivityKey, WorkerKey
from liveness.domain.policy import Policy
from liveness.domain.reactions import LeaseExpiryTask, VerifyDispatchTask, timer_of
from liveness.domain.worker import Worker
from liveness.shard.brake import Dying
from liveness.shard.deadlines import Subject
from liveness.shard.node import Node
from liveness.shard.shard import Shard
from liveness.shard.vigil import Vigil
from tasks.activity_due import ActivityDue
from tasks.contract import NotYet, Stale, TimerExecutor, TimerOutcome
from tasks.lease_expiry import LeaseExpiry
from tasks.timers import TimerHeap
from tasks.verify_dispatch import VerifyDispatch
from tasks.worker_cleanup import WorkerCleanup

FIRED_PER_PULSE_MAX = 2_000
"""Per shard: after so many, heartbeats get their turn before the rest."""

LOOKED_AT_PER_PULSE_MAX = 10_000
"""Per shard: so many are looked at, whether or not they are ended."""

LEASE_EXPIRY = LeaseExpiry()
WORKER_CLEANUP = WorkerCleanup()
ACTIVITY_DUE = ActivityDue()

TaskT = TypeVar("TaskT")


def _run(
    executor: TimerExecutor[TaskT], task: TaskT, worker: Worker, shard: Shard, policy: Policy
) -> TimerOutcome:
    return executor.execute(task, shard, policy) if executor.validate(task, worker) else Stale()


class TimerRunner:
    def __init__(self) -> None:
        self._heaps: dict[int, TimerHeap] = {}

    def fresh_heap(self, shard_id: int) -> TimerHeap:
        """For a shard that was just taken; what an earlier owner of the id had armed is gone."""
        self._heaps[shard_id] = TimerHeap()
        return self._heaps[shard_id]

    def attach(self, node: Node, vigil: Vigil) -> None:
        self._vigil = vigil
        self._verify_dispatch = VerifyDispatch(vigil)
        node.on_pulse.append(lambda: self.fire_due(node))

    def fire_due(self, node: Node) -> None:
        node.brake.look()
        left = dict.fromkeys(node.shards(), FIRED_PER_PULSE_MAX)
        looks = dict.fromkeys(left, LOOKED_AT_PER_PULSE_MAX)
        # Those who fall due now are judged together: whether that is a storm, and how many others each one's certificate
        # tells of. What falls due with a death, as a cleanup without a delay does, comes next.
        while dying := self._fire_but_the_dying(node, left, looks):
            doomed: list[Dying] = []
            for one, again_ms in node.brake.judge(dying):
                if again_ms is not None:
                    self._settle(one.shard, one.key, NotYet(again_ms))
                elif left[one.shard]:
                    left[one.shard] -= 1
                    node.brake.doom(one.key)
                    one.shard.foresee_death(one.key, one.worker)
                    doomed.append(one)
                else:
                    self._settle(one.shard, one.key, NotYet(one.shard.now_ms()))
            for shard, key, _ in doomed:
                self._settle(shard, key, self._fire(shard, key, node))

    def _fire_but_the_dying(self, node: Node, left: dict[Shard, int], looks: dict[Shard, int]) -> list[Dying]:
        """`left`: how many may still be fired. To look at those who fall due costs little, and a storm is known only if
        they are seen together: they count when they are fired."""
        dying: list[Dying] = []
        for shard in left:
            heap, now_ms = self._heaps[shard.id], shard.now_ms()
            while left[shard] and looks[shard] and (key := heap.pop_due(now_ms)) is not None:
                looks[shard] -= 1
                if isinstance(key, ActivityKey):
                    left[shard] -= 1
                    self._settle(shard, key, self._fire_activity(shard, key))
                elif (worker := shard.dying(key)) is not None:
                    dying.append(Dying(shard, key, worker))
                else:
                    left[shard] -= 1
                    if node.brake.gales:
                        node.brake.heard(key)
                    self._settle(shard, key, self._fire(shard, key, node))
        return dying

    def _settle(self, shard: Shard, key: Subject, outcome: TimerOutcome) -> None:
        if isinstance(outcome, NotYet):
            self._heaps[shard.id].arm(key, outcome.due_ms)

    def _fire(self, shard: Shard, key: WorkerKey, node: Node) -> TimerOutcome:
        worker = shard.workers.get(key)
        task = timer_of(key, worker) if worker is not None else None
        if worker is None or task is None:
            return Stale()
        policy = node.policies.of(key.namespace)
        if isinstance(task, LeaseExpiryTask):
            outcome = _run(LEASE_EXPIRY, task, worker, shard, policy)
            if isinstance(outcome, NotYet):  # once a lease or so
                self._vigil.scrub(key, shard)
            return outcome
        return _run(WORKER_CLEANUP, task, worker, shard, policy)

    def _fire_activity(self, shard: Shard, key: ActivityKey) -> TimerOutcome:
        activity = shard.activities.get(key)
        task = activity_timer_of(key, activity) if activity is not None else None
        if activity is None or task is None:
            return Stale()
        if isinstance(task, VerifyDispatchTask):
            verify = self._verify_dispatch
            return verify.execute(task, shard) if verify.validate(task, activity) else Stale()
        return ACTIVITY_DUE.execute(task, shard) if ACTIVITY_DUE.validate(task, activity) else Stale()
