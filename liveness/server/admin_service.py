"""AdminService: what operators may force, set and see."""

from __future__ import annotations

import asyncio
from collections import Counter

from liveness.domain import orders
from liveness.domain.commands import Deactivate
from liveness.domain.errors import InvalidField, PageTokenInvalid, TaskFinished, TaskNotFound
from liveness.domain.events import ConfigChanged
from liveness.domain.policy import Policy
from liveness.domain.worker import InactiveReason, WorkerState
from liveness.server import tokens, wire
from liveness.server.orders_desk import OrdersDesk
from liveness.server.relay_desk import Relay, RelayDesk
from liveness.server.validation import optional_identifier, page_size, text
from liveness.shard.node import Node
from liveness.shard.policies import DEFAULT
from liveness.store.api import FINISHED_TASK_STATES, StoredTask, TaskState, TaskUpdate
from liveness.v1 import admin_pb2

_UNFINISHED = (TaskState.PENDING, TaskState.RETRYING, TaskState.DEAD_LETTERED)
TASK_ID_MAX = 2**63 - 1


class AdminService:
    def __init__(self, node: Node, relay: Relay | None = None) -> None:
        self._node = node
        self._relay = RelayDesk(relay, node.clock)
        self._config_lock = asyncio.Lock()
        self._orders = OrdersDesk(node)

    async def expire_worker(self, request: admin_pb2.ExpireWorkerRequest) -> admin_pb2.ExpireWorkerResponse:
        key = wire.worker_key(request.namespace, request.worker_instance_key)
        shard = self._node.shard(*key)
        policy = self._node.policies.of(key.namespace)
        worker, moved = shard.deactivate(
            key, Deactivate(InactiveReason.FORCED, text("reason", request.reason), policy)
        )
        await self._node.durable(shard)
        return admin_pb2.ExpireWorkerResponse(state=worker.state, rescheduled_activities=moved)  # type: ignore[arg-type]

    async def get_config(self, request: admin_pb2.GetConfigRequest) -> admin_pb2.GetConfigResponse:
        namespace = optional_identifier("namespace", request.namespace)
        policies = self._node.policies
        return admin_pb2.GetConfigResponse(
            effective=wire.policy_message(policies.of(namespace)),
            overrides=wire.config_message(policies.overrides(namespace)),
        )

    async def update_config(self, request: admin_pb2.UpdateConfigRequest) -> admin_pb2.UpdateConfigResponse:
        namespace = optional_identifier("namespace", request.namespace)
        changed = wire.settings(request.set)
        unset = wire.setting_names(request.unset)
        if both := changed.keys() & set(unset):
            raise InvalidField(
                field="unset", rule=f"names {min(both).removesuffix('_ms')}, which is also set"
            )
        effective, overrides = await self._set_config(namespace, changed, unset)
        return admin_pb2.UpdateConfigResponse(
            effective=wire.policy_message(effective), overrides=wire.config_message(overrides)
        )

    async def _set_config(
        self, namespace: str, changed: dict[str, float], unset: tuple[str, ...], reason: str = ""
    ) -> tuple[Policy, dict[str, float]]:
        """Returns what is in force, and what was set for this very namespace."""
        node = self._node
        async with self._config_lock:  # two updates at once must not overwrite each other
            policies = node.policies
            overrides = {
                name: value for name, value in policies.overrides(namespace).items() if name not in unset
            }
            overrides.update(changed)
            effective = policies.preview(namespace, overrides)
            if namespace == DEFAULT:
                policies.preview_all(overrides)
            if overrides != policies.overrides(namespace):
                shard = node.shard(namespace, "")
                shard.change_config(
                    namespace, ConfigChanged(set=changed, unset=unset, reason=reason), overrides
                )
                await node.durable(shard)
                policies.replace(namespace, overrides)
                node.policy_changed()
        return effective, overrides

    async def pause_workers(self, request: admin_pb2.PauseWorkersRequest) -> admin_pb2.PauseWorkersResponse:
        reason = text("reason", request.reason)
        if self._orders.scope(request) == "all":
            paused = self._node.policies.of(request.namespace).paused
            changed = 0 if paused else self._orders.unpaused(request.namespace)
            await self._set_config(request.namespace, {"paused": 1}, (), reason)
            return admin_pb2.PauseWorkersResponse(changed=changed)
        changed = await self._orders.order(request, lambda worker: orders.pause(worker, reason))
        return admin_pb2.PauseWorkersResponse(changed=changed)

    async def resume_workers(
        self, request: admin_pb2.ResumeWorkersRequest
    ) -> admin_pb2.ResumeWorkersResponse:
        whole = self._orders.scope(request) == "all"
        paused = whole and self._node.policies.of(request.namespace).paused
        if paused:
            effective, _ = await self._set_config(request.namespace, {}, ("paused",))
            if effective.paused:  # what all namespaces inherit says so
                await self._set_config(request.namespace, {"paused": 0}, ())
        changed = await self._orders.order(request, orders.resume)
        if paused:
            changed = self._node.occupancy(request.namespace)
        return admin_pb2.ResumeWorkersResponse(changed=changed)

    async def drain_worker(self, request: admin_pb2.DrainWorkerRequest) -> admin_pb2.DrainWorkerResponse:
        return admin_pb2.DrainWorkerResponse(bound_activities=await self._orders.drain(request))

    async def list_shards(self, request: admin_pb2.ListShardsRequest) -> admin_pb2.ListShardsResponse:
        response = admin_pb2.ListShardsResponse()
        serving = {shard.id: shard for shard in self._node.shards()}
        for shard_id in range(self._node.shard_count):
            shard = serving.get(shard_id)
            if shard is None:
                response.shards.add(shard_id=shard_id, serving=False)
                continue
            states = Counter(worker.state for worker in shard.workers.values())
            response.shards.add(
                shard_id=shard_id,
                serving=True,
                epoch=shard.epoch,
                last_sequence=shard.durable_seq,
                checkpoint_sequence=shard.checkpoint_seq,
                observed_ms=shard.now_ms(),
                active_workers=states[WorkerState.ACTIVE],
                inactive_workers=states[WorkerState.INACTIVE],
                cleaned_up_workers=states[WorkerState.CLEANED_UP],
            )
        return response

    async def list_nodes(self, request: admin_pb2.ListNodesRequest) -> admin_pb2.ListNodesResponse:
        view = await self._node.store.look_at_cluster()
        owned = Counter(head.owner for head in view.shards)
        return admin_pb2.ListNodesResponse(
            nodes=[wire.node_message(row, owned[row.node_id]) for row in view.nodes]
        )

    async def list_tasks(self, request: admin_pb2.ListTasksRequest) -> admin_pb2.ListTasksResponse:
        namespace = optional_identifier("namespace", request.namespace) or None
        size = page_size(request.page_size)
        known = {state.value for state in TaskState}
        if any(state not in known for state in request.states):
            raise InvalidField(
                field="states", rule="must be PENDING, RETRYING, DEAD_LETTERED, DONE or DISCARDED"
            )
        states = tuple(sorted({TaskState(state) for state in request.states})) or _UNFINISHED
        listing = ("tasks", namespace, states)
        after = (
            tokens.redeem(request.page_token, tokens.Sequence, PageTokenInvalid, *listing)
            if request.page_token
            else 0
        )
        found = await self._node.store.list_tasks(namespace, states, after, size + 1)
        response = admin_pb2.ListTasksResponse(tasks=[wire.task_message(stored) for stored in found[:size]])
        if len(found) > size:
            response.next_page_token = tokens.issue(found[size - 1].task_id, *listing)
        return response

    async def retry_task(self, request: admin_pb2.RetryTaskRequest) -> admin_pb2.RetryTaskResponse:
        stored = await self._unfinished(request.task_id)
        # Its attempts start anew: somebody looked at it and believes that it works now.
        stored = await self._update(
            stored, TaskUpdate(stored.task_id, TaskState.PENDING, 0, 0, stored.last_error)
        )
        return admin_pb2.RetryTaskResponse(task=wire.task_message(stored))

    async def discard_task(self, request: admin_pb2.DiscardTaskRequest) -> admin_pb2.DiscardTaskResponse:
        stored = await self._unfinished(request.task_id)
        update = TaskUpdate(
            stored.task_id, TaskState.DISCARDED, stored.due_ms, stored.attempts, stored.last_error
        )
        return admin_pb2.DiscardTaskResponse(task=wire.task_message(await self._update(stored, update)))

    async def get_relay_status(
        self, request: admin_pb2.GetRelayStatusRequest
    ) -> admin_pb2.GetRelayStatusResponse:
        return await self._relay.status()

    async def replay_relay(self, request: admin_pb2.ReplayRelayRequest) -> admin_pb2.ReplayRelayResponse:
        return await self._relay.replay(request)

    async def _unfinished(self, task_id: int) -> StoredTask:
        stored = await self._node.store.get_task(task_id) if 0 < task_id <= TASK_ID_MAX else None
        if stored is None:
            raise TaskNotFound(task_id=task_id)
        if stored.state in FINISHED_TASK_STATES:
            raise TaskFinished(task_id=task_id, state=stored.state.name)
        return stored

    async def _update(self, stored: StoredTask, update: TaskUpdate) -> StoredTask:
        shard = self._node.shard_by_id(stored.shard_id)
        shard.update_task(update)
        await self._node.durable(shard)
        after = await self._node.store.get_task(stored.task_id)
        return after if after is not None else stored
