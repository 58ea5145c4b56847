"""Pause, resume and drain: orders of operators to one worker, to workers by filter, or to a namespace."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from liveness.domain import worker_control
from liveness.domain.errors import InvalidField, ShardMoved, WorkerCleanedUp
from liveness.domain.events import WorkerEvent
from liveness.domain.keys import WorkerKey
from liveness.domain.worker import Worker, WorkerState
from liveness.engine.node import Node
from liveness.engine.shard import Shard
from liveness.security.principal import caller_name
from liveness.server import wire
from liveness.server.validation import duration_ms, require_identifier, text
from liveness.slices import end_slice, in_slices
from liveness.store.api import FilterWord, WorkerFilter, ascii_lower
from liveness.v1 import admin_pb2

DRAIN_LIMIT_MS_DEFAULT = 60_000
CHANGES_PER_SLICE = 300
SEARCHED_PER_SLICE = 5_000

Decide = Callable[[Worker], tuple[WorkerEvent, ...]]


class OrdersHandlers:
    def __init__(self, node: Node) -> None:
        self._node = node

    def scope(self, request: admin_pb2.PauseWorkersRequest | admin_pb2.ResumeWorkersRequest) -> str:
        """Returns which of the three selectors the request uses."""
        require_identifier("namespace", request.namespace)
        selectors = [
            name
            for name, used in (
                ("worker_instance_key", bool(request.worker_instance_key)),
                ("filter", request.HasField("filter")),
                ("all", request.all),
            )
            if used
        ]
        if len(selectors) != 1:
            raise InvalidField(
                field="worker_instance_key, filter and all", rule="must be exactly one of them"
            )
        return selectors[0]

    async def apply_order(
        self, request: admin_pb2.PauseWorkersRequest | admin_pb2.ResumeWorkersRequest, decide: Decide
    ) -> int:
        """Returns how many workers changed."""
        scope = self.scope(request)
        if scope == "worker_instance_key":
            key = wire.worker_key(request.namespace, request.worker_instance_key)
            shard = self._node.shard(*key)
            worker = shard.describe(key)
            if worker.state is WorkerState.CLEANED_UP:
                raise WorkerCleanedUp(worker=key.instance_key)
            changed = int(shard.change_worker(key, decide(worker)))
            # Even if nothing changed: an earlier order that made this one unnecessary may not be durable yet.
            await self._node.wait_all_durable()
            return changed
        worker_filter = wire.worker_filter(request.filter) if scope == "filter" else WorkerFilter()
        changed, slice_changes = 0, 0
        shards: dict[int, Shard] = {}
        async for shard, key, worker in self._find_workers(request.namespace, worker_filter):
            if shard.change_worker(key, decide(worker)):
                changed, slice_changes = changed + 1, slice_changes + 1
                shards[shard.id] = shard
            if slice_changes == CHANGES_PER_SLICE:
                slice_changes = 0
                await end_slice()
        await self._node.wait_all_durable()
        for shard in shards.values():
            if not self._node.is_intact(shard):  # what an earlier slice changed may be lost
                raise self._node.unavailable_reason(shard.id)
        return changed

    async def count_unpaused(self, namespace: str) -> int:
        """Returns how many workers would be paused with their namespace."""
        found = self._find_workers(namespace, WorkerFilter())
        return sum([not worker.standing.paused async for _, _, worker in found])

    async def drain(self, request: admin_pb2.DrainWorkerRequest) -> int:
        """Returns how many activities the worker still holds."""
        key = wire.worker_key(request.namespace, request.worker_instance_key)
        limit_ms = DRAIN_LIMIT_MS_DEFAULT
        if request.HasField("limit"):
            limit_ms = duration_ms("limit", request.limit, allow_zero=True)
        reason = text("reason", request.reason)
        shard = self._node.shard(*key)
        worker = shard.describe(key)
        # With a limit of 0 the drain ends at the next tick.
        deadline_ms = max(1, shard.now_ms() + limit_ms)
        shard.change_worker(key, worker_control.drain(key, worker, reason, deadline_ms, caller_name()))
        await self._node.wait_durable(shard)
        return len(worker.bindings)

    async def _find_workers(
        self, namespace: str, worker_filter: WorkerFilter
    ) -> AsyncIterator[tuple[Shard, WorkerKey, Worker]]:
        """Yields workers in slices: the caller may also end its own between two of them."""
        shards = []
        for shard_id, shard in enumerate(self._node.shard_table()):
            if shard is not None:
                shards.append(shard)
            elif not isinstance(unavailable := self._node.unavailable_reason(shard_id), ShardMoved):
                raise unavailable  # no node serves the shard now, so some workers would be missed
        for shard in shards:
            async for key in in_slices(list(shard.workers), SEARCHED_PER_SLICE):
                if self._node.shard_table()[shard.id] is not shard:
                    raise self._node.unavailable_reason(shard.id)
                worker = shard.workers.get(key)
                if worker is not None and key.namespace == namespace and _matches(worker_filter, key, worker):
                    yield shard, key, worker


def _matches(worker_filter: WorkerFilter, key: WorkerKey, worker: Worker) -> bool:
    profile = worker.shared.profile
    return (
        worker.state is not WorkerState.CLEANED_UP
        and (not worker_filter.states or worker.state in worker_filter.states)
        and worker_filter.task_queue in ("", profile.task_queue)
        and worker_filter.build_id in ("", profile.build_id)
        and worker_filter.host_name in ("", profile.host_name)
        and key.instance_key.startswith(worker_filter.key_prefix)
        and all(_has_word(word, key, worker) for word in worker_filter.words)
    )


def _has_word(word: FilterWord, key: WorkerKey, worker: Worker) -> bool:
    profile = worker.profile
    texts = {
        "worker_key": key.instance_key,
        "host_name": profile.host_name,
        "build_id": profile.build_id,
        "task_queue": profile.task_queue,
    }
    return worker.state in word.states or any(word.text in ascii_lower(texts[name]) for name in word.fields)
