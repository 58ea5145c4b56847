"""Fires due timers, and ends the leases that are over.

For most timers: pop → execute → arm again or drop. Workers whose death is due take more steps: due → heard → throttle →
ended. They wait until this process has heard everything that had arrived when they were found to be due. Then the throttle
decides, and counts all of them together. Those that do not fit into one commit are deferred to the next.

Many leases that are over together are found, chosen and ended in slices, between which the event loop serves others. A worker may
be heard of between two slices, or its shard may leave. So every slice examines a lease again before it does anything to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set

from liveness.background import BackgroundTasks
from liveness.dispatch.reconciler import BindingReconciler
from liveness.domain.activity import activity_timer as activity_timer_of
from liveness.domain.keys import ActivityKey, WorkerKey
from liveness.domain.reactions import ActivityDueTask, VerifyDispatchTask, WorkerCleanupTask, worker_timer
from liveness.domain.worker import InactiveReason
from liveness.engine.listener import NodeListener
from liveness.engine.node import Node
from liveness.engine.shard import Shard
from liveness.engine.timers import TimerKey
from liveness.expiry.lease_deadlines import LeaseEnd
from liveness.expiry.throttle import DueLease
from liveness.slices import SLICE_US, end_slice
from liveness.tasks.activity_due import make_activity_available
from liveness.tasks.activity_limits import ActivityLimits
from liveness.tasks.contract import Done, NotYet, Stale, TimerOutcome
from liveness.tasks.declared_bindings import DeclaredBindings
from liveness.tasks.lease_expiry import expire_lease
from liveness.tasks.timer_heap import TimerHeaps
from liveness.tasks.verify_dispatch import VerifyDispatch
from liveness.tasks.waiting_leases import LEASE_COST_MIN, WaitingLeases, commit_cost
from liveness.tasks.worker_cleanup import clean_up_worker

TIMERS_PER_TICK_MAX = 50_000
"""Over all shards. After that, the leases that were found to be over end before the remaining timers fire."""

EXPIRIES_PER_COMMIT_MAX = 20_000
"""The cost of leases that end (`commit_cost`). A larger commit would delay all replies and stop the observed clock for the leases
that are still to end; and what follows a commit takes one step of the event loop. While one commit is written, the next is
prepared."""

# The estimated processor time of what a slice does, in microseconds.
LOOK_US = 5
"""To find that a timer is due, and whether a lease is over."""
FIRE_US = 30
"""To execute a timer that does not end a lease by death."""
MOVE_US = 1
"""To let a lease that was heard wait for its turn."""
CHOOSE_US = 8
"""To ask the throttle about a lease, and to hold it or to record the death."""
END_US, END_ACTIVITY_US = 35, 1
"""To end a lease, and for each of its activities."""
LEASES_PER_CHOICE = 200
"""How many leases the throttle decides about at a time."""


class TimerRunner(NodeListener):
    def __init__(
        self,
        node: Node,
        heaps: TimerHeaps,
        reconciler: BindingReconciler,
        activity_limits: ActivityLimits,
        declared_bindings: DeclaredBindings | None = None,
    ) -> None:
        """`heaps`: the timers of the node's shards."""
        self._node = node
        self._heaps = heaps
        self._reconciler = reconciler
        self._declared_bindings = declared_bindings
        self._verify_dispatch = VerifyDispatch(reconciler)
        self._activity_limits = activity_limits
        # None of the leases in the following has a timer, unless a change of the worker arms one.
        self._found: list[DueLease[Shard]] = []
        """Leases that were found to be over since timers began to fire. More may be found in the next slice."""
        self._unheard: deque[tuple[int, list[DueLease[Shard]]]] = deque()
        """Leases that were found to be over, and when, on the monotonic clock."""
        self._heard: deque[DueLease[Shard]] = deque()
        """Leases for which everything has been heard that had arrived when they were found to be over."""
        self._over = WaitingLeases()
        """The same leases, counted for the throttle, which has not decided about them. They wait for room in a commit."""
        self._ending = WaitingLeases()
        """Leases that the throttle has let through and for which a commit has room. Their deaths are recorded."""
        self._us_left = 0
        """The estimated processor time that is left to the present slice."""
        self._timers_left: dict[int, int] = {}
        """By shard: how many timers may still fire before the next tick."""
        self._tick_budget = EXPIRIES_PER_COMMIT_MAX
        self._tick_commits = 0
        """The number of commits when the budget was last renewed."""
        self._group_cost = 0
        """What was decided since the last commit began."""
        self._group_commits = 0
        self._rest = BackgroundTasks("timers", on_failure=node.fail)

    @property
    def is_behind(self) -> bool:
        """Whether some leases that are over are not ended yet."""
        return bool(self._heard or self._over or self._ending)

    def tick(self) -> None:
        self.fire_due()

    def heard(self, lag_ms: int) -> None:
        if self._unheard:
            self.fire_due()

    def fire_due(self) -> None:
        """Fire the timers that are due: those of the first slice now, the others beside everything else."""
        node = self._node
        node.throttle.tick()
        if node.committer.commit_count != self._tick_commits:
            self._tick_commits, self._tick_budget = node.committer.commit_count, EXPIRIES_PER_COMMIT_MAX
        self._timers_left.clear()
        if self._rest.is_idle and self._run_slice():
            self._rest.start(self._run_rest())

    async def wait(self) -> None:
        """Return when no timer is left that the last tick found due, as far as a commit had room."""
        await self._rest.wait()

    async def close(self) -> None:
        await self._rest.close()

    async def _run_rest(self) -> None:
        await end_slice()
        # After a stall, the next tick says when leases may end again.
        while self._node.may_end_leases and self._run_slice():
            await end_slice()

    def _run_slice(self) -> bool:
        """Fire timers and end leases until it has taken long. Returns whether there is more to do at once."""
        node = self._node
        serving = dict.fromkeys(node.shards()).keys()
        self._us_left = SLICE_US
        if node.committer.commit_count != self._group_commits:
            self._group_commits, self._group_cost = node.committer.commit_count, 0
        # Repeated because a death may make another timer due at once, for instance a cleanup without a delay.
        while self._room > 0:
            # One after the other: the throttle counts all leases that are over, and each certificate the other deaths.
            self._fire_timers(node, serving)
            self._take_heard(node, serving)
            if self._us_left > 0 and not (self._over or self._ending):
                return False
            self._choose(node, serving)
            self._end_chosen(node, serving)
            if self._us_left <= 0:
                return self._room > 0
        return False

    @property
    def _room(self) -> int:
        """What may still be decided in this tick, and for the next commit."""
        return min(self._tick_budget, EXPIRIES_PER_COMMIT_MAX - self._group_cost)

    def _spend(self, cost: int) -> None:
        self._tick_budget -= cost
        self._group_cost += cost

    def _fire_timers(self, node: Node, serving: Set[Shard]) -> None:
        """Fire due timers, except those of workers whose death is due. These have to be heard first."""
        per_shard = max(1, TIMERS_PER_TICK_MAX // node.shard_count)
        for shard in serving:
            heap, now_ms = self._heaps[shard.id], shard.now_ms()
            left = self._timers_left.get(shard.id, per_shard)
            while left and self._room > 0 and self._us_left > 0 and (key := heap.pop_due(now_ms)) is not None:
                left -= 1
                self._us_left -= LOOK_US
                if isinstance(key, ActivityKey):
                    self._rearm_and_count(shard, key, self._fire_activity(shard, key))
                    continue
                end = shard.lease_ended_by(key)
                if end is not None and end.is_death:
                    self._found.append(DueLease(shard, key, shard.workers[key], end))
                    continue
                if node.throttle.active_storms:
                    node.throttle.on_heartbeat(key)
                self._rearm_and_count(shard, key, self._fire_worker(shard, key, end, node))
            self._timers_left[shard.id] = left
        if self._found and self._us_left > 0:
            self._unheard.append((node.clock.monotonic_ms(), self._found))
            self._found = []

    def _take_heard(self, node: Node, serving: Set[Shard]) -> None:
        """Let the leases wait for their turn for which everything has been heard that had arrived when they were found to
        be over."""
        progress, now_ms = node.receive_progress, node.clock.monotonic_ms()
        while self._unheard and self._unheard[0][0] <= progress.heard_until_ms:
            self._heard.extend(self._unheard.popleft()[1])
        if self._unheard:
            progress.probe_wanted.set()
        while self._heard and self._us_left > 0:
            self._us_left -= MOVE_US
            lease = self._heard.popleft()
            if lease.shard not in serving:
                continue
            if (wait_ms := progress.ends_from_ms(lease.worker.granted_ms) - now_ms) > 0:
                self._heaps[lease.shard.id].arm(lease.key, lease.shard.now_ms() + wait_ms)
            else:
                self._over.add(lease)

    def _choose(self, node: Node, serving: Set[Shard]) -> None:
        """Pass leases that are over through the throttle, as far as a commit has room for them. Record the deaths of those that
        it lets through, before the first of these leases ends."""
        while self._us_left > 0 and self._over and self._ending.cost < self._room:
            due: list[DueLease[Shard]] = []
            room = self._room - self._ending.cost
            for _ in range(min(LEASES_PER_CHOICE, len(self._over))):
                if room <= 0:
                    break
                self._us_left -= CHOOSE_US
                lease = self._over.pop_first()
                if lease.key not in self._ending and (again := _recheck(lease, serving)) is not None:
                    due.append(again)
                    room -= commit_cost(again)
            for lease in node.throttle.filter_due(due, self._over.counts + self._ending.counts):
                lease.shard.record_upcoming_death(lease.key, lease.worker)
                self._ending.add(lease)

    def _end_chosen(self, node: Node, serving: Set[Shard]) -> None:
        """End the chosen leases, except those of workers that were heard of since."""
        namespaces: set[str] = set()
        while self._us_left > 0 and self._ending and self._room > 0:
            chosen = self._ending.pop_first()
            lease = _recheck(chosen, serving)
            if lease is None:
                self._us_left -= CHOOSE_US
                chosen.shard.withdraw_upcoming_death(chosen.key)
                continue
            self._us_left -= END_US + END_ACTIVITY_US * len(lease.worker.bindings)
            self._spend(commit_cost(lease))
            node.throttle.record_death(lease.key)
            namespaces.add(lease.key.namespace)
            self._fire_worker(lease.shard, lease.key, lease.end, node)
        for namespace in sorted(namespaces):
            node.throttle.report_deaths(namespace)

    def _rearm_and_count(self, shard: Shard, key: TimerKey, outcome: TimerOutcome) -> None:
        self._us_left -= FIRE_US
        if isinstance(outcome, NotYet):
            self._heaps[shard.id].arm(key, outcome.due_ms)
        elif isinstance(outcome, Done):
            self._spend(LEASE_COST_MIN)

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
        if activity is None:
            return Stale()
        limits = self._activity_limits
        if (outcome := limits.enforce(key, shard, activity)) is not None:
            return outcome
        outcome = self._execute_activity_task(activity_timer_of(key, activity), shard)
        if isinstance(outcome, Done) or (end_ms := limits.next_end_ms(shard, activity)) is None:
            return outcome
        return NotYet(min(end_ms, outcome.due_ms) if isinstance(outcome, NotYet) else end_ms)

    def _execute_activity_task(
        self, task: VerifyDispatchTask | ActivityDueTask | None, shard: Shard
    ) -> TimerOutcome:
        if task is None:
            return Stale()
        if isinstance(task, VerifyDispatchTask):
            return self._verify_dispatch.execute(task, shard)
        return make_activity_available(task, shard)


def _recheck(lease: DueLease[Shard], serving: Set[Shard]) -> DueLease[Shard] | None:
    """Return the lease as it is now; None if it is not over any more. A worker that was heard of meanwhile goes back to its timer; the
    next owner of a shard that left has timers of its own."""
    shard, key, _, _ = lease
    if shard not in serving:
        return None
    if _is_still_silent(lease):
        return lease
    end = shard.lease_ended_by(key)
    if end is not None and end.is_death:
        return DueLease(shard, key, shard.workers[key], end)
    shard.recheck(key)
    return None


def _is_still_silent(lease: DueLease[Shard]) -> bool:
    """Whether silence still ends the lease. Only a renewal ends silence, and it replaces the worker. This is far cheaper
    than asking for all terms of the lease, and a mass expiry asks for every lease several times."""
    shard, key, worker, end = lease
    return (
        end.reason is InactiveReason.LEASE_EXPIRED
        and shard.workers.get(key) is worker
        and not worker.standing.drain_deadline_ms
    )
