"""Where workers are at home: what their shards say about attempts, for activities whose shards are other nodes'.

An activity and its worker may be served by two nodes. The worker's side is written first and the activity's side
second, each durable before the next step, so that what is half done is harmless: a worker bound to an attempt that it
was never given is found by `Custody.scrub`, and should it die before, the reschedule of that attempt changes nothing
that was promised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from liveness.domain import orders
from liveness.domain.activity import Activity, ActivityState
from liveness.domain.activity_decider import Holder
from liveness.domain.errors import BindingQuotaExceeded
from liveness.domain.keys import ActivityId, ActivityKey, WorkerKey
from liveness.domain.worker import BoundActivity, WorkerState
from liveness.shard.node import Node
from liveness.shard.shard import Shard


class Glance(NamedTuple):
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


class Held(NamedTuple):
    """An attempt, and who is said to hold it."""

    worker: WorkerKey
    id: ActivityId
    attempt: int


class Elsewhere(Protocol):
    """Other nodes. Each call raises `Unavailable` if they cannot be asked, and otherwise what they refuse."""

    async def look(self, worker_key: WorkerKey, id: ActivityId) -> Glance | None:
        """None if there is no such worker."""

    async def look_at_many(
        self, questions: Sequence[tuple[WorkerKey, ActivityId]]
    ) -> list[tuple[bool, Glance | None]]:
        """Of each, whether there was an answer, and the answer."""

    async def bind(
        self, worker_key: WorkerKey, session_id: str, activities: Sequence[BoundActivity]
    ) -> tuple[int, int]:
        """Returns the lease epoch, and to how many of them, from the first on, the worker is bound now."""

    async def unbind(self, worker_key: WorkerKey, id: ActivityId, attempt: int, *, taken: bool) -> bool: ...

    async def not_held(self, attempts: Sequence[Held]) -> list[Held]:
        """Those that their activities' shards say are not held so; where nobody answers, none."""

    async def hand_out(
        self, address: str, worker_key: WorkerKey, session_id: str, task_queue: str, limit: int
    ) -> list[Activity]:
        """What that node has for the worker, held by it, durably, from now on."""

    async def take_back(self, key: ActivityKey, holder: Holder) -> None: ...


def glance(home: Shard, worker_key: WorkerKey, id: ActivityId) -> Glance | None:
    worker = home.workers.get(worker_key)
    if worker is None:
        return None
    bound = worker.bindings.get(id) if worker.state is WorkerState.ACTIVE else None
    return Glance(
        worker.state,
        worker.epoch,
        worker.inactive_detail,
        bound.attempt if bound is not None else 0,
        unconfirmed=worker.standing.handed.get(id) is False,
        silent_ms=home.now_ms() - worker.renewed_ms,
        task_queue=worker.profile.task_queue,
    )


class Homes:
    """What this node answers others about workers, and activities, of its own."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def look(self, questions: Sequence[tuple[WorkerKey, ActivityId]]) -> list[Glance | None]:
        found = [glance(self._node.shard(*worker_key), worker_key, id) for worker_key, id in questions]
        await self._node.settle()
        return found

    async def bind(
        self, worker_key: WorkerKey, session_id: str, activities: Sequence[BoundActivity]
    ) -> tuple[int, int]:
        home = self._node.shard(*worker_key)
        policy = self._node.policies.of(worker_key.namespace)
        worker = home.describe(worker_key)
        orders.check_live(worker_key, worker, session_id)
        bound = 0
        for activity in activities:
            try:
                orders.check_takes_work(worker_key, home.workers[worker_key], policy)
            except BindingQuotaExceeded:
                if not bound:
                    raise
                break
            home.change_worker(worker_key, orders.hand(activity))
            bound += 1
        await self._node.durable(home)
        return worker.epoch, bound

    async def unbind(self, worker_key: WorkerKey, id: ActivityId, attempt: int, *, taken: bool) -> bool:
        home = self._node.shard(*worker_key)
        worker = home.workers.get(worker_key)
        events = orders.end_binding(worker, id, attempt, taken=taken) if worker is not None else ()
        changed = home.change_worker(worker_key, events) if events else False
        await self._node.durable(home)
        return changed

    async def not_held(self, attempts: Sequence[Held]) -> list[Held]:
        found = [held for held in attempts if not holds(self._node, held)]
        await self._node.settle()
        return found


def holds(node: Node, held: Held) -> bool:
    """Whether the activity's shard, which must be this node's, says so too."""
    namespace, instance_key = held.worker
    activity = node.shard(namespace, held.id.workflow_id).activities.get(ActivityKey(namespace, *held.id))
    return (
        activity is not None
        and activity.state is ActivityState.STARTED
        and (activity.worker, activity.attempt) == (instance_key, held.attempt)
    )
