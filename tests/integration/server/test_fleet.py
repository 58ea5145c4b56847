"""GetFleet: samples per interval, current counts and alerts for operators."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from liveness.domain import worker_control
from liveness.domain.keys import WorkerKey
from liveness.store import task_counts
from liveness.telemetry.sample_ring import INTERVAL_MS, SLOTS
from liveness.v1 import fleet_pb2
from liveness.v1.activity_pb2 import ACTIVITY_STATE_QUARANTINED
from tests.integration.engine.engine import activity, duration
from tests.integration.server.activity_client import ActivityClient
from tests.integration.server.server_harness import (
    NAMESPACE,
    RESURRECTED,
    SHARDS,
    ServerHarness,
    heartbeat,
    refusal,
)
from tests.integration.store.faulty_store import Fault

STORM = fleet_pb2.ALERT_KIND_STORM
INCIDENT = fleet_pb2.ALERT_KIND_INCIDENT
QUARANTINE = fleet_pb2.ALERT_KIND_QUARANTINE
NO_ACTIVE_WORKERS = fleet_pb2.ALERT_KIND_NO_ACTIVE_WORKERS
DEAD_LETTERS = fleet_pb2.ALERT_KIND_DEAD_LETTERS
UNSERVED_SHARDS = fleet_pb2.ALERT_KIND_UNSERVED_SHARDS
STALL = fleet_pb2.ALERT_KIND_STALL


@pytest.fixture
async def harness(stopped_harness: ServerHarness) -> ServerHarness:
    """A server without a take-over grace, so that leases end exactly when they are over."""
    return await stopped_harness.start(takeover_grace_ms=0)


class RefusingSink:
    """A sink that refuses every reschedule."""

    async def deliver(self, key: Any, activity: Any, task: Any) -> None:
        raise RuntimeError("no")


async def fleet(harness: ServerHarness, namespace: str = "", **fields: Any) -> fleet_pb2.GetFleetResponse:
    """Take a sample and return the fleet."""
    await harness.server.take_sample()
    answer: fleet_pb2.GetFleetResponse = await harness.admin.GetFleet(
        fleet_pb2.GetFleetRequest(namespace=namespace, **fields)
    )
    return answer


def total(answer: fleet_pb2.GetFleetResponse, field: str) -> int:
    return sum(getattr(sample, field) for sample in answer.samples)


def counts(message: Any, *fields: str) -> tuple[int, ...]:
    return tuple(getattr(message, field) for field in fields)


async def test_a_sample_counts_the_events_of_its_interval_and_the_states_at_its_end(
    harness: ServerHarness,
) -> None:
    refs = [activity("a"), activity("b")]
    await harness.beat("dies", lease_ms=3_000, session_id="s", bound_activities=refs)
    await harness.batch(heartbeat("lives"), heartbeat("leaves"))
    await harness.advance(INTERVAL_MS)
    await harness.shut_down("leaves")
    await harness.advance(INTERVAL_MS)
    assert (await harness.beat("dies", session_id="s")).outcome == RESURRECTED
    await harness.advance(INTERVAL_MS)
    answer = await fleet(harness)
    first, second, third = answer.samples
    assert counts(first, "heartbeats", "registrations", "expiries", "active") == (3, 3, 0, 3)
    assert counts(second, "heartbeats", "expiries", "reschedules", "active", "inactive") == (0, 1, 2, 1, 2)
    assert counts(third, "heartbeats", "resurrections", "expiries", "active", "inactive") == (1, 1, 0, 2, 1)
    assert first.latency_p99_ms >= first.latency_p50_ms > 0
    assert second.latency_p50_ms == 0
    times = [sample.time.ToMilliseconds() for sample in answer.samples]
    assert times == sorted(set(times))
    assert all(time % INTERVAL_MS == 0 for time in times)
    assert answer.interval == duration(INTERVAL_MS)
    assert answer.time.ToMilliseconds() == harness.clock.wall_ms()
    assert counts(answer, "nodes", "shards", "serving_shards") == (1, SHARDS, SHARDS)
    assert not answer.alerts


async def test_refused_heartbeats_are_counted_in_calls_and_in_batches(harness: ServerHarness) -> None:
    await harness.beat("w", session_id="old", sequence=1)
    await harness.beat("w", session_id="new", sequence=1)
    await refusal(harness.beat("w", session_id="old", sequence=2))
    items = await harness.batch(heartbeat("w", session_id="old", sequence=3), heartbeat("v"), heartbeat(""))
    assert [item.HasField("status") for item in items] == [True, False, True]
    answer = await fleet(harness)
    assert total(answer, "heartbeats") == 6
    assert total(answer, "refused_heartbeats") == 3
    counters = harness.server.telemetry.counters.get(NAMESPACE)
    assert counters.refused == {"SESSION_SUPERSEDED": 2, "INVALID_FIELD": 1}
    assert counters.session_replacements == 1


async def test_the_fleet_of_a_namespace_excludes_other_namespaces(harness: ServerHarness) -> None:
    await harness.configure(namespace="", storm_hold_ms=0)  # expiries must not be held
    await harness.beat("w", namespace="mine", lease_ms=60_000)
    for number in range(30):
        await harness.beat(f"w{number}", namespace="theirs", lease_ms=1_000, bound_activities=[activity("x")])
    await harness.advance(INTERVAL_MS)
    whole = await fleet(harness)
    assert [found.namespace for found in whole.namespaces] == ["mine", "theirs"]
    assert [(alert.kind, alert.namespace) for alert in whole.alerts] == [
        (STORM, "theirs"),
        (INCIDENT, "theirs"),
        (NO_ACTIVE_WORKERS, "theirs"),
    ]
    mine = await fleet(harness, "mine")
    assert [counts(found, "active", "inactive", "deaths") for found in mine.namespaces] == [(1, 0, 0)]
    assert not mine.alerts
    assert not mine.queues
    for field in ("registrations", "heartbeats"):
        assert (total(mine, field), total(whole, field)) == (1, 31)
    for field in ("expiries", "reschedules"):
        assert (total(mine, field), total(whole, field)) == (0, 30)
    assert {sample.inactive for sample in mine.samples} == {0}
    unknown = await fleet(harness, "unknown")
    assert [found.namespace for found in unknown.namespaces] == ["unknown"]
    assert not unknown.samples


async def test_a_storm_alert_appears_and_ends(harness: ServerHarness) -> None:
    """Without the throttle; `test_storm` covers the throttle."""
    await harness.configure(storm_hold_ms=0)
    await harness.batch(*(heartbeat(f"w{number}", lease_ms=60_000) for number in range(100)))
    await harness.batch(*(heartbeat(f"dies{number}", lease_ms=1_000) for number in range(19)))
    await harness.advance(INTERVAL_MS)
    assert not (await fleet(harness)).alerts, "few deaths, and a small share"
    await harness.batch(*(heartbeat(f"dies{number}", lease_ms=1_000) for number in range(50, 100)))
    await harness.batch(*(heartbeat(f"w{number}") for number in range(100)))
    await harness.advance(INTERVAL_MS)
    answer = await fleet(harness)
    alert, incident = answer.alerts
    assert (alert.kind, alert.namespace, alert.count) == (STORM, NAMESPACE, 69)
    assert (incident.kind, incident.namespace, incident.count) == (INCIDENT, NAMESPACE, 69)
    assert "69 workers of orders died within 60 s and 100 are left" in alert.message
    [found] = answer.namespaces
    assert counts(found, "active", "inactive", "deaths", "deaths_last_minute") == (100, 69, 69, 69)
    for _ in range(4):
        await harness.batch(*(heartbeat(f"w{number}") for number in range(100)))
        await harness.advance(16_000)
    answer = await fleet(harness)
    assert [alert.kind for alert in answer.alerts] == [INCIDENT], "an incident is told for longer"
    assert counts(answer.namespaces[0], "deaths", "deaths_last_minute") == (69, 0)


async def test_a_refuted_death_counts_as_a_false_death(harness: ServerHarness) -> None:
    for worker in ("back", "gone"):
        await harness.beat(worker, session_id=f"session-{worker}", lease_ms=1_000)
    await harness.advance(INTERVAL_MS)
    await harness.beat("back", session_id="session-back")
    await harness.beat("gone", session_id="another")
    [found] = (await fleet(harness)).namespaces
    assert counts(found, "deaths", "false_deaths") == (2, 1)
    assert harness.server.telemetry.counters.get(NAMESPACE).false_deaths == 1


async def test_queues_are_shown_per_shard_with_their_age_and_dead_letters_raise_an_alert(
    stopped_harness: ServerHarness,
) -> None:
    harness = await stopped_harness.start(takeover_grace_ms=0, sink=RefusingSink(), task_attempts_max=2)
    refs = [activity(f"a{number}") for number in range(20)]
    await harness.beat("stays", lease_ms=60_000)
    await harness.beat("stays", namespace="other", lease_ms=60_000)
    await harness.beat("dies", lease_ms=1_000, bound_activities=refs)
    await harness.advance(1_250)
    answer = await fleet(harness)
    assert sum(queue.retrying for queue in answer.queues) == 20
    assert answer.samples[-1].queue_depth == 20
    assert [queue.shard_id for queue in answer.queues] == sorted({queue.shard_id for queue in answer.queues})
    assert not answer.alerts
    await harness.beat("later", namespace="other", lease_ms=1_000, bound_activities=[activity("b")])
    await harness.advance(1_500)
    answer = await fleet(harness)
    assert {queue.oldest.ToMilliseconds() for queue in answer.queues if queue.retrying > 1} <= {1_500}
    await harness.advance(3_000)
    answer = await fleet(harness)
    assert sum(queue.dead_lettered for queue in answer.queues) == 21
    assert sum(queue.pending + queue.retrying for queue in answer.queues) == 0
    assert not any(queue.HasField("oldest") for queue in answer.queues)
    kinds = [(alert.kind, alert.namespace, alert.count) for alert in answer.alerts]
    assert kinds == [(DEAD_LETTERS, NAMESPACE, 20), (DEAD_LETTERS, "other", 1)]
    assert [alert.message.partition(" to be ")[0] for alert in answer.alerts] == [
        "20 tasks of orders failed too often and wait",
        "1 task of other failed too often and waits",
    ]
    dead = {found.namespace: found.dead_lettered_tasks for found in answer.namespaces}
    assert dead == {NAMESPACE: 20, "other": 1}
    other = await fleet(harness, "other")
    assert [queue.dead_lettered for queue in other.queues] == [1]
    reschedule_outcomes = harness.server.telemetry.counters.get(NAMESPACE).reschedule_outcomes
    assert reschedule_outcomes == {("RETRYING", "sink"): 20, ("DEAD_LETTERED", "sink"): 20}


async def test_counting_queues_uses_indexes_and_skips_finished_tasks(sqlite_harness: ServerHarness) -> None:
    """The cost does not depend on the number of finished tasks."""

    def plan(connection: Any) -> str:
        return "\n".join(
            str(row)
            for query in task_counts.count_queries([1, 2])
            for row in connection.exec_driver_sql(
                "EXPLAIN QUERY PLAN " + str(query.compile(connection, compile_kwargs={"literal_binds": True}))
            )
        )

    shown = await sqlite_harness.server.store._database.read(plan)
    assert "USING INDEX tasks_due" in shown
    assert "USING INDEX tasks_dead" in shown


async def test_quarantined_activities_raise_an_alert_until_they_are_retried(
    harness: ServerHarness,
) -> None:
    activity_client = ActivityClient(harness)
    await activity_client.schedule("poison")
    await harness.beat("stays", lease_ms=60_000)
    for number in range(3):
        await activity_client.beat(f"w{number}", lease_ms=1_000)
        await activity_client.take(f"w{number}")
        await harness.advance(1_500)
    answer = await fleet(harness)
    assert [(alert.kind, alert.count) for alert in answer.alerts] == [(QUARANTINE, 1)]
    assert "1 activity of orders" in answer.alerts[0].message
    assert answer.namespaces[0].quarantined_activities == 1
    await harness.restart()
    assert (await fleet(harness)).namespaces[0].quarantined_activities == 1
    await activity_client.retry("poison")
    assert not (await fleet(harness)).alerts


async def test_an_activity_that_its_worker_leaves_to_an_operator_raises_an_alert(
    harness: ServerHarness,
) -> None:
    activity_client = ActivityClient(harness)
    await activity_client.schedule("odd")
    await activity_client.beat("w", lease_ms=600_000)
    task = await activity_client.take("w")
    answer = await activity_client.fail(task, message="refused by the other side", quarantine=True)
    assert answer.state == ACTIVITY_STATE_QUARANTINED
    assert (await activity_client.describe("odd")).last_failure == "refused by the other side"
    await harness.advance(60_000)
    await harness.restart()
    found = await fleet(harness)
    assert [(alert.kind, alert.count) for alert in found.alerts] == [(QUARANTINE, 1)]
    await activity_client.retry("odd")
    assert not (await fleet(harness)).alerts


async def test_reschedules_to_matching_record_their_outcome_and_duration(
    harness: ServerHarness,
) -> None:
    await harness.beat("dies", lease_ms=1_000, bound_activities=[activity("a"), activity("b")])
    await harness.advance(1_250)
    telemetry = harness.server.telemetry
    assert telemetry.counters.get(NAMESPACE).reschedule_outcomes == {("DONE", "matching"): 2}
    assert sum(telemetry.reschedule_s.counts) == 2
    assert sum(telemetry.lateness_s.counts) == 1
    assert telemetry.lateness_s.sum == pytest.approx(0.0)


async def test_lateness_counts_from_the_deadline_to_the_durable_end_of_the_lease(
    harness: ServerHarness,
) -> None:
    await harness.beat("dies", lease_ms=1_000)
    await harness.advance(750)
    harness.clock.move(250 + 400)  # 400 ms later than the timer should have fired
    harness.server.node._last_tick_ms = harness.clock.monotonic_ms()  # so that this does not count as a stall
    harness.server.node.tick()
    await harness.server.node.barrier().wait()
    assert harness.server.telemetry.lateness_s.sum == pytest.approx(0.4)


async def test_a_stall_raises_an_alert_for_a_minute(harness: ServerHarness) -> None:
    harness.clock.move(3_200)
    harness.server.node.tick()
    [alert] = (await fleet(harness)).alerts
    assert (alert.kind, alert.count) == (STALL, 1)
    assert "stood still or heard calls late once" in alert.message
    assert "3.2 s" in alert.message
    assert harness.server.telemetry.stalls == 1
    assert harness.server.telemetry.stalled_s == pytest.approx(3.2)
    await harness.advance(62_000)
    assert not (await fleet(harness)).alerts


async def test_a_wall_clock_set_back_does_not_extend_a_stall_alert(
    harness: ServerHarness,
) -> None:
    harness.clock.move(3_200)
    harness.server.node.tick()
    harness.clock.jump_wall(-7_200_000)
    await harness.advance(62_000)
    assert not (await fleet(harness)).alerts


async def test_unserved_shards_are_the_first_alert(stopped_harness: ServerHarness) -> None:
    harness = await stopped_harness.start(faulty=True, takeover_grace_ms=0)
    assert harness.store is not None
    await harness.batch(*(heartbeat(f"w{number}", lease_ms=1_000) for number in range(30)))
    await harness.advance(1_250)
    harness.store.take_over_faults = 1
    harness.store.faults.append(Fault.REJECTED)
    await refusal(harness.beat("lost", lease_ms=60_000))
    answer = await fleet(harness)
    assert [alert.kind for alert in answer.alerts] == [UNSERVED_SHARDS, STORM]
    assert answer.serving_shards < answer.shards
    assert answer.alerts[0].count == answer.shards - answer.serving_shards
    assert harness.server.telemetry.shards_closed["lost"] == answer.alerts[0].count


async def test_the_fleet_marks_a_paused_namespace(harness: ServerHarness) -> None:
    await harness.beat("w")
    await harness.beat("w", namespace="other")
    await ActivityClient(harness).pause(all=True)
    found = {found.namespace: found.paused for found in (await fleet(harness)).namespaces}
    assert found == {NAMESPACE: True, "other": False}


async def test_the_range_limits_the_age_of_samples(harness: ServerHarness) -> None:
    await harness.advance(20_000)
    assert len((await fleet(harness)).samples) == 10
    assert len((await fleet(harness, range=duration(6_000))).samples) == 3
    assert len((await fleet(harness, range=duration(86_400_000))).samples) == 10


@pytest.mark.parametrize(
    "wrong", [Duration(seconds=-1), Duration(nanos=-1), Duration(), Duration(nanos=2**31 - 1)]
)
async def test_an_invalid_range_is_refused(sqlite_harness: ServerHarness, wrong: Duration) -> None:
    refused = await refusal(fleet(sqlite_harness, range=wrong))
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
    assert [field for field, _ in refused.violations] == ["range"]


async def test_samples_cover_half_an_hour(sqlite_harness: ServerHarness) -> None:
    server = sqlite_harness.server
    for _ in range(SLOTS + 10):
        sqlite_harness.clock.move(INTERVAL_MS)
        server.telemetry.take_sample()
    answer = await fleet(sqlite_harness)
    assert len(answer.samples) == SLOTS
    assert answer.samples[-1].time.ToMilliseconds() == sqlite_harness.clock.wall_ms()


async def test_a_wall_clock_set_back_loses_no_counts(sqlite_harness: ServerHarness) -> None:
    await sqlite_harness.beat("v")
    await sqlite_harness.advance(4_000)
    sqlite_harness.clock.jump_wall(-4_000)
    await sqlite_harness.beat("w")
    await sqlite_harness.advance(6_000)
    assert total(await fleet(sqlite_harness), "registrations") == 2


async def test_worker_counts_are_correct_after_a_restart(harness: ServerHarness) -> None:
    await harness.batch(*(heartbeat(f"w{number}", lease_ms=60_000) for number in range(10)))
    await harness.shut_down("w0")
    await harness.restart()
    [found] = (await fleet(harness)).namespaces
    assert counts(found, "active", "inactive", "cleaned_up") == (9, 1, 0)
    assert (await fleet(harness, NAMESPACE)).samples[-1].active == 9


async def test_disconnected_workers_are_counted_as_suspects_during_their_grace(
    sqlite_harness: ServerHarness,
) -> None:
    await sqlite_harness.beat("w", session_id="s", lease_ms=60_000)
    shard = sqlite_harness.server.node.shard(NAMESPACE, "w")
    key = WorkerKey(NAMESPACE, "w")
    shard.change_worker(key, worker_control.attach(key, shard.describe(key), "s", 5_000))
    shard.mark_disconnected(key)
    answer = await fleet(sqlite_harness)
    assert answer.namespaces[0].suspects == answer.samples[-1].suspects == 1
    await sqlite_harness.beat("w", session_id="s")
    assert (await fleet(sqlite_harness)).namespaces[0].suspects == 0


async def test_namespaces_beyond_the_hundredth_are_counted_but_have_no_samples(
    sqlite_harness: ServerHarness,
) -> None:
    for number in range(105):
        await sqlite_harness.beat("w", namespace=f"n{number:03}")
    whole = await fleet(sqlite_harness)
    assert [found.active for found in whole.namespaces] == [1] * 105
    assert total(whole, "registrations") == 105
    assert total(await fleet(sqlite_harness, "n000"), "registrations") == 1
    late = await fleet(sqlite_harness, "n104")
    assert [found.active for found in late.namespaces] == [1]
    assert not late.samples
