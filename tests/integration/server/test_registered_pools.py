"""Pools that are registered as components hold activities as every worker does."""

from __future__ import annotations

from tests.integration.server.activity_client import QUEUE, ActivityClient
from tests.integration.server.registry_client import RegistryClient
from tests.integration.server.server_harness import INACTIVE, ServerHarness, refusal


async def test_what_a_silent_pool_held_goes_to_another_pool(sqlite_harness: ServerHarness) -> None:
    harness = sqlite_harness
    harness.lift_rate_limits()
    pools, work = RegistryClient(harness.channel), ActivityClient(harness)
    for name in ("a", "b"):
        await pools.register(f"worker_pool:{name}", session_id=name, task_queue=QUEUE, interval_ms=10_000)
    await work.schedule("x")
    first = await work.take("worker_pool:a")
    assert (await pools.entry("worker_pool:a")).bound_activity_count == 1
    await harness.advance(20_000)
    await pools.heartbeat("worker_pool:b")
    await harness.advance(11_000)
    again = await work.take("worker_pool:b")
    assert (again.id, again.attempt) == (first.id, first.attempt + 1)
    dead = await pools.entry("worker_pool:a")
    assert (dead.state, dead.status, dead.bound_activity_count) == (INACTIVE, "offline", 0)
    await pools.heartbeat("worker_pool:a")
    assert (await pools.entry("worker_pool:a")).status == "ready"
    await refusal(work.complete(first, "worker_pool:a"))
    await work.complete(again, "worker_pool:b")
