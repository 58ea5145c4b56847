"""Asks other nodes about their workers and activities: the client of ClusterService."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import TypeVar

import grpc

from liveness.cluster.peers import Peers, was_cancelled_by_channel
from liveness.dispatch.available_activities import ActivityTypes
from liveness.dispatch.remote import HeldAttempt, RemoteOwnershipResponder
from liveness.dispatch.worker_bindings import Binding, HolderView
from liveness.domain.activity import Activity
from liveness.domain.activity_decider import AttemptHolder
from liveness.domain.errors import InvalidRequest, ShardMoved, ShardUnavailable, Unavailable
from liveness.domain.keys import ActivityId, ActivityKey, WorkerKey, shard_of
from liveness.domain.worker import BoundActivity
from liveness.routing.routing_table import Owner, RoutingTable
from liveness.rpc.status import error_from_rpc
from liveness.server.cluster_wire import (
    activity_from_task,
    held_attempt,
    held_attempt_message,
    holder_view,
    id_message,
)
from liveness.server.wire import activity_ref, attempt_number
from liveness.v1 import cluster_pb2, worker_pb2

CALL_TIMEOUT_S = 3.0
OWNER_ATTEMPTS_MAX = 3

T = TypeVar("T")
CallAddress = Callable[[str], Awaitable[T]]
"""A call to the node with the given address."""


class RemoteNodes:
    """Implements `RemoteOwnership`. If this node has become the owner meanwhile, it answers itself."""

    def __init__(
        self, node_id: str, routes: RoutingTable, peers: Peers, ownership_responder: RemoteOwnershipResponder
    ) -> None:
        self._node_id = node_id
        self._routes = routes
        self._peers = peers
        self._ownership_responder = ownership_responder

    # -- workers of other nodes

    async def look_up(self, worker_key: WorkerKey, id: ActivityId) -> HolderView | None:
        [answer] = await self._view_holders(worker_key.namespace, worker_key.instance_key, [(worker_key, id)])
        return answer

    async def look_up_many(
        self, questions: Sequence[tuple[WorkerKey, ActivityId]]
    ) -> list[tuple[bool, HolderView | None]]:
        found: dict[int, HolderView | None] = {}

        async def look_up(indexes: list[int]) -> None:
            worker_key, _ = questions[indexes[0]]
            subset = [questions[index] for index in indexes]
            try:
                answers = await self._view_holders(worker_key.namespace, worker_key.instance_key, subset)
            except (Unavailable, InvalidRequest):
                return
            found.update(zip(indexes, answers, strict=True))

        names = [tuple(worker_key) for worker_key, _ in questions]
        await asyncio.gather(*(look_up(indexes) for indexes in self._group_by_owner(names)))
        return [(index in found, found.get(index)) for index in range(len(questions))]

    async def _view_holders(
        self, namespace: str, name: str, questions: Sequence[tuple[WorkerKey, ActivityId]]
    ) -> list[HolderView | None]:
        request = cluster_pb2.LookAtHoldersRequest(
            questions=[
                cluster_pb2.LookAtHoldersRequest.Question(
                    namespace=worker_key.namespace,
                    worker_instance_key=worker_key.instance_key,
                    id=id_message(id),
                )
                for worker_key, id in questions
            ]
        )

        async def call_remote(address: str) -> list[HolderView | None]:
            response = await _await_reply(
                self._peers.stub(address).LookAtHolders(request, timeout=CALL_TIMEOUT_S)
            )
            return [holder_view(answer) for answer in response.answers]

        return await self._call_owner(
            namespace, name, call_remote, lambda: self._ownership_responder.look_up(questions)
        )

    async def bind(
        self, worker_key: WorkerKey, session_id: str, activities: Sequence[BoundActivity]
    ) -> Binding:
        request = cluster_pb2.BindAttemptsRequest(
            namespace=worker_key.namespace,
            worker_instance_key=worker_key.instance_key,
            session_id=session_id,
            activities=[activity_ref(activity) for activity in activities],
        )

        async def call_remote(address: str) -> Binding:
            response = await _await_reply(
                self._peers.stub(address).BindAttempts(request, timeout=CALL_TIMEOUT_S)
            )
            return Binding(response.lease_epoch, response.bound)

        return await self._call_owner(
            *worker_key,
            call_remote,
            lambda: self._ownership_responder.bind(worker_key, session_id, activities),
        )

    async def unbind(self, worker_key: WorkerKey, id: ActivityId, attempt: int, *, taken: bool) -> bool:
        request = cluster_pb2.UnbindAttemptRequest(
            namespace=worker_key.namespace,
            worker_instance_key=worker_key.instance_key,
            id=id_message(id),
            attempt=attempt_number(attempt),
            taken=taken,
        )

        async def call_remote(address: str) -> bool:
            response = await _await_reply(
                self._peers.stub(address).UnbindAttempt(request, timeout=CALL_TIMEOUT_S)
            )
            return response.unbound

        return await self._call_owner(
            *worker_key,
            call_remote,
            lambda: self._ownership_responder.unbind(worker_key, id, attempt, taken=taken),
        )

    # -- activities of other nodes

    async def find_not_held(self, attempts: Sequence[HeldAttempt]) -> list[HeldAttempt]:
        found: list[HeldAttempt] = []

        async def find(indexes: list[int]) -> None:
            subset = [attempts[index] for index in indexes]
            request = cluster_pb2.FindNotHeldRequest(
                attempts=[held_attempt_message(held_attempt) for held_attempt in subset]
            )

            async def call_remote(address: str) -> list[HeldAttempt]:
                response = await _await_reply(
                    self._peers.stub(address).FindNotHeld(request, timeout=CALL_TIMEOUT_S)
                )
                return [held_attempt(message) for message in response.not_held]

            try:
                found.extend(
                    await self._call_owner(
                        subset[0].worker.namespace,
                        subset[0].id.workflow_id,
                        call_remote,
                        lambda: self._ownership_responder.find_not_held(subset),
                    )
                )
            except (Unavailable, InvalidRequest):
                return

        names = [(held_attempt.worker.namespace, held_attempt.id.workflow_id) for held_attempt in attempts]
        await asyncio.gather(*(find(indexes) for indexes in self._group_by_owner(names)))
        return found

    async def hand_out(
        self,
        address: str,
        worker_key: WorkerKey,
        session_id: str,
        task_queue: str,
        limit: int,
        types: ActivityTypes,
    ) -> list[Activity]:
        request = cluster_pb2.HandOutRequest(
            namespace=worker_key.namespace,
            worker_instance_key=worker_key.instance_key,
            session_id=session_id,
            task_queue=task_queue,
            max_activities=limit,
            activity_types=sorted(types or ()),
        )
        try:
            response = await _await_reply(self._peers.stub(address).HandOut(request, timeout=CALL_TIMEOUT_S))
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        return [activity_from_task(task, worker_key.instance_key) for task in response.activities]

    async def take_back(self, key: ActivityKey, holder: AttemptHolder) -> None:
        request = cluster_pb2.TakeBackRequest(
            namespace=key.namespace,
            worker_instance_key=holder.worker,
            lease_epoch=holder.epoch,
            activities=[worker_pb2.ActivityRef(**key.id._asdict(), attempt=attempt_number(holder.attempt))],
        )
        owner = self._owner(key.namespace, key.workflow_id)
        if owner.node_id == self._node_id:
            raise ShardUnavailable(
                shard_id=shard_of(key.namespace, key.workflow_id, self._routes.shard_count)
            )
        try:
            await _await_reply(self._peers.stub(owner.address).TakeBack(request, timeout=CALL_TIMEOUT_S))
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error

    # -- internals

    def _owner(self, namespace: str, name: str) -> Owner:
        shard_id = shard_of(namespace, name, self._routes.shard_count)
        owner = self._routes.owner(shard_id)
        if owner is None:
            raise ShardUnavailable(shard_id=shard_id)
        return owner

    def _group_by_owner(self, names: Iterable[tuple[str, ...]]) -> list[list[int]]:
        """Group the indexes of names by the owner of their shard; names without an owner are left out."""
        groups: defaultdict[Hashable, list[int]] = defaultdict(list)
        for index, (namespace, name) in enumerate(names):
            owner = self._routes.owner(shard_of(namespace, name, self._routes.shard_count))
            if owner is not None:
                groups[owner.node_id].append(index)
        return list(groups.values())

    async def _call_owner(
        self, namespace: str, name: str, remote: CallAddress[T], local: Callable[[], Awaitable[T]]
    ) -> T:
        """Call the owner of a shard, and follow the shard if it has moved."""
        for _ in range(OWNER_ATTEMPTS_MAX):
            owner = self._owner(namespace, name)
            if owner.node_id == self._node_id:
                return await local()
            try:
                return await remote(owner.address)
            except grpc.aio.AioRpcError as error:
                refusal = error_from_rpc(error)
                if not isinstance(refusal, ShardMoved) or not self._learn_owner(refusal):
                    raise refusal from error
        raise Unavailable

    def _learn_owner(self, moved: ShardMoved) -> bool:
        return self._routes.update_owner(moved.shard_id, Owner(moved.node_id, moved.address, moved.epoch))


async def _await_reply(call: Awaitable[T]) -> T:
    try:
        return await call
    except asyncio.CancelledError:
        if not was_cancelled_by_channel():
            raise
        raise Unavailable from None
