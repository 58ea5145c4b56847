"""Where workers are at home: what their shards say about attempts, for activities whose shards are other nodes'.

An activity and its worker may be served by two nodes. The worker's side is written first and the activity's side
second, each durable before the next step, so that what is half done is harmless: a worker bound to an attempt that it
was never given is found by `ActivityOwnership.reconcile_worker`, and should it die before, the reschedule of that attempt changes nothing
that was promised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from liveness.domain import worker_control
from liveness.domain.activity import Activity, ActivityState
from liveness.domain.activity_decider import AttemptHolder
from liveness.domain.errors import BindingQuotaExceeded
from liveness.domain.keys import ActivityId, ActivityKey, WorkerKey
from liveness.domain.worker import BoundActivity, WorkerState
from liveness.engine.node import Node
from liveness.engine.shard import Shard


class HolderView(NamedTuple):
    """A worker as the holder of an attempt."""

    state: WorkerState
    epoch: int
    inactive_detail: str
    bound_attempt: int
    """Of the activity in question; 0 if it is not bound to it."""
    unconfirmed: bool
    """It was handed that attempt and has not said that it came."""
    silent_ms: int
    """How long nothing was heard of it."""
    task_queue: str = ""


class HeldAttempt(NamedTuple):
    """An attempt, and who is said to hold it."""

    worker: WorkerKey
    id: ActivityId
    attempt: int


class RemoteOwnership(Protocol):
    """Other nodes. Each call raises `Unavailable` if they cannot be asked, and otherwise what they refuse."""

    async def look_up(self, worker_key: WorkerKey, id: ActivityId) -> HolderView | None:
        """None if there is no such worker."""

    async def look_up_many(
        self, questions: Sequence[tuple[WorkerKey, ActivityId]]
    ) -> list[tuple[bool, HolderView | None]]:
        """Of each, whether there was an answer, and the answer."""

    async def bind(
        self, worker_key: WorkerKey, session_id: str, activities: Sequence[BoundActivity]
    ) -> tuple[int, int]:
        """Returns the lease epoch, and to how many of them, from the first on, the worker is bound now."""

    async def unbind(self, worker_key: WorkerKey, id: ActivityId, attempt: int, *, taken: bool) -> bool: ...

    async def find_not_held(self, attempts: Sequence[HeldAttempt]) -> list[HeldAttempt]:
        """Those that their activities' shards say are not held so; where nobody answers, none."""

    async def hand_out(
        self, address: str, worker_key: WorkerKey, session_id: str, task_queue: str, limit: int
    ) -> list[Activity]:
        """What that node has for the worker, held by it, durably, from now on."""

    async def take_back(self, key: ActivityKey, holder: AttemptHolder) -> None: ...


def holder_view(worker_shard: Shard, worker_key: WorkerKey, id: ActivityId) -> HolderView | None:
    worker = worker_shard.workers.get(worker_key)
    if worker is None:
        return None
    bound = worker.bindings.get(id) if worker.state is WorkerState.ACTIVE else None
    return HolderView(
        worker.state,
        worker.epoch,
        worker.inactive_detail,
        bound.attempt if bound is not None else 0,
        unconfirmed=worker.standing.handed.get(id) is False,
        silent_ms=worker_shard.now_ms() - worker.renewed_ms,
        task_queue=worker.profile.task_queue,
    )


class RemoteOwnershipResponder:
    """What this node answers others about workers, and activities, of its own."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def look_up(self, questions: Sequence[tuple[WorkerKey, ActivityId]]) -> list[HolderView | None]:
        found = [holder_view(self._node.shard(*worker_key), worker_key, id) for worker_key, id in questions]
        await self._node.wait_all_durable()
        return found

    async def bind(
        self, worker_key: WorkerKey, session_id: str, activities: Sequence[BoundActivity]
    ) -> tuple[int, int]:
        worker_shard = self._node.shard(*worker_key)
        policy = self._node.policies.of(worker_key.namespace)
        worker = worker_shard.describe(worker_key)
        worker_control.check_lease_is_live(worker_key, worker, session_id)
        bound = 0
        for activity in activities:
            try:
                worker_control.check_accepts_work(worker_key, worker_shard.workers[worker_key], policy)
            except BindingQuotaExceeded:
                if not bound:
                    raise
                break
            worker_shard.change_worker(worker_key, worker_control.bind(activity))
            bound += 1
        await self._node.wait_durable(worker_shard)
        return worker.epoch, bound

    async def unbind(self, worker_key: WorkerKey, id: ActivityId, attempt: int, *, taken: bool) -> bool:
        worker_shard = self._node.shard(*worker_key)
        worker = worker_shard.workers.get(worker_key)
        events = worker_control.end_binding(worker, id, attempt, taken=taken) if worker is not None else ()
        changed = worker_shard.change_worker(worker_key, events) if events else False
        await self._node.wait_durable(worker_shard)
        return changed

    async def find_not_held(self, attempts: Sequence[HeldAttempt]) -> list[HeldAttempt]:
        found = [held for held in attempts if not is_held(self._node, held)]
        await self._node.wait_all_durable()
        return found


def is_held(node: Node, held: HeldAttempt) -> bool:
    """Whether the activity's shard, which must be this node's, says so too."""
    namespace, instance_key = held.worker
    activity = node.shard(namespace, held.id.workflow_id).activities.get(ActivityKey(namespace, *held.id))
    return (
        activity is not None
        and activity.state is ActivityState.STARTED
        and (activity.worker, activity.attempt) == (instance_key, held.attempt)
    )
