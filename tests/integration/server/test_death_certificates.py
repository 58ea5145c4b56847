"""Death certificates over gRPC on each database, on a manual clock."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import pytest

from liveness.domain.commands import Deactivate
from liveness.domain.keys import WorkerKey
from liveness.domain.verdicts import VerdictCounts
from liveness.domain.worker import InactiveReason
from liveness.server import death_handlers
from liveness.v1 import activity_pb2, death_pb2, service_pb2, worker_pb2
from tests.integration.engine.engine import activity, duration
from tests.integration.server.activity_client import ActivityClient
from tests.integration.server.server_harness import NAMESPACE, ServerHarness, heartbeat, refusal
from tests.integration.server.test_attach_streams import Stream, cut

STANDS = death_pb2.VERDICT_STANDS
FALSE = death_pb2.VERDICT_FALSE
LEASE_MS = 10_000


@pytest.fixture
async def harness(stopped_harness: ServerHarness) -> ServerHarness:
    return await stopped_harness.start(takeover_grace_ms=0)


async def certificate(
    harness: ServerHarness, worker: str = "w", epoch: int = 0, namespace: str = NAMESPACE
) -> death_pb2.DeathCertificate:
    response: Any = await harness.liveness.GetDeathCertificate(
        service_pb2.GetDeathCertificateRequest(
            namespace=namespace, worker_instance_key=worker, lease_epoch=epoch
        )
    )
    return response


async def send_heartbeat(harness: ServerHarness, worker: str = "w", **fields: Any) -> int:
    """Send one heartbeat and return the wall time."""
    await harness.beat(worker, **{"session_id": "s1", "lease_ms": LEASE_MS, **fields})
    return harness.clock.wall_ms()


async def die(harness: ServerHarness, worker: str = "w", **fields: Any) -> int:
    """Send one heartbeat, let the lease expire and return the wall time of the death."""
    await send_heartbeat(harness, worker, **fields)
    await harness.advance(LEASE_MS)
    return harness.clock.wall_ms()


def moments(times: Any, start: int) -> list[int]:
    return [message.time.ToMilliseconds() - start for message in times]


# -- content


async def test_a_certificate_contains_the_state_at_the_end_of_the_lease(harness: ServerHarness) -> None:
    heard = 0
    for sequence in range(1, 4):
        await harness.advance(1_000 * sequence)
        heard = await send_heartbeat(
            harness, sequence=sequence, host_name="db-3", build_id="b7", task_queue="mail",
            bound_activities=[activity("charge")] if sequence == 1 else [],
        )  # fmt: skip
    await harness.advance(LEASE_MS)
    death = await certificate(harness)
    assert (death.namespace, death.worker_instance_key) == (NAMESPACE, "w")
    assert (death.lease_epoch, death.session_id) == (1, "s1")
    assert death.cause == worker_pb2.INACTIVE_REASON_LEASE_EXPIRED
    assert death.detail == "no heartbeat for 10000 ms of a 10000 ms lease"
    assert (death.silence, death.granted_lease_duration) == (duration(LEASE_MS), duration(LEASE_MS))
    assert death.time.ToMilliseconds() == heard + LEASE_MS
    assert death.last_heartbeat_time.ToMilliseconds() == heard
    assert moments(death.heartbeats, heard) == [-5_000, -3_000, 0]
    assert not death.heartbeats[0].HasField("gap")
    assert [beat.gap for beat in death.heartbeats[1:]] == [duration(2_000), duration(3_000)]
    assert not death.stalls
    assert (death.host_name, death.build_id, death.task_queue) == ("db-3", "b7", "mail")
    assert (death.company.same_host, death.company.same_build, death.company.same_namespace) == (0, 0, 0)
    assert (death.verdict, death.HasField("refuted_time")) == (STANDS, False)


async def test_a_death_by_disconnect_has_its_own_cause(harness: ServerHarness) -> None:
    heard = await send_heartbeat(harness)
    stream = Stream(harness)
    await stream.attach(session="s1", grace_ms=2_000)
    await stream.read()
    await cut(ActivityClient(harness), stream)
    await harness.advance(2_000)
    death = await certificate(harness)
    assert death.cause == worker_pb2.INACTIVE_REASON_DISCONNECTED
    assert death.detail.startswith("its stream broke and nothing was heard of it for 2000 ms")
    assert (death.silence, death.last_heartbeat_time.ToMilliseconds()) == (duration(2_000), heard)


async def test_a_certificate_shows_only_the_last_heartbeats_of_the_ended_lease(
    harness: ServerHarness,
) -> None:
    await die(harness, sequence=1)
    start = await send_heartbeat(harness, sequence=2)
    await harness.advance(1_000)
    await send_heartbeat(harness, sequence=3)
    await harness.advance(LEASE_MS)
    assert moments((await certificate(harness)).heartbeats, start) == [0, 1_000], (
        "without those of the previous lease"
    )
    heard = start
    for sequence in range(4, 24):
        await harness.advance(500)
        heard = await send_heartbeat(harness, sequence=sequence)
    await harness.advance(LEASE_MS)
    assert moments((await certificate(harness)).heartbeats, heard) == [
        -2_500,
        -2_000,
        -1_500,
        -1_000,
        -500,
        0,
    ]


async def test_batched_and_changing_heartbeats_are_both_recorded(harness: ServerHarness) -> None:
    start = await send_heartbeat(harness, sequence=1)
    await harness.advance(100)
    await harness.batch(
        *(heartbeat(name, session_id="s1", sequence=2, lease_ms=LEASE_MS) for name in ("w", "v"))
    )
    await harness.advance(200)
    await send_heartbeat(harness, sequence=3, bound_activities=[activity("x")])
    await harness.advance(LEASE_MS)
    assert moments((await certificate(harness)).heartbeats, start) == [0, 100, 300]


async def test_the_event_contains_the_certificate(harness: ServerHarness) -> None:
    await die(harness, host_name="db-3")
    [event] = [e for e in (await harness.history()).events if e.type == "WorkerDeactivated"]
    certificate_json = json.loads(event.data_json)["certificate"]
    assert (
        certificate_json["silence_ms"],
        certificate_json["host_name"],
        certificate_json["session_id"],
    ) == (LEASE_MS, "db-3", "s1")
    assert certificate_json["heartbeats"] == [harness.clock.wall_ms() - LEASE_MS]


# -- stalls of the server


async def test_a_certificate_contains_a_stall_after_the_last_heartbeat(
    harness: ServerHarness,
) -> None:
    heard = await send_heartbeat(harness)
    await harness.advance(1_000)
    harness.clock.move(60_000)
    harness.server.node.tick()
    await harness.server.node.barrier().wait()
    await harness.advance(LEASE_MS)
    death = await certificate(harness)
    assert death.last_heartbeat_time.ToMilliseconds() == heard
    assert moments(death.stalls, heard) == [1_000]
    assert [(stall.duration, stall.take_over) for stall in death.stalls] == [(duration(60_000), False)]
    assert death.time.ToMilliseconds() - heard > 60_000 + LEASE_MS - 2_000
    assert death.silence.ToMilliseconds() < LEASE_MS + 1_000, (
        "time of a stalled server does not count as silence"
    )


async def test_a_heartbeat_after_a_stall_has_the_time_of_its_arrival(harness: ServerHarness) -> None:
    first = await send_heartbeat(harness, sequence=1)
    await harness.advance(1_000)
    harness.clock.move(60_000)
    harness.server.node.tick()
    last = await send_heartbeat(harness, sequence=2)
    await harness.advance(LEASE_MS)
    death = await certificate(harness)
    assert moments(death.heartbeats, first) == [0, 61_000]
    assert death.heartbeats[1].gap == duration(61_000)
    assert (death.last_heartbeat_time.ToMilliseconds(), len(death.stalls)) == (last, 0)
    assert death.time.ToMilliseconds() == last + LEASE_MS


async def test_a_certificate_contains_hanging_commits_as_stalls(stopped_harness: ServerHarness) -> None:
    harness = await stopped_harness.start(takeover_grace_ms=0, faulty=True)
    assert harness.store is not None
    heard = await send_heartbeat(harness)
    await harness.advance(1_000)
    harness.store.close_gate()
    hanging = asyncio.create_task(send_heartbeat(harness, "other"))
    await harness.store.reached.wait()
    for _ in range(30):
        harness.clock.move(100)
        harness.server.node.tick()
    harness.store.open_gate()
    await hanging
    await harness.advance(LEASE_MS)
    [stall] = (await certificate(harness)).stalls
    assert stall.time.ToMilliseconds() - heard == 1_000
    assert stall.duration == duration(3_000)


async def test_short_stalls_and_stalls_before_the_last_heartbeat_are_omitted(
    harness: ServerHarness,
) -> None:
    await send_heartbeat(harness, sequence=1)
    harness.clock.move(5_000)
    harness.server.node.tick()
    await send_heartbeat(harness, sequence=2)
    await harness.advance(500)
    harness.clock.move(400)
    harness.server.node.tick()
    await harness.advance(LEASE_MS)
    assert not (await certificate(harness)).stalls


async def test_a_certificate_contains_a_take_over_during_the_silence(harness: ServerHarness) -> None:
    heard = await send_heartbeat(harness, host_name="db-3")
    await harness.advance(2_000)
    await harness.restart()
    await harness.advance(LEASE_MS)
    death = await certificate(harness)
    assert [(stall.take_over, stall.HasField("duration")) for stall in death.stalls] == [(True, False)]
    assert moments(death.stalls, heard) == [2_000]
    assert moments(death.heartbeats, heard) == [0], "the new owner has seen no other heartbeat"
    assert death.silence == duration(LEASE_MS)


# -- concurrent deaths


async def test_simultaneous_deaths_are_counted_even_after_a_restart(harness: ServerHarness) -> None:
    await harness.configure(storm_hold_ms=0)  # otherwise a storm would hold the expiries and spread them
    for n in range(20):
        await send_heartbeat(harness, f"w{n}", host_name=f"db-{n % 2}", build_id="b7" if n < 5 else "b8")
    await send_heartbeat(harness, "w1", namespace="billing", host_name="db-1", build_id="b7")
    await harness.advance(LEASE_MS)
    for _ in range(2):
        found = [(await certificate(harness, f"w{n}")).company for n in (0, 1, 19)]
        assert [(c.same_host, c.same_build, c.same_namespace) for c in found] == [
            (9, 4, 19),
            (9, 4, 19),
            (9, 14, 19),
        ]
        await harness.restart()
    assert (await certificate(harness, "w1", namespace="billing")).company.same_host == 0


async def test_deaths_within_a_minute_after_it_are_added_when_the_certificate_is_read(
    harness: ServerHarness,
) -> None:
    for n in range(4):
        await send_heartbeat(harness, f"w{n}", host_name="db-3")
        await harness.advance(25_000)
    for _ in range(2):
        found = [(await certificate(harness, f"w{n}")).company.same_host for n in range(4)]
        assert found == [2, 3, 3, 2]
        await harness.restart()


async def test_who_died_with_a_worker_stays_the_same_when_they_return_and_die_again(
    harness: ServerHarness,
) -> None:
    await harness.configure(storm_hold_ms=0)
    workers = [f"w{n}" for n in range(24)]

    async def all_die(sequence: int, names: list[str]) -> None:
        for name in names:
            await send_heartbeat(harness, name, sequence=sequence, host_name="db-3", build_id="b7")
        await harness.advance(LEASE_MS + 60_001)  # the minute after it is over

    await send_heartbeat(harness, "w0", sequence=1, host_name="db-3", build_id="b7")
    await harness.advance(20_000)  # it dies first and cannot know of the others
    await all_die(1, workers[1:])
    settled = (await certificate(harness, "w0", epoch=1)).company
    assert (settled.same_host, settled.same_build, settled.same_namespace) == (23, 23, 23)
    await all_die(2, workers[1:7])
    await harness.server.maintenance.checkpoint()
    for _ in range(2):
        assert (await certificate(harness, "w0", epoch=1)).company == settled
        assert (await certificate(harness, "w1", epoch=1)).company == settled
        assert (await certificate(harness, "w1", epoch=2)).company.same_host == 5
        await harness.restart()


async def test_deaths_are_kept_for_as_long_as_a_certificate_may_count_them(harness: ServerHarness) -> None:
    await harness.configure(event_retention_ms=1_000_000)
    await die(harness, "early")
    await harness.advance(40_000)
    death = await die(harness, "late")
    company = (await certificate(harness, "late")).company
    assert company.same_namespace == 1
    harness.clock.move(death + 1_000_000 - harness.clock.wall_ms())
    harness.server.node.tick()
    await harness.server.maintenance.checkpoint()
    await harness.server.maintenance.apply_retention()
    assert (await certificate(harness, "late")).company == company, (
        "the other death is older than its retention"
    )
    assert (await refusal(certificate(harness, "early"))).reason == "DEATH_NOT_FOUND"
    harness.clock.move(15_000)
    harness.server.node.tick()
    await harness.server.maintenance.apply_retention()
    rows = (await harness.dump())["deaths"]
    assert [row[1] for row in rows] == [death], "the earlier one is of no use any more"


async def test_repeated_deaths_of_one_worker_are_not_concurrent_deaths(harness: ServerHarness) -> None:
    await die(harness, sequence=1, host_name="db-3")
    await die(harness, sequence=2, host_name="db-3")
    assert (await certificate(harness)).company.same_host == 0
    assert harness.server.node.recent_deaths.count_last_minute(NAMESPACE) == 1


async def test_a_shut_down_worker_is_not_a_concurrent_death(harness: ServerHarness) -> None:
    await send_heartbeat(harness, host_name="db-3")
    await send_heartbeat(harness, "v", host_name="db-3")
    await harness.shut_down("v")
    await harness.advance(LEASE_MS)
    assert (await certificate(harness)).company.same_host == 0


# -- the current state of its activities


async def test_a_certificate_shows_the_current_state_of_the_activities(harness: ServerHarness) -> None:
    activity_client = ActivityClient(harness)
    await activity_client.schedule("managed")
    await send_heartbeat(
        harness, sequence=1, task_queue="queue", bound_activities=[activity("own", attempt=3)]
    )
    [task] = await activity_client.poll("w")
    assert task.id.activity_id == "managed"
    await send_heartbeat(harness, sequence=2, bound_activities=[activity("managed"), activity("done")])
    await send_heartbeat(harness, sequence=3, unbound_activities=[activity("done")])
    await harness.advance(LEASE_MS - 1_000)
    await send_heartbeat(harness, "v", task_queue="queue")
    await harness.advance(1_000)
    taken = (await activity_client.take("v")).id.activity_id
    death = await certificate(harness)
    assert death.activity_count == 2
    now = {moved.activity.activity_id: moved for moved in death.activities}
    assert now.keys() == {"own", "managed"}
    assert (now["own"].activity.attempt, now["managed"].activity.attempt) == (3, 1)
    assert (now[taken].state, now[taken].worker_instance_key) == (activity_pb2.ACTIVITY_STATE_STARTED, "v")
    [other] = now.keys() - {taken}
    assert (now[other].state, now[other].worker_instance_key) == (activity_pb2.ACTIVITY_STATE_AVAILABLE, "")
    assert (now["own"].attempt, now["managed"].attempt) == (4, 2)


async def test_a_certificate_lists_a_hundred_activities_and_counts_all(
    harness: ServerHarness,
) -> None:
    for batch in range(3):
        names = [f"a{batch}-{n}" for n in range(60)]
        await send_heartbeat(harness, sequence=batch + 1, bound_activities=[activity(name) for name in names])
    await send_heartbeat(harness, sequence=4, unbound_activities=[activity(f"a2-{n}") for n in range(40)])
    await harness.advance(LEASE_MS)
    death = await certificate(harness)
    shown = {moved.activity.activity_id for moved in death.activities}
    assert (death.activity_count, len(death.activities), len(shown)) == (140, 100, 100)
    assert not shown & {f"a2-{n}" for n in range(40)}


async def test_a_certificate_names_activities_that_were_deleted(harness: ServerHarness) -> None:
    await harness.configure(activity_retention_ms=1_000)
    activity_client = ActivityClient(harness)
    await activity_client.schedule("managed")
    await send_heartbeat(harness, task_queue="queue")
    await activity_client.poll("w")
    await harness.advance(LEASE_MS)
    await harness.activities.CancelActivity(
        activity_pb2.CancelActivityRequest(
            namespace=NAMESPACE,
            id=activity_pb2.ActivityId(workflow_id="workflow-managed", run_id="run", activity_id="managed"),
        )
    )
    [moved] = (await certificate(harness)).activities
    assert moved.state == activity_pb2.ACTIVITY_STATE_CANCELLED
    await harness.advance(2_000)
    await harness.server.maintenance.checkpoint()
    await harness.server.maintenance.apply_retention()
    [moved] = (await certificate(harness)).activities
    assert moved.activity.activity_id == "managed"
    assert (moved.state, moved.attempt, moved.worker_instance_key) == (0, 0, "")


async def test_a_certificate_names_an_activity_whose_binding_event_was_deleted(
    harness: ServerHarness,
) -> None:
    """The worker took the activity up days before it died."""
    await send_heartbeat(harness)
    await send_heartbeat(harness, bound_activities=[activity("a"), activity("b")])
    await harness.server.maintenance.checkpoint()
    harness.clock.jump_wall(3 * 86_400_000)
    await harness.server.maintenance.apply_retention()
    assert [event.type for event in (await harness.history()).events] == ["WorkerRegistered"]
    await send_heartbeat(harness, bound_activities=[activity("c")])
    await harness.advance(LEASE_MS)
    known = await certificate(harness)
    assert known.activity_count == 3
    assert sorted(each.activity.activity_id for each in known.activities) == ["a", "b", "c"]
    await harness.restart()
    assert len((await certificate(harness)).activities) == 3


async def test_bindings_of_a_death_are_collected_over_several_pages_of_history(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(death_handlers, "PAGE", 3)
    await send_heartbeat(harness, sequence=1, bound_activities=[activity("first")])
    for n in range(10):
        await send_heartbeat(harness, sequence=n + 2, bound_activities=[activity(f"a{n}")])
    await harness.advance(LEASE_MS)
    death = await certificate(harness)
    assert [moved.activity.activity_id for moved in death.activities] == [
        "first",
        *(f"a{n}" for n in range(10)),
    ]


# -- refuted deaths


async def test_the_return_of_the_same_session_makes_the_verdict_false(harness: ServerHarness) -> None:
    died = await die(harness, sequence=1)
    assert (await certificate(harness)).verdict == STANDS
    await harness.advance(3_000)
    await send_heartbeat(harness, sequence=2)
    death = await certificate(harness)
    assert (death.verdict, death.lease_epoch) == (FALSE, 1)
    assert death.refuted_time.ToMilliseconds() == died + 3_000
    assert await harness.server.store.verdicts() == {NAMESPACE: VerdictCounts(deaths=1, refuted=1)}


async def test_a_new_session_lets_the_verdict_stand(harness: ServerHarness) -> None:
    await die(harness, sequence=1)
    await send_heartbeat(harness, session_id="s2", sequence=1)
    assert (await certificate(harness)).verdict == STANDS
    assert await harness.server.store.verdicts() == {NAMESPACE: VerdictCounts(deaths=1, refuted=0)}


async def test_a_client_without_a_session_lets_the_verdict_stand(harness: ServerHarness) -> None:
    await die(harness, session_id="")
    await send_heartbeat(harness, session_id="")
    assert (await certificate(harness)).verdict == STANDS


async def test_each_of_several_deaths_is_found_by_its_epoch(harness: ServerHarness) -> None:
    first = await die(harness, sequence=1)
    second = await die(harness, sequence=2)
    await send_heartbeat(harness, session_id="s2", sequence=1)
    await harness.shut_down()
    await send_heartbeat(harness, session_id="s2", sequence=2)
    found = [await certificate(harness, epoch=epoch) for epoch in (1, 2, 0)]
    assert [death.lease_epoch for death in found] == [1, 2, 2]
    assert [death.verdict for death in found] == [FALSE, STANDS, STANDS]
    assert [death.time.ToMilliseconds() for death in found] == [first, second, second]
    not_so = await refusal(certificate(harness, epoch=3))
    assert (not_so.code, not_so.reason) == (grpc.StatusCode.NOT_FOUND, "DEATH_NOT_FOUND")
    assert not_so.message == (
        "Worker w has not died in lease epoch 3, as far as its history is kept; it is ACTIVE."
    )
    assert await harness.server.store.verdicts() == {NAMESPACE: VerdictCounts(deaths=2, refuted=1)}


async def test_a_verdict_outlives_restart_cleanup_and_the_tombstone(harness: ServerHarness) -> None:
    await harness.configure(cleanup_delay_ms=1_000, tombstone_retention_ms=1_000)
    await die(harness, sequence=1, host_name="db-3")
    await die(harness, sequence=2, host_name="db-3")
    await harness.restart()
    await harness.advance(3_000)
    await harness.server.maintenance.apply_retention()
    await harness.advance(1)
    assert (await refusal(harness.describe())).reason == "WORKER_NOT_FOUND"
    assert (await certificate(harness, epoch=1)).verdict == FALSE
    assert (await certificate(harness)).host_name == "db-3"
    assert await harness.server.store.verdicts() == {NAMESPACE: VerdictCounts(deaths=2, refuted=1)}
    await send_heartbeat(harness, session_id="s1", sequence=9)
    assert (await certificate(harness, epoch=2)).verdict == STANDS, (
        "a new registration of the key does not refute an old death"
    )


async def test_verdicts_are_counted_per_namespace(harness: ServerHarness) -> None:
    await send_heartbeat(harness, sequence=1)
    await die(harness, sequence=1, namespace="billing")
    await send_heartbeat(harness, sequence=2, namespace="billing")
    assert await harness.server.store.verdicts() == {
        NAMESPACE: VerdictCounts(deaths=1, refuted=0),
        "billing": VerdictCounts(deaths=1, refuted=1),
    }
    assert (await certificate(harness)).verdict == STANDS


# -- workers without a certificate


async def test_a_worker_that_has_not_died_has_no_certificate(harness: ServerHarness) -> None:
    await send_heartbeat(harness)
    alive = await refusal(certificate(harness))
    assert (alive.code, alive.reason) == (grpc.StatusCode.NOT_FOUND, "DEATH_NOT_FOUND")
    assert alive.message == "Worker w has not died, as far as its history is kept; it is ACTIVE."
    await harness.shut_down()
    gone = await refusal(certificate(harness))
    assert gone.message == "Worker w has not died, as far as its history is kept; it is INACTIVE."
    assert (gone.fields["state"], gone.fields["worker"]) == ("INACTIVE", "w")


async def test_an_unknown_worker_has_no_certificate(harness: ServerHarness) -> None:
    await die(harness, namespace="billing")
    unknown = await refusal(certificate(harness))
    assert (unknown.code, unknown.reason) == (grpc.StatusCode.NOT_FOUND, "WORKER_NOT_FOUND")
    assert (await refusal(certificate(harness, ""))).reason == "INVALID_FIELD"


# -- deaths written before certificates existed


async def die_uncertified(harness: ServerHarness, reason: InactiveReason, detail: str) -> None:
    key = WorkerKey(NAMESPACE, "w")
    shard = harness.server.node.shard(*key)
    shard.deactivate(key, Deactivate(reason, detail, harness.server.node.policies.of(NAMESPACE)))
    await harness.server.node.wait_durable(shard)


async def test_the_certificate_of_an_old_death_is_reconstructed_as_far_as_possible(
    harness: ServerHarness,
) -> None:
    heard = await send_heartbeat(
        harness, sequence=1, host_name="db-3", bound_activities=[activity("x"), activity("y")]
    )
    await send_heartbeat(harness, sequence=2, host_name="db-3", unbound_activities=[activity("y")])
    await harness.advance(5_000)
    await die_uncertified(harness, InactiveReason.DISCONNECTED, "its stream broke")
    death = await certificate(harness)
    assert (death.lease_epoch, death.session_id, death.host_name) == (1, "s1", "db-3")
    assert (death.silence, death.granted_lease_duration) == (duration(5_000), duration(LEASE_MS))
    assert death.last_heartbeat_time.ToMilliseconds() == heard
    assert (death.activity_count, len(death.activities), len(death.heartbeats)) == (1, 1, 0)
    await send_heartbeat(harness, sequence=3)
    death = await certificate(harness, epoch=1)
    assert (death.verdict, death.session_id, death.activity_count) == (FALSE, "s1", 1)
    assert not death.HasField("silence"), "the state of the worker has changed, and the detail lacks it"
    assert not death.HasField("last_heartbeat_time")
    assert (await refusal(certificate(harness, epoch=2))).reason == "DEATH_NOT_FOUND"


async def test_an_old_death_between_others_is_found_by_its_epoch(harness: ServerHarness) -> None:
    await die(harness, sequence=1)
    await send_heartbeat(harness, sequence=2)
    detail = "no heartbeat for 10007 ms of a 10000 ms lease"
    await die_uncertified(harness, InactiveReason.LEASE_EXPIRED, detail)
    await die(harness, sequence=3)
    found = [await certificate(harness, epoch=epoch) for epoch in (1, 2, 3)]
    assert [death.lease_epoch for death in found] == [1, 2, 3]
    assert [len(death.heartbeats) for death in found] == [1, 0, 1]
    assert found[1].silence == duration(10_007)
    assert [death.verdict for death in found] == [FALSE, FALSE, STANDS]
