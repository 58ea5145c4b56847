"""Ownership across nodes: an activity on one node, its worker on another.

An attempt starts on the worker's side first and on the activity's side second, each durable before the next step. An
interruption in between is harmless: `BindingReconciler.reconcile_worker` finds a worker that is bound to an attempt
that it was never given. If the worker dies before that, the reschedule of the attempt is found stale, or makes the
activity available once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from liveness.dispatch.available_activities import ActivityTypes
from liveness.dispatch.worker_bindings import Binding, HolderView, LocalWorkerBindings, holder_view
from liveness.domain.activity import Activity, ActivityState
from liveness.domain.activity_decider import AttemptHolder
from liveness.domain.errors import LivenessError, Unavailable
from liveness.domain.keys import ActivityId, ActivityKey, WorkerKey
from liveness.domain.worker import BoundActivity, WorkerState
from liveness.engine.node import Node
from liveness.engine.shard import Shard

LOOK_UP_TRIES_MAX = 3


class HeldAttempt(NamedTuple):
    """An attempt, and the worker that is bound to it."""

    worker: WorkerKey
    id: ActivityId
    attempt: int


class RemoteOwnership(Protocol):
    """The other nodes. A call raises `Unavailable` if the owner does not answer, and the owner's error if it refuses."""

    async def look_up(self, worker_key: WorkerKey, id: ActivityId) -> HolderView | None:
        """None if there is no such worker."""

    async def look_up_many(
        self, questions: Sequence[tuple[WorkerKey, ActivityId]]
    ) -> list[tuple[bool, HolderView | None]]:
        """For each question: whether its owner answered, and the answer."""

    async def bind(
        self, worker_key: WorkerKey, session_id: str, activities: Sequence[BoundActivity]
    ) -> Binding:
        """Without activities, the node checks the session and the lease only."""
        ...

    async def unbind(self, worker_key: WorkerKey, id: ActivityId, attempt: int, *, taken: bool) -> bool: ...

    async def find_not_held(self, attempts: Sequence[HeldAttempt]) -> list[HeldAttempt]:
        """Returns the attempts that their activities' shards deny. An owner that does not answer denies none."""

    async def hand_out(
        self,
        address: str,
        worker_key: WorkerKey,
        session_id: str,
        task_queue: str,
        limit: int,
        types: ActivityTypes,
    ) -> list[Activity]:
        """Fetch activities that wait at the node with this address; the worker holds them durably on return."""

    async def take_back(self, key: ActivityKey, holder: AttemptHolder) -> None: ...


class RemoteWorkerBindings:
    """The bindings of a worker whose shard another node serves."""

    is_local = False
    shards_to_commit: Sequence[Shard] = ()

    def __init__(self, node: Node, remote: RemoteOwnership, worker_key: WorkerKey) -> None:
        self._node = node
        self._remote = remote
        self._worker_key = worker_key

    async def look_up(self, id: ActivityId) -> HolderView | None:
        return await self._remote.look_up(self._worker_key, id)

    async def look_up_live(self, session_id: str, id: ActivityId) -> HolderView:
        for _ in range(LOOK_UP_TRIES_MAX):
            # A request to bind nothing makes the worker's node check the session and the lease.
            binding, view = await asyncio.gather(
                self._remote.bind(self._worker_key, session_id, ()),
                self._remote.look_up(self._worker_key, id),
            )
            # A new session raises the epoch, so equal epochs show the same lease.
            if view is not None and view.epoch == binding.epoch and view.state is WorkerState.ACTIVE:
                return view
        raise Unavailable

    async def bind(self, session_id: str, activities: Sequence[BoundActivity]) -> Binding:
        return await self._remote.bind(self._worker_key, session_id, activities)

    async def unbind(self, id: ActivityId, attempt: int, *, taken: bool) -> bool:
        """A failure is no error: the reconciler ends the binding later, if the worker does not do so itself."""
        try:
            return await self._remote.unbind(self._worker_key, id, attempt, taken=taken)
        except LivenessError:
            return False

    async def end_attempt(self, activity_shard: Shard, id: ActivityId, attempt: int, *, taken: bool) -> bool:
        # The activity's side first: if its commit is lost, the worker must still be bound, or nothing would reschedule
        # the attempt when the worker dies.
        await self._node.wait_durable(activity_shard)
        return await self.unbind(id, attempt, taken=taken)


class RemoteOwnershipResponder:
    """Answers other nodes about the workers and activities of this node; each answer is durable."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def look_up(self, questions: Sequence[tuple[WorkerKey, ActivityId]]) -> list[HolderView | None]:
        found = [holder_view(self._node.shard(*worker_key), worker_key, id) for worker_key, id in questions]
        await self._node.wait_all_durable()
        return found

    async def bind(
        self, worker_key: WorkerKey, session_id: str, activities: Sequence[BoundActivity]
    ) -> Binding:
        worker = self._bindings_of(worker_key)
        binding = await worker.bind(session_id, activities)
        await self._node.wait_durable(*worker.shards_to_commit)
        return binding

    async def unbind(self, worker_key: WorkerKey, id: ActivityId, attempt: int, *, taken: bool) -> bool:
        worker = self._bindings_of(worker_key)
        was_bound = await worker.unbind(id, attempt, taken=taken)
        await self._node.wait_durable(*worker.shards_to_commit)
        return was_bound

    def _bindings_of(self, worker_key: WorkerKey) -> LocalWorkerBindings:
        return LocalWorkerBindings(self._node, worker_key, self._node.shard(*worker_key))

    async def find_not_held(self, attempts: Sequence[HeldAttempt]) -> list[HeldAttempt]:
        found = [held for held in attempts if not is_held(self._node, held)]
        await self._node.wait_all_durable()
        return found


def is_held(node: Node, held: HeldAttempt) -> bool:
    """Whether the activity's shard, which this node must serve, agrees that the worker holds the attempt."""
    namespace, instance_key = held.worker
    activity = node.shard(namespace, held.id.workflow_id).activities.get(ActivityKey(namespace, *held.id))
    return (
        activity is not None
        and activity.state is ActivityState.STARTED
        and (activity.worker, activity.attempt) == (instance_key, held.attempt)
    )
