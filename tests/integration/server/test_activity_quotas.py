"""A namespace has only so many open activities, and only so many bytes of input in memory."""

from __future__ import annotations

import asyncio
from collections import Counter

import grpc
import pytest

from tests.integration.engine.engine import activity
from tests.integration.server.activity_client import ActivityClient
from tests.integration.server.server_harness import ServerHarness, refusal, unpack
from tests.integration.telemetry.exposition import Exposition

LIMIT = 20
RACERS = 100


async def race(*calls: object) -> Counter[str]:
    """Run the calls concurrently and count their outcomes: OK or the reason of the refusal."""
    results = await asyncio.gather(*calls, return_exceptions=True)  # type: ignore[call-overload]
    return Counter(unpack(r).reason if isinstance(r, grpc.aio.AioRpcError) else "OK" for r in results)


def exposition_of(harness: ServerHarness) -> Exposition:
    text, _ = harness.server.metrics()
    return Exposition(text)


@pytest.fixture
def client(harness: ServerHarness) -> ActivityClient:
    return ActivityClient(harness)


async def test_open_activities_are_never_exceeded_by_racing_clients(
    harness: ServerHarness, client: ActivityClient
) -> None:
    await client.beat()
    await harness.configure(max_open_activities=LIMIT)
    outcomes = await race(
        *(client.schedule(f"s{n}") for n in range(RACERS)), *(client.claim(f"c{n}") for n in range(RACERS))
    )
    assert outcomes == {"OK": LIMIT, "ACTIVITY_QUOTA_EXCEEDED": 2 * RACERS - LIMIT}
    assert len((await client.listed()).activities) == LIMIT
    text = exposition_of(harness)
    assert text.value("liveness_open_activities", namespace="orders") == LIMIT
    assert (
        text.value("liveness_activities_refused_total", namespace="orders", reason="ACTIVITY_QUOTA_EXCEEDED")
        == 2 * RACERS - LIMIT
    )


async def test_a_refusal_says_what_to_do_and_changes_nothing(
    harness: ServerHarness, client: ActivityClient
) -> None:
    await harness.configure(max_open_activities=1)
    await client.schedule("a")
    before = await harness.dump("shards", "audit")
    refused = await refusal(client.schedule("b"))
    assert (refused.code, refused.reason) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "ACTIVITY_QUOTA_EXCEEDED",
    )
    assert refused.message == (
        "Namespace orders has its 1 open activities; let workers finish some, cancel some, or raise max_open_activities."
    )
    assert await harness.dump("shards", "audit") == before
    assert not (await client.schedule("a")).created, "the same call again is no new activity"
    await client.schedule("b", namespace="billing")


async def test_finished_activities_make_room_and_a_retry_needs_it(
    harness: ServerHarness, client: ActivityClient
) -> None:
    await client.beat()
    await harness.configure(max_open_activities=1)
    await client.schedule("a")
    await client.fail(await client.take(), non_retryable=True)
    await client.schedule("b")
    assert (await refusal(client.retry("a"))).reason == "ACTIVITY_QUOTA_EXCEEDED"
    await client.complete(await client.take())
    await client.retry("a")
    await client.cancel("a")
    await client.claim("c")
    assert (await refusal(client.claim("d"))).reason == "ACTIVITY_QUOTA_EXCEEDED"


async def test_the_quota_holds_after_a_restart(harness: ServerHarness, client: ActivityClient) -> None:
    await client.beat()
    await harness.configure(max_open_activities=2, max_open_activity_bytes=100)
    await client.schedule("a", input=b"x" * 60)
    await harness.restart()
    assert (await refusal(client.schedule("b", input=b"x" * 41))).reason == "ACTIVITY_BYTES_EXCEEDED"
    await client.schedule("b", input=b"x" * 40)
    assert (await refusal(client.schedule("c"))).reason == "ACTIVITY_QUOTA_EXCEEDED"
    assert exposition_of(harness).value("liveness_open_activity_bytes", namespace="orders") == 100


async def test_bytes_of_inputs_are_never_exceeded_by_racing_clients(
    harness: ServerHarness, client: ActivityClient
) -> None:
    await client.beat()
    await harness.configure(max_open_activity_bytes=LIMIT * 1_000)
    payload = b"x" * 1_000
    outcomes = await race(
        *(client.schedule(f"s{n}", input=payload) for n in range(RACERS)),
        *(client.claim(f"c{n}", input=payload) for n in range(RACERS)),
    )
    assert outcomes == {"OK": LIMIT, "ACTIVITY_BYTES_EXCEEDED": 2 * RACERS - LIMIT}
    await client.schedule("without input")


async def test_an_activity_that_a_worker_lost_is_rescheduled_above_the_quota_and_counts(
    harness: ServerHarness, client: ActivityClient
) -> None:
    """Otherwise the reschedule would be lost. On PostgreSQL it counts in its own shard's share alone."""
    await harness.configure(max_open_activities=1)
    await client.schedule("a")
    await harness.beat("w", bound_activities=[activity("bound")])
    await harness.shut_down("w")
    await harness.advance(1_000)
    assert exposition_of(harness).value("liveness_open_activities", namespace="orders") == 2
    if harness.url.startswith("sqlite"):
        await client.cancel("a")
    assert (await refusal(client.schedule("b"))).reason == "ACTIVITY_QUOTA_EXCEEDED"


async def test_unfinished_activities_are_limited_by_default(harness: ServerHarness) -> None:
    effective = (await harness.config()).effective
    assert (effective.max_open_activities, effective.max_open_activity_bytes) == (1_000_000, 1024**3)
