"""Why a worker died, over gRPC, on each database, driven by the clock."""

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


async def live(harness: ServerHarness, worker: str = "w", **fields: Any) -> int:
    """One heartbeat; returns the wall time."""
    await harness.beat(worker, **{"session_id": "s1", "lease_ms": LEASE_MS, **fields})
    return harness.clock.wall_ms()


async def die(harness: ServerHarness, worker: str = "w", **fields: Any) -> int:
    """One heartbeat and a whole lease of silence; returns the wall time of the death."""
    await live(harness, worker, **fields)
    await harness.advance(LEASE_MS)
    return harness.clock.wall_ms()


def moments(times: Any, start: int) -> list[int]:
    return [message.time.ToMilliseconds() - start for message in times]


# -- what it says


async def test_a_certificate_says_what_was_known_when_the_lease_ended(harness: ServerHarness) -> None:
    heard = 0
    for sequence in range(1, 4):
        await harness.advance(1_000 * sequence)
        heard = await live(
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


async def test_who_dies_of_a_broken_stream_is_told_apart(harness: ServerHarness) -> None:
    heard = await live(harness)
    stream = Stream(harness)
    await stream.attach(session="s1", grace_ms=2_000)
    await stream.read()
    await cut(ActivityClient(harness), stream)
    await harness.advance(2_000)
    death = await certificate(harness)
    assert death.cause == worker_pb2.INACTIVE_REASON_DISCONNECTED
    assert death.detail.startswith("its stream broke and nothing was heard of it for 2000 ms")
    assert (death.silence, death.last_heartbeat_time.ToMilliseconds()) == (duration(2_000), heard)


async def test_only_the_last_heartbeats_of_the_lease_that_ended_are_shown(harness: ServerHarness) -> None:
    await die(harness, sequence=1)
    start = await live(harness, sequence=2)
    await harness.advance(1_000)
    await live(harness, sequence=3)
    await harness.advance(LEASE_MS)
    assert moments((await certificate(harness)).heartbeats, start) == [0, 1_000], (
        "not those of the lease before"
    )
    heard = start
    for sequence in range(4, 24):
        await harness.advance(500)
        heard = await live(harness, sequence=sequence)
    await harness.advance(LEASE_MS)
    assert moments((await certificate(harness)).heartbeats, heard) == [
        -2_500,
        -2_000,
        -1_500,
        -1_000,
        -500,
        0,
    ]


async def test_a_heartbeat_in_a_batch_and_one_with_news_count_alike(harness: ServerHarness) -> None:
    start = await live(harness, sequence=1)
    await harness.advance(100)
    await harness.batch(
        *(heartbeat(name, session_id="s1", sequence=2, lease_ms=LEASE_MS) for name in ("w", "v"))
    )
    await harness.advance(200)
    await live(harness, sequence=3, bound_activities=[activity("x")])
    await harness.advance(LEASE_MS)
    assert moments((await certificate(harness)).heartbeats, start) == [0, 100, 300]


async def test_the_event_holds_it_too(harness: ServerHarness) -> None:
    await die(harness, host_name="db-3")
    [event] = [e for e in (await harness.history()).events if e.type == "WorkerDeactivated"]
    told = json.loads(event.data_json)["certificate"]
    assert (told["silence_ms"], told["host_name"], told["session_id"]) == (LEASE_MS, "db-3", "s1")
    assert told["heartbeats"] == [harness.clock.wall_ms() - LEASE_MS]


# -- what the server was doing


async def test_a_server_that_stood_still_says_so_and_places_the_last_heartbeat_before_it(
    harness: ServerHarness,
) -> None:
    heard = await live(harness)
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
    assert death.silence.ToMilliseconds() < LEASE_MS + 1_000, "what nobody could hear does not count"


async def test_a_heartbeat_after_a_stall_is_told_by_the_time_at_which_it_came(harness: ServerHarness) -> None:
    first = await live(harness, sequence=1)
    await harness.advance(1_000)
    harness.clock.move(60_000)
    harness.server.node.tick()
    last = await live(harness, sequence=2)
    await harness.advance(LEASE_MS)
    death = await certificate(harness)
    assert moments(death.heartbeats, first) == [0, 61_000]
    assert death.heartbeats[1].gap == duration(61_000)
    assert (death.last_heartbeat_time.ToMilliseconds(), len(death.stalls)) == (last, 0)
    assert death.time.ToMilliseconds() == last + LEASE_MS


async def test_commits_that_hung_are_told(stopped_harness: ServerHarness) -> None:
    harness = await stopped_harness.start(takeover_grace_ms=0, faulty=True)
    assert harness.store is not None
    heard = await live(harness)
    await harness.advance(1_000)
    harness.store.close_gate()
    hanging = asyncio.create_task(live(harness, "other"))
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


async def test_a_stall_before_the_last_heartbeat_or_a_short_one_is_not_mentioned(
    harness: ServerHarness,
) -> None:
    await live(harness, sequence=1)
    harness.clock.move(5_000)
    harness.server.node.tick()
    await live(harness, sequence=2)
    await harness.advance(500)
    harness.clock.move(400)
    harness.server.node.tick()
    await harness.advance(LEASE_MS)
    assert not (await certificate(harness)).stalls


async def test_a_take_over_in_the_silence_is_told(harness: ServerHarness) -> None:
    heard = await live(harness, host_name="db-3")
    await harness.advance(2_000)
    await harness.restart()
    await harness.advance(LEASE_MS)
    death = await certificate(harness)
    assert [(stall.take_over, stall.HasField("duration")) for stall in death.stalls] == [(True, False)]
    assert moments(death.stalls, heard) == [2_000]
    assert moments(death.heartbeats, heard) == [0], "the server has seen no other itself"
    assert death.silence == duration(LEASE_MS)


# -- who died with it


async def test_those_who_die_at_once_know_of_each_other_even_after_a_restart(harness: ServerHarness) -> None:
    await harness.configure(storm_hold_ms=0)  # so many would be held, and then end in several pulses
    for n in range(20):
        await live(harness, f"w{n}", host_name=f"db-{n % 2}", build_id="b7" if n < 5 else "b8")
    await live(harness, "w1", namespace="billing", host_name="db-1", build_id="b7")
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


async def test_those_who_die_within_a_minute_after_it_are_counted_when_asked(harness: ServerHarness) -> None:
    for n in range(4):
        await live(harness, f"w{n}", host_name="db-3")
        await harness.advance(25_000)
    found = [(await certificate(harness, f"w{n}")).company.same_host for n in range(4)]
    assert found == [2, 3, 3, 2]
    await harness.restart()
    found = [(await certificate(harness, f"w{n}")).company.same_host for n in range(4)]
    assert found == [0, 1, 2, 2], "at least those that were known then"


async def test_who_dies_again_is_no_company_to_itself(harness: ServerHarness) -> None:
    await die(harness, sequence=1, host_name="db-3")
    await die(harness, sequence=2, host_name="db-3")
    assert (await certificate(harness)).company.same_host == 0
    assert harness.server.node.recent_deaths.count_last_minute(NAMESPACE) == 1


async def test_who_leaves_in_order_is_no_company(harness: ServerHarness) -> None:
    await live(harness, host_name="db-3")
    await live(harness, "v", host_name="db-3")
    await harness.shut_down("v")
    await harness.advance(LEASE_MS)
    assert (await certificate(harness)).company.same_host == 0


# -- where its activities are


async def test_it_shows_where_the_activities_are_now(harness: ServerHarness) -> None:
    activity_client = ActivityClient(harness)
    await activity_client.schedule("managed")
    await live(harness, sequence=1, task_queue="queue", bound_activities=[activity("own", attempt=3)])
    [task] = await activity_client.poll("w")
    assert task.id.activity_id == "managed"
    await live(harness, sequence=2, bound_activities=[activity("managed"), activity("done")])
    await live(harness, sequence=3, unbound_activities=[activity("done")])
    await harness.advance(LEASE_MS - 1_000)
    await live(harness, "v", task_queue="queue")
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


async def test_of_very_many_activities_a_hundred_are_shown_and_all_are_counted(
    harness: ServerHarness,
) -> None:
    for batch in range(3):
        names = [f"a{batch}-{n}" for n in range(60)]
        await live(harness, sequence=batch + 1, bound_activities=[activity(name) for name in names])
    await live(harness, sequence=4, unbound_activities=[activity(f"a2-{n}") for n in range(40)])
    await harness.advance(LEASE_MS)
    death = await certificate(harness)
    shown = {moved.activity.activity_id for moved in death.activities}
    assert (death.activity_count, len(death.activities), len(shown)) == (140, 100, 100)
    assert not shown & {f"a2-{n}" for n in range(40)}


async def test_an_activity_that_is_not_kept_any_more_is_named_all_the_same(harness: ServerHarness) -> None:
    await harness.configure(activity_retention_ms=1_000)
    activity_client = ActivityClient(harness)
    await activity_client.schedule("managed")
    await live(harness, task_queue="queue")
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


async def test_what_a_worker_held_is_found_page_by_page(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(death_handlers, "PAGE", 3)
    await live(harness, sequence=1, bound_activities=[activity("first")])
    for n in range(10):
        await live(harness, sequence=n + 2, bound_activities=[activity(f"a{n}")])
    await harness.advance(LEASE_MS)
    death = await certificate(harness)
    assert [moved.activity.activity_id for moved in death.activities] == [
        "first",
        *(f"a{n}" for n in range(10)),
    ]


# -- verdicts


async def test_the_same_session_coming_back_makes_the_verdict_false(harness: ServerHarness) -> None:
    died = await die(harness, sequence=1)
    assert (await certificate(harness)).verdict == STANDS
    await harness.advance(3_000)
    await live(harness, sequence=2)
    death = await certificate(harness)
    assert (death.verdict, death.lease_epoch) == (FALSE, 1)
    assert death.refuted_time.ToMilliseconds() == died + 3_000
    assert await harness.server.store.verdicts() == {NAMESPACE: VerdictCounts(deaths=1, refuted=1)}


async def test_a_new_session_lets_the_verdict_stand(harness: ServerHarness) -> None:
    await die(harness, sequence=1)
    await live(harness, session_id="s2", sequence=1)
    assert (await certificate(harness)).verdict == STANDS
    assert await harness.server.store.verdicts() == {NAMESPACE: VerdictCounts(deaths=1, refuted=0)}


async def test_who_has_no_session_lets_the_verdict_stand(harness: ServerHarness) -> None:
    await die(harness, session_id="")
    await live(harness, session_id="")
    assert (await certificate(harness)).verdict == STANDS


async def test_each_of_several_deaths_is_found_by_its_epoch(harness: ServerHarness) -> None:
    first = await die(harness, sequence=1)
    second = await die(harness, sequence=2)
    await live(harness, session_id="s2", sequence=1)
    await harness.shut_down()
    await live(harness, session_id="s2", sequence=2)
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
    await live(harness, session_id="s1", sequence=9)
    assert (await certificate(harness, epoch=2)).verdict == STANDS, (
        "a new life under the key is not the old one"
    )


async def test_namespaces_are_counted_apart(harness: ServerHarness) -> None:
    await live(harness, sequence=1)
    await die(harness, sequence=1, namespace="billing")
    await live(harness, sequence=2, namespace="billing")
    assert await harness.server.store.verdicts() == {
        NAMESPACE: VerdictCounts(deaths=1, refuted=0),
        "billing": VerdictCounts(deaths=1, refuted=1),
    }
    assert (await certificate(harness)).verdict == STANDS


# -- who has none


async def test_who_has_not_died_has_no_certificate(harness: ServerHarness) -> None:
    await live(harness)
    alive = await refusal(certificate(harness))
    assert (alive.code, alive.reason) == (grpc.StatusCode.NOT_FOUND, "DEATH_NOT_FOUND")
    assert alive.message == "Worker w has not died, as far as its history is kept; it is ACTIVE."
    await harness.shut_down()
    gone = await refusal(certificate(harness))
    assert gone.message == "Worker w has not died, as far as its history is kept; it is INACTIVE."
    assert (gone.fields["state"], gone.fields["worker"]) == ("INACTIVE", "w")


async def test_nobody_has_no_certificate(harness: ServerHarness) -> None:
    await die(harness, namespace="billing")
    unknown = await refusal(certificate(harness))
    assert (unknown.code, unknown.reason) == (grpc.StatusCode.NOT_FOUND, "WORKER_NOT_FOUND")
    assert (await refusal(certificate(harness, ""))).reason == "INVALID_FIELD"


# -- deaths from before there were certificates


async def die_uncertified(harness: ServerHarness, reason: InactiveReason, detail: str) -> None:
    key = WorkerKey(NAMESPACE, "w")
    shard = harness.server.node.shard(*key)
    shard.deactivate(key, Deactivate(reason, detail, harness.server.node.policies.of(NAMESPACE)))
    await harness.server.node.wait_durable(shard)


async def test_an_old_death_is_told_as_far_as_it_can_be(harness: ServerHarness) -> None:
    heard = await live(harness, sequence=1, host_name="db-3", bound_activities=[activity("x"), activity("y")])
    await live(harness, sequence=2, host_name="db-3", unbound_activities=[activity("y")])
    await harness.advance(5_000)
    await die_uncertified(harness, InactiveReason.DISCONNECTED, "its stream broke")
    death = await certificate(harness)
    assert (death.lease_epoch, death.session_id, death.host_name) == (1, "s1", "db-3")
    assert (death.silence, death.granted_lease_duration) == (duration(5_000), duration(LEASE_MS))
    assert death.last_heartbeat_time.ToMilliseconds() == heard
    assert (death.activity_count, len(death.activities), len(death.heartbeats)) == (1, 1, 0)
    await live(harness, sequence=3)
    death = await certificate(harness, epoch=1)
    assert (death.verdict, death.session_id, death.activity_count) == (FALSE, "s1", 1)
    assert not death.HasField("silence"), "the worker's state has moved on, and the detail does not tell"
    assert not death.HasField("last_heartbeat_time")
    assert (await refusal(certificate(harness, epoch=2))).reason == "DEATH_NOT_FOUND"


async def test_an_old_death_between_others_is_found_by_its_epoch(harness: ServerHarness) -> None:
    await die(harness, sequence=1)
    await live(harness, sequence=2)
    detail = "no heartbeat for 10007 ms of a 10000 ms lease"
    await die_uncertified(harness, InactiveReason.LEASE_EXPIRED, detail)
    await die(harness, sequence=3)
    found = [await certificate(harness, epoch=epoch) for epoch in (1, 2, 3)]
    assert [death.lease_epoch for death in found] == [1, 2, 3]
    assert [len(death.heartbeats) for death in found] == [1, 0, 1]
    assert found[1].silence == duration(10_007)
    assert [death.verdict for death in found] == [FALSE, FALSE, STANDS]
