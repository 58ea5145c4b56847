"""ListRecentEvents: the newest events of all shards, or of a namespace."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from liveness.store.recent_events import SEARCHED_PER_SHARD
from liveness.v1 import event_pb2, service_pb2
from tests.integration.server.server_harness import NAMESPACE, SHARDS, ServerHarness, heartbeat, refusal


async def recent(harness: ServerHarness, namespace: str = "", **fields: Any) -> list[event_pb2.Event]:
    request = service_pb2.ListRecentEventsRequest(namespace=namespace, **fields)
    answer: service_pb2.ListRecentEventsResponse = await harness.liveness.ListRecentEvents(request)
    return list(answer.events)


def workers_of(events: list[event_pb2.Event]) -> list[str]:
    return [event.worker_instance_key for event in events if event.worker_instance_key]


async def test_the_newest_events_of_all_shards_come_in_order_of_time(harness: ServerHarness) -> None:
    for number in range(30):
        await harness.beat(f"w{number}", lease_ms=60_000)
        await harness.advance(10)
    assert workers_of(await recent(harness)) == [f"w{number}" for number in range(30)]
    newest = await recent(harness, page_size=4)
    assert workers_of(newest) == ["w26", "w27", "w28", "w29"]
    assert {event.type for event in newest} == {"WorkerRegistered"}
    assert len({event.shard_id for event in await recent(harness)}) == SHARDS
    await harness.restart()
    assert workers_of(await recent(harness)) == [f"w{number}" for number in range(30)]


async def test_renewals_are_no_events(harness: ServerHarness) -> None:
    await harness.beat("w", lease_ms=60_000)
    for _ in range(5):
        await harness.beat("w", lease_ms=60_000)
    assert workers_of(await recent(harness)) == ["w"]


async def test_the_events_of_a_namespace_exclude_others(harness: ServerHarness) -> None:
    await harness.beat("mine", lease_ms=60_000)
    for number in range(20):
        await harness.beat(f"theirs-{number}", namespace="other", lease_ms=60_000)
    assert workers_of(await recent(harness, NAMESPACE, page_size=2)) == ["mine"]
    assert len(await recent(harness, "other", page_size=5)) == 5
    assert not await recent(harness, "unknown")


async def test_the_search_for_a_quiet_namespace_ends(sqlite_harness: ServerHarness) -> None:
    harness = sqlite_harness
    await harness.beat("quiet", lease_ms=3_600_000)
    for number in range(SEARCHED_PER_SHARD * SHARDS * 5 // 4 // 1_000 + 1):
        await harness.batch(
            *(heartbeat(f"w{number}-{each}", lease_ms=3_600_000) for each in range(1_000)), namespace="busy"
        )
    assert not await recent(harness, NAMESPACE)
    assert len(await recent(harness, "busy", page_size=1_000)) == 1_000


@pytest.mark.parametrize("page_size", [-1, 1_001])
async def test_an_invalid_page_size_is_refused(sqlite_harness: ServerHarness, page_size: int) -> None:
    refused = await refusal(recent(sqlite_harness, page_size=page_size))
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
    assert [field for field, _ in refused.violations] == ["page_size"]
