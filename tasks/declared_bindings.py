"""Takes bindings back that a worker declared although the activity is finished or another worker holds it.

A heartbeat may bind any activity: most of those that workers declare belong to another engine and are not known here. The
activity lives on another shard than the worker, perhaps on another node, and finished ones are only in the store. So
heartbeats do not wait for a check. It follows their commit: one query for all bindings that were declared since the last
one, and none in a namespace that has no activities. A binding that must not be is ended as if it had been taken from its
worker, which is told to cancel it at once on its stream, and with each reply until it unbinds it.

Nothing of this is stored. What a crash or an overload leaves unchecked is found when the lease timer of its worker fires,
about once per lease. Meanwhile fencing refuses the worker's outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import structlog

from liveness.background import BackgroundTasks
from liveness.dispatch.worker_bindings import unbind_attempt
from liveness.domain.activity_decider import contradicts_binding
from liveness.domain.errors import Unavailable
from liveness.domain.events import Activation, BindingsChanged
from liveness.domain.keys import ActivityKey, WorkerKey
from liveness.domain.worker import BoundActivity, Worker
from liveness.engine.listener import NodeListener
from liveness.engine.node import Node
from liveness.engine.shard import PreparedCommit
from liveness.store.api import ActivityFilter
from liveness.store.errors import StoreError

logger = structlog.get_logger("liveness.declared_bindings")

PENDING_MAX = 100_000
"""Bindings that wait for their check; more are left to the lease timers."""
RECHECKS_PENDING_MAX = 500
"""With more pending, lease timers add nothing: new bindings come first."""
QUERY_BATCH_MAX = 500
EMPTY_NAMESPACE_TTL_MS = 60_000
"""For how long lease timers believe that a namespace has no activities."""
EMPTY_NAMESPACES_MAX = 10_000


class _Declared(NamedTuple):
    worker: WorkerKey
    activity: BoundActivity


class DeclaredBindings(NodeListener):
    def __init__(self, node: Node) -> None:
        self._node = node
        self._pending: dict[str, list[tuple[str, Sequence[BoundActivity]]]] = {}
        """By namespace: workers, and what they declared."""
        self._pending_count = 0
        self.pending_max = PENDING_MAX
        """While this many bindings wait to be checked, further ones are not; the worker's lease timer checks them later."""
        self._empty_until_ms: dict[str, int] = {}
        """Namespaces that had no activities when they were last looked at."""
        self._checks = BackgroundTasks("declared bindings")

    def committed(self, commits: Sequence[PreparedCommit]) -> None:
        for prepared in commits:
            for entry in prepared.commit.entries:
                event = entry.event
                if isinstance(event, BindingsChanged):
                    bound = event.bound
                elif isinstance(event, Activation):
                    bound = event.bindings
                else:
                    continue
                if bound:
                    assert entry.namespace is not None
                    assert entry.worker is not None
                    self._add(entry.namespace, entry.worker, bound)

    def recheck(self, key: WorkerKey, worker: Worker) -> None:
        """Check what the worker declared at some time, and still holds, once more."""
        if not worker.bindings or self._pending_count >= RECHECKS_PENDING_MAX:
            return
        if self._node.clock.monotonic_ms() < self._empty_until_ms.get(key.namespace, 0):
            return
        handed = worker.standing.handed
        declared = [activity for id, activity in worker.bindings.items() if id not in handed]
        if declared:
            self._add(key.namespace, key.instance_key, declared)

    def _add(self, namespace: str, worker: str, bound: Sequence[BoundActivity]) -> None:
        if self._pending_count < self.pending_max:
            self._pending.setdefault(namespace, []).append((worker, bound))
            self._pending_count += len(bound)

    def tick(self) -> None:
        if self._pending and self._checks.is_idle:
            self._checks.start(self._check_pending())

    async def wait(self) -> None:
        """Return when no check is in progress."""
        await self._checks.wait()

    async def close(self) -> None:
        await self._checks.close()

    async def _check_pending(self) -> None:
        pending, self._pending, self._pending_count = self._pending, {}, 0
        for namespace, declared in pending.items():
            try:
                await self._check_namespace(namespace, declared)
            except StoreError as error:
                # The lease timers try again, when the store may answer.
                logger.info("declared bindings are not checked", namespace=namespace, why=str(error))

    async def _check_namespace(
        self, namespace: str, declared: Iterable[tuple[str, Sequence[BoundActivity]]]
    ) -> None:
        if not await self._node.store.list_activities(namespace, ActivityFilter(), None, 1):
            self._remember_empty(namespace)
            return
        self._empty_until_ms.pop(namespace, None)
        bindings = (
            _Declared(WorkerKey(namespace, worker), activity)
            for worker, bound in declared
            for activity in bound
        )
        while batch := list(islice(bindings, QUERY_BATCH_MAX)):
            keys = dict.fromkeys(ActivityKey(namespace, *activity.id) for _, activity in batch)
            known = await self._node.store.find_activities(keys.keys())
            for worker_key, activity in batch:
                found = known.get(ActivityKey(namespace, *activity.id))
                if found is not None and contradicts_binding(
                    found, worker_key.instance_key, activity.attempt
                ):
                    self._end_binding(worker_key, activity)

    def _remember_empty(self, namespace: str) -> None:
        if len(self._empty_until_ms) >= EMPTY_NAMESPACES_MAX:
            self._empty_until_ms.clear()  # costs one query for each
        self._empty_until_ms[namespace] = self._node.clock.monotonic_ms() + EMPTY_NAMESPACE_TTL_MS

    def _end_binding(self, worker_key: WorkerKey, activity: BoundActivity) -> None:
        try:
            shard = self._node.shard(*worker_key)
        except Unavailable:
            return  # the next owner of the shard checks the binding again
        worker = shard.workers.get(worker_key)
        # The service may have handed the attempt to the worker since the query.
        if worker is not None and activity.id not in worker.standing.handed:
            unbind_attempt(shard, worker_key, activity.id, activity.attempt, taken=True)
