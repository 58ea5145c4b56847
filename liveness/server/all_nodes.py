"""Calls that concern shards of several nodes: the called node asks each other node for its part and merges them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from liveness.cluster.peers import Peers, was_cancelled_by_channel
from liveness.domain.errors import NodeLost, ShardUnavailable
from liveness.routing.forwarding import LOCAL_ONLY_HEADER, TARGET_NODE_HEADER
from liveness.routing.routing_table import RoutingTable
from liveness.rpc.status import error_from_rpc
from liveness.security.forwarded_callers import principal_metadata
from liveness.store.api import WorkerRow
from liveness.v1 import cluster_pb2, worker_pb2

CALL_TIMEOUT_S = 5.0

is_local_only: ContextVar[bool] = ContextVar("is_local_only", default=False)
"""Whether another node asks for this node's part only; then this node asks no others."""

ResponseT = TypeVar("ResponseT", bound=Message)


class AllNodes:
    def __init__(self, node_id: str, routes: RoutingTable, peers: Peers) -> None:
        self._node_id = node_id
        self._routes = routes
        self._peers = peers

    async def call_other_nodes(
        self,
        path: str,
        request: Message,
        response: type[ResponseT],
        *,
        skip_failed: bool = False,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> list[ResponseT]:
        """Send the call to every other node. `skip_failed`: leave out nodes that do not answer, instead of failing."""
        if is_local_only.get():
            return []
        others = [member for member in self._routes.members() if member.node_id != self._node_id]
        answers = await asyncio.gather(
            *(
                self._call(member.node_id, member.address, path, request, response, timeout_s)
                for member in others
            ),
            return_exceptions=True,
        )
        found: list[ResponseT] = []
        for answer in answers:
            if isinstance(answer, grpc.aio.AioRpcError):
                if not skip_failed:
                    raise error_from_rpc(answer) from answer
            elif isinstance(answer, NodeLost):
                if not skip_failed:
                    raise answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.append(answer)
        return found

    def has_owner(self, shard_id: int) -> bool:
        """Whether another node is known to serve a shard."""
        owner = self._routes.owner(shard_id)
        return owner is not None and owner.node_id != self._node_id

    async def call_owner(
        self, shard_id: int, path: str, request: Message, response: type[ResponseT]
    ) -> ResponseT:
        """Send the call to the node that serves a shard."""
        owner = self._routes.owner(shard_id)
        if owner is None or owner.node_id == self._node_id or is_local_only.get():
            raise ShardUnavailable(shard_id=shard_id)
        try:
            return await self._call(owner.node_id, owner.address, path, request, response)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error

    async def look_up_workers(
        self, namespace: str, rows: Iterable[WorkerRow]
    ) -> dict[str, worker_pb2.Worker]:
        """Returns the present state of workers of other nodes, by instance key. If an owner does not answer, its workers
        are left out."""
        by_address: dict[str, list[str]] = {}
        for row in rows:
            if (owner := self._routes.owner(row.shard_id)) is not None and owner.node_id != self._node_id:
                by_address.setdefault(owner.address, []).append(row.key.instance_key)

        async def call_owner_at(address: str, keys: Sequence[str]) -> Sequence[worker_pb2.Worker]:
            request = cluster_pb2.LookUpWorkersRequest(namespace=namespace, worker_instance_keys=keys)
            try:
                answer = await self._peers.stub(address).LookUpWorkers(request, timeout=CALL_TIMEOUT_S)
            except grpc.aio.AioRpcError:
                return ()
            except asyncio.CancelledError:
                if not was_cancelled_by_channel():
                    raise
                return ()
            return answer.workers

        answers = await asyncio.gather(*(call_owner_at(*item) for item in by_address.items()))
        return {worker.worker_instance_key: worker for workers in answers for worker in workers}

    async def _call(
        self,
        node_id: str,
        address: str,
        path: str,
        request: Message,
        response: type[ResponseT],
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> ResponseT:
        call: Any = self._peers.channel(address).unary_unary(
            f"/liveness.v1.{path}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        try:
            answer: ResponseT = await call(
                request,
                timeout=timeout_s,
                metadata=((TARGET_NODE_HEADER, node_id), (LOCAL_ONLY_HEADER, "1"), *principal_metadata()),
            )
        except asyncio.CancelledError:
            if not was_cancelled_by_channel():
                raise
            raise NodeLost(node_id=node_id, address=address) from None
        return answer
