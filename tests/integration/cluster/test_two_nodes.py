"""Two nodes on one PostgreSQL, in one process, on manual clocks."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from sqlalchemy import text

from liveness.cluster.placement import choose_node
from liveness.domain.keys import shard_of
from liveness.routing.routing_table import Owner
from liveness.store.errors import StoreError
from liveness.v1 import (
    activity_pb2,
    admin_pb2,
    component_metrics_service_pb2,
    fleet_pb2,
    progress_service_pb2,
    service_pb2,
)
from liveness.v1.component_metrics_service_pb2_grpc import ComponentMetricsServiceStub
from liveness.v1.progress_service_pb2_grpc import ProgressServiceStub
from tests.databases import PostgresServer
from tests.integration.server.activity_client import ActivityClient
from tests.integration.server.server_harness import (
    NAMESPACE,
    REGISTERED,
    RENEWED,
    SHARDS,
    ServerHarness,
    heartbeat,
    refusal,
    unpack,
)
from tests.integration.telemetry.exposition import Exposition


@pytest.fixture
async def harnesses(postgres: PostgresServer, postgres_database: str) -> AsyncIterator[list[ServerHarness]]:
    made = [ServerHarness(postgres.url(postgres_database)) for _ in range(3)]
    yield made
    for harness in made:
        if hasattr(harness, "server") and harness._running:
            await harness.stop()


async def settled(*harnesses: ServerHarness) -> None:
    """Refresh all memberships until each shard is served by its node, and every node knows all owners.

    The last shards are taken after the other nodes have refreshed. A hint tells them, but a hint may be lost, and then a
    forwarded call would wait for the next refresh: for ever on a clock that the test moves.
    """
    for _ in range(20):
        for harness in harnesses:
            await harness.server.membership.refresh()
            await harness.server.membership.wait_for_rebalancing()
        owners = {id: harness.server.node.owner for harness in harnesses for id in owned(harness)}
        if len(owners) == SHARDS and all(
            harness.server.membership.is_fully_serving
            and {id: owner.node_id for id, owner in harness.server.routes.owners().items()} == owners
            for harness in harnesses
        ):
            return
    raise AssertionError("the placement of shards does not settle")


def owned(harness: ServerHarness) -> set[int]:
    return {shard.id for shard in harness.server.node.shards()}


def addresses(*harnesses: ServerHarness) -> list[str]:
    return [harness.server.membership._own_row.address for harness in harnesses]


async def test_shards_are_divided_by_placement_and_any_node_serves_any_call(
    harnesses: list[ServerHarness],
) -> None:
    first, second, _ = harnesses
    await first.start()
    assert owned(first) == set(range(SHARDS)), "a cluster of one"
    await second.start()
    await settled(first, second)
    shares = dict(zip(addresses(first, second), map(owned, (first, second)), strict=True))
    for shard_id in range(SHARDS):
        assert shard_id in shares[str(choose_node(shard_id, shares))]
    for number in range(20):
        assert (await first.beat(f"w{number}")).outcome == REGISTERED
        assert (await second.beat(f"w{number}")).outcome == RENEWED
    items = await second.batch(*(heartbeat(f"w{number}") for number in range(20)))
    assert {item.result.outcome for item in items} == {RENEWED}
    for harness in (first, second):
        listed = await harness.liveness.ListWorkers(service_pb2.ListWorkersRequest(namespace="orders"))
        assert len(listed.workers) == 20
        shards = (await harness.admin.ListShards(admin_pb2.ListShardsRequest())).shards
        assert all(shard.serving for shard in shards)
        assert sum(shard.active_workers for shard in shards) == 20
        assert {(shard.node_id, shard.address) for shard in shards} == {
            (each.server.node.owner, *addresses(each)) for each in (first, second)
        }
        nodes = (await harness.admin.ListNodes(admin_pb2.ListNodesRequest())).nodes
        assert [node.kind for node in nodes] == ["server", "server"]
        assert sum(node.shards for node in nodes) == SHARDS
        assert [node.answering for node in nodes].count(True) == 1


async def test_metrics_are_reported_to_and_queried_from_any_node(harnesses: list[ServerHarness]) -> None:
    first, second, _ = harnesses
    await first.start()
    await second.start()
    await settled(first, second)
    stubs: list[Any] = [ComponentMetricsServiceStub(each.channel) for each in (first, second)]
    keys = [f"w{number}" for number in range(10)]
    for stub in stubs:
        for key in keys:
            sample = component_metrics_service_pb2.MetricSample(name="depth", value=1)
            request = component_metrics_service_pb2.ReportMetricsRequest(
                namespace=NAMESPACE, worker_instance_key=key, samples=[sample]
            )
            assert (await stub.ReportMetrics(request)).stored_samples == 1
    assert all(each.server.metrics_writer.outcomes["stored"] for each in (first, second)), "by the owner"
    for stub in stubs:
        query = component_metrics_service_pb2.QueryMetricsRequest(namespace=NAMESPACE)
        found = (await stub.QueryMetrics(query)).series
        assert [series.worker_instance_key for series in found] == keys


async def test_progress_is_counted_and_listed_with_its_rates_by_any_node(
    harnesses: list[ServerHarness],
) -> None:
    first, second, _ = harnesses
    await first.start()
    await second.start()
    await settled(first, second)
    nodes = [ProgressServiceStub(harness.channel) for harness in (first, second)]
    await first.configure(max_progress_units=20)
    await settled(first, second)
    report = progress_service_pb2.ReportProgressRequest(
        namespace=NAMESPACE, worker_instance_key="w", successes=1, report_id="one"
    )
    for number in range(20):
        report.unit = f"unit-{number}"
        assert not (await nodes[number % 2].ReportProgress(report)).repeated_report
        assert (await nodes[1 - number % 2].ReportProgress(report)).repeated_report
    for node in nodes:
        found: list[progress_service_pb2.UnitProgress] = []
        request = progress_service_pb2.ListProgressRequest(namespace=NAMESPACE, page_size=8)
        while not found or request.page_token:
            page = await node.ListProgress(request)
            found += page.units
            request.page_token = page.next_page_token
        assert [unit.unit for unit in found] == sorted(f"unit-{number}" for number in range(20))
        assert {(unit.successes, unit.successes_per_minute) for unit in found} == {(1, 1)}
        report.unit = "one-more"
        refused = await refusal(node.ReportProgress(report))
        assert refused.reason == "UNIT_QUOTA_EXCEEDED"


async def test_only_the_shards_of_a_silent_owner_are_taken_over(harnesses: list[ServerHarness]) -> None:
    first, second, _ = harnesses
    await first.start()
    await second.start()
    await settled(first, second)
    before = owned(first)
    for _ in range(7):
        second.clock.move(500)
        await second.server.membership.refresh()
    assert owned(first) == before
    assert not second.server.membership.lost
    second.clock.move(1_000)
    await second.server.membership.refresh()
    await second.server.membership.wait_for_rebalancing()
    assert second.server.membership.lost == {first.server.node.owner}
    assert owned(second) == set(range(SHARDS))
    nodes = (await second.admin.ListNodes(admin_pb2.ListNodesRequest())).nodes
    states = {node.node_id: node.state for node in nodes}
    assert states[first.server.node.owner] == admin_pb2.NODE_STATE_LOST


async def test_a_node_paused_within_a_transaction_does_not_block_the_take_over(
    harnesses: list[ServerHarness],
) -> None:
    first, second, _ = harnesses
    await first.start()
    await second.start()
    await settled(first, second)
    database: Any = first.server.store._database
    async with database._engine.connect() as connection:
        await connection.execute(text("UPDATE shards SET observed_ms = observed_ms + 1"))
        driver: Any = (await connection.get_raw_connection()).driver_connection
        await driver.prepare("SELECT 1 FROM shards")
        for _ in range(9):
            second.clock.move(500)
            await second.server.membership.refresh()
        await second.server.membership.wait_for_rebalancing()
        assert owned(second) == set(range(SHARDS))
        await connection.invalidate()


async def test_an_owner_that_lost_its_shards_commits_nothing_and_gets_them_back_later(
    harnesses: list[ServerHarness],
) -> None:
    first, second, _ = harnesses
    await first.start()
    await second.start()
    await settled(first, second)
    keys = [f"w{number}" for number in range(20)]
    for key in keys:
        await first.beat(key)
    for _ in range(9):
        second.clock.move(500)
        await second.server.membership.refresh()
    await second.server.membership.wait_for_rebalancing()
    assert owned(first), "it still believes that it owns them"
    for shard in first.server.node.shards():
        first.server.node.committer.mark_dirty(shard)
    await first.server.node.barrier().wait()
    assert not owned(first), "the commit reveals the loss"
    await settled(first, second)
    for key in keys:
        assert (await second.beat(key)).outcome == RENEWED


async def test_metrics_show_the_nodes_the_lease_and_the_way_to_the_database(
    harnesses: list[ServerHarness], postgres: PostgresServer, postgres_database: str
) -> None:
    first, second, _ = harnesses
    await first.start()
    await second.start()
    await settled(first, second)

    def shown() -> Exposition:
        return Exposition(second.server.metrics()[0])

    assert shown().value("liveness_nodes", state="SERVING") == 2
    assert shown().value("liveness_node_lease_seconds") == 4
    assert shown().value("liveness_node_renewal_age_seconds") == 0
    assert shown().value("liveness_database_reachable") == 1
    assert shown().value("liveness_db_connections_max") == 8
    assert shown().value("liveness_db_connections", state="idle") >= 1
    assert shown().value("liveness_db_connections", state="in_use") == 0
    for _ in range(10):
        second.clock.move(500)
        await second.server.membership.refresh()
    assert shown().value("liveness_nodes", state="SERVING") == 1
    assert shown().value("liveness_nodes", state="LOST") == 1
    await second.server.membership.wait_for_rebalancing()

    async def alerts() -> dict[int, str]:
        fleet = await second.admin.GetFleet(fleet_pb2.GetFleetRequest())
        return {alert.kind: alert.message for alert in fleet.alerts}

    assert await alerts() == {
        fleet_pb2.ALERT_KIND_LOST_NODES: "1 node has not renewed its lease: the others serve its shards."
    }
    postgres.execute(f"ALTER DATABASE {postgres_database} ALLOW_CONNECTIONS false")
    try:
        postgres.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{postgres_database}'"
        )
        for _ in range(3):  # the pool may hold connections whose end it has not noticed
            second.clock.move(500)
            with pytest.raises(StoreError):
                await second.server.membership.refresh()
        assert shown().value("liveness_database_reachable") == 0
        assert shown().value("liveness_node_renewal_failures_total") == 3
        assert shown().value("liveness_node_renewal_age_seconds") == 1.5
        sentence = (await alerts())[fleet_pb2.ALERT_KIND_DATABASE]
        assert sentence.startswith("1 server cannot use the database: Nothing was committed: ")
    finally:
        postgres.execute(f"ALTER DATABASE {postgres_database} ALLOW_CONNECTIONS true")
    await second.server.membership.refresh()
    assert shown().value("liveness_database_reachable") == 1
    assert fleet_pb2.ALERT_KIND_DATABASE not in await alerts()


async def test_a_paused_observer_declares_no_node_lost(harnesses: list[ServerHarness]) -> None:
    first, second, _ = harnesses
    await first.start()
    await second.start()
    await settled(first, second)
    before = owned(second)
    second.clock.move(3_600_000)
    await second.server.membership.refresh()
    await second.server.membership.wait_for_rebalancing()
    assert not second.server.membership.lost
    assert owned(second) == before


async def test_a_stopping_node_hands_over_all_its_shards(harnesses: list[ServerHarness]) -> None:
    first, second, _ = harnesses
    await first.start()
    await second.start()
    await settled(first, second)
    for number in range(20):
        await first.beat(f"w{number}")
    await first.stop()
    await second.server.membership.refresh()
    await settled(second)
    assert owned(second) == set(range(SHARDS))
    for number in range(20):
        assert (await second.beat(f"w{number}")).outcome == RENEWED
    nodes = (await second.admin.ListNodes(admin_pb2.ListNodesRequest())).nodes
    assert [node.node_id for node in nodes] == [second.server.node.owner]


async def test_shards_taken_with_an_unknown_outcome_are_read_again_by_their_node(
    harnesses: list[ServerHarness],
) -> None:
    first, second, third = harnesses
    await first.start()
    await second.start(faulty=True)
    await settled(first, second)
    store = second.store
    assert store is not None
    store.lost_take_overs = SHARDS
    before = owned(second)
    lost = owned(first)
    await first.stop()
    await second.server.membership.refresh()
    await second.server.membership.wait_for_rebalancing()
    view = await store.read_cluster()
    stranded = {head.shard_id for head in view.shards if head.owner == second.server.node.owner} - before
    assert stranded, "taken, according to the database"
    assert owned(second) == before, "but unknown to this node"
    store.lost_take_overs = 0
    await third.start()
    while not any(choose_node(id, addresses(second, third)) == addresses(third)[0] for id in stranded):
        await third.restart()  # on another port, so that some of the shards are placed on it
    await settled(second, third)
    assert owned(second) | owned(third) == before | lost
    for number in range(20):
        assert (await second.beat(f"w{number}")).outcome == REGISTERED
        assert (await third.beat(f"w{number}")).outcome == RENEWED


async def test_a_worker_quota_holds_over_all_nodes(harnesses: list[ServerHarness]) -> None:
    for harness in harnesses:
        await harness.start()
    await settled(*harnesses)
    await harnesses[0].configure(max_workers=10)
    answers = await asyncio.gather(
        *(harnesses[number % 3].beat(f"w{number}") for number in range(40)), return_exceptions=True
    )
    refusals = [unpack(answer).reason for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
    assert set(refusals) == {"WORKER_QUOTA_EXCEEDED"}
    assert len(answers) - len(refusals) == 10
    assert sum((await harnesses[1].count()).values()) == 10


async def test_quotas_of_open_activities_hold_over_all_nodes_and_can_be_used_completely(
    harnesses: list[ServerHarness],
) -> None:
    for harness in harnesses:
        await harness.start()
    await settled(*harnesses)
    clients = [ActivityClient(harness) for harness in harnesses]

    async def race(prefix: str) -> Counter[str]:
        answers = await asyncio.gather(
            *(clients[n % 3].schedule(f"{prefix}{n}", input=b"x" * 1_000) for n in range(60)),
            return_exceptions=True,
        )
        return Counter(unpack(a).reason if isinstance(a, grpc.aio.AioRpcError) else "OK" for a in answers)

    await harnesses[0].configure(max_open_activities=10)
    for harness in harnesses:
        await harness.advance(1_000)
    assert await race("a") == {"OK": 10, "ACTIVITY_QUOTA_EXCEEDED": 50}
    found = (await clients[1].listed()).activities
    assert len(found) == 10
    for listed in found:
        await clients[0].cancel(listed.id.activity_id)
    await harnesses[0].configure(max_open_activities=1_000, max_open_activity_bytes=15_000)
    for harness in harnesses:
        await harness.advance(1_000)  # a node believes for a moment that the namespace is full
    assert await race("b") == {"OK": 15, "ACTIVITY_BYTES_EXCEEDED": 45}


def shard_id(worker: str) -> int:
    return shard_of(NAMESPACE, worker, SHARDS)


async def test_a_worker_is_forgotten_through_any_node_and_its_epochs_outlive_a_take_over(
    harnesses: list[ServerHarness],
) -> None:
    first, second, _ = harnesses
    for harness in (first, second):
        await harness.start(takeover_grace_ms=0)
    await settled(first, second)
    names = [f"w{number}" for number in range(20)]
    workers = [
        next((name for name in names if shard_id(name) in owned(harness)), "") for harness in (first, second)
    ]
    for worker in filter(None, workers):
        for epoch in (1, 2):
            assert (await first.beat(worker, session_id=f"s{epoch}", sequence=1)).lease_epoch == epoch
        await first.expire(worker)
        assert (await first.forget(worker)).lease_epoch == 2
    await second.stop()
    await settled(first)
    for worker in filter(None, workers):
        result = await first.beat(worker, session_id="s3", sequence=1)
        assert (result.outcome, result.lease_epoch) == (REGISTERED, 3)


async def test_the_refusal_of_a_full_namespace_counts_the_inactive_workers_of_all_nodes(
    harnesses: list[ServerHarness],
) -> None:
    first, second, _ = harnesses
    for harness in (first, second):
        await harness.start(takeover_grace_ms=0)
    await settled(first, second)
    await first.configure(max_workers=10)
    for number in range(10):
        await first.beat(f"w{number}")
    for number in range(4):
        await second.expire(f"w{number}")
    for harness in (first, second):
        refused = await refusal(harness.beat("one-more"))
        assert (refused.reason, refused.fields["inactive"]) == ("WORKER_QUOTA_EXCEEDED", "4")
    await first.forget("w0")
    for harness in (first, second):
        await harness.advance(1_000)  # a node believes for a moment that the namespace is full
    assert (await first.beat("one-more")).outcome == REGISTERED


async def test_a_call_is_served_when_its_shard_opens_though_the_routes_named_the_node_before(
    harnesses: list[ServerHarness],
) -> None:
    """The registry was read after the node had taken the shard, and before it had opened it."""
    first = harnesses[0]
    await first.start()
    await settled(first)
    node, routes = first.server.node, first.server.routes
    worker = next(name for name in map(str, range(1_000)) if shard_of(NAMESPACE, name, SHARDS) == 0)
    [shard] = [shard for shard in node.shards() if shard.id == 0]
    await node.hand_over([0])
    waiting = asyncio.create_task(first.beat(worker))
    routes.update_owner(0, Owner(node.owner, first.server.cluster_address, shard.epoch + 1))
    # The time in which the call finds that nobody serves the shard. If it comes later, it does not have to wait at all.
    await asyncio.wait({waiting}, timeout=0.5)
    await node.open({0: shard.epoch})
    async with asyncio.timeout(60):
        assert (await waiting).outcome == REGISTERED


async def test_a_concurrency_limit_holds_whichever_nodes_hand_out(harnesses: list[ServerHarness]) -> None:
    """Workers of both nodes poll at once for the activities of ten workflows, whose shards are on both."""
    first, second, _ = harnesses
    await first.start()
    await second.start()
    await settled(first, second)
    nodes = (first, second)
    for each in nodes:
        each.lift_rate_limits()
    workflows = [f"tenant-{number}" for number in range(10)]
    for number, workflow in enumerate(workflows):
        await nodes[number % 2].activities.SetConcurrencyLimit(
            activity_pb2.SetConcurrencyLimitRequest(namespace=NAMESPACE, workflow_id=workflow, maximum=1)
        )
        for run in ("1", "2", "3"):
            await nodes[1 - number % 2].activities.ScheduleActivity(
                activity_pb2.ScheduleActivityRequest(
                    namespace=NAMESPACE,
                    id=activity_pb2.ActivityId(workflow_id=workflow, run_id=run, activity_id="a"),
                    task_queue="queue",
                )
            )
    workers = [f"w{number}" for number in range(6)]
    for worker in workers:
        await first.beat(worker, lease_ms=3_600_000, task_queue="queue")

    async def poll(number: int, worker: str) -> list[tuple[str, activity_pb2.ActivityTask]]:
        answer = await nodes[number % 2].activities.PollActivity(
            activity_pb2.PollActivityRequest(
                namespace=NAMESPACE, worker_instance_key=worker, wait=Duration(), max_activities=5
            )
        )
        return [(worker, task) for task in answer.activities]

    done: list[str] = []
    for _ in range(30):
        found = await asyncio.gather(*(poll(number, worker) for number, worker in enumerate(workers)))
        held = [each for tasks in found for each in tasks]
        names = [task.id.workflow_id for _, task in held]
        assert len(names) == len(set(names)), "never two of one workflow"
        for number, (worker, task) in enumerate(held):
            await nodes[number % 2].activities.CompleteActivity(
                activity_pb2.CompleteActivityRequest(
                    namespace=NAMESPACE,
                    id=task.id,
                    worker_instance_key=worker,
                    lease_epoch=task.lease_epoch,
                    attempt=task.attempt,
                )
            )
        done += names
        if len(done) == 30:
            break
        await settled(first, second)
    assert sorted(done) == sorted(workflows * 3)
    for each in nodes:
        answer = await each.activities.ListConcurrencyLimits(
            activity_pb2.ListConcurrencyLimitsRequest(namespace=NAMESPACE)
        )
        assert [(limit.running, limit.waiting) for limit in answer.limits] == [(0, 0)] * 10
