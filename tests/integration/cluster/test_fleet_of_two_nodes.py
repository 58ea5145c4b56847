"""GetFleet of two nodes on one PostgreSQL: each node reports its shards, and the called node sums them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import islice
from typing import Any

import pytest

from liveness.domain.keys import shard_of
from liveness.v1 import cluster_pb2, fleet_pb2
from tests.databases import PostgresServer
from tests.integration.cluster.test_two_nodes import owned, settled
from tests.integration.engine.engine import activity
from tests.integration.server.activity_client import ActivityClient
from tests.integration.server.server_harness import NAMESPACE, SHARDS, ServerHarness, heartbeat


@pytest.fixture
async def pair(
    postgres: PostgresServer, postgres_database: str
) -> AsyncIterator[tuple[ServerHarness, ServerHarness]]:
    first, second = (ServerHarness(postgres.url(postgres_database)) for _ in range(2))
    await first.start(takeover_grace_ms=0)
    await second.start(takeover_grace_ms=0)
    await settled(first, second)
    while not (owned(first) and owned(second)):  # the placement of shards depends on the ports
        await second.restart()
        await settled(first, second)
    yield first, second
    for harness in (first, second):
        await harness.stop()


async def pass_time(*harnesses: ServerHarness, ms: int) -> None:
    for harness in harnesses:
        await harness.advance(ms)
    for harness in harnesses:
        await harness.server.take_sample()


async def fleet(harness: ServerHarness, **fields: Any) -> fleet_pb2.GetFleetResponse:
    answer: fleet_pb2.GetFleetResponse = await harness.admin.GetFleet(fleet_pb2.GetFleetRequest(**fields))
    return answer


def workers_of(harness: ServerHarness, count: int) -> list[str]:
    """Return names of workers whose shards the node owns."""
    names = (f"w{number}" for number in range(10_000))
    mine = (name for name in names if shard_of(NAMESPACE, name, SHARDS) in owned(harness))
    return list(islice(mine, count))


async def share(harness: ServerHarness) -> cluster_pb2.GetFleetShareResponse:
    return await harness.server.fleet.share(cluster_pb2.GetFleetShareRequest(range_ms=60_000))


async def test_both_nodes_give_the_same_answer_about_all_workers(
    pair: tuple[ServerHarness, ServerHarness],
) -> None:
    first, second = pair
    names = workers_of(first, 25) + workers_of(second, 15)
    await first.batch(*(heartbeat(name, lease_ms=60_000) for name in names))
    refs = [activity(f"a{number}") for number in range(10)]
    await second.beat("dies", lease_ms=1_000, bound_activities=refs)
    await second.beat("w", namespace="other", lease_ms=60_000)
    await pass_time(first, second, ms=2_000)
    for harness, count in ((first, 25), (second, 15)):
        own = {found.namespace: found.active for found in (await share(harness)).namespaces}
        assert own[NAMESPACE] == count
    answers = [await fleet(harness) for harness in pair]
    for answer in answers:
        assert (answer.nodes, answer.shards, answer.serving_shards) == (2, SHARDS, SHARDS)
        found = {found.namespace: (found.active, found.inactive) for found in answer.namespaces}
        assert found == {NAMESPACE: (40, 1), "other": (1, 0)}
        [sample] = answer.samples
        assert (sample.heartbeats, sample.registrations, sample.expiries) == (42, 42, 1)
        assert (sample.active, sample.inactive, sample.reschedules) == (41, 1, 10)
        assert sample.latency_p99_ms >= sample.latency_p50_ms > 0
        assert not answer.alerts
        answer.ClearField("time")
    assert answers[0] == answers[1]
    alone = await fleet(second, namespace="other")
    assert [found.active for found in alone.namespaces] == [1]
    assert alone.samples[0].heartbeats == 1


async def test_latencies_of_both_nodes_are_added_by_bucket(pair: tuple[ServerHarness, ServerHarness]) -> None:
    first, second = pair
    for harness, seconds, calls in ((first, 0.004, 60), (second, 0.004, 39), (second, 2.0, 1)):
        for _ in range(calls):
            harness.server.telemetry.record_heartbeats(NAMESPACE, 1, seconds)
    await pass_time(first, second, ms=2_000)
    sample = (await fleet(first)).samples[-1]
    assert 3 <= sample.latency_p50_ms <= sample.latency_p99_ms <= 5, "one of a hundred calls was slow"
    for _ in range(2):
        second.server.telemetry.record_heartbeats(NAMESPACE, 1, 2.0)
    second.server.telemetry.take_sample()
    assert (await fleet(first)).samples[-1].latency_p99_ms > 1_000, "three calls were slow"


async def test_a_sample_is_shown_only_when_both_nodes_have_it(
    pair: tuple[ServerHarness, ServerHarness],
) -> None:
    first, second = pair
    names = workers_of(first, 10) + workers_of(second, 10)
    await first.batch(*(heartbeat(name, lease_ms=3_600_000) for name in names))
    await pass_time(first, second, ms=2_000)
    await pass_time(first, ms=2_000)
    assert [sample.active for sample in (await fleet(first)).samples] == [20]
    await pass_time(second, ms=2_000)
    assert [sample.active for sample in (await fleet(first)).samples] == [20, 20]
    await pass_time(first, ms=12_000)
    assert [sample.active for sample in (await fleet(first)).samples][-1] == 10, (
        "a node that is far behind is not waited for"
    )


async def test_a_storm_over_both_nodes_is_one_storm(pair: tuple[ServerHarness, ServerHarness]) -> None:
    first, second = pair
    names = workers_of(first, 12) + workers_of(second, 12)
    await first.configure(
        storm_hold_ms=0
    )  # otherwise one node may learn of the other's deaths and hold its own expiries
    await first.batch(*(heartbeat(name, lease_ms=1_000) for name in names))
    await pass_time(first, second, ms=2_000)
    for each in pair:
        assert [found.deaths_last_minute for found in (await share(each)).namespaces] == [12]
        alerts = [(alert.kind, alert.namespace, alert.count) for alert in (await fleet(each)).alerts]
        assert alerts == [
            (fleet_pb2.ALERT_KIND_STORM, NAMESPACE, 24),
            (fleet_pb2.ALERT_KIND_INCIDENT, NAMESPACE, 24),
            (fleet_pb2.ALERT_KIND_NO_ACTIVE_WORKERS, NAMESPACE, 24),
        ]


async def test_shards_of_an_unreachable_node_count_as_unserved(
    pair: tuple[ServerHarness, ServerHarness],
) -> None:
    first, second = pair
    missing = len(owned(second))
    await second.server._cluster_grpc.stop(None)
    answer = await fleet(first)
    assert answer.serving_shards == SHARDS - missing
    assert [(alert.kind, alert.count) for alert in answer.alerts] == [
        (fleet_pb2.ALERT_KIND_UNSERVED_SHARDS, missing)
    ]


async def test_the_workers_of_a_moved_shard_are_counted_on_its_new_node(
    pair: tuple[ServerHarness, ServerHarness],
) -> None:
    first, second = pair
    await first.batch(*(heartbeat(f"w{number}", lease_ms=60_000) for number in range(40)))
    await second.stop()
    await settled(first)
    await pass_time(first, ms=2_000)
    answer = await fleet(first)
    assert (answer.nodes, answer.serving_shards) == (1, SHARDS)
    assert [found.active for found in answer.namespaces] == [40]
    assert answer.samples[-1].active == 40
    assert first.server.telemetry.shards_taken_over > SHARDS
    assert second.server.telemetry.shards_closed["lost"] == 0
    assert second.server.telemetry.shards_closed["handed_over"] > 0
    assert not second.server.node.census


def activity_of(harness: ServerHarness) -> str:
    """Return the name of an activity whose shard the node owns."""
    names = (f"a{number}" for number in range(10_000))
    return next(name for name in names if shard_of(NAMESPACE, f"workflow-{name}", SHARDS) in owned(harness))


async def test_a_queue_that_workers_attend_on_another_node_is_not_unpolled(
    pair: tuple[ServerHarness, ServerHarness],
) -> None:
    first, second = pair
    [worker] = workers_of(second, 1)
    client = ActivityClient(second)
    await client.beat(worker, lease_ms=600_000)
    held, waits = activity_of(second), activity_of(first)
    await client.schedule(held)
    task = await client.take(worker)
    await client.beat(worker, lease_ms=600_000, bound_activities=[activity(held)])
    await client.schedule(waits)

    async def pass_a_minute() -> fleet_pb2.GetFleetResponse:
        for _ in range(3):
            await pass_time(first, second, ms=20_000)
            first.server.matching.announce_all()
            await first.server.peers.broadcast_hint_and_wait(lambda message: None)
        await pass_time(first, second, ms=1_000)
        return await fleet(second)

    answer = await pass_a_minute()
    assert answer.namespaces[0].available_activities == 1
    assert not answer.alerts, "its worker is busy on the other node"
    await client.complete(task, worker)
    answer = await pass_a_minute()
    [alert] = answer.alerts
    assert (alert.kind, alert.count) == (fleet_pb2.ALERT_KIND_UNPOLLED_QUEUE, 1)
    assert [queue.unpolled for queue in answer.task_queues] == [True]
    assert list((await fleet(first)).alerts) == [alert]
    waiting = asyncio.ensure_future(client.take(worker))
    first.server.matching.announce_all()
    assert (await waiting).id.activity_id == waits
    await pass_time(first, second, ms=1_000)
    assert not (await fleet(first)).alerts


async def test_a_fleet_is_dead_only_if_no_node_has_an_active_worker(
    pair: tuple[ServerHarness, ServerHarness],
) -> None:
    first, second = pair
    [dies], [lives] = workers_of(first, 1), workers_of(second, 1)
    await first.beat(dies, lease_ms=1_000)
    await first.beat(lives, lease_ms=60_000)
    await pass_time(first, second, ms=2_000)
    assert not (await fleet(first)).alerts
    await pass_time(first, second, ms=60_000)
    [alert] = (await fleet(first)).alerts
    assert (alert.kind, alert.count) == (fleet_pb2.ALERT_KIND_NO_ACTIVE_WORKERS, 2)
