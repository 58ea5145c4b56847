"""Decides which worker holds which attempt of an activity: every operation on both an activity and its worker.

The activity's shard records which worker holds it. The worker's shard records whether the worker's lease is live and
which attempts the worker is bound to (`worker_bindings.py`). Where one node serves both shards, both sides are decided
in one turn of the event loop and normally committed together. Where another node serves the worker's shard
(`remote.py`), that node binds the worker first, and the activity's shard decides last.

If only one side becomes durable, `reconciler.py` repairs it: an activity whose worker is not bound to it becomes
available again. A binding to an attempt that has ended does no harm: its reschedule is found stale.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice

from liveness.background import BackgroundTasks
from liveness.dispatch.activity_admission import ActivityQuotas, NoQuotas
from liveness.dispatch.remote import HeldAttempt, RemoteOwnership, RemoteWorkerBindings, is_held
from liveness.dispatch.worker_bindings import (
    Binding,
    HolderView,
    LocalWorkerBindings,
    WorkerBindings,
    bind_attempts,
    holder_view,
    unbind_attempt,
)
from liveness.domain import activity_decider as decide
from liveness.domain.activity import Activity, ActivityState
from liveness.domain.activity_decider import (
    ActivityEvents,
    ActivitySpec,
    AttemptHolder,
    HeartbeatDetails,
    Start,
    current_holder,
    fenced_off_error,
)
from liveness.domain.concurrency import LimitKey
from liveness.domain.decider import check_session_is_named
from liveness.domain.errors import (
    ActivityNotAvailable,
    ConcurrencyLimitReached,
    FencedOff,
    LivenessError,
    SessionNotCurrent,
    ShardUnavailable,
    Unavailable,
    WorkerKeyOwned,
    WorkerNotFound,
)
from liveness.domain.events import ActivityScheduled, ActivityStarted
from liveness.domain.keys import ActivityId, ActivityKey, WorkerKey, shard_of
from liveness.domain.worker import BoundActivity, WorkerState
from liveness.engine.node import Node
from liveness.engine.open_activities import is_open, payload_bytes
from liveness.engine.shard import Shard

CLAIM_TRIES_MAX = 3
ADMIT_TRIES_MAX = 10
"""How often a call asks for quota slots that other calls take first, before it is refused."""

Decision = Callable[[Shard, Activity], ActivityEvents]


_NO_ACTIVITY = ActivityId("none", "none", "none")
"""For questions about a worker alone."""


class ActivityOwnership:
    def __init__(
        self, node: Node, remote: RemoteOwnership | None = None, quotas: ActivityQuotas | None = None
    ) -> None:
        """`remote`: the other nodes; None if this node serves all shards. `quotas`: how many activities may be open."""
        self._node = node
        self._remote = remote
        self._quotas = quotas or NoQuotas()
        self._unbinding = BackgroundTasks("activity ownership")

    # -- reading

    def shard(self, key: ActivityKey) -> Shard:
        return self._node.shard(key.namespace, key.workflow_id)

    async def load(self, keys: Collection[ActivityKey]) -> None:
        """Bring activities that only the store holds into memory. The caller must decide before it waits again, because
        activities may leave memory meanwhile."""
        while missing := [key for key in keys if key not in self.shard(key).activities]:
            before = [(shard := self.shard(key), shard.activities.eviction_count) for key in missing]
            found = await self._node.store.find_activities(missing)
            is_complete = True
            for key, (shard, eviction_count) in zip(missing, before, strict=True):
                if self.shard(key) is not shard or shard.activities.eviction_count != eviction_count:
                    is_complete = False  # the row that was read may be older than the entry that was evicted
                elif key in found and key not in shard.activities:
                    shard.activities.load(key, found[key])
            if is_complete:
                return

    async def describe(self, key: ActivityKey) -> tuple[Shard, Activity]:
        await self.load([key])
        shard = self.shard(key)
        activity = shard.activities[key]
        await self._node.wait_durable(shard)
        [activity] = await self.with_current_epochs([(key, activity)])
        return shard, activity

    async def with_current_epochs(self, found: Sequence[tuple[ActivityKey, Activity]]) -> list[Activity]:
        """Give each held activity the lease epoch that may end its attempt now. A worker keeps an attempt when its session
        changes, and only the worker's shard knows the new epoch. An activity whose worker's shard does not answer keeps
        the epoch under which it was started."""
        epochs: dict[ActivityKey, int] = {}
        remote_keys: list[ActivityKey] = []
        questions: list[tuple[WorkerKey, ActivityId]] = []
        held = [(key, activity) for key, activity in found if activity.state is ActivityState.STARTED]
        for key, activity in held:
            worker_key = WorkerKey(key.namespace, activity.worker)
            try:
                worker_shard = self.local_worker_shard(worker_key)
            except Unavailable:
                continue
            if worker_shard is None:
                remote_keys.append(key)
                questions.append((worker_key, key.id))
            elif view := holder_view(worker_shard, worker_key, key.id):
                epochs[key] = _current_epoch(activity, view)
        if epochs:
            await self._node.wait_all_durable()
        if questions:
            assert self._remote is not None
            activities = dict(held)
            answers = await self._remote.look_up_many(questions)
            for key, (_, remote_view) in zip(remote_keys, answers, strict=True):
                if remote_view is not None:
                    epochs[key] = _current_epoch(activities[key], remote_view)
        return [
            activity._replace(epoch=epochs[key]) if key in epochs else activity for key, activity in found
        ]

    async def task_queue_of(self, worker_key: WorkerKey, id: ActivityId) -> str:
        """The task queue that the worker itself named in its heartbeats."""
        view = await self._bindings_of(worker_key).look_up(id)
        if view is None:
            raise WorkerNotFound(worker=worker_key.instance_key, namespace=worker_key.namespace)
        return view.task_queue

    async def check_caller(
        self, worker_key: WorkerKey, id: ActivityId, principal: str, session_id: str
    ) -> None:
        """Refuse a caller that is not the worker that it names. The call itself is refused if the worker is not known. A
        session that is replaced after this check is refused by its lease epoch."""
        view = await self._bindings_of(worker_key).look_up(id)
        if view is None:
            return
        if view.principal and view.principal != principal:
            raise WorkerKeyOwned(worker=worker_key.instance_key)
        check_session_is_named(view.session_id, session_id, principal)
        if session_id != view.session_id:
            raise SessionNotCurrent(session_id=session_id, worker=worker_key.instance_key)

    async def check_key_owner(self, worker_key: WorkerKey, principal: str) -> None:
        """Refuse a principal that names a worker of another one. Nobody owns the key of a worker that is not known."""
        view = await self._bindings_of(worker_key).look_up(_NO_ACTIVITY)
        if view is not None and view.principal and view.principal != principal:
            raise WorkerKeyOwned(worker=worker_key.instance_key)

    # -- starting attempts

    async def schedule(
        self, key: ActivityKey, spec: ActivitySpec, start: Start = decide.AT_ONCE, by: str = ""
    ) -> tuple[bool, Activity]:
        """Returns whether the activity is new, and the activity."""
        for _ in range(ADMIT_TRIES_MAX):
            await self.load([key])
            shard = self.shard(key)
            events = decide.schedule(key.id, shard.activities.get(key), spec, shard.now_ms(), start, by)
            if not events or await self._admit(shard, key.namespace, len(spec.input)):
                activity = shard.change_activity(key, events)
                assert activity is not None
                await self._node.wait_durable(shard)
                return bool(events), activity
        raise ShardUnavailable(shard_id=self.shard(key).id)

    def has_room(self, shard: Shard, namespace: str, added_bytes: int) -> bool:
        """Whether the shard may open one more activity in this turn of the event loop. False: make room first. Raises if the
        namespace has its quota."""
        return self._quotas.has_room_for_activity(shard, namespace, added_bytes)

    async def make_room(self, shard: Shard, namespace: str, added_bytes: int) -> None:
        await self._quotas.acquire_for_activity(shard, namespace, added_bytes)

    async def _admit(self, shard: Shard, namespace: str, added_bytes: int) -> bool:
        """Returns True, without a wait, if the shard may open one more activity in this turn of the event loop. Returns False
        when slots were acquired: the caller must decide anew. Raises if the namespace has its quota."""
        if self._quotas.has_room_for_activity(shard, namespace, added_bytes):
            return True
        await self._quotas.acquire_for_activity(shard, namespace, added_bytes)
        return False

    def hand_out(
        self, keys: Sequence[ActivityKey], worker_key: WorkerKey, session_id: str
    ) -> list[tuple[ActivityKey, Activity]]:
        """Give available activities to a worker whose shard this node serves, in this turn of the event loop. Returns
        those that the worker's quota allowed, from the first on. They are durable with the next commit of both shards;
        the answer must wait for it."""
        offers = self._offers(self._startable(keys))
        policy = self._node.policies.of(worker_key.namespace)
        worker_shard = self._node.shard(*worker_key)
        binding = bind_attempts(worker_shard, worker_key, session_id, list(offers.values()), policy)
        return self._start_offered(offers, worker_key, binding)

    async def hand_out_durably(
        self, keys: Sequence[ActivityKey], worker_key: WorkerKey, session_id: str
    ) -> list[tuple[ActivityKey, Activity]]:
        """Give available activities of this node to a worker whose shard may be on another node."""
        offers = self._offers(self._startable(keys))
        worker = self._bindings_of(worker_key)
        binding = await worker.bind(session_id, list(offers.values()))
        handed = self._start_offered(offers, worker_key, binding)
        # In the turn of the decision: this wait reports only shards that are lost from now on.
        await self._node.wait_all_durable()
        handed_keys = {key for key, _ in handed}
        for key, offered in islice(offers.items(), binding.bound_count):
            if key not in handed_keys:
                await self._undo_binding(worker, key, worker_key, offered)
        return handed

    def free_slots(self, key: ActivityKey) -> int:
        """How many activities of the workflow its concurrency limit lets start now."""
        return self.shard(key).objects.limits.free_slots(_limit_of(key))

    def _startable(self, keys: Sequence[ActivityKey]) -> list[ActivityKey]:
        """Those of these activities that may start together, from the first on."""
        chosen: Counter[LimitKey] = Counter()
        found: list[ActivityKey] = []
        for key in keys:
            limit = _limit_of(key)
            if self.free_slots(key) > chosen[limit]:
                chosen[limit] += 1
                found.append(key)
        return found

    def _offers(self, keys: Iterable[ActivityKey]) -> dict[ActivityKey, BoundActivity]:
        return {key: self._offer(key, self.shard(key).activities[key]) for key in keys}

    def _offer(self, key: ActivityKey, activity: Activity) -> BoundActivity:
        """The attempt that a hand-out of this available activity starts."""
        floor = self._node.policies.of(key.namespace).token_floor
        return activity.bound()._replace(attempt=decide.attempt_to_start(activity, floor))

    def _start_offered(
        self, offers: Mapping[ActivityKey, BoundActivity], worker_key: WorkerKey, binding: Binding
    ) -> list[tuple[ActivityKey, Activity]]:
        """Start the attempts that the worker was bound to, except those whose activity has changed since the offer."""
        handed: list[tuple[ActivityKey, Activity]] = []
        for key, offered in islice(offers.items(), binding.bound_count):
            try:
                shard = self.shard(key)
            except Unavailable:
                continue
            known = shard.activities.get(key)
            if (
                known is None
                or known.state is not ActivityState.AVAILABLE
                or self._offer(key, known) != offered
                or self.free_slots(key) <= 0
            ):
                continue
            policy = self._node.policies.of(key.namespace)
            now_ms = shard.now_ms()
            events = decide.start(
                known, worker_key.instance_key, binding.epoch, now_ms, now_ms + policy.dispatch_timeout_ms,
                floor=policy.token_floor,
            )  # fmt: skip
            activity = shard.change_activity(key, events)
            assert activity is not None
            handed.append((key, activity))
        return handed

    async def claim(
        self, key: ActivityKey, spec: ActivitySpec, worker_key: WorkerKey, session_id: str
    ) -> Activity:
        """Start an attempt for a worker that found the activity by itself. A repeated claim returns the attempt that
        the worker holds."""
        for _ in range(CLAIM_TRIES_MAX):
            await self.load(
                [key]
            )  # for each try: the activity may have finished and left memory, the worker come here
            worker = self._bindings_of(worker_key)
            holder = self._holder(key)
            view = await worker.look_up_live(session_id, key.id)
            await self._load_again(key, worker)
            if self._holder(key) != holder:
                continue  # the view may be older than the binding of the present holder
            self._withdraw_if_unbound(key, worker_key, view)
            if (kept := self._kept_by(key, worker_key, view)) is not None:
                await self._node.wait_durable(self.shard(key), *worker.shards_to_commit)
                return kept
            events, wanted = self._decide_claim(key, spec, worker_key, view.epoch)
            if not events:
                return await self._commit_claim(key, (), worker)
            if _opens(events) and not await self._admit(self.shard(key), key.namespace, len(spec.input)):
                continue
            binding = await worker.bind(session_id, [wanted])
            await self._load_again(key, worker)
            try:
                events, decided = self._decide_claim(key, spec, worker_key, binding.epoch)
                has_room = not _opens(events) or self._quotas.has_room_for_activity(
                    self.shard(key), key.namespace, len(spec.input)
                )
            except LivenessError:
                await self._undo_binding(worker, key, worker_key, wanted)
                raise
            if decided == wanted and has_room:
                return await self._commit_claim(key, events, worker)
            # The activity changed while the worker's node was asked.
            await self._undo_binding(worker, key, worker_key, wanted)
        raise ActivityNotAvailable(activity=decide.format_activity_id(key.id), state="changing hands")

    def _holder(self, key: ActivityKey) -> AttemptHolder | None:
        known = self.shard(key).activities.get(key)
        return None if known is None else current_holder(known)

    async def _load_again(self, key: ActivityKey, worker: WorkerBindings) -> None:
        """Loading may wait, and a decision that includes a local worker must be made in one turn."""
        if not worker.is_local:
            await self.load([key])

    def _withdraw_if_unbound(self, key: ActivityKey, worker_key: WorkerKey, view: HolderView) -> None:
        """Withdraw an attempt that the worker holds by the activity's side alone: the worker let go of it, or only one
        side became durable. Its token would be refused."""
        known = self.shard(key).activities.get(key)
        if known is None or (known.worker, known.epoch) != (worker_key.instance_key, view.epoch):
            return
        if view.bound_attempt != known.attempt:
            self.withdraw(key, current_holder(known), "its worker is not bound to it")

    def _kept_by(self, key: ActivityKey, worker_key: WorkerKey, view: HolderView) -> Activity | None:
        """The attempt that the worker kept when its session changed, with the epoch that may end it; None if it was started
        in the present lease, or if the worker does not hold the activity."""
        known = self.shard(key).activities.get(key)
        if known is None or known.worker != worker_key.instance_key or known.epoch == view.epoch:
            return None
        return known._replace(epoch=view.epoch) if view.bound_attempt == known.attempt else None

    def _decide_claim(
        self, key: ActivityKey, spec: ActivitySpec, worker_key: WorkerKey, epoch: int
    ) -> tuple[ActivityEvents, BoundActivity]:
        """Returns the events, and the attempt that the worker must be bound to."""
        shard = self.shard(key)
        policy = self._node.policies.of(key.namespace)
        known = shard.activities.get(key)
        now_ms = shard.now_ms()
        events = decide.claim(
            key.id, known, spec, worker_key.instance_key, epoch, now_ms, now_ms + policy.dispatch_timeout_ms,
            floor=policy.token_floor,
        )  # fmt: skip
        bound = known.bound() if known is not None else BoundActivity(*key.id, 0, spec.task_queue, b"")
        for event in events:
            if isinstance(event, ActivityStarted):
                self._check_slot(shard, key)
                bound = bound._replace(attempt=event.attempt)
        return events, bound

    def _check_slot(self, shard: Shard, key: ActivityKey) -> None:
        limit_key = _limit_of(key)
        limit = shard.objects.limits.get(limit_key)
        running = shard.objects.limits.running[limit_key]
        if limit is not None and running >= limit.maximum:
            raise ConcurrencyLimitReached(workflow=key.workflow_id, running=running, limit=limit.maximum)

    async def _commit_claim(
        self, key: ActivityKey, events: ActivityEvents, worker: WorkerBindings
    ) -> Activity:
        shard = self.shard(key)
        activity = shard.change_activity(key, events)
        assert activity is not None
        await self._node.wait_durable(shard, *worker.shards_to_commit)
        return activity

    async def _undo_binding(
        self, worker: WorkerBindings, key: ActivityKey, worker_key: WorkerKey, bound: BoundActivity
    ) -> None:
        """End a binding to an attempt that was not started for it."""
        try:
            if is_held(self._node, HeldAttempt(worker_key, key.id, bound.attempt)):
                return  # another call started this very attempt for this worker
        except Unavailable:
            return  # the next owner of the activity's shard knows; the reconciler asks it
        await worker.unbind(key.id, bound.attempt, taken=False)

    async def record_heartbeat(
        self, key: ActivityKey, holder: AttemptHolder, details: HeartbeatDetails | None
    ) -> Activity:
        """Note that the holder of an attempt is at work on it."""

        def decision(shard: Shard, activity: Activity) -> ActivityEvents:
            return decide.record_heartbeat(activity, holder, details, shard.now_ms())

        shard, worker, activity = await self._decide_for_holder(key, holder, decision)
        await self._node.wait_durable(shard, *worker.shards_to_commit)
        return activity

    # -- ending attempts

    async def complete(
        self, key: ActivityKey, holder: AttemptHolder, result: bytes, result_encoding: str = ""
    ) -> Activity:
        return await self._end_attempt(
            key,
            holder,
            lambda shard, activity: decide.complete(
                activity, holder, result, shard.now_ms(), result_encoding=result_encoding
            ),
        )

    async def fail(
        self,
        key: ActivityKey,
        holder: AttemptHolder,
        message: str,
        *,
        retryable: bool,
        after_ms: int | None,
        quarantine: bool = False,
        details: HeartbeatDetails | None = None,
        stack_trace: str = "",
    ) -> Activity:
        def decision(shard: Shard, activity: Activity) -> ActivityEvents:
            return decide.fail(
                activity,
                holder,
                message,
                shard.now_ms(),
                retryable=retryable,
                after_ms=after_ms,
                quarantine=quarantine,
                details=details,
                stack_trace=stack_trace,
            )

        return await self._end_attempt(key, holder, decision)

    async def give_back(self, key: ActivityKey, holder: AttemptHolder) -> Activity:
        def decision(shard: Shard, activity: Activity) -> ActivityEvents:
            return decide.give_back(activity, holder, "released by its worker", shard.now_ms())

        return await self._end_attempt(key, holder, decision)

    async def cancel(self, key: ActivityKey, reason: str, by: str = "") -> bool:
        """Returns whether a worker held the activity and is told to stop."""
        shard, activity = await self._load_activity(key)
        shard.change_activity(key, decide.cancel(activity, reason, shard.now_ms(), by))
        if activity.worker:
            try:
                worker = self._bindings_of(WorkerKey(key.namespace, activity.worker))
            except Unavailable:
                pass  # the reconciler ends the binding when the worker's shard serves again
            else:
                return await worker.end_attempt(shard, key.id, activity.attempt, taken=True)
        await self._node.wait_durable(shard)
        return False

    async def retry(self, key: ActivityKey, by: str = "", reason: str = "") -> Activity:
        for _ in range(ADMIT_TRIES_MAX):
            shard, activity = await self._load_activity(key)
            events = decide.restart(activity, shard.now_ms(), by, reason)
            if is_open(activity) or await self._admit(shard, key.namespace, payload_bytes(activity)):
                after = shard.change_activity(key, events)
                assert after is not None
                await self._node.wait_durable(shard)
                return after
        raise ShardUnavailable(shard_id=self.shard(key).id)

    async def _load_activity(self, key: ActivityKey) -> tuple[Shard, Activity]:
        await self.load([key])
        shard = self.shard(key)
        return shard, shard.activities[key]

    async def _end_attempt(self, key: ActivityKey, holder: AttemptHolder, decision: Decision) -> Activity:
        """End an attempt for its holder. A token whose lease is over is refused, even before the reschedule of the
        attempt took effect."""
        shard, worker, activity = await self._decide_for_holder(key, holder, decision)
        await worker.end_attempt(shard, key.id, holder.attempt, taken=False)
        return activity

    async def _decide_for_holder(
        self, key: ActivityKey, holder: AttemptHolder, decision: Decision
    ) -> tuple[Shard, WorkerBindings, Activity]:
        """Apply what the holder of an attempt wants, unless its lease is over. The caller waits until it is durable."""
        shard, known = await self._load_activity(key)
        events = decision(shard, known)
        worker = self._bindings_of(WorkerKey(key.namespace, holder.worker))
        if events:
            view = await worker.look_up(key.id)
            if not worker.is_local:
                shard, known = await self._load_activity(key)
                events = decision(shard, known)  # the activity may have changed meanwhile
            if reason := _fencing_reason(holder, view):
                raise fenced_off_error(key.id, holder, reason)
        activity = shard.change_activity(key, events)
        assert activity is not None
        return shard, worker, activity

    def unbind_soon(self, key: ActivityKey, worker: str, attempt: int) -> None:
        """Take an attempt from a worker: in this turn if this node serves its shard, otherwise in the background."""
        worker_key = WorkerKey(key.namespace, worker)
        try:
            worker_shard = self.local_worker_shard(worker_key)
        except Unavailable:
            return  # the reconciler ends the binding when the worker's shard serves again
        if worker_shard is not None:
            unbind_attempt(worker_shard, worker_key, key.id, attempt, taken=True)
        else:
            self._unbinding.start(self._unbind_remotely(worker_key, key.id, attempt))

    async def _unbind_remotely(self, worker_key: WorkerKey, id: ActivityId, attempt: int) -> None:
        assert self._remote is not None
        await RemoteWorkerBindings(self._node, self._remote, worker_key).unbind(id, attempt, taken=True)

    # -- withdrawing attempts

    def withdraw(self, key: ActivityKey, holder: AttemptHolder, reason: str) -> None:
        """Take an attempt back from a holder that does not know, or has forgotten, that it holds it."""
        shard = self.shard(key)
        current = shard.activities.get(key)
        if current is not None:
            try:
                shard.change_activity(key, decide.give_back(current, holder, reason, shard.now_ms()))
            except FencedOff:
                pass  # this holder does not hold it any more
        self.unbind_soon(key, holder.worker, holder.attempt)

    # -- internals

    async def close(self) -> None:
        await self._unbinding.close()

    def is_local(self, namespace: str, name: str) -> bool:
        return self._node.serves(shard_of(namespace, name, self._node.shard_count))

    def local_worker_shard(self, worker_key: WorkerKey) -> Shard | None:
        """The worker's shard; None if another node serves it."""
        if self._remote is not None and not self.is_local(*worker_key):
            return None
        return self._node.shard(*worker_key)

    def _bindings_of(self, worker_key: WorkerKey) -> WorkerBindings:
        worker_shard = self.local_worker_shard(worker_key)
        if worker_shard is not None:
            return LocalWorkerBindings(self._node, worker_key, worker_shard)
        assert self._remote is not None
        return RemoteWorkerBindings(self._node, self._remote, worker_key)


def _limit_of(key: ActivityKey) -> LimitKey:
    return LimitKey(key.namespace, key.workflow_id)


def _opens(events: ActivityEvents) -> bool:
    return bool(events) and isinstance(events[0], ActivityScheduled)


def _current_epoch(activity: Activity, view: HolderView) -> int:
    return view.epoch if view.bound_attempt == activity.attempt else activity.epoch


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
