"""The expiry throttle on two nodes: each decides on its own knowledge, and they exchange their death counts."""

from __future__ import annotations

import asyncio

from liveness.v1 import admin_pb2, fleet_pb2
from tests.integration.cluster.test_fleet_of_two_nodes import fleet, pair, pass_time, workers_of
from tests.integration.server.server_harness import NAMESPACE, ServerHarness, heartbeat

__all__ = ["pair"]

LEASE_MS = 4_000


def held(harness: ServerHarness) -> int:
    return harness.server.node.throttle.held_counts()[NAMESPACE]


def recent_deaths(harness: ServerHarness) -> int:
    return harness.server.node.recent_deaths.count_last_minute(NAMESPACE)


async def register_all(first: ServerHarness, second: ServerHarness, each: int) -> None:
    names = workers_of(first, each) + workers_of(second, each)
    await first.batch(*(heartbeat(name, lease_ms=LEASE_MS) for name in names))


async def test_deaths_reported_by_another_node_count_towards_a_storm(
    pair: tuple[ServerHarness, ServerHarness],
) -> None:
    first, second = pair
    await register_all(first, second, 12)
    await pass_time(first, ms=LEASE_MS)
    assert (recent_deaths(first), held(first)) == (12, 0), "the first node knew of too few deaths"
    death_rate = second.server.node.throttle.death_rate
    async with asyncio.timeout(10):
        while death_rate.on_other_nodes(NAMESPACE).dead < 12:
            await asyncio.sleep(0)
    await pass_time(second, ms=LEASE_MS)
    assert (recent_deaths(second), held(second)) == (0, 12)


async def test_a_storm_over_both_nodes_is_reported_and_released_as_one(
    pair: tuple[ServerHarness, ServerHarness],
) -> None:
    first, second = pair
    await register_all(first, second, 24)
    await pass_time(first, second, ms=LEASE_MS)
    assert (held(first), held(second)) == (24, 24)
    [alert] = (await fleet(second)).alerts
    assert (alert.kind, alert.count) == (fleet_pb2.ALERT_KIND_STORM, 48)
    request = admin_pb2.ReleaseStormRequest(namespace=NAMESPACE)
    assert (await first.admin.ReleaseStorm(request)).released == 48
    await pass_time(first, second, ms=250)
    assert (recent_deaths(first), recent_deaths(second)) == (24, 24)
