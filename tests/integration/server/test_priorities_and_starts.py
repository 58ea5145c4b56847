"""Priorities, fairness keys and absolute starts over gRPC on both databases."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from liveness.v1 import activity_pb2 as pb
from tests.integration.engine.engine import duration
from tests.integration.server.activity_client import AVAILABLE, FAILED, WAITING, ActivityClient
from tests.integration.server.server_harness import ServerHarness, refusal

HOUR_MS = 3_600_000


@pytest.fixture
async def client(stopped_harness: ServerHarness) -> ActivityClient:
    return ActivityClient(await stopped_harness.start(takeover_grace_ms=0))


def at(client: ActivityClient, in_ms: int) -> Timestamp:
    wall_ms = client.harness.clock.wall_ms() + in_ms
    return Timestamp(seconds=wall_ms // 1_000, nanos=wall_ms % 1_000 * 1_000_000)


async def names(client: ActivityClient, count: int) -> list[str]:
    tasks = await client.poll(max_activities=count)
    return [task.id.activity_id for task in tasks]


async def test_polls_are_handed_lower_priority_keys_first_also_after_a_restart(
    client: ActivityClient,
) -> None:
    for name, priority in (("c", 0), ("e", 5), ("a", 1), ("d", 3), ("b", 2)):
        await client.schedule(name, priority=pb.Priority(priority_key=priority))
    await client.beat()
    assert await names(client, 1) == ["a"]
    await client.harness.restart()
    await client.beat()
    assert [await names(client, 1) for _ in range(4)] == [["b"], ["c"], ["d"], ["e"]]


async def test_keys_of_one_priority_take_turns(client: ActivityClient) -> None:
    for number in range(8):
        await client.schedule(f"big-{number}", priority=pb.Priority(fairness_key="big"))
    for number in range(2):
        await client.schedule(f"small-{number}", priority=pb.Priority(fairness_key="small"))
    await client.beat()
    assert {"small-0", "small-1"} <= set(await names(client, 4))
    listed = await client.describe("small-0")
    assert (listed.priority.priority_key, listed.priority.fairness_key, listed.priority.fairness_weight) == (
        3,
        "small",
        1,
    )


async def test_an_absolute_start_is_kept_although_the_server_was_away_until_after_it(
    client: ActivityClient,
) -> None:
    """A delay counts time in which a server runs; a start is a time of day."""
    await client.schedule("start", start_time=at(client, HOUR_MS))
    await client.schedule("delay", start_delay=duration(HOUR_MS))
    due = (await client.describe("start")).due_time
    assert due == at(client, HOUR_MS)
    await client.harness.stop()
    client.harness.clock.move(2 * HOUR_MS)
    await client.harness.start(takeover_grace_ms=0)
    await client.harness.advance(1_000)
    assert await client.state("start") == AVAILABLE
    assert await client.state("delay") == WAITING


async def test_an_absolute_start_is_not_early_and_at_most_a_second_late(client: ActivityClient) -> None:
    await client.schedule("a", start_time=at(client, 20_000))
    await client.harness.advance(19_500)
    assert await client.state("a") == WAITING
    await client.harness.advance(1_500)
    assert await client.state("a") == AVAILABLE


async def test_the_total_time_of_an_activity_counts_from_its_start(client: ActivityClient) -> None:
    limits = pb.ActivityTimeouts(schedule_to_close_timeout=duration(5_000))
    await client.schedule("a", start_time=at(client, 20_000), timeouts=limits)
    await client.harness.advance(24_000)
    assert await client.state("a") == AVAILABLE
    await client.harness.advance(3_000)
    assert await client.state("a") == FAILED


async def test_a_start_in_the_past_is_at_once(client: ActivityClient) -> None:
    assert (await client.schedule("a", start_time=at(client, -HOUR_MS))).state == AVAILABLE


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"priority": pb.Priority(priority_key=6)}, "priority.priority_key must be 0 (for 3) to 5"),
        ({"priority": pb.Priority(priority_key=-1)}, "priority.priority_key must be"),
        ({"priority": pb.Priority(fairness_weight=-1)}, "priority.fairness_weight must be"),
        ({"priority": pb.Priority(fairness_weight=float("nan"))}, "priority.fairness_weight must be"),
        ({"priority": pb.Priority(fairness_key="x" * 65)}, "priority.fairness_key must be at most 64 bytes"),
        ({"start_time": Timestamp(seconds=-(10**12))}, "start_time must lie in the years 1 to 9999"),
        ({"start_time": Timestamp(seconds=250_000_000_000)}, "start_time must be at most 100 years ahead"),
        (
            {"start_time": Timestamp(), "start_delay": duration(1)},
            "start_time must not be set together with start_delay",
        ),
    ],
)
async def test_bad_values_are_refused_and_schedule_nothing(
    client: ActivityClient, fields: dict[str, Any], message: str
) -> None:
    refused = await refusal(client.schedule("a", **fields))
    assert (refused.reason, message in refused.message) == ("INVALID_FIELD", True), refused.message
    assert (await refusal(client.describe("a"))).reason == "ACTIVITY_NOT_FOUND"


async def test_the_same_activity_with_another_priority_is_refused(client: ActivityClient) -> None:
    await client.schedule("a", priority=pb.Priority(priority_key=1))
    assert not (await client.schedule("a", priority=pb.Priority(priority_key=1))).created
    assert (await refusal(client.schedule("a"))).reason == "ACTIVITY_DIFFERS"
