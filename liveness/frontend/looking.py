"""A frontend's knowledge of the nodes: looked up now and then, and at once after trouble."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import grpc
import structlog
from google.protobuf.message import DecodeError

from liveness.clock import Clock
from liveness.frontend.channels import Channel
from liveness.frontend.routes import Member, Routes
from liveness.v1.cluster_pb2 import GetRoutesRequest, GetRoutesResponse

logger = structlog.get_logger("liveness.frontend")

LOOK_EVERY_MS = 500
LOOK_AGAIN_MS_MIN = 50
"""Thousands of calls may meet the same trouble at once."""
ANSWER_MS_MAX = 1_000
SILENCE_MS_MAX = 3_000
"""When none of the nodes has told anything for so long, none can be reached."""
ROUTES_PATH = "/liveness.v1.ClusterService/GetRoutes"


class Watch:
    """Looks again and again. `look` answers whether it saw anything."""

    def __init__(
        self,
        look: Callable[[], Awaitable[bool]],
        clock: Clock,
        on_looked: Callable[[], None] = lambda: None,
    ) -> None:
        self._look = look
        self._clock = clock
        self._on_looked = on_looked
        self._trouble = asyncio.Event()

    def look_now(self) -> None:
        self._trouble.set()

    async def run(self) -> None:
        while True:
            self._trouble.clear()
            await self._look()
            self._on_looked()
            await self._clock.sleep(LOOK_AGAIN_MS_MIN)
            trouble = asyncio.ensure_future(self._trouble.wait())
            timer = asyncio.ensure_future(self._clock.sleep(LOOK_EVERY_MS - LOOK_AGAIN_MS_MIN))
            try:
                await asyncio.wait((trouble, timer), return_when=asyncio.FIRST_COMPLETED)
            finally:
                trouble.cancel()
                timer.cancel()


class AskNodes:
    """Any node knows who serves what. The one that answered last is asked again; after trouble, another."""

    def __init__(self, addresses: Sequence[str], routes: Routes, clock: Clock) -> None:
        self._given = tuple(addresses)
        self._routes = routes
        self._clock = clock
        self._channels: dict[str, Channel] = {}
        self._asked_last = ""
        self._heard_ms = clock.monotonic_ms()
        self._was_heard = True

    def distrust(self) -> None:
        """What it said led astray."""
        self._asked_last = ""

    async def look(self) -> bool:
        for address in self._in_turn():
            answer = await self._ask(address)
            if answer is not None and answer.shard_count > 0 and answer.nodes:
                self._asked_last, self._heard_ms, self._was_heard = address, self._clock.monotonic_ms(), True
                self._take(answer)
                return True
        if self._was_heard and self._clock.monotonic_ms() - self._heard_ms >= SILENCE_MS_MAX:
            self._was_heard = False
            logger.warning("no node answers", asked=", ".join(self._in_turn()))
            self._routes.replace((), {})
        return False

    async def close(self) -> None:
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))

    def _in_turn(self) -> list[str]:
        known = [member.address for member in self._routes.members()]
        addresses = list(dict.fromkeys((*known, *self._given)))
        if self._asked_last in addresses:
            addresses.remove(self._asked_last)
            return [self._asked_last, *addresses]
        return [*addresses[1:], *addresses[:1]]

    async def _ask(self, address: str) -> GetRoutesResponse | None:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = Channel(address)
        try:
            call = channel.unary(ROUTES_PATH)
            return GetRoutesResponse.FromString(
                await call(GetRoutesRequest().SerializeToString(), timeout=ANSWER_MS_MAX / 1_000)
            )
        except (grpc.aio.AioRpcError, DecodeError):
            if address not in self._given:
                await self._channels.pop(address).close()
            return None

    def _take(self, answer: GetRoutesResponse) -> None:
        self._routes.settle_count(answer.shard_count)
        self._routes.replace(
            [Member(node.node_id, node.address, node.leaving) for node in answer.nodes],
            {route.shard_id: (route.node_id, route.epoch) for route in answer.shards},
        )
