"""Fires due timers: pop → validate → execute → arm again or let go."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import TypeVar

from liveness.dispatch.reconciler import BindingReconciler
from liveness.domain.activity import activity_timer as activity_timer_of
from liveness.domain.keys import ActivityKey, WorkerKey
from liveness.domain.policy import Policy
from liveness.domain.reactions import LeaseExpiryTask, VerifyDispatchTask, worker_timer
from liveness.domain.worker import Worker
from liveness.engine.listener import NodeListener
from liveness.engine.node import Node
from liveness.engine.shard import Shard
from liveness.engine.timers import TimerKey
from liveness.expiry.throttle import ExpiringWorker
from liveness.tasks.activity_due import ActivityDue
from liveness.tasks.contract import Done, NotYet, Stale, TimerExecutor, TimerOutcome
from liveness.tasks.lease_expiry import LeaseExpiry
from liveness.tasks.timer_heap import TimerHeaps
from liveness.tasks.verify_dispatch import VerifyDispatch
from liveness.tasks.worker_cleanup import WorkerCleanup

TIMERS_PER_TICK_MAX = 50_000
"""Of all shards: after so many, heartbeats get their turn before the rest."""

EXPIRIES_PER_COMMIT_MAX = 20_000
"""Leases and what they held. Larger commits would hold up everybody's answers, and stop the clock of what is still to
end; and while one is written, the next is made ready."""

LEASE_EXPIRY = LeaseExpiry()
WORKER_CLEANUP = WorkerCleanup()
ACTIVITY_DUE = ActivityDue()

TaskT = TypeVar("TaskT")


def _execute_if_valid(
    executor: TimerExecutor[TaskT], task: TaskT, worker: Worker, shard: Shard, policy: Policy
) -> TimerOutcome:
    return executor.execute(task, shard, policy) if executor.validate(task, worker) else Stale()


class TimerRunner(NodeListener):
    def __init__(self, node: Node, heaps: TimerHeaps, reconciler: BindingReconciler) -> None:
        """`heaps`: the timers of the node's shards."""
        self._node = node
        self._heaps = heaps
        self._reconciler = reconciler
        self._verify_dispatch = VerifyDispatch(reconciler)
        self._deferred: dict[WorkerKey, ExpiringWorker[Shard]] = {}
        """They fell due and wait for room in a commit. They are not armed meanwhile, unless something happens to them."""
        self._commit_budget = EXPIRIES_PER_COMMIT_MAX
        self._seen_commits = 0

    @property
    def is_behind(self) -> bool:
        """Whether leases are over that could not be ended yet."""
        return bool(self._deferred)

    def tick(self) -> None:
        self.fire_due()

    def fire_due(self) -> None:
        node = self._node
        node.throttle.tick()
        if node.committer.commit_count != self._seen_commits:
            self._seen_commits, self._commit_budget = node.committer.commit_count, EXPIRIES_PER_COMMIT_MAX
        timer_budgets = dict.fromkeys(node.shards(), max(1, TIMERS_PER_TICK_MAX // node.shard_count))
        # What falls due with a death, as a cleanup without a delay does, comes next.
        while self._commit_budget > 0 and (expiring := self._collect_expiring(node, timer_budgets)):
            self._expire_workers(node, expiring.values())

    def _collect_expiring(
        self, node: Node, timer_budgets: dict[Shard, int]
    ) -> dict[WorkerKey, ExpiringWorker[Shard]]:
        """Fire what is due, but for those who are about to die: they are seen together, with those who wait."""
        expiring = self._recheck_deferred(timer_budgets.keys())
        for shard in timer_budgets:
            heap, now_ms = self._heaps[shard.id], shard.now_ms()
            while (
                timer_budgets[shard] and self._commit_budget > 0 and (key := heap.pop_due(now_ms)) is not None
            ):
                timer_budgets[shard] -= 1
                if isinstance(key, ActivityKey):
                    self._rearm_and_count(shard, key, self._fire_activity(shard, key))
                elif (worker := shard.expiring(key)) is not None:
                    expiring[key] = ExpiringWorker(shard, key, worker)
                else:
                    if node.throttle.active_storms:
                        node.throttle.on_heartbeat(key)
                    self._rearm_and_count(shard, key, self._fire(shard, key, node))
        return expiring

    def _recheck_deferred(self, serving: Set[Shard]) -> dict[WorkerKey, ExpiringWorker[Shard]]:
        """Those who wait, but for those who were heard of; whoever took a shard since has timers of its own."""
        expiring: dict[WorkerKey, ExpiringWorker[Shard]] = {}
        deferred, self._deferred = self._deferred, {}
        for worker_due in deferred.values():
            shard, key, worker = worker_due
            if shard not in serving:
                continue
            if shard.workers.get(key) is worker:
                expiring[key] = worker_due
            else:
                shard.recheck(key)
        return expiring

    def _expire_workers(self, node: Node, expiring: Iterable[ExpiringWorker[Shard]]) -> None:
        """They are judged together: whether that is a storm, and how many others each one's certificate tells of."""
        expiring_now: list[ExpiringWorker[Shard]] = []
        for worker_due, retry_ms in node.throttle.decide_holds(expiring):
            if retry_ms is not None:
                self._rearm(worker_due.shard, worker_due.key, NotYet(retry_ms))
            elif self._commit_budget > 0 and worker_due.shard.expiring(worker_due.key) is None:
                worker_due.shard.recheck(
                    worker_due.key
                )  # its stream is back, and the lease goes on as before
            elif self._commit_budget > 0:
                self._commit_budget -= 1 + len(worker_due.worker.bindings)
                node.throttle.record_death(worker_due.key)
                worker_due.shard.record_upcoming_death(worker_due.key, worker_due.worker)
                expiring_now.append(worker_due)
            else:
                self._deferred[worker_due.key] = worker_due
        for shard, key, _ in expiring_now:
            self._rearm(shard, key, self._fire(shard, key, node))

    def _rearm(self, shard: Shard, key: TimerKey, outcome: TimerOutcome) -> None:
        if isinstance(outcome, NotYet):
            self._heaps[shard.id].arm(key, outcome.due_ms)

    def _rearm_and_count(self, shard: Shard, key: TimerKey, outcome: TimerOutcome) -> None:
        self._rearm(shard, key, outcome)
        self._commit_budget -= isinstance(outcome, Done)

    def _fire(self, shard: Shard, key: WorkerKey, node: Node) -> TimerOutcome:
        worker = shard.workers.get(key)
        task = worker_timer(key, worker) if worker is not None else None
        if worker is None or task is None:
            return Stale()
        policy = node.policies.of(key.namespace)
        if isinstance(task, LeaseExpiryTask):
            outcome = _execute_if_valid(LEASE_EXPIRY, task, worker, shard, policy)
            if isinstance(outcome, NotYet):  # once a lease or so
                self._reconciler.reconcile_worker(key, shard)
            return outcome
        return _execute_if_valid(WORKER_CLEANUP, task, worker, shard, policy)

    def _fire_activity(self, shard: Shard, key: ActivityKey) -> TimerOutcome:
        activity = shard.activities.get(key)
        task = activity_timer_of(key, activity) if activity is not None else None
        if activity is None or task is None:
            return Stale()
        if isinstance(task, VerifyDispatchTask):
            verify = self._verify_dispatch
            return verify.execute(task, shard) if verify.validate(task, activity) else Stale()
        return ACTIVITY_DUE.execute(task, shard) if ACTIVITY_DUE.validate(task, activity) else Stale()
