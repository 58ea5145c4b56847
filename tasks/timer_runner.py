"""Fires due timers, and ends the leases that are over.

For most timers: pop → execute → arm again or drop. Workers whose death is due take more steps: due → heard → throttle →
ended. They wait until this process has heard everything that had arrived when they were found to be due; then the
throttle decides about all of them together. Those that do not fit into one commit are deferred to the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Set

from liveness.dispatch.reconciler import BindingReconciler
from liveness.domain.activity import activity_timer as activity_timer_of
from liveness.domain.keys import ActivityKey, WorkerKey
from liveness.domain.reactions import VerifyDispatchTask, WorkerCleanupTask, worker_timer
from liveness.domain.worker import InactiveReason
from liveness.engine.listener import NodeListener
from liveness.engine.node import Node
from liveness.engine.shard import Shard
from liveness.engine.timers import TimerKey
from liveness.expiry.lease_deadlines import LeaseEnd
from liveness.expiry.throttle import DueLease
from liveness.tasks.activity_due import make_activity_available
from liveness.tasks.contract import Done, NotYet, Stale, TimerOutcome
from liveness.tasks.declared_bindings import DeclaredBindings
from liveness.tasks.lease_expiry import expire_lease
from liveness.tasks.timer_heap import TimerHeaps
from liveness.tasks.verify_dispatch import VerifyDispatch
from liveness.tasks.worker_cleanup import clean_up_worker

TIMERS_PER_TICK_MAX = 50_000
"""Over all shards. After that, heartbeats are served before the remaining timers."""

EXPIRIES_PER_COMMIT_MAX = 20_000
"""Leases and their activities. A larger commit would delay all replies and stop the observed clock for the leases that
are still to end. While one commit is written, the next is prepared."""


class TimerRunner(NodeListener):
    def __init__(
        self,
        node: Node,
        heaps: TimerHeaps,
        reconciler: BindingReconciler,
        declared_bindings: DeclaredBindings | None = None,
    ) -> None:
        """`heaps`: the timers of the node's shards."""
        self._node = node
        self._heaps = heaps
        self._reconciler = reconciler
        self._declared_bindings = declared_bindings
        self._verify_dispatch = VerifyDispatch(reconciler)
        self._unheard: deque[tuple[int, list[DueLease[Shard]]]] = deque()
        """Leases that were found to be over, and when, on the monotonic clock. They have no timer, unless a change of the
        worker arms one."""
        self._deferred: dict[WorkerKey, DueLease[Shard]] = {}
        """Leases that are over and wait for room in a commit. They have no timer, unless a change of the worker arms one."""
        self._commit_budget = EXPIRIES_PER_COMMIT_MAX
        self._seen_commits = 0

    @property
    def is_behind(self) -> bool:
        """Whether some leases that are over are not ended yet."""
        return bool(self._deferred)

    def tick(self) -> None:
        self.fire_due()

    def heard(self, lag_ms: int) -> None:
        if self._unheard:
            self.fire_due()

    def fire_due(self) -> None:
        node = self._node
        node.throttle.tick()
        if node.committer.commit_count != self._seen_commits:
            self._seen_commits, self._commit_budget = node.committer.commit_count, EXPIRIES_PER_COMMIT_MAX
        timer_budgets = dict.fromkeys(node.shards(), max(1, TIMERS_PER_TICK_MAX // node.shard_count))
        # Repeated because a death may make another timer due at once, for instance a cleanup without a delay.
        while self._commit_budget > 0 and (due := self._collect_due(node, timer_budgets)):
            self._end_leases(node, due.values())

    def _collect_due(self, node: Node, timer_budgets: dict[Shard, int]) -> dict[WorkerKey, DueLease[Shard]]:
        """Fire due timers, except those of workers whose death is due: return these, with the deferred ones, because
        the throttle decides about all of them together."""
        deferred, self._deferred = self._deferred, {}
        due = self._recheck(deferred.values(), timer_budgets.keys())
        found: list[DueLease[Shard]] = []
        for shard in timer_budgets:
            heap, now_ms = self._heaps[shard.id], shard.now_ms()
            while (
                timer_budgets[shard] and self._commit_budget > 0 and (key := heap.pop_due(now_ms)) is not None
            ):
                timer_budgets[shard] -= 1
                if isinstance(key, ActivityKey):
                    self._rearm_and_count(shard, key, self._fire_activity(shard, key))
                    continue
                end = shard.lease_ended_by(key)
                if end is not None and end.is_death:
                    found.append(DueLease(shard, key, shard.workers[key], end))
                    continue
                if node.throttle.active_storms:
                    node.throttle.on_heartbeat(key)
                self._rearm_and_count(shard, key, self._fire_worker(shard, key, end, node))
        if found:
            self._unheard.append((node.clock.monotonic_ms(), found))
        serving = timer_budgets.keys()
        due |= self._recheck(self._take_heard(node, serving), serving)
        return due

    def _take_heard(self, node: Node, serving: Set[Shard]) -> Iterator[DueLease[Shard]]:
        """Yield the leases for which everything has been heard that had arrived when they were found to be over."""
        progress, now_ms = node.receive_progress, node.clock.monotonic_ms()
        while self._unheard and self._unheard[0][0] <= progress.heard_until_ms:
            for lease in self._unheard.popleft()[1]:
                if lease.shard not in serving:
                    continue
                if (wait_ms := progress.ends_from_ms(lease.worker.granted_ms) - now_ms) > 0:
                    self._heaps[lease.shard.id].arm(lease.key, lease.shard.now_ms() + wait_ms)
                else:
                    yield lease
        if self._unheard:
            progress.probe_wanted.set()

    def _recheck(
        self, leases: Iterable[DueLease[Shard]], serving: Set[Shard]
    ) -> dict[WorkerKey, DueLease[Shard]]:
        """Return the leases that are still over. A worker that was heard of meanwhile goes back to its timer; the next
        owner of a shard that left has timers of its own."""
        due: dict[WorkerKey, DueLease[Shard]] = {}
        for lease in leases:
            shard, key = lease.shard, lease.key
            if shard not in serving:
                continue
            if _is_still_silent(lease):
                due[key] = lease
                continue
            end = shard.lease_ended_by(key)
            if end is not None and end.is_death:
                due[key] = DueLease(shard, key, shard.workers[key], end)
            else:
                shard.recheck(key)
        return due

    def _end_leases(self, node: Node, due: Iterable[DueLease[Shard]]) -> None:
        """Pass due leases through the throttle and end those that it lets through, as far as one commit has room."""
        ending: list[DueLease[Shard]] = []
        for lease in node.throttle.filter_due(due):
            if self._commit_budget > 0:
                self._commit_budget -= 1 + len(lease.worker.bindings)
                node.throttle.record_death(lease.key)
                lease.shard.record_upcoming_death(lease.key, lease.worker)
                ending.append(lease)
            else:
                self._deferred[lease.key] = lease
        for shard, key, _, end in ending:
            self._fire_worker(shard, key, end, node)

    def _rearm_and_count(self, shard: Shard, key: TimerKey, outcome: TimerOutcome) -> None:
        if isinstance(outcome, NotYet):
            self._heaps[shard.id].arm(key, outcome.due_ms)
        self._commit_budget -= isinstance(outcome, Done)

    def _fire_worker(self, shard: Shard, key: WorkerKey, end: LeaseEnd | None, node: Node) -> TimerOutcome:
        worker = shard.workers.get(key)
        task = worker_timer(key, worker) if worker is not None else None
        if worker is None or task is None:
            return Stale()
        policy = node.policies.of(key.namespace)
        if isinstance(task, WorkerCleanupTask):
            return clean_up_worker(task, shard, policy)
        outcome = expire_lease(task, end, shard, policy)
        if isinstance(outcome, NotYet):  # about once per lease
            self._reconciler.reconcile_worker(key, shard)
            if self._declared_bindings is not None:
                self._declared_bindings.recheck(key, worker)
        return outcome

    def _fire_activity(self, shard: Shard, key: ActivityKey) -> TimerOutcome:
        activity = shard.activities.get(key)
        task = activity_timer_of(key, activity) if activity is not None else None
        if task is None:
            return Stale()
        if isinstance(task, VerifyDispatchTask):
            return self._verify_dispatch.execute(task, shard)
        return make_activity_available(task, shard)


def _is_still_silent(lease: DueLease[Shard]) -> bool:
    """Whether silence still ends the lease. Only a renewal ends silence, and it replaces the worker. This is far cheaper
    than asking for all terms of the lease, and a mass expiry asks for every deferred lease with every commit."""
    shard, key, worker, end = lease
    return (
        end.reason is InactiveReason.LEASE_EXPIRED
        and shard.workers.get(key) is worker
        and not worker.standing.drain_deadline_ms
    )
