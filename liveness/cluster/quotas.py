"""Quotas of namespaces, which are never exceeded, whichever node admits a worker or an activity.

A node that has the database to itself counts in memory. Where several nodes share a database, each shard uses the slots
that were granted to it (`slots.py`).

An activity that its worker bound by heartbeat alone and lost is never refused, whatever the quota: no reschedule is lost. It
counts, so that others are refused until there is room again; with several nodes, those of the same shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from liveness.cluster.peers import Peers
from liveness.cluster.slots import (
    CONCURRENCY_LIMITS,
    OPEN_ACTIVITIES,
    OPEN_ACTIVITY_BYTES,
    SCHEDULES,
    UNITS,
    WORKERS,
    Resource,
    Slots,
)
from liveness.domain import decider
from liveness.domain.errors import (
    ActivityBytesExceeded,
    ActivityQuotaExceeded,
    Exhausted,
    LimitQuotaExceeded,
    ScheduleQuotaExceeded,
    Unavailable,
    UnitQuotaExceeded,
    WorkerQuotaExceeded,
)
from liveness.domain.policy import Policy
from liveness.domain.worker import WorkerState
from liveness.engine.node import Node
from liveness.engine.shard import Shard
from liveness.store.api import WorkerFilter

FULL_NAMESPACE_TTL_MS = 200
"""A node does not ask for slots of a full namespace again for this long."""


class RoomNeeded(Unavailable):
    reason = "ROOM_NEEDED"
    template = "Shard {shard_id} has no room for another worker of namespace {namespace} just now; try again."

    shard_id: int
    namespace: str


class _FullNamespace(NamedTuple):
    until_ms: int
    """Until when to believe that the namespace has no free slots."""
    limit: int
    """The quota of the namespace when it was found to be full."""
    use: int
    """How much of it this node used then."""
    amount: int
    """How much was refused; less may still fit."""
    inactive: int
    """How many of its workers on all nodes were INACTIVE; 0 if this is about activities."""


_INACTIVE_WORKERS = WorkerFilter(states=(WorkerState.INACTIVE,))


class Quotas:
    def __init__(self, node: Node, peers: Peers | None = None) -> None:
        """`peers`: the nodes that share the database; None if there cannot be any."""
        self._node = node
        self._slots = None if peers is None else Slots(node, peers)
        self._full_namespaces: dict[str, _FullNamespace] = {}
        """Namespaces without free slots, by the name of their slots."""

    # -- workers

    def admit(self, shard: Shard, namespace: str, policy: Policy) -> None:
        """Return if the shard may have one more worker. Raises `RoomNeeded` if slots must be acquired first."""
        if self._slots is None:
            inactive = self._node.census[namespace, WorkerState.INACTIVE]
            decider.check_worker_quota(namespace, policy, self._node.count_workers(namespace), inactive)
        elif not WORKERS.has_room(shard, namespace, 1):
            if (full := self._is_full(WORKERS, namespace, policy, 1)) is not None:
                raise WorkerQuotaExceeded(
                    namespace=namespace, limit=policy.max_workers, inactive=full.inactive
                )
            raise RoomNeeded(shard_id=shard.id, namespace=namespace)

    async def acquire_slots(self, shard_ids: Iterable[int], namespace: str, policy: Policy) -> None:
        """Acquire a slot for each of these shards, in this order, or raise `WorkerQuotaExceeded`."""
        assert self._slots is not None
        needed: Counter[int] = Counter()
        for shard_id in shard_ids:
            needed[shard_id] += 1
            if not await self._slots.acquire(WORKERS, shard_id, namespace, policy, needed):
                # The other nodes' workers count too.
                use = self._use(WORKERS, namespace)
                counts = await self._node.store.count_workers(namespace, _INACTIVE_WORKERS)
                inactive = counts.get(WorkerState.INACTIVE, 0)
                self._remember_full(WORKERS, namespace, policy, use, 1, inactive)
                raise WorkerQuotaExceeded(namespace=namespace, limit=policy.max_workers, inactive=inactive)

    async def return_unused(self, namespace: str) -> int:
        """Return the unused slots of this node's shards, for other nodes. Returns their number."""
        return 0 if self._slots is None else await self._slots.return_unused(namespace)

    # -- activities

    def has_room_for_activity(self, shard: Shard, namespace: str, payload_bytes: int) -> bool:
        """Whether the shard may open one more activity. False: acquire slots first. Raises if the namespace has its quota."""
        policy = self._node.policies.of(namespace)
        if self._slots is None:
            count, used_bytes = self._node.count_open_activities(namespace)
            if count + 1 > policy.max_open_activities:
                raise _activities_exceeded(OPEN_ACTIVITIES, namespace, policy, payload_bytes)
            if payload_bytes and used_bytes + payload_bytes > policy.max_open_activity_bytes:
                raise _activities_exceeded(OPEN_ACTIVITY_BYTES, namespace, policy, payload_bytes)
            return True
        for resource, amount in ((OPEN_ACTIVITIES, 1), (OPEN_ACTIVITY_BYTES, payload_bytes)):
            if amount and not resource.has_room(shard, namespace, amount):
                if self._is_full(resource, namespace, policy, amount) is not None:
                    raise _activities_exceeded(resource, namespace, policy, payload_bytes)
                return False
        return True

    async def acquire_for_activity(self, shard: Shard, namespace: str, payload_bytes: int) -> None:
        """Acquire slots for one more activity. Raises if the namespace has its quota."""
        assert self._slots is not None
        policy = self._node.policies.of(namespace)
        for resource, amount in ((OPEN_ACTIVITIES, 1), (OPEN_ACTIVITY_BYTES, payload_bytes)):
            if not amount or resource.has_room(shard, namespace, amount):
                continue
            use = self._use(resource, namespace)
            if not await self._slots.acquire(
                resource, shard.id, namespace, policy, Counter({shard.id: amount})
            ):
                self._remember_full(resource, namespace, policy, use, amount, 0)
                raise _activities_exceeded(resource, namespace, policy, payload_bytes)

    # -- units of work

    def has_room_for_unit(self, shard: Shard, namespace: str) -> bool:
        """Whether the shard may have one more unit. False: acquire a slot first. Raises if the namespace has its quota."""
        policy = self._node.policies.of(namespace)
        if self._slots is None:
            if self._node.count_units(namespace) >= policy.max_progress_units:
                raise UnitQuotaExceeded(namespace=namespace, limit=policy.max_progress_units)
            return True
        if UNITS.has_room(shard, namespace, 1):
            return True
        if self._is_full(UNITS, namespace, policy, 1) is not None:
            raise UnitQuotaExceeded(namespace=namespace, limit=policy.max_progress_units)
        return False

    async def acquire_for_unit(self, shard: Shard, namespace: str) -> None:
        """Acquire a slot for one more unit. Raises if the namespace has its quota."""
        assert self._slots is not None
        policy = self._node.policies.of(namespace)
        use = self._use(UNITS, namespace)
        if not await self._slots.acquire(UNITS, shard.id, namespace, policy, Counter({shard.id: 1})):
            self._remember_full(UNITS, namespace, policy, use, 1, 0)
            raise UnitQuotaExceeded(namespace=namespace, limit=policy.max_progress_units)

    # -- schedules

    def has_room_for_schedule(self, shard: Shard, namespace: str) -> bool:
        """Whether the shard may have one more schedule. False: acquire a slot first. Raises if the namespace has its quota."""
        policy = self._node.policies.of(namespace)
        if self._slots is None:
            if self._node.count_schedules(namespace) >= policy.max_schedules:
                raise ScheduleQuotaExceeded(namespace=namespace, limit=policy.max_schedules)
            return True
        if SCHEDULES.has_room(shard, namespace, 1):
            return True
        if self._is_full(SCHEDULES, namespace, policy, 1) is not None:
            raise ScheduleQuotaExceeded(namespace=namespace, limit=policy.max_schedules)
        return False

    async def acquire_for_schedule(self, shard: Shard, namespace: str) -> None:
        """Acquire a slot for one more schedule. Raises if the namespace has its quota."""
        assert self._slots is not None
        policy = self._node.policies.of(namespace)
        use = self._use(SCHEDULES, namespace)
        if not await self._slots.acquire(SCHEDULES, shard.id, namespace, policy, Counter({shard.id: 1})):
            self._remember_full(SCHEDULES, namespace, policy, use, 1, 0)
            raise ScheduleQuotaExceeded(namespace=namespace, limit=policy.max_schedules)

    # -- concurrency limits

    def has_room_for_limit(self, shard: Shard, namespace: str) -> bool:
        """Whether the shard may have one more concurrency limit. False: acquire a slot first. Raises if the namespace has its
        quota."""
        policy = self._node.policies.of(namespace)
        if self._slots is None:
            if self._node.count_concurrency_limits(namespace) >= policy.max_concurrency_limits:
                raise LimitQuotaExceeded(namespace=namespace, limit=policy.max_concurrency_limits)
            return True
        if CONCURRENCY_LIMITS.has_room(shard, namespace, 1):
            return True
        if self._is_full(CONCURRENCY_LIMITS, namespace, policy, 1) is not None:
            raise LimitQuotaExceeded(namespace=namespace, limit=policy.max_concurrency_limits)
        return False

    async def acquire_for_limit(self, shard: Shard, namespace: str) -> None:
        """Acquire a slot for one more concurrency limit. Raises if the namespace has its quota."""
        assert self._slots is not None
        policy = self._node.policies.of(namespace)
        use = self._use(CONCURRENCY_LIMITS, namespace)
        if not await self._slots.acquire(
            CONCURRENCY_LIMITS, shard.id, namespace, policy, Counter({shard.id: 1})
        ):
            self._remember_full(CONCURRENCY_LIMITS, namespace, policy, use, 1, 0)
            raise LimitQuotaExceeded(namespace=namespace, limit=policy.max_concurrency_limits)

    # -- full namespaces

    def _use(self, resource: Resource, namespace: str) -> int:
        return sum(resource.use(shard, namespace) for shard in self._node.shards())

    def _is_full(
        self, resource: Resource, namespace: str, policy: Policy, amount: int
    ) -> _FullNamespace | None:
        full = self._full_namespaces.get(namespace + resource.suffix)
        is_still_full = (
            full is not None
            and self._node.clock.monotonic_ms() < full.until_ms
            and amount >= full.amount
            and (full.limit, full.use) == (resource.limit(policy), self._use(resource, namespace))
        )
        return full if is_still_full else None

    def _remember_full(
        self, resource: Resource, namespace: str, policy: Policy, use: int, amount: int, inactive: int
    ) -> None:
        now_ms = self._node.clock.monotonic_ms()
        self._full_namespaces = {
            name: full for name, full in self._full_namespaces.items() if full.until_ms > now_ms
        }
        self._full_namespaces[namespace + resource.suffix] = _FullNamespace(
            now_ms + FULL_NAMESPACE_TTL_MS, resource.limit(policy), use, amount, inactive
        )


def _activities_exceeded(resource: Resource, namespace: str, policy: Policy, payload_bytes: int) -> Exhausted:
    if resource is OPEN_ACTIVITIES:
        return ActivityQuotaExceeded(namespace=namespace, limit=policy.max_open_activities)
    return ActivityBytesExceeded(
        namespace=namespace, limit=policy.max_open_activity_bytes, added=payload_bytes
    )
