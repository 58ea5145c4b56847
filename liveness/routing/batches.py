"""A batch of heartbeats for several nodes: it is split by owner, served in parts, and answered in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import TypeVar

import grpc
from google.protobuf.message import DecodeError

from liveness.domain.errors import Unavailable
from liveness.domain.keys import namespace_seed, shard_from_seed
from liveness.routing import rpc_failures
from liveness.routing.coalescing import BATCH_PATH
from liveness.routing.forwarding import Forwarder
from liveness.routing.retry_budget import RetryBudget
from liveness.routing.routing_rules import RetrySafety
from liveness.routing.routing_table import Owner, RoutingTable
from liveness.routing.rpc_failures import Metadata, RpcFailure
from liveness.v1.service_pb2 import RecordWorkerHeartbeatsRequest, RecordWorkerHeartbeatsResponse

HEARTBEATS_PER_CALL_MAX = 1_000
"""A larger batch is not split: any node refuses it as a whole."""

LOCAL = "here"

_REQUEST_ERRORS = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)

Item = RecordWorkerHeartbeatsResponse.Item
Serve = Callable[[RecordWorkerHeartbeatsRequest], Awaitable[bytes]]
TargetT = TypeVar("TargetT", bound=Hashable)
ResultT = TypeVar("ResultT")


def group_by_target(targets: Sequence[TargetT]) -> dict[TargetT, list[int]]:
    """The positions of the items of each target, in request order."""
    parts: dict[TargetT, list[int]] = {}
    for position, target in enumerate(targets):
        parts.setdefault(target, []).append(position)
    return parts


def merge(into: list[ResultT], positions: Sequence[int], results: Sequence[ResultT]) -> None:
    """Put the results of one part at their positions."""
    for position, result in zip(positions, results, strict=True):
        into[position] = result


class Batch:
    """One call of RecordWorkerHeartbeats."""

    def __init__(
        self,
        request: RecordWorkerHeartbeatsRequest,
        forwarder: Forwarder,
        routes: RoutingTable,
        owns_shard: Callable[[int], bool],
        serve: Serve | None,
    ) -> None:
        """`serve`: serves the part for this node's own shards; None in a frontend."""
        seed, count = namespace_seed(request.namespace), routes.shard_count
        self._request = request
        self._shard_ids = [
            shard_from_seed(seed, beat.worker_instance_key, count) for beat in request.heartbeats
        ]
        self._forwarder = forwarder
        self._routes = routes
        self._owns_shard = owns_shard
        self._serve = serve
        self._outcomes: list[Item | RpcFailure] = []
        self.initial_metadata: list[tuple[str, str | bytes]] = []
        self.trailing_metadata: list[tuple[str, str | bytes]] = []

    @property
    def is_all_local(self) -> bool:
        return all(map(self._owns_shard, set(self._shard_ids)))

    async def forward(
        self, metadata: Metadata, retry_budget: RetryBudget, served: bytes | None = None
    ) -> bytes | RpcFailure:
        """`served`: this node's answer to the whole batch, if some of the shards moved away meanwhile."""
        remaining = list(range(len(self._shard_ids)))
        self._outcomes = [
            rpc_failures.from_error(self._forwarder.unavailable_error(shard_id))
            for shard_id in self._shard_ids
        ]
        if served is not None:
            merge(self._outcomes, remaining, _parse_items(served, len(remaining)))
            # Items that failed for other reasons may have had an effect; their failures are returned as they are.
            remaining = [at for at in self._to_retry(remaining, {}) if self._has_moved(at)]
        while remaining:
            outcome = await self._forward_once(remaining, metadata, retry_budget)
            if isinstance(outcome, RpcFailure):
                return outcome
            remaining = outcome
            if remaining and not await retry_budget.wait():
                break
        return self._build_response()

    async def _forward_once(
        self, remaining: Sequence[int], metadata: Metadata, retry_budget: RetryBudget
    ) -> list[int] | RpcFailure:
        """Return the positions to try again, or the failure of the whole call."""
        targets = [self._target(self._shard_ids[position]) for position in remaining]
        parts = {
            target: [remaining[index] for index in indexes]
            for target, indexes in group_by_target(targets).items()
            if target is not None
        }
        without_owner = [
            position for position, target in zip(remaining, targets, strict=True) if target is None
        ]
        results = await asyncio.gather(
            *(
                self._send_part(target, positions, metadata, retry_budget)
                for target, positions in parts.items()
            )
        )
        asked_owners: dict[int, Owner] = {}
        for (target, positions), result in zip(parts.items(), results, strict=True):
            if isinstance(result, RpcFailure):
                if result.code in _REQUEST_ERRORS:
                    return result  # the request itself is wrong, so every part would fail
                result = [result] * len(positions)
            merge(self._outcomes, positions, result)
            if isinstance(target, Owner):
                asked_owners |= dict.fromkeys(positions, target)
        return sorted(
            without_owner + self._to_retry([at for part in parts.values() for at in part], asked_owners)
        )

    def _target(self, shard_id: int) -> Owner | str | None:
        return LOCAL if self._owns_shard(shard_id) else self._routes.owner(shard_id)

    async def _send_part(
        self, target: Owner | str, positions: Sequence[int], metadata: Metadata, retry_budget: RetryBudget
    ) -> Sequence[Item | RpcFailure] | RpcFailure:
        beats = self._request.heartbeats
        part = RecordWorkerHeartbeatsRequest(
            namespace=self._request.namespace, heartbeats=[beats[position] for position in positions]
        )
        if isinstance(target, str):
            assert self._serve is not None, "only a node has shards of its own"
            try:
                return _parse_items(await self._serve(part), len(positions))
            except Unavailable as error:
                return rpc_failures.from_error(error)
        outcome = await self._forwarder.send(
            BATCH_PATH, part.SerializeToString(), target, metadata, retry_budget.part_timeout_s()
        )
        if isinstance(outcome, RpcFailure):
            # One node that hangs must not fail the items that other nodes have answered.
            return (
                rpc_failures.node_lost(target)
                if outcome.code is grpc.StatusCode.DEADLINE_EXCEEDED
                else outcome
            )
        self.initial_metadata += outcome.initial_metadata
        self.trailing_metadata += outcome.trailing_metadata
        return _parse_items(outcome.body, len(positions))

    def _to_retry(self, positions: Sequence[int], asked_owners: dict[int, Owner]) -> list[int]:
        to_retry = []
        for position in positions:
            outcome = self._outcomes[position]
            failure = outcome if isinstance(outcome, RpcFailure) else _failure_of(outcome)
            if failure is not None and failure.can_retry(RetrySafety.ALWAYS):
                to_retry.append(position)
                if position in asked_owners:
                    self._forwarder.update_owner(self._shard_ids[position], asked_owners[position], failure)
                elif (new_owner := failure.new_owner) is not None:
                    self._routes.update_owner(*new_owner)
        return to_retry

    def _has_moved(self, position: int) -> bool:
        outcome = self._outcomes[position]
        failure = outcome if isinstance(outcome, RpcFailure) else _failure_of(outcome)
        return failure is not None and failure.reason == rpc_failures.SHARD_MOVED

    def _build_response(self) -> bytes | RpcFailure:
        outcomes = self._outcomes
        if outcomes and all(isinstance(outcome, RpcFailure) for outcome in outcomes):
            first = outcomes[0]
            assert isinstance(first, RpcFailure)
            return first
        response = RecordWorkerHeartbeatsResponse()
        for outcome in outcomes:
            if isinstance(outcome, RpcFailure):
                response.items.add().status.CopyFrom(rpc_failures.to_status(outcome))
            else:
                response.items.append(outcome)
        return response.SerializeToString()


def _parse_items(body: bytes, count: int) -> list[Item | RpcFailure]:
    try:
        items = list(RecordWorkerHeartbeatsResponse.FromString(body).items)
    except DecodeError:
        items = []
    if len(items) != count:
        return [rpc_failures.from_error(Unavailable())] * count  # the node did not understand the batch
    return list(items)


def _failure_of(item: Item) -> RpcFailure | None:
    return rpc_failures.from_status(item.status) if item.HasField("status") else None
