"""Alerts for dead fleets and for work that waits: when each appears, what it says, and when it ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from liveness.domain.policy import DEFAULT_POLICY
from liveness.server.alerts import ALERTS_PER_KIND_MAX
from liveness.v1 import fleet_pb2
from tests.integration.engine.engine import activity
from tests.integration.server.activity_client import QUEUE, ActivityClient
from tests.integration.server.component_client import (
    CRASHED,
    FAILED,
    STARTING,
    ComponentClient,
    timestamp,
)
from tests.integration.server.server_harness import NAMESPACE, ServerHarness, heartbeat
from tests.integration.server.test_fleet import fleet

STORM = fleet_pb2.ALERT_KIND_STORM
INCIDENT = fleet_pb2.ALERT_KIND_INCIDENT
NO_ACTIVE_WORKERS = fleet_pb2.ALERT_KIND_NO_ACTIVE_WORKERS
COMPONENT_FAILED = fleet_pb2.ALERT_KIND_COMPONENT_FAILED
COMPONENT_RESTARTS = fleet_pb2.ALERT_KIND_COMPONENT_RESTARTS
COMPONENT_GROUP_CRASHED = fleet_pb2.ALERT_KIND_COMPONENT_GROUP_CRASHED
UNPOLLED_QUEUE = fleet_pb2.ALERT_KIND_UNPOLLED_QUEUE
LONG_WAIT = fleet_pb2.ALERT_KIND_LONG_WAIT
MINUTE_MS = 60_000


@pytest.fixture
async def harness(stopped_harness: ServerHarness) -> ServerHarness:
    """A server without a take-over grace, so that leases end exactly when they are over."""
    return await stopped_harness.start(takeover_grace_ms=0)


async def kinds(harness: ServerHarness, namespace: str = "") -> list[int]:
    return [alert.kind for alert in (await fleet(harness, namespace)).alerts]


async def attend(client: ActivityClient, ms: int, **fields: Any) -> None:
    """Let time pass while a worker stays alive; its heartbeats carry `fields`."""
    while ms > 0:
        await client.beat("w", lease_ms=MINUTE_MS, **fields)
        await client.harness.advance(min(ms, 30_000))
        ms -= 30_000


# -- no active worker


async def test_a_dead_fleet_raises_an_alert_that_ends_with_the_first_heartbeat(
    harness: ServerHarness,
) -> None:
    await harness.batch(*(heartbeat(f"w{number}", lease_ms=1_000) for number in range(4)))
    assert not await kinds(harness)
    await harness.advance(1_250)
    answer = await fleet(harness)
    [alert] = answer.alerts
    assert (alert.kind, alert.namespace, alert.count) == (NO_ACTIVE_WORKERS, NAMESPACE, 4)
    assert alert.message.startswith("4 workers of orders died and none is active")
    assert answer.namespaces[0].dead == 4
    await harness.restart()
    assert await kinds(harness) == [NO_ACTIVE_WORKERS], "it is derived from the log"
    await harness.beat("another", lease_ms=MINUTE_MS)
    answer = await fleet(harness)
    assert not answer.alerts
    assert answer.namespaces[0].dead == 4


async def test_the_alert_of_a_dead_fleet_ends_when_the_dead_are_cleaned_up(harness: ServerHarness) -> None:
    await harness.configure(cleanup_delay_ms=30_000)
    await harness.beat("w", lease_ms=1_000)
    await harness.advance(30_000)
    assert await kinds(harness) == [NO_ACTIVE_WORKERS]
    await harness.advance(2_000)
    answer = await fleet(harness)
    assert (answer.namespaces[0].cleaned_up, answer.namespaces[0].dead) == (1, 0)
    assert not answer.alerts


async def test_workers_that_said_goodbye_or_were_sent_away_raise_no_alert(harness: ServerHarness) -> None:
    for name in ("leaves", "forced", "drained"):
        await harness.beat(name, lease_ms=MINUTE_MS)
    await harness.shut_down("leaves")
    await harness.expire("forced")
    await ActivityClient(harness).drain("drained", limit_ms=500)
    await harness.advance(1_000)
    answer = await fleet(harness)
    assert (answer.namespaces[0].active, answer.namespaces[0].inactive) == (0, 3)
    assert answer.namespaces[0].dead == 0
    assert not answer.alerts


async def test_a_worker_that_comes_back_is_no_longer_counted_among_the_dead(harness: ServerHarness) -> None:
    await harness.beat("w", session_id="s", lease_ms=1_000)
    await harness.advance(1_250)
    await harness.beat("w", session_id="s", lease_ms=MINUTE_MS)
    await harness.shut_down("w")
    answer = await fleet(harness)
    assert (answer.namespaces[0].inactive, answer.namespaces[0].dead) == (1, 0)
    assert not answer.alerts


async def test_a_dead_fleet_is_reported_beside_the_storm_that_killed_it(harness: ServerHarness) -> None:
    await harness.configure(storm_hold_ms=0)
    await harness.batch(*(heartbeat(f"w{number}", lease_ms=1_000) for number in range(30)))
    await harness.advance(1_250)
    assert await kinds(harness) == [STORM, INCIDENT, NO_ACTIVE_WORKERS]
    await harness.advance(2 * MINUTE_MS)
    assert await kinds(harness) == [INCIDENT, NO_ACTIVE_WORKERS], (
        "the storm is over, and its dead are still dead"
    )


async def test_many_alerts_of_one_kind_do_not_displace_other_kinds(harness: ServerHarness) -> None:
    for number in range(ALERTS_PER_KIND_MAX + 5):
        await harness.beat("w", namespace=f"n{number}", lease_ms=1_000)
    await ActivityClient(harness).schedule("a")
    await harness.advance(2 * MINUTE_MS)
    found = await kinds(harness)
    assert found.count(NO_ACTIVE_WORKERS) == ALERTS_PER_KIND_MAX
    assert found.count(UNPOLLED_QUEUE) == 1


# -- work that waits


async def test_activities_that_nobody_polls_for_raise_an_alert_until_a_worker_polls(
    harness: ServerHarness,
) -> None:
    client = ActivityClient(harness)
    await client.beat("w", lease_ms=MINUTE_MS)
    for number in range(3):
        await client.schedule(f"a{number}")
    await client.schedule("b", task_queue="other")
    await attend(client, MINUTE_MS - 5_000)
    assert not await kinds(harness)
    await attend(client, 5_000)
    answer = await fleet(harness)
    [alert] = answer.alerts
    assert (alert.kind, alert.namespace, alert.count) == (UNPOLLED_QUEUE, NAMESPACE, 4)
    assert "4 activities of orders wait where no worker polls: task queues " in alert.message
    assert alert.message.endswith("the oldest for 1 min.")
    [found] = answer.namespaces
    assert (found.available_activities, found.unpolled_activities) == (4, 4)
    assert found.oldest_unpolled.ToMilliseconds() == MINUTE_MS
    assert not found.HasField("oldest_polled")
    assert answer.samples[-1].available_activities == 4
    backlogs = {(queue.task_queue, queue.available, queue.unpolled) for queue in answer.task_queues}
    assert backlogs == {(QUEUE, 3, True), ("other", 1, True)}
    assert len(await client.poll("w", max_activities=1)) == 1
    answer = await fleet(harness)
    [alert] = answer.alerts
    assert (alert.count, answer.namespaces[0].available_activities) == (1, 3)
    assert "1 activity of orders waits where no worker polls: task queue other" in alert.message


async def test_a_poll_that_waits_attends_its_queue_although_the_worker_may_not_take_work(
    harness: ServerHarness,
) -> None:
    client = ActivityClient(harness)
    await client.beat("w", lease_ms=MINUTE_MS)
    await client.pause("w")
    waiting = asyncio.ensure_future(client.poll("w", wait_ms=50_000))
    await client.schedule("a")
    await harness.advance(40_000)
    await client.beat("w", lease_ms=MINUTE_MS)
    await harness.advance(20_000)
    assert await waiting == []
    assert not await kinds(harness), "the last poll ended some seconds ago"
    await attend(client, MINUTE_MS)
    assert await kinds(harness) == [UNPOLLED_QUEUE]


async def test_work_of_a_type_that_no_worker_runs_raises_an_alert_although_others_poll_its_queue(
    harness: ServerHarness,
) -> None:
    client = ActivityClient(harness)
    await client.beat("w", lease_ms=MINUTE_MS)
    await client.schedule("mail", activity_type="mail")
    for _ in range(3):
        assert await client.poll("w", activity_types=["resize"]) == []
        await client.beat("w", lease_ms=MINUTE_MS)
        await harness.advance(MINUTE_MS // 2)
    [alert] = (await fleet(harness)).alerts
    assert (alert.kind, alert.count) == (UNPOLLED_QUEUE, 1)
    assert len(await client.poll("w", activity_types=["mail"])) == 1
    assert not await kinds(harness)


async def test_a_busy_worker_attends_the_queue_of_what_it_holds(harness: ServerHarness) -> None:
    client = ActivityClient(harness)
    await client.beat("w", lease_ms=MINUTE_MS)
    await client.schedule("long")
    task = await client.take("w")
    await client.schedule("waits")
    held = [activity("long", attempt=task.attempt)]
    await attend(client, 5 * MINUTE_MS, bound_activities=held)
    assert not await kinds(harness), "it will poll when it is done"
    await attend(client, 5 * MINUTE_MS, bound_activities=held)
    answer = await fleet(harness)
    [alert] = answer.alerts
    assert (alert.kind, alert.count) == (LONG_WAIT, 1)
    assert alert.message == (
        "1 activity of orders waits for a worker, the oldest for 10 min: its workers do not keep up."
    )
    assert answer.namespaces[0].oldest_polled.ToMilliseconds() == 10 * MINUTE_MS
    await client.complete(task)
    await client.take("w")
    assert not await kinds(harness)


async def test_a_long_wait_in_a_paused_namespace_names_the_pause(harness: ServerHarness) -> None:
    client = ActivityClient(harness)
    await harness.configure(waiting_alert_ms=5_000)
    await client.beat("w", lease_ms=MINUTE_MS)
    await client.schedule("a")
    await client.pause(all=True)
    await harness.advance(6_000)
    [alert] = (await fleet(harness)).alerts
    assert alert.kind == LONG_WAIT
    assert "the namespace is paused" in alert.message


async def test_cancelled_and_claimed_activities_no_longer_wait(harness: ServerHarness) -> None:
    client = ActivityClient(harness)
    for name in ("cancelled", "claimed", "waits"):
        await client.schedule(name)
    await harness.advance(2 * MINUTE_MS)
    assert (await fleet(harness)).alerts[0].count == 3
    await client.cancel("cancelled")
    await client.beat("w", lease_ms=MINUTE_MS)
    task = await client.claim("claimed")
    answer = await fleet(harness)
    assert answer.namespaces[0].available_activities == 1
    assert not answer.alerts, "whoever claims one attends the queue"
    await client.complete(task)
    await client.cancel("waits")
    answer = await fleet(harness)
    assert answer.namespaces[0].available_activities == 0
    assert not answer.task_queues


async def test_after_a_restart_workers_have_time_to_poll_again(harness: ServerHarness) -> None:
    client = ActivityClient(harness)
    await client.schedule("a")
    await harness.advance(5 * MINUTE_MS)
    assert await kinds(harness) == [UNPOLLED_QUEUE]
    await harness.restart()
    answer = await fleet(harness)
    assert answer.namespaces[0].available_activities == 1
    assert not answer.alerts
    await harness.advance(MINUTE_MS)
    answer = await fleet(harness)
    assert [alert.kind for alert in answer.alerts] == [UNPOLLED_QUEUE]
    assert "for 6 min" in answer.alerts[0].message


@pytest.mark.parametrize("limit_ms", [0, 5_000])
async def test_a_namespace_sets_its_own_limits_and_0_means_never(
    harness: ServerHarness, limit_ms: int
) -> None:
    client = ActivityClient(harness)
    await harness.configure(unpolled_alert_ms=limit_ms, waiting_alert_ms=limit_ms)
    await client.schedule("a")
    await client.schedule("b", namespace="other")
    await harness.advance(5_000)
    expected = [UNPOLLED_QUEUE] if limit_ms else []
    assert await kinds(harness) == expected
    await harness.advance(DEFAULT_POLICY.waiting_alert_ms)
    answer = await fleet(harness)
    alerts = {(alert.kind, alert.namespace) for alert in answer.alerts}
    assert alerts == {(UNPOLLED_QUEUE, "other"), *((kind, NAMESPACE) for kind in expected)}


async def test_activities_of_dead_workers_wait_for_new_ones(harness: ServerHarness) -> None:
    refs = [activity(f"a{number}") for number in range(5)]
    await harness.beat("w", lease_ms=1_000, bound_activities=refs)
    await harness.advance(1_250)
    await harness.advance(MINUTE_MS)
    answer = await fleet(harness)
    assert [(alert.kind, alert.count) for alert in answer.alerts] == [
        (NO_ACTIVE_WORKERS, 1),
        (UNPOLLED_QUEUE, 5),
    ]


async def test_the_fleet_of_a_namespace_has_its_own_task_queues_only(harness: ServerHarness) -> None:
    client = ActivityClient(harness)
    await client.schedule("a")
    await client.schedule("b", namespace="other")
    await harness.advance(2 * MINUTE_MS)
    answer = await fleet(harness, "other")
    assert [queue.namespace for queue in answer.task_queues] == ["other"]
    assert [alert.namespace for alert in answer.alerts] == ["other"]


# -- components


async def component_alerts(harness: ServerHarness) -> dict[int, str]:
    """The messages by kind. Components that crashed are dead workers as well, which is not what is looked for here."""
    alerts = (await fleet(harness)).alerts
    return {alert.kind: alert.message for alert in alerts if alert.kind != NO_ACTIVE_WORKERS}


async def test_a_failed_component_raises_an_alert_until_it_is_started_again(harness: ServerHarness) -> None:
    supervisor = ComponentClient.of(harness)
    await supervisor.supervise()
    await supervisor.start(0)
    await supervisor.start(1, session_id="p2")
    await supervisor.report(CRASHED, 0)
    assert not await component_alerts(harness)
    await supervisor.report(FAILED, 0)
    failed = await component_alerts(harness)
    assert list(failed) == [COMPONENT_FAILED]
    assert failed[COMPONENT_FAILED].startswith("worker:images:0 of orders has crashed too often")
    await harness.advance(10 * MINUTE_MS)
    assert list(await component_alerts(harness)) == [COMPONENT_FAILED], "it does not pass by itself"
    await harness.restart()
    assert list(await component_alerts(harness)) == [COMPONENT_FAILED], "it is derived from the log"
    again = ComponentClient.of(harness)
    again.numbers = supervisor.numbers
    await again.beat(again.id(0), "p3")
    await again.report(STARTING, 0, "p3")
    assert not await component_alerts(harness)


async def test_the_failures_of_one_namespace_hide_none_of_another(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("liveness.server.component_alerts.TROUBLED_MAX", 8)
    for namespace, count in (("a", 20), ("b", 1)):
        supervisor = ComponentClient.of(harness, namespace=namespace)
        await supervisor.supervise()
        for index in range(count):
            await supervisor.start(index, session_id=f"{namespace}-{index}")
            await supervisor.report(CRASHED, index, f"{namespace}-{index}")
            await supervisor.report(FAILED, index, f"{namespace}-{index}")
    alerts = (await fleet(harness)).alerts
    failed = {alert.namespace: alert.count for alert in alerts if alert.kind == COMPONENT_FAILED}
    assert failed == {"a": 4, "b": 1}


async def test_more_than_3_restarts_within_5_minutes_raise_an_alert_until_they_are_old(
    harness: ServerHarness,
) -> None:
    supervisor = ComponentClient.of(harness)
    await supervisor.supervise()
    await supervisor.start(0)
    times: list[Any] = []
    for restart in range(1, 5):
        await supervisor.report(CRASHED, 0, f"p{restart}", restart_count=len(times), restart_times=times)
        assert not await component_alerts(harness), "3 are not more than 3"
        await harness.advance(10_000)
        times.append(timestamp(harness.clock.wall_ms()))
        await supervisor.beat(supervisor.id(0), f"p{restart + 1}")
        known = {"restart_count": len(times), "restart_times": times}
        await supervisor.report(STARTING, 0, f"p{restart + 1}", **known)
    alerts = await component_alerts(harness)
    assert alerts == {COMPONENT_RESTARTS: "worker:images:0 of orders was restarted 4 times within 5 minutes."}
    await harness.advance(5 * MINUTE_MS)
    assert not await component_alerts(harness)


async def test_a_group_whose_components_all_crash_within_a_minute_raises_one_alert(
    harness: ServerHarness,
) -> None:
    supervisor = ComponentClient.of(harness)
    await supervisor.supervise()
    for index in range(3):
        await supervisor.start(index, session_id=f"p{index}")
    await supervisor.report(CRASHED, 0, "p0")
    await harness.advance(20_000)
    await supervisor.report(CRASHED, 1, "p1")
    assert not await component_alerts(harness), "one of the group runs"
    await harness.advance(20_000)
    await supervisor.report(CRASHED, 2, "p2")
    alerts = await component_alerts(harness)
    assert list(alerts) == [COMPONENT_GROUP_CRASHED]
    assert alerts[COMPONENT_GROUP_CRASHED].startswith(
        "All 3 components of group images of orders crashed together"
    )
    await harness.advance(5 * MINUTE_MS)
    assert not await component_alerts(harness)


async def test_components_that_crash_one_after_the_other_did_not_crash_together(
    harness: ServerHarness,
) -> None:
    supervisor = ComponentClient.of(harness)
    await supervisor.supervise()
    for index in range(2):
        await supervisor.start(index, session_id=f"p{index}")
    await supervisor.report(CRASHED, 0, "p0")
    await harness.advance(MINUTE_MS + 1_000)
    await supervisor.report(CRASHED, 1, "p1")
    single = ComponentClient.of(harness, "single")
    await single.supervise()
    await single.start()
    await single.report(CRASHED)
    assert not await component_alerts(harness), "nor did the only one of its group"
