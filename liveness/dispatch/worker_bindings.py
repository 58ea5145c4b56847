"""The worker's side of an attempt: whether the worker's lease is live, and which attempts the worker is bound to.

An attempt has two sides. The activity's shard says which worker holds it; the worker's shard binds the worker to it.
`WorkerBindings` is the second side as the node of the activity sees it, in two forms:

- **local**: this node serves the worker's shard. No method waits before it has decided, so both sides are decided in
  one turn of the event loop and join one group commit. `shards_to_commit` names the shard that must commit.
- **remote** (`remote.py`): another node serves the worker's shard. It commits before it answers. Time passes during
  each call, so the caller looks at the activity again afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from liveness.domain import worker_control
from liveness.domain.errors import BindingQuotaExceeded
from liveness.domain.keys import ActivityId, WorkerKey
from liveness.domain.policy import Policy
from liveness.domain.worker import BoundActivity, Worker, WorkerState
from liveness.engine.node import Node
from liveness.engine.shard import Shard


class HolderView(NamedTuple):
    """A worker as the holder of an attempt."""

    state: WorkerState
    epoch: int
    inactive_detail: str
    bound_attempt: int
    """The attempt of the activity in question; 0 if the worker is not bound to that activity."""
    unconfirmed: bool
    """The worker was handed that attempt, and no heartbeat has named it yet."""
    silent_ms: int
    """Time since the last heartbeat."""
    task_queue: str = ""
    principal: str = ""
    session_id: str = ""


class Binding(NamedTuple):
    """The result of binding a worker to a list of attempts."""

    epoch: int
    """The worker's lease epoch."""
    bound_count: int
    """How many attempts of the list, from the first on, the worker is bound to now."""


class WorkerBindings(Protocol):
    @property
    def is_local(self) -> bool: ...

    @property
    def shards_to_commit(self) -> Sequence[Shard]:
        """Shards of this node that must commit before the worker's side is durable."""

    async def look_up(self, id: ActivityId) -> HolderView | None:
        """None if there is no such worker."""

    async def look_up_live(self, session_id: str, id: ActivityId) -> HolderView:
        """Refuse a caller that is not the current session of a worker with a live lease."""
        ...

    async def bind(self, session_id: str, activities: Sequence[BoundActivity]) -> Binding:
        """Bind the worker to as many attempts as its quota allows; refuse if it may take none."""
        ...

    async def unbind(self, id: ActivityId, attempt: int, *, taken: bool) -> bool:
        """Returns whether the worker was bound to the attempt. `taken`: the worker is told to stop."""
        ...

    async def end_attempt(self, activity_shard: Shard, id: ActivityId, attempt: int, *, taken: bool) -> bool:
        """End the binding to an attempt that just ended on its activity's shard, and wait until both are durable.
        Returns whether the worker was bound to it."""
        ...


def holder_view(worker_shard: Shard, worker_key: WorkerKey, id: ActivityId) -> HolderView | None:
    worker = worker_shard.workers.get(worker_key)
    return None if worker is None else _holder_view(worker_shard, worker, id)


def _holder_view(worker_shard: Shard, worker: Worker, id: ActivityId) -> HolderView:
    bound = worker.bindings.get(id) if worker.state is WorkerState.ACTIVE else None
    return HolderView(
        worker.state,
        worker.epoch,
        worker.inactive_detail,
        bound.attempt if bound is not None else 0,
        unconfirmed=worker.standing.handed.get(id) is False,
        silent_ms=worker_shard.now_ms() - worker.renewed_ms,
        task_queue=worker.shared.profile.task_queue,
        principal=worker.principal,
        session_id=worker.session_id,
    )


def bind_attempts(
    worker_shard: Shard,
    worker_key: WorkerKey,
    session_id: str,
    activities: Sequence[BoundActivity],
    policy: Policy,
) -> Binding:
    """Without activities, this checks the session and the lease only."""
    worker = worker_shard.describe(worker_key)
    worker_control.check_lease_is_live(worker_key, worker, session_id)
    bound_count = 0
    for activity in activities:
        try:
            worker_control.check_accepts_work(worker_key, worker_shard.workers[worker_key], policy)
        except BindingQuotaExceeded:
            if not bound_count:
                raise
            break
        worker_shard.change_worker(worker_key, worker_control.bind(activity))
        bound_count += 1
    return Binding(worker.epoch, bound_count)


def unbind_attempt(
    worker_shard: Shard, worker_key: WorkerKey, id: ActivityId, attempt: int, *, taken: bool
) -> bool:
    worker = worker_shard.workers.get(worker_key)
    if worker is None:
        return False
    events = worker_control.end_binding(worker, id, attempt, taken=taken)
    return worker_shard.change_worker(worker_key, events)


class LocalWorkerBindings:
    """Use an instance within one turn of the event loop, until the wait for `shards_to_commit`."""

    is_local = True

    def __init__(self, node: Node, worker_key: WorkerKey, worker_shard: Shard) -> None:
        self._node = node
        self._worker_key = worker_key
        self._shard = worker_shard

    @property
    def shards_to_commit(self) -> Sequence[Shard]:
        return (self._shard,)

    async def look_up(self, id: ActivityId) -> HolderView | None:
        return holder_view(self._shard, self._worker_key, id)

    async def look_up_live(self, session_id: str, id: ActivityId) -> HolderView:
        worker = self._shard.describe(self._worker_key)
        worker_control.check_lease_is_live(self._worker_key, worker, session_id)
        return _holder_view(self._shard, worker, id)

    async def bind(self, session_id: str, activities: Sequence[BoundActivity]) -> Binding:
        policy = self._node.policies.of(self._worker_key.namespace)
        return bind_attempts(self._shard, self._worker_key, session_id, activities, policy)

    async def unbind(self, id: ActivityId, attempt: int, *, taken: bool) -> bool:
        return unbind_attempt(self._shard, self._worker_key, id, attempt, taken=taken)

    async def end_attempt(self, activity_shard: Shard, id: ActivityId, attempt: int, *, taken: bool) -> bool:
        was_bound = unbind_attempt(self._shard, self._worker_key, id, attempt, taken=taken)
        await self._node.wait_durable(activity_shard, self._shard)
        return was_bound
