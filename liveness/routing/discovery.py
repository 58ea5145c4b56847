"""The discovery of nodes by a process that cannot ask the database: a frontend, or a node that is cut off from it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError

from liveness.clock import Clock, wait_for_event
from liveness.routing.channels import Channel
from liveness.routing.routing_table import Member, RoutingTable
from liveness.v1.cluster_pb2 import GetRoutesRequest, GetRoutesResponse

logger = structlog.get_logger("liveness.frontend")

REFRESH_INTERVAL_MS = 500
REFRESH_INTERVAL_MS_MIN = 50
"""Thousands of calls may fail for the same reason at once, and each asks for a refresh."""
REPLY_TIMEOUT_MS = 1_000
UNREACHABLE_AFTER_MS = 3_000
"""The routing table is cleared after no node has answered for this long."""
ROUTES_PATH = "/liveness.v1.ClusterService/GetRoutes"


class RouteRefresher:
    """Calls `refresh` at intervals, and early when asked to. `refresh` returns whether it learned the routes."""

    def __init__(
        self,
        refresh: Callable[[], Awaitable[bool]],
        clock: Clock,
        on_refreshed: Callable[[], None] = lambda: None,
    ) -> None:
        self._refresh = refresh
        self._clock = clock
        self._on_refreshed = on_refreshed
        self._refresh_requested = asyncio.Event()

    def refresh_now(self) -> None:
        self._refresh_requested.set()

    async def run(self) -> None:
        while True:
            self._refresh_requested.clear()
            await self._refresh()
            self._on_refreshed()
            await self._clock.sleep(REFRESH_INTERVAL_MS_MIN)
            rest_ms = REFRESH_INTERVAL_MS - REFRESH_INTERVAL_MS_MIN
            await wait_for_event(self._refresh_requested, self._clock, rest_ms)


class NodeRouteSource:
    """Reads the routes from any node. It asks the node that answered last; after a failure, another one.

    A node that is cut off from the database does not count itself among the nodes, and knows the others only by hearsay. Its
    answer is used only if no other node answers.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        routes: RoutingTable,
        clock: Clock,
        connect: Callable[..., Any] = grpc.aio.insecure_channel,
        *,
        own_node_id: str = "",
    ) -> None:
        """`own_node_id`: the node that asks, because it is cut off itself; empty in a frontend. It learns nothing about itself
        from others, and nothing from nodes that are cut off as well: they might have it from each other."""
        self._seed_addresses = tuple(addresses)
        self._connect = connect
        self._own_node_id = own_node_id
        self._routes = routes
        self._clock = clock
        self._channels: dict[str, Channel] = {}
        self._last_address = ""
        self._last_reply_ms = clock.monotonic_ms()
        self._is_reachable = True

    def mark_stale(self) -> None:
        """Ask another node next: the routes of the last one led to a node that cannot be reached."""
        self._last_address = ""

    async def refresh(self) -> bool:
        hearsay: GetRoutesResponse | None = None
        for address in self._addresses_in_order():
            response = await self._fetch_routes(address)
            if response is None or response.shard_count == 0 or not response.nodes:
                continue
            if any(node.address == address for node in response.nodes):
                self._last_address = address
                self._apply(response)
                return True
            hearsay = hearsay or response
        if hearsay is not None and not self._own_node_id:
            self._last_address = ""
            self._apply(hearsay)
            return True
        if self._is_reachable and self._clock.monotonic_ms() - self._last_reply_ms >= UNREACHABLE_AFTER_MS:
            self._is_reachable = False
            logger.warning("no node answers", asked=", ".join(self._addresses_in_order()))
            self._routes.replace((), {})
        return False

    async def close(self) -> None:
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))

    def _addresses_in_order(self) -> list[str]:
        known = [member.address for member in self._routes.members()]
        addresses = list(dict.fromkeys((*known, *self._seed_addresses)))
        if self._last_address in addresses:
            addresses.remove(self._last_address)
            return [self._last_address, *addresses]
        return [*addresses[1:], *addresses[:1]]

    async def _fetch_routes(self, address: str) -> GetRoutesResponse | None:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = Channel(address, self._connect)
        try:
            call = channel.unary(ROUTES_PATH)
            return GetRoutesResponse.FromString(
                await call(GetRoutesRequest().SerializeToString(), timeout=REPLY_TIMEOUT_MS / 1_000)
            )
        except (grpc.aio.AioRpcError, DecodeError):
            if address not in self._seed_addresses:
                await self._channels.pop(address).close()
            return None

    def _apply(self, response: GetRoutesResponse) -> None:
        self._last_reply_ms, self._is_reachable = self._clock.monotonic_ms(), True
        self._routes.set_shard_count(response.shard_count)
        self._routes.replace(
            [
                Member(node.node_id, node.address, node.leaving)
                for node in response.nodes
                if node.node_id != self._own_node_id
            ],
            {route.shard_id: (route.node_id, route.epoch) for route in response.shards},
        )
