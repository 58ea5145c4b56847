"""Who holds which activity: whatever touches an activity's shard and its worker's.

The activity's shard says who holds it; the worker's shard says whether that worker's lease is live and what it is bound
to. Both sides are decided in one turn and committed together where one node owns both shards. Where only one side
becomes durable, `verify` finds it: an activity whose worker is not bound to it is made available again, and a binding
whose attempt has ended does no harm, because its reschedule is found stale.
"""

from __future__ import annotations

from collections.abc import Collection

from liveness.domain import activity_decider as decide
from liveness.domain import orders
from liveness.domain.activity import Activity, ActivityState
from liveness.domain.activity_decider import Events, Holder, Spec, fenced_off
from liveness.domain.errors import FencedOff, ShardUnavailable
from liveness.domain.keys import ActivityKey, WorkerKey
from liveness.domain.worker import Worker, WorkerState
from liveness.shard.node import Node
from liveness.shard.shard import Shard

DOUBT_MS = 30_000
"""How long a reschedule may be on its way before an activity that its worker is not bound to is made available."""
DOUBTS_MAX = 100_000
LOOK_AGAIN_MS = 1_000
SCRUB_MS = 60_000
"""How often a held activity is compared with its worker's bindings."""


class Custody:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._doubted: dict[ActivityKey, int] = {}
        """Held activities that their worker was not bound to, with the attempt, when they were looked at last."""

    # -- finding

    def shard(self, key: ActivityKey) -> Shard:
        return self._node.shard(key.namespace, key.workflow_id)

    async def recall(self, keys: Collection[ActivityKey]) -> None:
        """Bring what the store knows of these into memory. What follows must not wait before it decides."""
        while missing := [key for key in keys if key not in self.shard(key).activities]:
            before = [(shard := self.shard(key), shard.activities.evictions) for key in missing]
            found = await self._node.store.find_activities(missing)
            settled = True
            for key, (shard, evictions) in zip(missing, before, strict=True):
                if self.shard(key) is not shard or shard.activities.evictions != evictions:
                    settled = False  # what was read may be older than what left memory since
                elif key in found and key not in shard.activities:
                    shard.activities.recall(key, found[key])
            if settled:
                return

    async def describe(self, key: ActivityKey) -> tuple[Shard, Activity]:
        await self.recall([key])
        shard = self.shard(key)
        activity = shard.activities[key]
        await self._node.durable(shard)
        return shard, activity

    # -- beginnings

    async def schedule(self, key: ActivityKey, spec: Spec, delay_ms: int) -> tuple[bool, Activity]:
        """Returns whether it was not known before."""
        await self.recall([key])
        shard = self.shard(key)
        events = decide.schedule(key.id, shard.activities.get(key), spec, shard.now_ms(), delay_ms)
        activity = shard.change_activity(key, events)
        assert activity is not None
        await self._node.durable(shard)
        return bool(events), activity

    def hand_out(self, key: ActivityKey, worker_key: WorkerKey) -> Activity:
        """Give an available activity to a worker, who is known to be live and to take work. Durable with the next
        commit of both shards; the answer must wait for it."""
        shard, home = self.shard(key), self._home(worker_key)
        now_ms = shard.now_ms()
        policy = self._node.policies.of(key.namespace)
        worker = home.workers[worker_key]
        events = decide.start(
            shard.activities[key], worker_key.instance_key, worker.epoch, now_ms,
            now_ms + policy.dispatch_timeout_ms, floor=policy.token_floor,
        )  # fmt: skip
        activity = shard.change_activity(key, events)
        assert activity is not None
        home.change_worker(worker_key, orders.hand(activity.bound()))
        return activity

    async def claim(self, key: ActivityKey, spec: Spec, worker_key: WorkerKey, session_id: str) -> Activity:
        await self.recall([key])
        shard, home = self.shard(key), self._home(worker_key)
        policy = self._node.policies.of(key.namespace)
        worker = home.describe(worker_key)
        orders.check_live(worker_key, worker, session_id)
        known = shard.activities.get(key)
        if known is not None and (known.worker, known.epoch) == (worker_key.instance_key, worker.epoch):
            bound = worker.bindings.get(key.id)
            if bound is None or bound.attempt != known.attempt:
                # It let go of it, or only one side became durable: that attempt's token would be refused.
                self.withdraw(key, known, "its worker is not bound to it")
        now_ms = shard.now_ms()
        events = decide.claim(
            key.id, shard.activities.get(key), spec, worker_key.instance_key, worker.epoch, now_ms,
            now_ms + policy.dispatch_timeout_ms, floor=policy.token_floor,
        )  # fmt: skip
        if events:
            orders.check_takes_work(worker_key, worker, policy)
        activity = shard.change_activity(key, events)
        assert activity is not None
        if events:
            home.change_worker(worker_key, orders.hand(activity.bound()))
        await self._durable(shard, home)
        return activity

    # -- ends

    async def complete(self, key: ActivityKey, holder: Holder, result: bytes) -> Activity:
        shard, activity = await self._held(key)
        return await self._end(key, holder, decide.complete(activity, holder, result, shard.now_ms()))

    async def fail(
        self, key: ActivityKey, holder: Holder, message: str, *, retryable: bool, after_ms: int | None
    ) -> Activity:
        shard, activity = await self._held(key)
        events = decide.fail(
            activity, holder, message, shard.now_ms(), retryable=retryable, after_ms=after_ms
        )
        return await self._end(key, holder, events)

    async def give_back(self, key: ActivityKey, holder: Holder) -> Activity:
        shard, activity = await self._held(key)
        events = decide.give_back(activity, holder, "released by its worker", shard.now_ms())
        return await self._end(key, holder, events)

    async def cancel(self, key: ActivityKey, reason: str) -> bool:
        """Returns whether a worker held it and is told to stop."""
        shard, activity = await self._held(key)
        shard.change_activity(key, decide.cancel(activity, reason, shard.now_ms()))
        home = self._unbind(key, activity.worker, activity.attempt, taken=True) if activity.worker else None
        await self._durable(shard, *([home] if home else []))
        return home is not None

    async def retry(self, key: ActivityKey) -> Activity:
        shard, activity = await self._held(key)
        after = shard.change_activity(key, decide.retry_anew(activity, shard.now_ms()))
        assert after is not None
        await self._node.durable(shard)
        return after

    async def _held(self, key: ActivityKey) -> tuple[Shard, Activity]:
        await self.recall([key])
        shard = self.shard(key)
        return shard, shard.activities[key]

    async def _end(self, key: ActivityKey, holder: Holder, events: Events) -> Activity:
        shard, home = self.shard(key), self._home(WorkerKey(key.namespace, holder.worker))
        if events:
            self._check_lease(key, holder, home)
        activity = shard.change_activity(key, events)
        assert activity is not None
        self._unbind(key, holder.worker, holder.attempt, taken=False)
        await self._durable(shard, home)
        return activity

    def _check_lease(self, key: ActivityKey, holder: Holder, home: Shard) -> None:
        """Refuse a token whose lease is over, whatever has been done about it so far."""
        if why := self._why_not_held(key, holder, home.workers.get(WorkerKey(key.namespace, holder.worker))):
            raise fenced_off(key.id, holder, why)

    def _why_not_held(self, key: ActivityKey, holder: Holder, worker: Worker | None) -> str:
        if worker is None:
            return "the worker is not known"
        if worker.state is not WorkerState.ACTIVE:
            return f"the worker is {worker.state.name} ({worker.inactive_detail})"
        if worker.epoch != holder.epoch:
            return f"the worker's lease epoch is {worker.epoch} now"
        bound = worker.bindings.get(key.id)
        if bound is None or bound.attempt != holder.attempt:
            return "the worker is not bound to it any more"
        return ""

    def _unbind(self, key: ActivityKey, worker: str, attempt: int, *, taken: bool) -> Shard | None:
        """Returns the worker's shard if the worker was bound to it."""
        worker_key = WorkerKey(key.namespace, worker)
        try:
            home = self._home(worker_key)
        except ShardUnavailable:
            if not taken:
                raise
            return None  # it hears of it when it ends the attempt
        known = home.workers.get(worker_key)
        if known is None:
            return None
        events = orders.end_binding(known, key.id, attempt, taken=taken)
        return home if home.change_worker(worker_key, events) else None

    # -- lost answers

    def withdraw(self, key: ActivityKey, activity: Activity, reason: str) -> None:
        """The worker does not know that it was handed this: make it available to others."""
        shard = self.shard(key)
        holder = Holder(activity.worker, activity.epoch, activity.attempt)
        current = shard.activities.get(key)
        if current is not None:
            try:
                shard.change_activity(key, decide.give_back(current, holder, reason, shard.now_ms()))
            except FencedOff:
                pass  # it moved on by itself
        self._unbind(key, activity.worker, activity.attempt, taken=True)

    def verify(self, key: ActivityKey, shard: Shard) -> int | None:
        """Look whether a held activity is where it should be. Returns when to look again."""
        activity = shard.activities.get(key)
        if activity is None or activity.state is not ActivityState.STARTED:
            return None
        now_ms = shard.now_ms()
        if now_ms < activity.due_ms:
            return activity.due_ms
        worker_key = WorkerKey(key.namespace, activity.worker)
        try:
            home = self._home(worker_key)
        except ShardUnavailable:
            return now_ms + LOOK_AGAIN_MS
        worker = home.workers.get(worker_key)
        bound = worker.bindings.get(key.id) if worker and worker.state is WorkerState.ACTIVE else None
        if worker is not None and bound is not None and bound.attempt == activity.attempt:
            self._doubted.pop(key, None)
            if worker.standing.handed.get(key.id) is not False:
                return now_ms + SCRUB_MS
            if worker.renewed_ms <= home.now_ms() - (now_ms - activity.since_ms):
                # Not heard of since the hand-out: it may have died of it, and then its lease must tell, or the death
                # would not be counted.
                return now_ms + LOOK_AGAIN_MS
            self.withdraw(key, activity, "its worker never confirmed that it came")
            return None
        if self._doubted.pop(key, None) != activity.attempt:
            if len(self._doubted) >= DOUBTS_MAX:
                self._doubted.clear()  # what is still in doubt is found again
            self._doubted[key] = activity.attempt
            return now_ms + DOUBT_MS
        self.withdraw(key, activity, "its worker is not bound to it")
        return None

    def scrub(self, worker_key: WorkerKey, home: Shard) -> None:
        """Take from a worker what it was handed and does not hold, should only its own side have become durable: it
        would count against the worker's quota for as long as the worker lives."""
        worker = home.workers.get(worker_key)
        if worker is None or not worker.standing.handed:
            return
        for id in worker.standing.handed:
            key, attempt = ActivityKey(worker_key.namespace, *id), worker.bindings[id].attempt
            try:
                activity = self.shard(key).activities.get(key)
            except ShardUnavailable:
                continue
            if (
                activity is None
                or activity.state is not ActivityState.STARTED
                or (activity.worker, activity.attempt) != (worker_key.instance_key, attempt)
            ):
                self._unbind(key, worker_key.instance_key, attempt, taken=True)

    # -- inside

    def _home(self, worker_key: WorkerKey) -> Shard:
        return self._node.shard(*worker_key)

    async def _durable(self, *shards: Shard) -> None:
        for shard in dict.fromkeys(shards):
            await self._node.durable(shard)
