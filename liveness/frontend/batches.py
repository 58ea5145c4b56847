"""A batch of heartbeats whose workers live on several nodes: split by owner, served in parts, answered in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import TypeVar

import grpc
from google.protobuf.message import DecodeError

from liveness.domain.errors import Unavailable
from liveness.domain.keys import namespace_seed, shard_from_seed
from liveness.frontend import refusals
from liveness.frontend.coalescing import BATCH_PATH
from liveness.frontend.forwarding import Forwarder
from liveness.frontend.patience import Patience
from liveness.frontend.refusals import Metadata, Refusal
from liveness.frontend.routes import Owner, Routes
from liveness.frontend.rules import Repeat
from liveness.v1.service_pb2 import RecordWorkerHeartbeatsRequest, RecordWorkerHeartbeatsResponse

HEARTBEATS_PER_CALL_MAX = 1_000
"""A batch with more is refused as a whole by whoever gets it."""

HERE = "here"

_OF_THE_REQUEST = frozenset(
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
PlaceT = TypeVar("PlaceT", bound=Hashable)
ResultT = TypeVar("ResultT")


def split(places: Sequence[PlaceT]) -> dict[PlaceT, list[int]]:
    """Which positions go where, each part in request order."""
    parts: dict[PlaceT, list[int]] = {}
    for position, place in enumerate(places):
        parts.setdefault(place, []).append(position)
    return parts


def merge(into: list[ResultT], positions: Sequence[int], results: Sequence[ResultT]) -> None:
    """Put the results of one part where they belong."""
    for position, result in zip(positions, results, strict=True):
        into[position] = result


class Batch:
    """One call, from splitting to its answer."""

    def __init__(
        self,
        request: RecordWorkerHeartbeatsRequest,
        forwarder: Forwarder,
        routes: Routes,
        is_mine: Callable[[int], bool],
        serve: Serve | None,
    ) -> None:
        """`serve`: what this node does with the part that is its own."""
        seed, count = namespace_seed(request.namespace), routes.shard_count
        self._request = request
        self._shard_ids = [
            shard_from_seed(seed, beat.worker_instance_key, count) for beat in request.heartbeats
        ]
        self._forwarder = forwarder
        self._routes = routes
        self._is_mine = is_mine
        self._serve = serve
        self._outcomes: list[Item | Refusal] = []
        self.initial: list[tuple[str, str | bytes]] = []
        self.trailing: list[tuple[str, str | bytes]] = []

    @property
    def is_all_mine(self) -> bool:
        return all(map(self._is_mine, set(self._shard_ids)))

    async def carry(
        self, metadata: Metadata, patience: Patience, served: bytes | None = None
    ) -> bytes | Refusal:
        """`served`: this node's answer to the whole batch, some of whose shards have left it meanwhile."""
        left = list(range(len(self._shard_ids)))
        self._outcomes = [
            refusals.from_error(self._forwarder.nobody(shard_id)) for shard_id in self._shard_ids
        ]
        if served is not None:
            merge(self._outcomes, left, _read(served, len(left)))
            # Others that failed here may have been taken up before; that is told as it is.
            left = [at for at in self._to_repeat(left, {}) if self._moved(at)]
        while left:
            refused = await self._round(left, metadata, patience)
            if isinstance(refused, Refusal):
                return refused
            left = refused
            if left and not await patience.pause(self._routes):
                break
        return self._answer()

    async def _round(
        self, left: Sequence[int], metadata: Metadata, patience: Patience
    ) -> list[int] | Refusal:
        """Those that are to be tried again, or why the whole call is refused."""
        places = [self._place(self._shard_ids[position]) for position in left]
        parts = {place: [left[at] for at in ats] for place, ats in split(places).items() if place is not None}
        unknown = [position for position, place in zip(left, places, strict=True) if place is None]
        results = await asyncio.gather(
            *(self._part(place, positions, metadata, patience) for place, positions in parts.items())
        )
        asked: dict[int, Owner] = {}
        for (place, positions), result in zip(parts.items(), results, strict=True):
            if isinstance(result, Refusal):
                if result.code in _OF_THE_REQUEST:
                    return result  # what is wrong with one part is wrong with all
                result = [result] * len(positions)
            merge(self._outcomes, positions, result)
            if isinstance(place, Owner):
                asked |= dict.fromkeys(positions, place)
        return sorted(unknown + self._to_repeat([at for part in parts.values() for at in part], asked))

    def _place(self, shard_id: int) -> Owner | str | None:
        return HERE if self._is_mine(shard_id) else self._routes.owner(shard_id)

    async def _part(
        self, place: Owner | str, positions: Sequence[int], metadata: Metadata, patience: Patience
    ) -> Sequence[Item | Refusal] | Refusal:
        beats = self._request.heartbeats
        part = RecordWorkerHeartbeatsRequest(
            namespace=self._request.namespace, heartbeats=[beats[position] for position in positions]
        )
        if isinstance(place, str):
            assert self._serve is not None, "only a node has shards of its own"
            try:
                return _read(await self._serve(part), len(positions))
            except Unavailable as error:
                return refusals.from_error(error)
        outcome = await self._forwarder.send(
            BATCH_PATH, part.SerializeToString(), place, metadata, patience.part_timeout_s()
        )
        if isinstance(outcome, Refusal):
            # One node that hangs must not cost the others' workers the answers that are there.
            return refusals.lost(place) if outcome.code is grpc.StatusCode.DEADLINE_EXCEEDED else outcome
        self.initial += outcome.initial
        self.trailing += outcome.trailing
        return _read(outcome.body, len(positions))

    def _to_repeat(self, positions: Sequence[int], asked: dict[int, Owner]) -> list[int]:
        again = []
        for position in positions:
            outcome = self._outcomes[position]
            refusal = outcome if isinstance(outcome, Refusal) else _refusal(outcome)
            if refusal is not None and refusal.may_repeat(Repeat.BLINDLY):
                again.append(position)
                if position in asked:
                    self._forwarder.learn(self._shard_ids[position], asked[position], refusal)
                elif (told := refusal.owner) is not None:
                    self._routes.learn(*told)
        return again

    def _moved(self, position: int) -> bool:
        outcome = self._outcomes[position]
        refusal = outcome if isinstance(outcome, Refusal) else _refusal(outcome)
        return refusal is not None and refusal.reason == refusals.MOVED

    def _answer(self) -> bytes | Refusal:
        outcomes = self._outcomes
        if outcomes and all(isinstance(outcome, Refusal) for outcome in outcomes):
            first = outcomes[0]
            assert isinstance(first, Refusal)
            return first
        response = RecordWorkerHeartbeatsResponse()
        for outcome in outcomes:
            if isinstance(outcome, Refusal):
                response.items.add().status.CopyFrom(refusals.to_status(outcome))
            else:
                response.items.append(outcome)
        return response.SerializeToString()


def _read(body: bytes, count: int) -> list[Item | Refusal]:
    try:
        items = list(RecordWorkerHeartbeatsResponse.FromString(body).items)
    except DecodeError:
        items = []
    if len(items) != count:
        return [refusals.from_error(Unavailable())] * count  # who answers so has not understood
    return list(items)


def _refusal(item: Item) -> Refusal | None:
    return refusals.from_status(item.status) if item.HasField("status") else None
