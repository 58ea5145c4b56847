"""Fires due timers: pop → validate → execute → arm again or let go."""

from __future__ import annotations

from collections.abc import Iterable, Set
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
from tasks.contract import Done, NotYet, Stale, TimerExecutor, TimerOutcome
from tasks.lease_expiry import LeaseExpiry
from tasks.timers import TimerHeap
from tasks.verify_dispatch import VerifyDispatch
from tasks.worker_cleanup import WorkerCleanup

LOOKED_AT_PER_PULSE_MAX = 50_000
"""Of all shards: after so many, heartbeats get their turn before the rest."""

ENDED_PER_COMMIT_MAX = 20_000
"""Leases and what they held. Larger commits would hold up everybody's answers, and stop the clock of what is still to
end; and while one is written, the next is made ready."""

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
        self._dying: dict[WorkerKey, Dying] = {}
        """They fell due and wait for room in a commit. They are not armed meanwhile, unless something happens to them."""
        self._room = ENDED_PER_COMMIT_MAX
        self._commits = 0

    @property
    def is_behind(self) -> bool:
        """Whether leases are over that could not be ended yet."""
        return bool(self._dying)

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
        if node.committer.commits != self._commits:
            self._commits, self._room = node.committer.commits, ENDED_PER_COMMIT_MAX
        looks = dict.fromkeys(node.shards(), max(1, LOOKED_AT_PER_PULSE_MAX // node.shard_count))
        # What falls due with a death, as a cleanup without a delay does, comes next.
        while self._room > 0 and (dying := self._due_to_die(node, looks)):
            self._end(node, dying.values())

    def _due_to_die(self, node: Node, looks: dict[Shard, int]) -> dict[WorkerKey, Dying]:
        """Fire what is due, but for those who are about to die: they are seen together, with those who wait."""
        dying = self._still_dying(looks.keys())
        for shard in looks:
            heap, now_ms = self._heaps[shard.id], shard.now_ms()
            while looks[shard] and self._room > 0 and (key := heap.pop_due(now_ms)) is not None:
                looks[shard] -= 1
                if isinstance(key, ActivityKey):
                    self._settle_and_count(shard, key, self._fire_activity(shard, key))
                elif (worker := shard.dying(key)) is not None:
                    dying[key] = Dying(shard, key, worker)
                else:
                    if node.brake.gales:
                        node.brake.heard(key)
                    self._settle_and_count(shard, key, self._fire(shard, key, node))
        return dying

    def _still_dying(self, serving: Set[Shard]) -> dict[WorkerKey, Dying]:
        """Those who wait, but for those who were heard of; whoever took a shard since has timers of its own."""
        dying: dict[WorkerKey, Dying] = {}
        waiting, self._dying = self._dying, {}
        for one in waiting.values():
            shard, key, worker = one
            if shard not in serving:
                continue
            if shard.workers.get(key) is worker:
                dying[key] = one
            else:
                shard.look_at(key)
        return dying

    def _end(self, node: Node, dying: Iterable[Dying]) -> None:
        """They are judged together: whether that is a storm, and how many others each one's certificate tells of."""
        doomed: list[Dying] = []
        for one, again_ms in node.brake.judge(dying):
            if again_ms is not None:
                self._settle(one.shard, one.key, NotYet(again_ms))
            elif self._room > 0 and one.shard.dying(one.key) is None:
                one.shard.look_at(one.key)  # its stream is back, and the lease goes on as before
            elif self._room > 0:
                self._room -= 1 + len(one.worker.bindings)
                node.brake.doom(one.key)
                one.shard.foresee_death(one.key, one.worker)
                doomed.append(one)
            else:
                self._dying[one.key] = one
        for shard, key, _ in doomed:
            self._settle(shard, key, self._fire(shard, key, node))

    def _settle(self, shard: Shard, key: Subject, outcome: TimerOutcome) -> None:
        if isinstance(outcome, NotYet):
            self._heaps[shard.id].arm(key, outcome.due_ms)

    def _settle_and_count(self, shard: Shard, key: Subject, outcome: TimerOutcome) -> None:
        self._settle(shard, key, outcome)
        self._room -= isinstance(outcome, Done)

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
