"""Repairs attempts that the activity's shard and the worker's shard record differently.

Both sides of a hand-out normally become durable. If only one does, because a commit failed or a node died in between,
the reconciler finds it: a timer of each held activity starts `verify`, and the lease timer of each worker starts
`reconcile_worker`.
"""

from __future__ import annotations

from liveness.background import BackgroundTasks
from liveness.dispatch.ownership import ActivityOwnership
from liveness.dispatch.remote import HeldAttempt, RemoteOwnership, is_held
from liveness.dispatch.worker_bindings import HolderView, holder_view
from liveness.domain.activity import Activity, ActivityState
from liveness.domain.activity_decider import AttemptHolder, current_holder
from liveness.domain.errors import Unavailable
from liveness.domain.keys import ActivityKey, WorkerKey
from liveness.engine.node import Node
from liveness.engine.shard import Shard

UNBOUND_GRACE_MS = 30_000
"""Time for a reschedule to arrive before an activity whose worker is not bound to it becomes available."""
REMEMBERED_MAX = 100_000
RECHECK_MS = 1_000
RECONCILE_INTERVAL_MS = 60_000
"""How often a held activity is compared with its worker's bindings."""
QUERY_BATCH_MAX = 500


class BindingReconciler:
    def __init__(
        self, node: Node, ownership: ActivityOwnership, remote: RemoteOwnership | None = None
    ) -> None:
        self._node = node
        self._ownership = ownership
        self._remote = remote
        self._unbound: dict[ActivityKey, int] = {}
        """Held activities, with the attempt, whose worker was not bound to them at the last check."""
        self._next_check_ms: dict[ActivityKey, int] = {}
        """When to check held activities again whose worker's shard is on another node."""
        self._to_verify: dict[ActivityKey, AttemptHolder] = {}
        self._to_reconcile: dict[HeldAttempt, None] = {}
        self._queries = BackgroundTasks("binding reconciler")

    def verify(self, key: ActivityKey, shard: Shard) -> int | None:
        """Check that the holder of an activity is bound to it. Returns when to check again."""
        activity = shard.activities.get(key)
        if activity is None or activity.state is not ActivityState.STARTED:
            return None
        now_ms = shard.now_ms()
        if now_ms < activity.due_ms:
            return activity.due_ms
        worker_key = WorkerKey(key.namespace, activity.worker)
        try:
            worker_shard = self._ownership.local_worker_shard(worker_key)
        except Unavailable:
            return now_ms + RECHECK_MS
        if worker_shard is not None:
            return self._reconcile_activity(
                key, shard, activity, holder_view(worker_shard, worker_key, key.id)
            )
        if (next_check_ms := self._next_check_ms.pop(key, 0)) > now_ms:
            return next_check_ms
        self._to_verify[key] = current_holder(activity)
        self._start_query()
        return now_ms + RECHECK_MS

    def _reconcile_activity(
        self, key: ActivityKey, shard: Shard, activity: Activity, view: HolderView | None
    ) -> int | None:
        """Compare a held activity with its worker's shard. Returns when to check again; None if it was withdrawn."""
        now_ms = shard.now_ms()
        if view is not None and view.bound_attempt == activity.attempt:
            self._unbound.pop(key, None)
            if not view.unconfirmed:
                return now_ms + RECONCILE_INTERVAL_MS
            if view.silent_ms >= now_ms - activity.since_ms:
                # The worker has sent nothing since the hand-out. It may have died of this activity: then its lease
                # must expire first, because only that counts the death.
                return now_ms + RECHECK_MS
            self._ownership.withdraw(key, current_holder(activity), "its worker never confirmed that it came")
            return None
        if self._unbound.pop(key, None) != activity.attempt:
            if len(self._unbound) >= REMEMBERED_MAX:
                self._unbound.clear()  # the next check of each finds it again
            self._unbound[key] = activity.attempt
            return now_ms + UNBOUND_GRACE_MS
        self._ownership.withdraw(key, current_holder(activity), "its worker is not bound to it")
        return None

    def reconcile_worker(self, worker_key: WorkerKey, worker_shard: Shard) -> None:
        """Unbind a worker from attempts that it was handed and whose activity's shard does not name it as the holder:
        only the worker's side became durable. Such a binding would count against the worker's quota for ever."""
        worker = worker_shard.workers.get(worker_key)
        if worker is None or not worker.standing.handed:
            return
        for id in worker.standing.handed:
            held = HeldAttempt(worker_key, id, worker.bindings[id].attempt)
            if self._remote is not None and not self._ownership.is_local(
                worker_key.namespace, id.workflow_id
            ):
                self._to_reconcile[held] = None
                self._start_query()
                continue
            try:
                if not is_held(self._node, held):
                    self._unbind(held)
            except Unavailable:
                continue

    def _unbind(self, held: HeldAttempt) -> None:
        self._ownership.unbind_soon(
            ActivityKey(held.worker.namespace, *held.id), held.worker.instance_key, held.attempt
        )

    # -- asking other nodes

    def _start_query(self) -> None:
        if self._queries.is_idle:
            self._queries.start(self._query_remote())

    async def _query_remote(self) -> None:
        """Send all questions of one turn in as few calls as possible."""
        assert self._remote is not None
        while self._to_verify:
            batch = [self._to_verify.popitem() for _ in range(min(len(self._to_verify), QUERY_BATCH_MAX))]
            questions = [(WorkerKey(key.namespace, holder.worker), key.id) for key, holder in batch]
            answers = await self._remote.look_up_many(questions)
            for (key, holder), (answered, view) in zip(batch, answers, strict=True):
                if answered:
                    self._on_answer(key, holder, view)
        while self._to_reconcile:
            attempts = [
                self._to_reconcile.popitem()[0] for _ in range(min(len(self._to_reconcile), QUERY_BATCH_MAX))
            ]
            for held in await self._remote.find_not_held(attempts):
                self._unbind(held)

    def _on_answer(self, key: ActivityKey, holder: AttemptHolder, view: HolderView | None) -> None:
        try:
            shard = self._ownership.shard(key)
        except Unavailable:
            return
        activity = shard.activities.get(key)
        if activity is None or activity.state is not ActivityState.STARTED:
            return
        if (activity.worker, activity.epoch, activity.attempt) != holder:
            return
        next_check_ms = self._reconcile_activity(key, shard, activity, view)
        if next_check_ms is not None:
            if len(self._next_check_ms) >= REMEMBERED_MAX:
                self._next_check_ms.clear()  # costs one extra question for each
            self._next_check_ms[key] = next_check_ms

    async def close(self) -> None:
        await self._queries.close()
