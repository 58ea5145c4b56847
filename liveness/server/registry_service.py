"""RegistryService: handlers translate messages; `registry_decider` decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import merge
from itertools import islice

from liveness.clock import stopwatch
from liveness.cluster.quotas import Quotas, RoomNeeded
from liveness.domain.errors import (
    LivenessError,
    PageTokenInvalid,
    ReplicaQuotaExceeded,
    ShardUnavailable,
    WorkerKeyHeld,
    WorkerKeyOwned,
)
from liveness.domain.keys import WorkerKey
from liveness.domain.policy import Policy
from liveness.domain.registry import NUMBERS_MAX, numbered_key
from liveness.domain.registry_decider import known_entry
from liveness.domain.worker import Worker
from liveness.engine.node import Node
from liveness.engine.shard import HeartbeatOutcome, Shard
from liveness.routing.own_calls import OwnCalls
from liveness.security.principal import caller_name
from liveness.server import registry_wire as wire
from liveness.server import tokens
from liveness.server.all_nodes import AllNodes, is_local_only
from liveness.server.liveness_service import ADMIT_ATTEMPTS_MAX
from liveness.server.rate_limits import RateLimits
from liveness.server.validation import require_identifier, text
from liveness.slices import MESSAGE_BYTES_PER_US, MESSAGE_US, SLICE_US, end_slice
from liveness.store.pages import PAGE_BYTES_MAX
from liveness.telemetry.telemetry import Telemetry
from liveness.v1 import registry_pb2
from liveness.v1 import registry_service_pb2 as pb

REGISTER = pb.DESCRIPTOR.services_by_name["RegistryService"].methods_by_name["Register"]
EXAMINED_MAX = 10_000
"""How many entries are compared with the filter for one page."""
EXAMINED_PER_SLICE = 500

Heard = tuple[HeartbeatOutcome | None, Worker]


class RegistryService:
    def __init__(
        self,
        node: Node,
        telemetry: Telemetry,
        rate_limits: RateLimits,
        quotas: Quotas,
        all_nodes: AllNodes | None,
        own_calls: OwnCalls,
    ) -> None:
        self._node = node
        self._telemetry = telemetry
        self._rate_limits = rate_limits
        self._quotas = quotas
        self._all_nodes = all_nodes
        self._own_calls = own_calls

    # -- components

    async def register(self, request: pb.RegisterRequest) -> pb.RegisterResponse:
        key = wire.entry_key(request.namespace, request.worker_instance_key)
        if request.on_replica == registry_pb2.REPLICA_POLICY_NUMBER:
            return await self._register_numbered(request)

        def hear(shard: Shard, policy: Policy) -> Heard:
            registration = wire.registration(request, policy, shard.workers.get(key), caller_name())
            return shard.register_component(
                key, registration, self._quotas.admit, self._rate_limits.admit_session
            )

        outcome, worker, shard = await self._hear(key, hear)
        return pb.RegisterResponse(
            entry=self._message(key, worker, shard),
            outcome=outcome,  # type: ignore[arg-type]
            session_id=wire.registered_session(request, caller_name())
            if outcome is None
            else worker.session_id,
            next_heartbeat_after=wire.next_heartbeat_after(worker),
            is_replica=outcome is None,
        )

    async def _register_numbered(self, request: pb.RegisterRequest) -> pb.RegisterResponse:
        """Take the first name that no other process has, whichever node owns its shard."""
        attempt = pb.RegisterRequest()
        attempt.CopyFrom(request)
        attempt.on_replica = registry_pb2.REPLICA_POLICY_REFUSE
        for number in range(1, NUMBERS_MAX + 1):
            attempt.worker_instance_key = numbered_key(request.worker_instance_key, number)
            try:
                response: pb.RegisterResponse = await self._own_calls.call(REGISTER, attempt, self.register)
            except (WorkerKeyHeld, WorkerKeyOwned):
                continue
            return response
        raise ReplicaQuotaExceeded(entry=request.worker_instance_key, limit=NUMBERS_MAX)

    async def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        key = wire.entry_key(request.namespace, request.worker_instance_key)

        def hear(shard: Shard, policy: Policy) -> Heard:
            beat, status = wire.heartbeat(request, policy, shard.workers.get(key), caller_name())
            return shard.hear_component(
                key, beat, status, self._quotas.admit, self._rate_limits.admit_session
            )

        outcome, worker, shard = await self._hear(key, hear)
        return pb.HeartbeatResponse(
            entry=self._message(key, worker, shard),
            outcome=outcome,  # type: ignore[arg-type]
            next_heartbeat_after=wire.next_heartbeat_after(worker),
            is_replica=outcome is None,
        )

    async def deregister(self, request: pb.DeregisterRequest) -> pb.DeregisterResponse:
        key = wire.entry_key(request.namespace, request.worker_instance_key)
        session_id = wire.session("session_id", request.session_id)
        shard, policy = self._node.shard(*key), self._node.policies.of(key.namespace)
        moved = shard.deregister_component(
            key, session_id, text("reason", request.reason), policy, caller_name()
        )
        await self._node.wait_durable(shard)
        return pb.DeregisterResponse(rescheduled_activities=moved)

    async def _hear(
        self, key: WorkerKey, hear: Callable[[Shard, Policy], Heard]
    ) -> tuple[HeartbeatOutcome | None, Worker, Shard]:
        """Decide as every heartbeat is decided: within the namespace's rates and its quota, and durable."""
        node, elapsed_s = self._node, stopwatch()
        try:
            if node.committer.is_full:
                await node.committer.wait_for_room()
            policy = node.policies.of(key.namespace)
            if policy.has_rate_limits:
                self._rate_limits.admit(key, policy, node.clock.monotonic_ms())
            shard, (outcome, worker) = await self._hear_with_room(key, hear)
            await node.wait_durable(shard)
        except LivenessError as error:
            self._telemetry.record_refusals(key.namespace, (error,))
            raise
        finally:
            self._telemetry.record_heartbeats(key.namespace, 1, elapsed_s())
        return outcome, worker, shard

    async def _hear_with_room(
        self, key: WorkerKey, hear: Callable[[Shard, Policy], Heard]
    ) -> tuple[Shard, Heard]:
        node, attempts_left = self._node, ADMIT_ATTEMPTS_MAX
        while True:
            policy, shard = node.policies.of(key.namespace), node.shard(*key)
            try:
                return shard, hear(shard, policy)
            except RoomNeeded:
                if not attempts_left:
                    raise
                attempts_left -= 1
                await self._quotas.acquire_slots([shard.id], key.namespace, policy)

    def _message(self, key: WorkerKey, worker: Worker, shard: Shard) -> registry_pb2.RegistryEntry:
        worker, entry = known_entry(key, worker)
        return wire.entry_message(key, worker, entry, shard.now_ms(), self._node.clock.wall_ms())

    # -- readers

    async def get_entry(self, request: pb.GetEntryRequest) -> pb.GetEntryResponse:
        key = wire.entry_key(request.namespace, request.worker_instance_key)
        shard = self._node.shard(*key)
        worker, _ = known_entry(key, shard.workers.get(key))
        await self._node.wait_durable(shard)
        return pb.GetEntryResponse(entry=self._message(key, worker, shard))

    async def list_entries(self, request: pb.ListEntriesRequest) -> pb.ListEntriesResponse:
        namespace = require_identifier("namespace", request.namespace)
        where, size = wire.entry_filter(request)
        listing = ("entries", namespace, where)
        after = (
            tokens.redeem(request.page_token, tokens.Key, PageTokenInvalid, *listing)
            if request.page_token
            else ""
        )
        self._require_all_shards()
        found, through = await self._list_own(namespace, where, after, size)
        if self._all_nodes is not None and not is_local_only.get():
            asked = pb.ListEntriesRequest()
            asked.CopyFrom(request)
            for part in await self._all_nodes.call_other_nodes(
                "RegistryService/ListEntries", asked, pb.ListEntriesResponse
            ):
                found.extend(part.entries)
                if part.next_page_token:
                    end = tokens.redeem(part.next_page_token, tokens.Key, PageTokenInvalid, *listing)
                    through = end if through is None else min(through, end)
        await self._node.wait_all_durable()
        return self._page(found, through, size, listing)

    def _page(
        self,
        found: list[registry_pb2.RegistryEntry],
        through: str | None,
        size: int,
        listing: tuple[object, ...],
    ) -> pb.ListEntriesResponse:
        """`through`: up to which key all nodes have answered; None if there is no more."""
        found.sort(key=lambda entry: entry.worker_instance_key)
        if through is not None:
            found = [entry for entry in found if entry.worker_instance_key <= through]
        if len(found) > size:
            found, through = found[:size], found[size - 1].worker_instance_key
        response = pb.ListEntriesResponse(entries=found)
        if through is not None:
            response.next_page_token = tokens.issue(through, *listing)
        return response

    def _require_all_shards(self) -> None:
        """An entry must not be missing because nobody serves its shard just now."""
        for shard_id, shard in enumerate(self._node.shard_table()):
            if shard is None and (self._all_nodes is None or not self._all_nodes.has_owner(shard_id)):
                raise ShardUnavailable(shard_id=shard_id)

    async def _list_own(
        self, namespace: str, where: wire.EntryFilter, after: str, size: int
    ) -> tuple[list[registry_pb2.RegistryEntry], str | None]:
        """A page of this node's entries, and the key up to which it is complete; None if there are no more entries."""
        found: list[registry_pb2.RegistryEntry] = []
        examined, bytes_left = 0, PAGE_BYTES_MAX
        while True:
            # Whatever was read before the end of a slice may have changed since.
            keys = list(islice(self._keys_after(namespace, where.kind, after), EXAMINED_PER_SLICE))
            wall_ms, slice_us = self._node.clock.wall_ms(), 0
            for instance_key in keys:
                key = WorkerKey(namespace, instance_key)
                shard = self._node.shard(*key)
                worker, entry = known_entry(key, shard.workers.get(key))
                now_ms = shard.now_ms()
                after, examined = instance_key, examined + 1
                slice_us += where.cost_us(worker, entry)
                if where.matches(worker, entry, now_ms):
                    message = wire.entry_message(key, worker, entry, now_ms, wall_ms)
                    found.append(message)
                    size_bytes = message.ByteSize()
                    slice_us += MESSAGE_US + size_bytes // MESSAGE_BYTES_PER_US
                    bytes_left -= size_bytes
                    if len(found) > size or bytes_left < 0:
                        return found, after
                if slice_us > SLICE_US:
                    break
            else:
                if len(keys) < EXAMINED_PER_SLICE:
                    return found, None
            if examined >= EXAMINED_MAX:
                return found, after
            await end_slice()

    def _keys_after(self, namespace: str, kind: str, after: str) -> Iterator[str]:
        return merge(
            *(shard.census.registry.keys_after(namespace, kind, after) for shard in self._node.shards())
        )
