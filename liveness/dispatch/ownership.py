"""Who holds which activity: whatever touches an activity's shard and its worker's.

The activity's shard says who holds it; the worker's shard says whether that worker's lease is live and what it is bound
to. Where one node serves both, both sides are decided in one turn and, as a rule, committed together. Where the worker
is at home elsewhere (`ownership_responder.py`), its side comes first, and the activity's shard has the last word. Where only one side
becomes durable, `vigil.py` finds it: an activity whose worker is not bound to it is made available again, and a binding
whose attempt has ended does no harm, because its reschedule is found stale.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from liveness.background import BackgroundTasks
from liveness.dispatch.remote import HolderView, RemoteOwnership, holder_view
from liveness.domain import activity_decider as decide
from liveness.domain import worker_control
from liveness.domain.activity import Activity, ActivityState
from liveness.domain.activity_decider import (
    ActivityEvents,
    ActivitySpec,
    AttemptHolder,
    current_holder,
    fenced_off_error,
)
from liveness.domain.errors import (
    ActivityNotAvailable,
    FencedOff,
    LivenessError,
    Unavailable,
    WorkerNotFound,
)
from liveness.domain.events import ActivityStarted
from liveness.domain.keys import ActivityId, ActivityKey, WorkerKey, shard_of
from liveness.domain.worker import BoundActivity, WorkerState
from liveness.engine.node import Node
from liveness.engine.shard import Shard

CLAIM_TRIES_MAX = 3

Decision = Callable[[Shard, Activity], ActivityEvents]


class ActivityOwnership:
    def __init__(self, node: Node, remote: RemoteOwnership | None = None) -> None:
        """`remote`: other nodes, if there may be any."""
        self._node = node
        self._remote = remote
        self._unbinding = BackgroundTasks("activity ownership")

    # -- finding

    def shard(self, key: ActivityKey) -> Shard:
        return self._node.shard(key.namespace, key.workflow_id)

    async def load(self, keys: Collection[ActivityKey]) -> None:
        """Bring what the store knows of these into memory. What follows must not wait before it decides."""
        while missing := [key for key in keys if key not in self.shard(key).activities]:
            before = [(shard := self.shard(key), shard.activities.eviction_count) for key in missing]
            found = await self._node.store.find_activities(missing)
            is_complete = True
            for key, (shard, eviction_count) in zip(missing, before, strict=True):
                if self.shard(key) is not shard or shard.activities.eviction_count != eviction_count:
                    is_complete = False  # what was read may be older than what left memory since
                elif key in found and key not in shard.activities:
                    shard.activities.load(key, found[key])
            if is_complete:
                return

    async def describe(self, key: ActivityKey) -> tuple[Shard, Activity]:
        await self.load([key])
        shard = self.shard(key)
        activity = shard.activities[key]
        await self._node.wait_durable(shard)
        return shard, activity

    async def task_queue_of(self, worker_key: WorkerKey, id: ActivityId) -> str:
        """A worker's own one, wherever the worker is at home."""
        worker_shard = self.local_worker_shard(worker_key)
        if worker_shard is not None:
            return worker_shard.describe(worker_key).profile.task_queue
        assert self._remote is not None
        view = await self._remote.look_up(worker_key, id)
        if view is None:
            raise WorkerNotFound(worker=worker_key.instance_key, namespace=worker_key.namespace)
        return view.task_queue

    # -- beginnings

    async def schedule(self, key: ActivityKey, spec: ActivitySpec, delay_ms: int) -> tuple[bool, Activity]:
        """Returns whether it was not known before."""
        await self.load([key])
        shard = self.shard(key)
        events = decide.schedule(key.id, shard.activities.get(key), spec, shard.now_ms(), delay_ms)
        activity = shard.change_activity(key, events)
        assert activity is not None
        await self._node.wait_durable(shard)
        return bool(events), activity

    def hand_out(self, key: ActivityKey, worker_key: WorkerKey) -> Activity:
        """Give an available activity to a worker, who is known to be live and to take work. Durable with the next
        commit of both shards; the answer must wait for it."""
        shard, worker_shard = self.shard(key), self._node.shard(*worker_key)
        now_ms = shard.now_ms()
        policy = self._node.policies.of(key.namespace)
        worker = worker_shard.workers[worker_key]
        events = decide.start(
            shard.activities[key], worker_key.instance_key, worker.epoch, now_ms,
            now_ms + policy.dispatch_timeout_ms, floor=policy.token_floor,
        )  # fmt: skip
        activity = shard.change_activity(key, events)
        assert activity is not None
        worker_shard.change_worker(worker_key, worker_control.bind(activity.bound()))
        return activity

    async def claim(
        self, key: ActivityKey, spec: ActivitySpec, worker_key: WorkerKey, session_id: str
    ) -> Activity:
        await self.load([key])
        worker_shard = self.local_worker_shard(worker_key)
        if worker_shard is None:
            return await self._claim_for_remote_worker(key, spec, worker_key, session_id)
        shard = self.shard(key)
        policy = self._node.policies.of(key.namespace)
        worker = worker_shard.describe(worker_key)
        worker_control.check_lease_is_live(worker_key, worker, session_id)
        self._withdraw_if_unbound(key, worker_key, holder_view(worker_shard, worker_key, key.id))
        now_ms = shard.now_ms()
        events = decide.claim(
            key.id, shard.activities.get(key), spec, worker_key.instance_key, worker.epoch, now_ms,
            now_ms + policy.dispatch_timeout_ms, floor=policy.token_floor,
        )  # fmt: skip
        if events:
            worker_control.check_accepts_work(worker_key, worker, policy)
        activity = shard.change_activity(key, events)
        assert activity is not None
        if events:
            worker_shard.change_worker(worker_key, worker_control.bind(activity.bound()))
        await self._wait_durable(shard, worker_shard)
        return activity

    def _withdraw_if_unbound(self, key: ActivityKey, worker_key: WorkerKey, view: HolderView | None) -> None:
        """It let go of it, or only one side became durable: that attempt's token would be refused."""
        known = self.shard(key).activities.get(key)
        if (
            known is None
            or view is None
            or (known.worker, known.epoch) != (worker_key.instance_key, view.epoch)
        ):
            return
        if view.bound_attempt != known.attempt:
            self.withdraw(key, current_holder(known), "its worker is not bound to it")

    async def _claim_for_remote_worker(
        self, key: ActivityKey, spec: ActivitySpec, worker_key: WorkerKey, session_id: str
    ) -> Activity:
        """The worker's shard is another node's."""
        assert self._remote is not None

        def decide_claim(epoch: int) -> tuple[Shard, ActivityEvents]:
            shard = self.shard(key)
            now_ms = shard.now_ms()
            verify_ms = now_ms + self._node.policies.of(key.namespace).dispatch_timeout_ms
            known = shard.activities.get(key)
            return shard, decide.claim(key.id, known, spec, worker_key.instance_key, epoch, now_ms, verify_ms)

        for _ in range(CLAIM_TRIES_MAX):
            view = await self._remote.look_up(worker_key, key.id)
            if view is None:
                raise WorkerNotFound(worker=worker_key.instance_key, namespace=key.namespace)
            await self.load([key])
            self._withdraw_if_unbound(key, worker_key, view)
            shard, events = decide_claim(view.epoch)
            if not events:
                await self._node.wait_durable(shard)
                return shard.activities[key]
            known = shard.activities.get(key)
            attempt = _started_attempt(events)
            token, queue = (known.token, known.task_queue) if known else (b"", spec.task_queue)
            wanted = BoundActivity(*key.id, attempt, queue, token)
            epoch, _ = await self._remote.bind(worker_key, session_id, [wanted])
            await self.load([key])
            try:
                shard, events = decide_claim(epoch)
            except LivenessError:
                await self._undo_binding(worker_key, wanted)
                raise
            if _started_attempt(events) == attempt:
                activity = shard.change_activity(key, events)
                assert activity is not None
                await self._node.wait_durable(shard)
                return activity
            await self._undo_binding(worker_key, wanted)  # it moved on meanwhile
        raise ActivityNotAvailable(activity=decide.format_activity_id(key.id), state="changing hands")

    async def hand_out_to_remote_worker(
        self, keys: Sequence[ActivityKey], worker_key: WorkerKey, session_id: str
    ) -> list[tuple[ActivityKey, Activity]]:
        """Give available activities of this node's shards to a worker that is at home elsewhere, durably."""
        assert self._remote is not None
        offered = {key: self.shard(key).activities[key].bound() for key in keys}
        epoch, bound = await self._remote.bind(worker_key, session_id, list(offered.values()))
        handed: list[tuple[ActivityKey, Activity]] = []
        for index, (key, wanted) in enumerate(offered.items()):
            try:
                shard = self.shard(key)
                known = shard.activities.get(key)
                if index >= bound or known is None or known.bound() != wanted:
                    continue
                if known.state is ActivityState.AVAILABLE:
                    now_ms = shard.now_ms()
                    verify_ms = now_ms + self._node.policies.of(key.namespace).dispatch_timeout_ms
                    events = decide.start(known, worker_key.instance_key, epoch, now_ms, verify_ms)
                    activity = shard.change_activity(key, events)
                    assert activity is not None
                    handed.append((key, activity))
            except Unavailable:
                continue  # its shard is gone; what it was bound to is let go of below
        await self._node.wait_all_durable()
        held = {key for key, _ in handed}
        for index, (key, wanted) in enumerate(offered.items()):
            if index < bound and key not in held:
                await self._undo_binding(worker_key, wanted)
        return handed

    async def _undo_binding(self, worker_key: WorkerKey, activity: BoundActivity) -> None:
        """Undo a binding that nobody was told of."""
        assert self._remote is not None
        try:
            await self._remote.unbind(worker_key, activity.id, activity.attempt, taken=False)
        except LivenessError:
            pass  # found by its worker's scrub

    # -- ends

    async def complete(self, key: ActivityKey, holder: AttemptHolder, result: bytes) -> Activity:
        return await self._end_attempt(
            key, holder, lambda shard, activity: decide.complete(activity, holder, result, shard.now_ms())
        )

    async def fail(
        self, key: ActivityKey, holder: AttemptHolder, message: str, *, retryable: bool, after_ms: int | None
    ) -> Activity:
        def decision(shard: Shard, activity: Activity) -> ActivityEvents:
            return decide.fail(
                activity, holder, message, shard.now_ms(), retryable=retryable, after_ms=after_ms
            )

        return await self._end_attempt(key, holder, decision)

    async def give_back(self, key: ActivityKey, holder: AttemptHolder) -> Activity:
        def decision(shard: Shard, activity: Activity) -> ActivityEvents:
            return decide.give_back(activity, holder, "released by its worker", shard.now_ms())

        return await self._end_attempt(key, holder, decision)

    async def cancel(self, key: ActivityKey, reason: str) -> bool:
        """Returns whether a worker held it and is told to stop."""
        shard, activity = await self._load_activity(key)
        shard.change_activity(key, decide.cancel(activity, reason, shard.now_ms()))
        worker_key = WorkerKey(key.namespace, activity.worker)
        if activity.worker and self.local_worker_shard(worker_key) is None:
            await self._node.wait_durable(shard)
            return await self._unbind_remote(worker_key, key, activity.attempt, taken=True)
        worker_shard = (
            self.unbind(key, activity.worker, activity.attempt, taken=True) if activity.worker else None
        )
        await self._wait_durable(shard, *([worker_shard] if worker_shard else []))
        return worker_shard is not None

    async def retry(self, key: ActivityKey) -> Activity:
        shard, activity = await self._load_activity(key)
        after = shard.change_activity(key, decide.restart(activity, shard.now_ms()))
        assert after is not None
        await self._node.wait_durable(shard)
        return after

    async def _load_activity(self, key: ActivityKey) -> tuple[Shard, Activity]:
        await self.load([key])
        shard = self.shard(key)
        return shard, shard.activities[key]

    async def _end_attempt(self, key: ActivityKey, holder: AttemptHolder, decision: Decision) -> Activity:
        """The holder ends its attempt. A token whose lease is over is refused, whatever has been done about it so far."""
        shard, known = await self._load_activity(key)
        events = decision(shard, known)
        worker_key = WorkerKey(key.namespace, holder.worker)
        worker_shard = self.local_worker_shard(worker_key)
        if events:
            if worker_shard is not None:
                view = holder_view(worker_shard, worker_key, key.id)
            else:
                assert self._remote is not None
                view = await self._remote.look_up(worker_key, key.id)
                shard, known = await self._load_activity(key)
                events = decision(shard, known)  # what it rests on may have changed meanwhile
            if reason := _fencing_reason(holder, view):
                raise fenced_off_error(key.id, holder, reason)
        activity = shard.change_activity(key, events)
        assert activity is not None
        if worker_shard is not None:
            self.unbind(key, holder.worker, holder.attempt, taken=False)
            await self._wait_durable(shard, worker_shard)
        else:
            await self._node.wait_durable(shard)
            await self._unbind_remote(worker_key, key, holder.attempt, taken=False)
        return activity

    async def _unbind_remote(
        self, worker_key: WorkerKey, key: ActivityKey, attempt: int, *, taken: bool
    ) -> bool:
        assert self._remote is not None
        try:
            return await self._remote.unbind(worker_key, key.id, attempt, taken=taken)
        except LivenessError:
            return False  # found by its worker's scrub, if the worker does not say so itself

    def unbind(self, key: ActivityKey, worker: str, attempt: int, *, taken: bool) -> Shard | None:
        """Returns the worker's shard if the worker was bound to it, and is at home here."""
        worker_key = WorkerKey(key.namespace, worker)
        try:
            worker_shard = self.local_worker_shard(worker_key)
        except Unavailable:
            if not taken:
                raise
            return None  # it hears of it when it ends the attempt
        if worker_shard is None:
            self._unbinding.start(self._unbind_remote_later(worker_key, key, attempt, taken=taken))
            return None
        known = worker_shard.workers.get(worker_key)
        if known is None:
            return None
        events = worker_control.end_binding(known, key.id, attempt, taken=taken)
        return worker_shard if worker_shard.change_worker(worker_key, events) else None

    async def _unbind_remote_later(
        self, worker_key: WorkerKey, key: ActivityKey, attempt: int, *, taken: bool
    ) -> None:
        await self._unbind_remote(worker_key, key, attempt, taken=taken)

    # -- lost answers

    def withdraw(self, key: ActivityKey, holder: AttemptHolder, reason: str) -> None:
        """The worker does not know that it was handed this: make it available to others."""
        shard = self.shard(key)
        current = shard.activities.get(key)
        if current is not None:
            try:
                shard.change_activity(key, decide.give_back(current, holder, reason, shard.now_ms()))
            except FencedOff:
                pass  # it moved on by itself
        self.unbind(key, holder.worker, holder.attempt, taken=True)

    # -- inside

    async def close(self) -> None:
        await self._unbinding.close()

    def is_local(self, namespace: str, name: str) -> bool:
        return self._node.serves(shard_of(namespace, name, self._node.shard_count))

    def local_worker_shard(self, worker_key: WorkerKey) -> Shard | None:
        """The worker's shard; None if another node serves it."""
        if self._remote is not None and not self.is_local(*worker_key):
            return None
        return self._node.shard(*worker_key)

    async def _wait_durable(self, *shards: Shard) -> None:
        for shard in dict.fromkeys(shards):
            await self._node.wait_durable(shard)


def _started_attempt(events: ActivityEvents) -> int:
    """That is begun with them; 0 if none is."""
    return next((event.attempt for event in events if isinstance(event, ActivityStarted)), 0)


def _fencing_reason(holder: AttemptHolder, view: HolderView | None) -> str:
    if view is None:
        return "the worker is not known"
    if view.state is not WorkerState.ACTIVE:
        return f"the worker is {view.state.name} ({view.inactive_detail})"
    if view.epoch != holder.epoch:
        return f"the worker's lease epoch is {view.epoch} now"
    if view.bound_attempt != holder.attempt:
        return "the worker is not bound to it any more"
    return ""
