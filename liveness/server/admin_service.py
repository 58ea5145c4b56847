"""AdminService: operators change settings, give orders to workers, and inspect shards, nodes and tasks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

from google.protobuf.message import Message

from liveness.cluster.membership import Membership
from liveness.cluster.peers import Peers
from liveness.domain import worker_control
from liveness.domain.commands import Deactivate
from liveness.domain.errors import InvalidField, PageTokenInvalid, TaskFinished, TaskNotFound
from liveness.domain.events import ConfigChanged
from liveness.domain.policy import Policy, check_new_settings
from liveness.domain.worker import InactiveReason, WorkerState
from liveness.engine.node import Node
from liveness.engine.policies import ALL_NAMESPACES
from liveness.security.authorization import require_loaded
from liveness.security.grants import Role
from liveness.security.principal import caller_name
from liveness.security.token_table import TokenTable
from liveness.server import tokens, wire
from liveness.server.all_nodes import CALL_TIMEOUT_S, AllNodes, ResponseT, is_local_only
from liveness.server.audit_handlers import AuditHandlers
from liveness.server.fleet import Fleet
from liveness.server.incidents import Incidents
from liveness.server.orders_handlers import OrdersHandlers
from liveness.server.relay_handlers import RelayAdmin, RelayHandlers
from liveness.server.session_handlers import SessionHandlers
from liveness.server.token_handlers import TokenHandlers
from liveness.server.tuning import Tuning
from liveness.server.validation import (
    STATES_MAX,
    check_count,
    optional_identifier,
    page_size,
    require_identifier,
    text,
)
from liveness.slices import build_in_slices
from liveness.store.api import FINISHED_TASK_STATES, StoredTask, TaskState, TaskUpdate, WorkerFilter
from liveness.v1 import admin_pb2, audit_pb2, cluster_pb2, fleet_pb2, insight_pb2, token_pb2

_UNFINISHED_STATES = (TaskState.PENDING, TaskState.RETRYING, TaskState.DEAD_LETTERED)
TASK_ID_MAX = 2**63 - 1
REPLAY_TIMEOUT_S = 3_600.0
OPERATOR = frozenset({Role.OPERATOR})


class AdminService:
    def __init__(
        self,
        node: Node,
        fleet: Fleet,
        all_nodes: AllNodes | None = None,
        membership: Membership | None = None,
        peers: Peers | None = None,
        relay: RelayAdmin | None = None,
        token_table: TokenTable | None = None,
        incidents: Incidents | None = None,
    ) -> None:
        """`all_nodes`, `membership` and `peers` are None on a node that serves all shards alone."""
        self._node = node
        self._all_nodes = all_nodes
        self._membership = membership
        self._peers = peers
        self._relay_handlers = RelayHandlers(relay, node.clock)
        self._config_lock = asyncio.Lock()
        self._orders_handlers = OrdersHandlers(node)
        self._fleet = fleet
        self._tuning = Tuning(node)
        self._incidents = incidents or Incidents(node)
        self._audit = AuditHandlers(node.store)
        table = token_table or TokenTable(node.store, node.clock)
        self._tokens = TokenHandlers(node.store, table, node.clock)
        self._sessions = SessionHandlers(node.store, table, node.clock)

    async def expire_worker(self, request: admin_pb2.ExpireWorkerRequest) -> admin_pb2.ExpireWorkerResponse:
        key = wire.worker_key(request.namespace, request.worker_instance_key)
        shard = self._node.shard(*key)
        policy = self._node.policies.of(key.namespace)
        reason = text("reason", request.reason)
        worker, moved = shard.deactivate(
            key, Deactivate(InactiveReason.FORCED, reason, policy, by=caller_name())
        )
        await self._node.wait_durable(shard)
        return admin_pb2.ExpireWorkerResponse(state=worker.state, rescheduled_activities=moved)  # type: ignore[arg-type]

    async def forget_worker(self, request: admin_pb2.ForgetWorkerRequest) -> admin_pb2.ForgetWorkerResponse:
        key = wire.worker_key(request.namespace, request.worker_instance_key)
        shard = self._node.shard(*key)
        policy = self._node.policies.of(key.namespace)
        worker = shard.forget(key, policy, text("reason", request.reason), caller_name())
        await self._node.wait_durable(shard)
        return admin_pb2.ForgetWorkerResponse(previous_state=worker.state, lease_epoch=worker.epoch)  # type: ignore[arg-type]

    async def get_config(self, request: admin_pb2.GetConfigRequest) -> admin_pb2.GetConfigResponse:
        namespace = optional_identifier("namespace", request.namespace)
        policies = self._node.policies
        return admin_pb2.GetConfigResponse(
            effective=wire.policy_message(policies.of(namespace)),
            overrides=wire.config_message(policies.overrides(namespace)),
        )

    async def update_config(self, request: admin_pb2.UpdateConfigRequest) -> admin_pb2.UpdateConfigResponse:
        namespace = optional_identifier("namespace", request.namespace)
        changed = wire.config_values(request.set)
        unset = wire.config_field_names(request.unset)
        if set_and_unset := changed.keys() & set(unset):
            raise InvalidField(
                field="unset", rule=f"names {min(set_and_unset).removesuffix('_ms')}, which is also set"
            )
        check_new_settings(changed)
        effective, overrides = await self._set_config(namespace, changed, unset)
        return admin_pb2.UpdateConfigResponse(
            effective=wire.policy_message(effective), overrides=wire.config_message(overrides)
        )

    async def _set_config(
        self, namespace: str, changed: dict[str, float], unset: tuple[str, ...], reason: str = ""
    ) -> tuple[Policy, dict[str, float]]:
        """Returns the effective policy, and the settings of this very namespace."""
        node = self._node
        async with self._config_lock:  # two updates at once must not overwrite each other
            policies = node.policies
            overrides = {
                name: value for name, value in policies.overrides(namespace).items() if name not in unset
            }
            overrides.update(changed)
            effective = policies.preview(namespace, overrides)
            if namespace == ALL_NAMESPACES:
                policies.check_default(overrides)
            if overrides != policies.overrides(namespace):
                shard = node.shard(namespace, "")
                event = ConfigChanged(set=changed, unset=unset, reason=reason, by=caller_name())
                shard.change_config(namespace, event, overrides)
                await node.wait_durable(shard)
                policies.replace(namespace, overrides)
                node.policy_changed()
                if self._peers is not None:
                    await self._peers.broadcast_hint_and_wait(_config_changed)
        return effective, overrides

    async def pause_workers(self, request: admin_pb2.PauseWorkersRequest) -> admin_pb2.PauseWorkersResponse:
        reason = text("reason", request.reason)
        scope = self._orders_handlers.scope(request)
        if scope == "all":
            paused = self._node.policies.of(request.namespace).paused
            changed = 0 if paused else await self._orders_handlers.count_unpaused(request.namespace)
            if not paused:
                changed += await self._count_changed_by_other_nodes("PauseWorkers", request)
            if not is_local_only.get():
                await self._set_config(request.namespace, {"paused": 1}, (), reason)
            return admin_pb2.PauseWorkersResponse(changed=changed)
        by = caller_name()
        changed = await self._orders_handlers.apply_order(
            request, lambda worker: worker_control.pause(worker, reason, by)
        )
        if scope == "filter":
            changed += await self._count_changed_by_other_nodes("PauseWorkers", request)
        return admin_pb2.PauseWorkersResponse(changed=changed)

    async def _count_changed_by_other_nodes(
        self, method: str, request: admin_pb2.PauseWorkersRequest | admin_pb2.ResumeWorkersRequest
    ) -> int:
        """Give the same order to the other nodes. Returns how many workers they changed."""
        # Both methods answer with the same fields.
        answers = await self._call_other_nodes(method, request, admin_pb2.PauseWorkersResponse)
        return sum(answer.changed for answer in answers)

    async def resume_workers(
        self, request: admin_pb2.ResumeWorkersRequest
    ) -> admin_pb2.ResumeWorkersResponse:
        scope = self._orders_handlers.scope(request)
        paused = scope == "all" and self._node.policies.of(request.namespace).paused
        if paused and not is_local_only.get():
            effective, _ = await self._set_config(request.namespace, {}, ("paused",))
            if effective.paused:  # the default for all namespaces is paused
                await self._set_config(request.namespace, {"paused": 0}, ())
        by = caller_name()
        changed = await self._orders_handlers.apply_order(
            request, lambda worker: worker_control.resume(worker, by)
        )
        if scope != "worker_instance_key":
            changed += await self._count_changed_by_other_nodes("ResumeWorkers", request)
        if paused:
            states = (WorkerState.ACTIVE, WorkerState.INACTIVE)
            counts = await self._node.store.count_workers(request.namespace, WorkerFilter(states=states))
            changed = sum(counts.values())
        return admin_pb2.ResumeWorkersResponse(changed=changed)

    async def drain_worker(self, request: admin_pb2.DrainWorkerRequest) -> admin_pb2.DrainWorkerResponse:
        return admin_pb2.DrainWorkerResponse(bound_activities=await self._orders_handlers.drain(request))

    async def release_storm(self, request: admin_pb2.ReleaseStormRequest) -> admin_pb2.ReleaseStormResponse:
        namespace = require_identifier("namespace", request.namespace)
        released = self._node.throttle.release_storm(namespace, text("reason", request.reason))
        answers = await self._call_other_nodes("ReleaseStorm", request, admin_pb2.ReleaseStormResponse)
        return admin_pb2.ReleaseStormResponse(released=released + sum(answer.released for answer in answers))

    async def list_shards(self, request: admin_pb2.ListShardsRequest) -> admin_pb2.ListShardsResponse:
        serving = {shard.shard_id: shard for shard in self._local_shards()}
        answers = await self._call_other_nodes(
            "ListShards", request, admin_pb2.ListShardsResponse, skip_failed=True
        )
        for shard in (shard for answer in answers for shard in answer.shards if shard.serving):
            if shard.shard_id not in serving or shard.epoch > serving[shard.shard_id].epoch:
                serving[shard.shard_id] = shard
        owners = {} if self._membership is None else self._membership.shard_owners()
        addresses = {owner.node_id: owner.address for owner in owners.values()}
        for shard_id in range(self._node.shard_count):
            if shard_id not in serving:
                owner = owners.get(shard_id)
                node_id = "" if owner is None else owner.node_id
                serving[shard_id] = admin_pb2.Shard(shard_id=shard_id, node_id=node_id)
            serving[shard_id].address = addresses.get(serving[shard_id].node_id, "")
        return admin_pb2.ListShardsResponse(shards=[shard for _, shard in sorted(serving.items())])

    def _local_shards(self) -> Iterator[admin_pb2.Shard]:
        for shard in self._node.shards():
            states = shard.census.states()
            yield admin_pb2.Shard(
                shard_id=shard.id,
                serving=True,
                epoch=shard.epoch,
                last_sequence=shard.durable_seq,
                checkpoint_sequence=shard.checkpoint_seq,
                observed_ms=shard.now_ms(),
                active_workers=states[WorkerState.ACTIVE],
                inactive_workers=states[WorkerState.INACTIVE],
                cleaned_up_workers=states[WorkerState.CLEANED_UP],
                node_id=self._node.owner,
            )

    async def list_nodes(self, request: admin_pb2.ListNodesRequest) -> admin_pb2.ListNodesResponse:
        view = await self._node.store.read_cluster()
        owned = Counter(head.owner for head in view.shards)
        lost = self._membership.lost if self._membership is not None else ()
        response = admin_pb2.ListNodesResponse()
        for row in view.nodes:
            message = wire.node_message(row, owned[row.node_id])
            message.answering = row.node_id == self._node.owner
            if row.node_id in lost:
                message.state = admin_pb2.NODE_STATE_LOST
            response.nodes.append(message)
        return response

    async def get_fleet(self, request: fleet_pb2.GetFleetRequest) -> fleet_pb2.GetFleetResponse:
        return await self._fleet.get(request)

    async def tune_namespace(
        self, request: insight_pb2.TuneNamespaceRequest
    ) -> insight_pb2.TuneNamespaceResponse:
        return await self._tuning.tune(request)

    async def list_incidents(
        self, request: insight_pb2.ListIncidentsRequest
    ) -> insight_pb2.ListIncidentsResponse:
        return await self._incidents.list_incidents(request)

    async def list_tasks(self, request: admin_pb2.ListTasksRequest) -> admin_pb2.ListTasksResponse:
        namespace = optional_identifier("namespace", request.namespace) or None
        size = page_size(request.page_size)
        check_count("states", request.states, STATES_MAX)
        known = {state.value for state in TaskState}
        if any(state not in known for state in request.states):
            raise InvalidField(
                field="states", rule="must be PENDING, RETRYING, DEAD_LETTERED, DONE or DISCARDED"
            )
        states = tuple(sorted({TaskState(state) for state in request.states})) or _UNFINISHED_STATES
        listing = ("tasks", namespace, states)
        after = (
            tokens.redeem(request.page_token, tokens.Sequence, PageTokenInvalid, *listing)
            if request.page_token
            else 0
        )
        found = await self._node.store.list_tasks(namespace, states, after, size + 1)
        response = admin_pb2.ListTasksResponse(tasks=await build_in_slices(found[:size], wire.task_message))
        if len(found) > size:
            response.next_page_token = tokens.issue(found[size - 1].task_id, *listing)
        return response

    async def retry_task(self, request: admin_pb2.RetryTaskRequest) -> admin_pb2.RetryTaskResponse:
        stored = await self._get_unfinished_task(request.task_id)
        if self._all_nodes is not None and not self._node.serves(stored.shard_id):
            return await self._all_nodes.call_owner(
                stored.shard_id, "AdminService/RetryTask", request, admin_pb2.RetryTaskResponse
            )
        # The count of attempts starts again, because an operator expects the task to succeed now.
        stored = await self._update_task(
            stored, TaskUpdate(stored.task_id, TaskState.PENDING, 0, 0, stored.last_error)
        )
        return admin_pb2.RetryTaskResponse(task=wire.task_message(stored))

    async def discard_task(self, request: admin_pb2.DiscardTaskRequest) -> admin_pb2.DiscardTaskResponse:
        stored = await self._get_unfinished_task(request.task_id)
        if self._all_nodes is not None and not self._node.serves(stored.shard_id):
            return await self._all_nodes.call_owner(
                stored.shard_id, "AdminService/DiscardTask", request, admin_pb2.DiscardTaskResponse
            )
        update = TaskUpdate(
            stored.task_id, TaskState.DISCARDED, stored.due_ms, stored.attempts, stored.last_error
        )
        return admin_pb2.DiscardTaskResponse(task=wire.task_message(await self._update_task(stored, update)))

    async def get_relay_status(
        self, request: admin_pb2.GetRelayStatusRequest
    ) -> admin_pb2.GetRelayStatusResponse:
        status = await self._relay_handlers.status()
        for other in await self._call_other_nodes(
            "GetRelayStatus", request, admin_pb2.GetRelayStatusResponse, skip_failed=True
        ):
            status.MergeFrom(other)
        status.shards.sort(key=lambda shard: shard.shard_id)
        return status

    async def replay_relay(self, request: admin_pb2.ReplayRelayRequest) -> admin_pb2.ReplayRelayResponse:
        done = await self._relay_handlers.replay(request)
        for other in await self._call_other_nodes(
            "ReplayRelay", request, admin_pb2.ReplayRelayResponse, timeout_s=REPLAY_TIMEOUT_S
        ):
            done.reschedules += other.reschedules
            done.events += other.events
            done.duplicates += other.duplicates
            done.refused += other.refused
        return done

    async def create_token(self, request: token_pb2.CreateTokenRequest) -> token_pb2.CreateTokenResponse:
        return await self._tokens.create(request)

    async def list_tokens(self, request: token_pb2.ListTokensRequest) -> token_pb2.ListTokensResponse:
        return await self._tokens.list(request)

    async def revoke_token(self, request: token_pb2.RevokeTokenRequest) -> token_pb2.RevokeTokenResponse:
        return await self._tokens.revoke(request)

    async def create_session(
        self, request: token_pb2.CreateSessionRequest
    ) -> token_pb2.CreateSessionResponse:
        return await self._sessions.create(request)

    async def end_session(self, request: token_pb2.EndSessionRequest) -> token_pb2.EndSessionResponse:
        return await self._sessions.end(request)

    async def list_audit(self, request: audit_pb2.ListAuditRequest) -> audit_pb2.ListAuditResponse:
        return await self._audit.list(request)

    async def who_am_i(self, request: token_pb2.WhoAmIRequest) -> token_pb2.WhoAmIResponse:
        return await self._tokens.who_am_i(request)

    async def can_i(self, request: token_pb2.CanIRequest) -> token_pb2.CanIResponse:
        return await self._tokens.can_i(request)

    async def _call_other_nodes(
        self,
        method: str,
        request: Message,
        kind: type[ResponseT],
        *,
        skip_failed: bool = False,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> list[ResponseT]:
        """Send the same call to the other nodes, each for its own shards."""
        if self._all_nodes is None:
            return []
        return await self._all_nodes.call_other_nodes(
            f"AdminService/{method}", request, kind, skip_failed=skip_failed, timeout_s=timeout_s
        )

    async def _get_unfinished_task(self, task_id: int) -> StoredTask:
        stored = await self._node.store.get_task(task_id) if 0 < task_id <= TASK_ID_MAX else None
        if stored is None:
            raise TaskNotFound(task_id=task_id)
        require_loaded(stored.task.namespace, OPERATOR, TaskNotFound(task_id=task_id))
        if stored.state in FINISHED_TASK_STATES:
            raise TaskFinished(task_id=task_id, state=stored.state.name)
        return stored

    async def _update_task(self, stored: StoredTask, update: TaskUpdate) -> StoredTask:
        shard = self._node.shard_by_id(stored.shard_id)
        shard.update_task(update)
        await self._node.wait_durable(shard)
        after = await self._node.store.get_task(stored.task_id)
        return after if after is not None else stored


def _config_changed(message: cluster_pb2.HintRequest) -> None:
    message.config_changed = True
