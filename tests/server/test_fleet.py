"""GetFleet: what happened in each interval, how everything is, and what an operator should look at."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from liveness.domain import orders
from liveness.domain.keys import WorkerKey
from liveness.store import counting
from liveness.telemetry.samples import INTERVAL_MS, SLOTS
from liveness.v1 import fleet_pb2
from tests.server.site import NAMESPACE, RESURRECTED, SHARDS, Site, heartbeat, refusal
from tests.server.work import Work
from tests.shard.engine import activity, duration
from tests.shard.faulty_store import Fault

STORM = fleet_pb2.ALERT_KIND_STORM
QUARANTINE = fleet_pb2.ALERT_KIND_QUARANTINE
DEAD_LETTERS = fleet_pb2.ALERT_KIND_DEAD_LETTERS
UNSERVED_SHARDS = fleet_pb2.ALERT_KIND_UNSERVED_SHARDS
STALL = fleet_pb2.ALERT_KIND_STALL


@pytest.fixture
async def site(place: Site) -> Site:
    """Without a grace after the start, so that leases end when they are over."""
    return await place.start(takeover_grace_ms=0)


class Broken:
    """A receiver of reschedules that takes nothing."""

    async def offer(self, key: Any, activity: Any, task: Any) -> None:
        raise RuntimeError("no")


async def fleet(site: Site, namespace: str = "", **fields: Any) -> fleet_pb2.GetFleetResponse:
    """As of now."""
    await site.server.take_sample()
    answer: fleet_pb2.GetFleetResponse = await site.admin.GetFleet(
        fleet_pb2.GetFleetRequest(namespace=namespace, **fields)
    )
    return answer


def total(answer: fleet_pb2.GetFleetResponse, field: str) -> int:
    return sum(getattr(sample, field) for sample in answer.samples)


def counts(message: Any, *fields: str) -> tuple[int, ...]:
    return tuple(getattr(message, field) for field in fields)


async def test_a_sample_says_what_happened_in_its_interval_and_what_was_the_case_at_its_end(
    site: Site,
) -> None:
    refs = [activity("a"), activity("b")]
    await site.beat("dies", lease_ms=3_000, session_id="s", bound_activities=refs)
    await site.batch(heartbeat("lives"), heartbeat("leaves"))
    await site.advance(INTERVAL_MS)
    await site.shut_down("leaves")
    await site.advance(INTERVAL_MS)
    assert (await site.beat("dies", session_id="s")).outcome == RESURRECTED
    await site.advance(INTERVAL_MS)
    answer = await fleet(site)
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
    assert answer.time.ToMilliseconds() == site.clock.wall_ms()
    assert counts(answer, "nodes", "shards", "serving_shards") == (1, SHARDS, SHARDS)
    assert not answer.alerts


async def test_refused_heartbeats_are_counted_in_calls_and_in_batches(site: Site) -> None:
    await site.beat("w", session_id="old", sequence=1)
    await site.beat("w", session_id="new", sequence=1)
    await refusal(site.beat("w", session_id="old", sequence=2))
    items = await site.batch(heartbeat("w", session_id="old", sequence=3), heartbeat("v"), heartbeat(""))
    assert [item.HasField("status") for item in items] == [True, False, True]
    answer = await fleet(site)
    assert total(answer, "heartbeats") == 6
    assert total(answer, "refused_heartbeats") == 3
    tally = site.server.telemetry.tallies.of(NAMESPACE)
    assert tally.refused == {"SESSION_SUPERSEDED": 2, "INVALID_FIELD": 1}
    assert tally.replacements == 1


async def test_a_namespace_sees_nothing_of_others(site: Site) -> None:
    await site.configure(namespace="", storm_hold_ms=0)  # they are to die when their leases are over
    await site.beat("w", namespace="mine", lease_ms=60_000)
    for number in range(30):
        await site.beat(f"w{number}", namespace="theirs", lease_ms=1_000, bound_activities=[activity("x")])
    await site.advance(INTERVAL_MS)
    whole = await fleet(site)
    assert [found.namespace for found in whole.namespaces] == ["mine", "theirs"]
    assert [(alert.kind, alert.namespace) for alert in whole.alerts] == [(STORM, "theirs")]
    mine = await fleet(site, "mine")
    assert [counts(found, "active", "inactive", "deaths") for found in mine.namespaces] == [(1, 0, 0)]
    assert not mine.alerts
    assert not mine.queues
    for field in ("registrations", "heartbeats"):
        assert (total(mine, field), total(whole, field)) == (1, 31)
    for field in ("expiries", "reschedules"):
        assert (total(mine, field), total(whole, field)) == (0, 30)
    assert {sample.inactive for sample in mine.samples} == {0}
    unknown = await fleet(site, "unknown")
    assert [found.namespace for found in unknown.namespaces] == ["unknown"]
    assert not unknown.samples


async def test_a_storm_is_announced_and_passes(site: Site) -> None:
    """Where nothing brakes it; see `test_storm` for the brake."""
    await site.configure(storm_hold_ms=0)
    await site.batch(*(heartbeat(f"w{number}", lease_ms=60_000) for number in range(100)))
    await site.batch(*(heartbeat(f"dies{number}", lease_ms=1_000) for number in range(19)))
    await site.advance(INTERVAL_MS)
    assert not (await fleet(site)).alerts, "few, and a small part"
    await site.batch(*(heartbeat(f"dies{number}", lease_ms=1_000) for number in range(50, 100)))
    await site.batch(*(heartbeat(f"w{number}") for number in range(100)))
    await site.advance(INTERVAL_MS)
    answer = await fleet(site)
    [alert] = answer.alerts
    assert (alert.kind, alert.namespace, alert.count) == (STORM, NAMESPACE, 69)
    assert "69 workers of orders died within 60 s and 100 are left" in alert.message
    [found] = answer.namespaces
    assert counts(found, "active", "inactive", "deaths", "deaths_last_minute") == (100, 69, 69, 69)
    for _ in range(4):
        await site.batch(*(heartbeat(f"w{number}") for number in range(100)))
        await site.advance(16_000)
    answer = await fleet(site)
    assert not answer.alerts
    assert counts(answer.namespaces[0], "deaths", "deaths_last_minute") == (69, 0)


async def test_a_death_that_was_none_counts_as_false(site: Site) -> None:
    for worker in ("back", "gone"):
        await site.beat(worker, session_id=f"session-{worker}", lease_ms=1_000)
    await site.advance(INTERVAL_MS)
    await site.beat("back", session_id="session-back")
    await site.beat("gone", session_id="another")
    [found] = (await fleet(site)).namespaces
    assert counts(found, "deaths", "false_deaths") == (2, 1)
    assert site.server.telemetry.tallies.of(NAMESPACE).false_deaths == 1


async def test_what_waits_in_queues_is_shown_per_shard_with_its_age_and_dead_letters_raise_an_alert(
    place: Site,
) -> None:
    site = await place.start(takeover_grace_ms=0, sink=Broken(), task_attempts_max=2)
    refs = [activity(f"a{number}") for number in range(20)]
    await site.beat("dies", lease_ms=1_000, bound_activities=refs)
    await site.advance(1_250)
    answer = await fleet(site)
    assert sum(queue.retrying for queue in answer.queues) == 20
    assert answer.samples[-1].queue_depth == 20
    assert [queue.shard_id for queue in answer.queues] == sorted({queue.shard_id for queue in answer.queues})
    assert not answer.alerts
    await site.beat("later", namespace="other", lease_ms=1_000, bound_activities=[activity("b")])
    await site.advance(1_500)
    answer = await fleet(site)
    assert {queue.oldest.ToMilliseconds() for queue in answer.queues if queue.retrying > 1} <= {1_500}
    await site.advance(3_000)
    answer = await fleet(site)
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
    other = await fleet(site, "other")
    assert [queue.dead_lettered for queue in other.queues] == [1]
    outcomes = site.server.telemetry.tallies.of(NAMESPACE).outcomes
    assert outcomes == {("RETRYING", "sink"): 20, ("DEAD_LETTERED", "sink"): 20}


async def test_queues_are_read_without_looking_at_what_is_done(sqlite_site: Site) -> None:
    """However many are finished."""

    def plan(connection: Any) -> str:
        return "\n".join(
            str(row)
            for query in counting.queries([1, 2])
            for row in connection.exec_driver_sql(
                "EXPLAIN QUERY PLAN " + str(query.compile(connection, compile_kwargs={"literal_binds": True}))
            )
        )

    shown = await sqlite_site.server.store._database.read(plan)
    assert "USING INDEX tasks_due" in shown
    assert "USING INDEX tasks_dead" in shown


async def test_quarantined_activities_are_counted_and_announced_until_somebody_retries_them(
    site: Site,
) -> None:
    work = Work(site)
    await work.schedule("poison")
    for number in range(3):
        await work.beat(f"w{number}", lease_ms=1_000)
        await work.take(f"w{number}")
        await site.advance(1_500)
    answer = await fleet(site)
    assert [(alert.kind, alert.count) for alert in answer.alerts] == [(QUARANTINE, 1)]
    assert "1 activity of orders" in answer.alerts[0].message
    assert answer.namespaces[0].quarantined_activities == 1
    await site.restart()
    assert (await fleet(site)).namespaces[0].quarantined_activities == 1
    await work.retry("poison")
    assert not (await fleet(site)).alerts


async def test_reschedules_that_reach_matching_are_done_with_the_time_they_took(site: Site) -> None:
    await site.beat("dies", lease_ms=1_000, bound_activities=[activity("a"), activity("b")])
    await site.advance(1_250)
    telemetry = site.server.telemetry
    assert telemetry.tallies.of(NAMESPACE).outcomes == {("DONE", "matching"): 2}
    assert sum(telemetry.reschedule_s.counts) == 2
    assert sum(telemetry.lateness_s.counts) == 1
    assert telemetry.lateness_s.sum == pytest.approx(0.0)


async def test_lateness_is_from_when_a_lease_was_over_to_when_its_end_was_durable(site: Site) -> None:
    await site.beat("dies", lease_ms=1_000)
    await site.advance(750)
    site.clock.move(250 + 400)  # 400 ms later than the timer should have fired
    site.server.node._last_pulse_ms = site.clock.monotonic_ms()  # not for having stood still
    site.server.node.pulse()
    await site.server.node.barrier().wait()
    assert site.server.telemetry.lateness_s.sum == pytest.approx(0.4)


async def test_a_server_that_stood_still_says_so_for_a_minute(site: Site) -> None:
    site.clock.move(3_200)
    site.server.node.pulse()
    [alert] = (await fleet(site)).alerts
    assert (alert.kind, alert.count) == (STALL, 1)
    assert "stood still once" in alert.message
    assert "3.2 s" in alert.message
    assert site.server.telemetry.stalls == 1
    assert site.server.telemetry.stalled_s == pytest.approx(3.2)
    await site.advance(62_000)
    assert not (await fleet(site)).alerts


async def test_a_clock_that_is_set_back_does_not_keep_a_stall_before_everybodys_eyes(site: Site) -> None:
    site.clock.move(3_200)
    site.server.node.pulse()
    site.clock.jump_wall(-7_200_000)
    await site.advance(62_000)
    assert not (await fleet(site)).alerts


async def test_shards_that_nobody_serves_are_the_most_urgent(place: Site) -> None:
    site = await place.start(faulty=True, takeover_grace_ms=0)
    assert site.store is not None
    await site.batch(*(heartbeat(f"w{number}", lease_ms=1_000) for number in range(30)))
    await site.advance(1_250)
    site.store.take_over_faults = 1
    site.store.faults.append(Fault.REJECTED)
    await refusal(site.beat("lost", lease_ms=60_000))
    answer = await fleet(site)
    assert [alert.kind for alert in answer.alerts] == [UNSERVED_SHARDS, STORM]
    assert answer.serving_shards < answer.shards
    assert answer.alerts[0].count == answer.shards - answer.serving_shards
    assert site.server.telemetry.shards_closed["lost"] == answer.alerts[0].count


async def test_a_paused_namespace_is_shown_as_such(site: Site) -> None:
    await site.beat("w")
    await site.beat("w", namespace="other")
    await Work(site).pause(all=True)
    found = {found.namespace: found.paused for found in (await fleet(site)).namespaces}
    assert found == {NAMESPACE: True, "other": False}


async def test_the_range_limits_how_far_back_samples_go(site: Site) -> None:
    await site.advance(20_000)
    assert len((await fleet(site)).samples) == 10
    assert len((await fleet(site, range=duration(6_000))).samples) == 3
    assert len((await fleet(site, range=duration(86_400_000))).samples) == 10


@pytest.mark.parametrize(
    "wrong", [Duration(seconds=-1), Duration(nanos=-1), Duration(), Duration(nanos=2**31 - 1)]
)
async def test_a_range_that_makes_no_sense_is_refused(sqlite_site: Site, wrong: Duration) -> None:
    refused = await refusal(fleet(sqlite_site, range=wrong))
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
    assert [field for field, _ in refused.violations] == ["range"]


async def test_half_an_hour_is_kept(sqlite_site: Site) -> None:
    server = sqlite_site.server
    for _ in range(SLOTS + 10):
        sqlite_site.clock.move(INTERVAL_MS)
        server.telemetry.take_sample()
    answer = await fleet(sqlite_site)
    assert len(answer.samples) == SLOTS
    assert answer.samples[-1].time.ToMilliseconds() == sqlite_site.clock.wall_ms()


async def test_a_wall_clock_that_is_set_back_costs_no_count(sqlite_site: Site) -> None:
    await sqlite_site.beat("v")
    await sqlite_site.advance(4_000)
    sqlite_site.clock.jump_wall(-4_000)
    await sqlite_site.beat("w")
    await sqlite_site.advance(6_000)
    assert total(await fleet(sqlite_site), "registrations") == 2


async def test_after_a_restart_workers_are_counted_as_they_are(site: Site) -> None:
    await site.batch(*(heartbeat(f"w{number}", lease_ms=60_000) for number in range(10)))
    await site.shut_down("w0")
    await site.restart()
    [found] = (await fleet(site)).namespaces
    assert counts(found, "active", "inactive", "cleaned_up") == (9, 1, 0)
    assert (await fleet(site, NAMESPACE)).samples[-1].active == 9


async def test_suspects_are_counted_while_their_grace_runs(sqlite_site: Site) -> None:
    await sqlite_site.beat("w", session_id="s", lease_ms=60_000)
    shard = sqlite_site.server.node.shard(NAMESPACE, "w")
    key = WorkerKey(NAMESPACE, "w")
    shard.change_worker(key, orders.attach(key, shard.describe(key), "s", 5_000))
    shard.suspect(key)
    answer = await fleet(sqlite_site)
    assert answer.namespaces[0].suspects == answer.samples[-1].suspects == 1
    await sqlite_site.beat("w", session_id="s")
    assert (await fleet(sqlite_site)).namespaces[0].suspects == 0


async def test_namespaces_beyond_the_hundredth_are_counted_but_have_no_samples(sqlite_site: Site) -> None:
    for number in range(105):
        await sqlite_site.beat("w", namespace=f"n{number:03}")
    whole = await fleet(sqlite_site)
    assert [found.active for found in whole.namespaces] == [1] * 105
    assert total(whole, "registrations") == 105
    assert total(await fleet(sqlite_site, "n000"), "registrations") == 1
    late = await fleet(sqlite_site, "n104")
    assert [found.active for found in late.namespaces] == [1]
    assert not late.samples
