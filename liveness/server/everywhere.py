"""Calls that concern the shards of several nodes: asked of each for its own, and put together by whoever was called."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from liveness.cluster.peers import Peers, node_given_up
from liveness.domain.errors import NodeLost, ShardUnavailable
from liveness.frontend.forwarding import ALONE, TO
from liveness.frontend.routes import Routes
from liveness.statuses import refusal_of
from liveness.store.api import WorkerRow
from liveness.v1 import cluster_pb2, worker_pb2

ANSWER_SECONDS_MAX = 5.0

only_here: ContextVar[bool] = ContextVar("only_here", default=False)
"""Whether the call being served was asked of this node alone, for its own share of the answer."""

ResponseT = TypeVar("ResponseT", bound=Message)


class Everywhere:
    def __init__(self, node_id: str, routes: Routes, peers: Peers) -> None:
        self._node_id = node_id
        self._routes = routes
        self._peers = peers

    async def ask_others(
        self,
        path: str,
        request: Message,
        response: type[ResponseT],
        *,
        patient: bool = False,
        timeout_s: float = ANSWER_SECONDS_MAX,
    ) -> list[ResponseT]:
        """The same call, of every other node. `patient`: those that do not answer are left out, instead of failing
        the whole."""
        if only_here.get():
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
                if not patient:
                    raise refusal_of(answer) from answer
            elif isinstance(answer, NodeLost):
                if not patient:
                    raise answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.append(answer)
        return found

    async def ask_owner(
        self, shard_id: int, path: str, request: Message, response: type[ResponseT]
    ) -> ResponseT:
        """The same call, of the node that serves a shard."""
        owner = self._routes.owner(shard_id)
        if owner is None or owner.node_id == self._node_id or only_here.get():
            raise ShardUnavailable(shard_id=shard_id)
        try:
            return await self._call(owner.node_id, owner.address, path, request, response)
        except grpc.aio.AioRpcError as error:
            raise refusal_of(error) from error

    async def look_up(self, namespace: str, rows: Iterable[WorkerRow]) -> dict[str, worker_pb2.Worker]:
        """Workers that live at other nodes, as they are now, by instance key. Those whose owner does not answer are
        left out."""
        by_address: dict[str, list[str]] = {}
        for row in rows:
            if (owner := self._routes.owner(row.shard_id)) is not None and owner.node_id != self._node_id:
                by_address.setdefault(owner.address, []).append(row.key.instance_key)

        async def ask(address: str, keys: Sequence[str]) -> Sequence[worker_pb2.Worker]:
            request = cluster_pb2.LookUpWorkersRequest(namespace=namespace, worker_instance_keys=keys)
            try:
                answer = await self._peers.stub(address).LookUpWorkers(request, timeout=ANSWER_SECONDS_MAX)
            except grpc.aio.AioRpcError:
                return ()
            except asyncio.CancelledError:
                if not node_given_up():
                    raise
                return ()
            return answer.workers

        answers = await asyncio.gather(*(ask(*item) for item in by_address.items()))
        return {worker.worker_instance_key: worker for workers in answers for worker in workers}

    async def _call(
        self,
        node_id: str,
        address: str,
        path: str,
        request: Message,
        response: type[ResponseT],
        timeout_s: float = ANSWER_SECONDS_MAX,
    ) -> ResponseT:
        call: Any = self._peers.channel(address).unary_unary(
            f"/liveness.v1.{path}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        try:
            answer: ResponseT = await call(request, timeout=timeout_s, metadata=((TO, node_id), (ALONE, "1")))
        except asyncio.CancelledError:
            if not node_given_up():
                raise
            raise NodeLost(node_id=node_id, address=address) from None
        return answer
