"""Why a worker died, over gRPC, on each database, driven by the clock."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import pytest

from liveness.domain.commands import Deactivate
from liveness.domain.keys import WorkerKey
from liveness.domain.verdict import Verdicts
from liveness.domain.worker import InactiveReason
from liveness.server import death_desk
from liveness.v1 import activity_pb2, death_pb2, service_pb2, worker_pb2
from tests.server.site import NAMESPACE, Site, heartbeat, refusal
from tests.server.test_streams import Stream, cut
from tests.server.work import Work
from tests.shard.engine import activity, duration

STANDS = death_pb2.VERDICT_STANDS
FALSE = death_pb2.VERDICT_FALSE
LEASE_MS = 10_000


@pytest.fixture
async def site(place: Site) -> Site:
    return await place.start(takeover_grace_ms=0)


async def certificate(
    site: Site, worker: str = "w", epoch: int = 0, namespace: str = NAMESPACE
) -> death_pb2.DeathCertificate:
    response: Any = await site.liveness.GetDeathCertificate(
        service_pb2.GetDeathCertificateRequest(
            namespace=namespace, worker_instance_key=worker, lease_epoch=epoch
        )
    )
    return response


async def live(site: Site, worker: str = "w", **fields: Any) -> int:
    """One heartbeat; returns the wall time."""
    await site.beat(worker, **{"session_id": "s1", "lease_ms": LEASE_MS, **fields})
    return site.clock.wall_ms()


async def die(site: Site, worker: str = "w", **fields: Any) -> int:
    """One heartbeat and a whole lease of silence; returns the wall time of the death."""
    await live(site, worker, **fields)
    await site.advance(LEASE_MS)
    return site.clock.wall_ms()


def moments(times: Any, start: int) -> list[int]:
    return [message.time.ToMilliseconds() - start for message in times]


# -- what it says


async def test_a_certificate_says_what_was_known_when_the_lease_ended(site: Site) -> None:
    heard = 0
    for sequence in range(1, 4):
        await site.advance(1_000 * sequence)
        heard = await live(
            site, sequence=sequence, host_name="db-3", build_id="b7", task_queue="mail",
            bound_activities=[activity("charge")] if sequence == 1 else [],
        )  # fmt: skip
    await site.advance(LEASE_MS)
    death = await certificate(site)
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


async def test_who_dies_of_a_broken_stream_is_told_apart(site: Site) -> None:
    heard = await live(site)
    stream = Stream(site)
    await stream.attach(session="s1", grace_ms=2_000)
    await stream.read()
    await cut(Work(site), stream)
    await site.advance(2_000)
    death = await certificate(site)
    assert death.cause == worker_pb2.INACTIVE_REASON_DISCONNECTED
    assert death.detail.startswith("its stream broke and nothing was heard of it for 2000 ms")
    assert (death.silence, death.last_heartbeat_time.ToMilliseconds()) == (duration(2_000), heard)


async def test_only_the_last_heartbeats_of_the_lease_that_ended_are_shown(site: Site) -> None:
    await die(site, sequence=1)
    start = await live(site, sequence=2)
    await site.advance(1_000)
    await live(site, sequence=3)
    await site.advance(LEASE_MS)
    assert moments((await certificate(site)).heartbeats, start) == [0, 1_000], "not those of the lease before"
    heard = start
    for sequence in range(4, 24):
        await site.advance(500)
        heard = await live(site, sequence=sequence)
    await site.advance(LEASE_MS)
    assert moments((await certificate(site)).heartbeats, heard) == [-2_500, -2_000, -1_500, -1_000, -500, 0]


async def test_a_heartbeat_in_a_batch_and_one_with_news_count_alike(site: Site) -> None:
    start = await live(site, sequence=1)
    await site.advance(100)
    await site.batch(
        *(heartbeat(name, session_id="s1", sequence=2, lease_ms=LEASE_MS) for name in ("w", "v"))
    )
    await site.advance(200)
    await live(site, sequence=3, bound_activities=[activity("x")])
    await site.advance(LEASE_MS)
    assert moments((await certificate(site)).heartbeats, start) == [0, 100, 300]


async def test_the_event_holds_it_too(site: Site) -> None:
    await die(site, host_name="db-3")
    [event] = [e for e in (await site.history()).events if e.type == "WorkerDeactivated"]
    told = json.loads(event.data_json)["certificate"]
    assert (told["silence_ms"], told["host_name"], told["session_id"]) == (LEASE_MS, "db-3", "s1")
    assert told["heartbeats"] == [site.clock.wall_ms() - LEASE_MS]


# -- what the server was doing


async def test_a_server_that_stood_still_says_so_and_places_the_last_heartbeat_before_it(site: Site) -> None:
    heard = await live(site)
    await site.advance(1_000)
    site.clock.move(60_000)
    site.server.node.pulse()
    await site.server.node.barrier().wait()
    await site.advance(LEASE_MS)
    death = await certificate(site)
    assert death.last_heartbeat_time.ToMilliseconds() == heard
    assert moments(death.stalls, heard) == [1_000]
    assert [(stall.duration, stall.take_over) for stall in death.stalls] == [(duration(60_000), False)]
    assert death.time.ToMilliseconds() - heard > 60_000 + LEASE_MS - 2_000
    assert death.silence.ToMilliseconds() < LEASE_MS + 1_000, "what nobody could hear does not count"


async def test_a_heartbeat_after_a_stall_is_told_by_the_time_at_which_it_came(site: Site) -> None:
    first = await live(site, sequence=1)
    await site.advance(1_000)
    site.clock.move(60_000)
    site.server.node.pulse()
    last = await live(site, sequence=2)
    await site.advance(LEASE_MS)
    death = await certificate(site)
    assert moments(death.heartbeats, first) == [0, 61_000]
    assert death.heartbeats[1].gap == duration(61_000)
    assert (death.last_heartbeat_time.ToMilliseconds(), len(death.stalls)) == (last, 0)
    assert death.time.ToMilliseconds() == last + LEASE_MS


async def test_commits_that_hung_are_told(place: Site) -> None:
    site = await place.start(takeover_grace_ms=0, faulty=True)
    assert site.store is not None
    heard = await live(site)
    await site.advance(1_000)
    site.store.close_gate()
    hanging = asyncio.create_task(live(site, "other"))
    await site.store.reached.wait()
    for _ in range(30):
        site.clock.move(100)
        site.server.node.pulse()
    site.store.open_gate()
    await hanging
    await site.advance(LEASE_MS)
    [stall] = (await certificate(site)).stalls
    assert stall.time.ToMilliseconds() - heard == 1_000
    assert stall.duration == duration(3_000)


async def test_a_stall_before_the_last_heartbeat_or_a_short_one_is_not_mentioned(site: Site) -> None:
    await live(site, sequence=1)
    site.clock.move(5_000)
    site.server.node.pulse()
    await live(site, sequence=2)
    await site.advance(500)
    site.clock.move(400)
    site.server.node.pulse()
    await site.advance(LEASE_MS)
    assert not (await certificate(site)).stalls


async def test_a_take_over_in_the_silence_is_told(site: Site) -> None:
    heard = await live(site, host_name="db-3")
    await site.advance(2_000)
    await site.restart()
    await site.advance(LEASE_MS)
    death = await certificate(site)
    assert [(stall.take_over, stall.HasField("duration")) for stall in death.stalls] == [(True, False)]
    assert moments(death.stalls, heard) == [2_000]
    assert moments(death.heartbeats, heard) == [0], "the server has seen no other itself"
    assert death.silence == duration(LEASE_MS)


# -- who died with it


async def test_those_who_die_at_once_know_of_each_other_even_after_a_restart(site: Site) -> None:
    await site.configure(storm_hold_ms=0)  # so many would be held, and then end in several pulses
    for n in range(20):
        await live(site, f"w{n}", host_name=f"db-{n % 2}", build_id="b7" if n < 5 else "b8")
    await live(site, "w1", namespace="billing", host_name="db-1", build_id="b7")
    await site.advance(LEASE_MS)
    for _ in range(2):
        found = [(await certificate(site, f"w{n}")).company for n in (0, 1, 19)]
        assert [(c.same_host, c.same_build, c.same_namespace) for c in found] == [
            (9, 4, 19),
            (9, 4, 19),
            (9, 14, 19),
        ]
        await site.restart()
    assert (await certificate(site, "w1", namespace="billing")).company.same_host == 0


async def test_those_who_die_within_a_minute_after_it_are_counted_when_asked(site: Site) -> None:
    for n in range(4):
        await live(site, f"w{n}", host_name="db-3")
        await site.advance(25_000)
    found = [(await certificate(site, f"w{n}")).company.same_host for n in range(4)]
    assert found == [2, 3, 3, 2]
    await site.restart()
    found = [(await certificate(site, f"w{n}")).company.same_host for n in range(4)]
    assert found == [0, 1, 2, 2], "at least those that were known then"


async def test_who_dies_again_is_no_company_to_itself(site: Site) -> None:
    await die(site, sequence=1, host_name="db-3")
    await die(site, sequence=2, host_name="db-3")
    assert (await certificate(site)).company.same_host == 0
    assert site.server.node.obituaries.last_minute(NAMESPACE) == 1


async def test_who_leaves_in_order_is_no_company(site: Site) -> None:
    await live(site, host_name="db-3")
    await live(site, "v", host_name="db-3")
    await site.shut_down("v")
    await site.advance(LEASE_MS)
    assert (await certificate(site)).company.same_host == 0


# -- where its activities are


async def test_it_shows_where_the_activities_are_now(site: Site) -> None:
    work = Work(site)
    await work.schedule("managed")
    await live(site, sequence=1, task_queue="queue", bound_activities=[activity("own", attempt=3)])
    [task] = await work.poll("w")
    assert task.id.activity_id == "managed"
    await live(site, sequence=2, bound_activities=[activity("managed"), activity("done")])
    await live(site, sequence=3, unbound_activities=[activity("done")])
    await site.advance(LEASE_MS - 1_000)
    await live(site, "v", task_queue="queue")
    await site.advance(1_000)
    taken = (await work.take("v")).id.activity_id
    death = await certificate(site)
    assert death.activity_count == 2
    now = {moved.activity.activity_id: moved for moved in death.activities}
    assert now.keys() == {"own", "managed"}
    assert (now["own"].activity.attempt, now["managed"].activity.attempt) == (3, 1)
    assert (now[taken].state, now[taken].worker_instance_key) == (activity_pb2.ACTIVITY_STATE_STARTED, "v")
    [other] = now.keys() - {taken}
    assert (now[other].state, now[other].worker_instance_key) == (activity_pb2.ACTIVITY_STATE_AVAILABLE, "")
    assert (now["own"].attempt, now["managed"].attempt) == (4, 2)


async def test_of_very_many_activities_a_hundred_are_shown_and_all_are_counted(site: Site) -> None:
    for batch in range(3):
        names = [f"a{batch}-{n}" for n in range(60)]
        await live(site, sequence=batch + 1, bound_activities=[activity(name) for name in names])
    await live(site, sequence=4, unbound_activities=[activity(f"a2-{n}") for n in range(40)])
    await site.advance(LEASE_MS)
    death = await certificate(site)
    shown = {moved.activity.activity_id for moved in death.activities}
    assert (death.activity_count, len(death.activities), len(shown)) == (140, 100, 100)
    assert not shown & {f"a2-{n}" for n in range(40)}


async def test_an_activity_that_is_not_kept_any_more_is_named_all_the_same(site: Site) -> None:
    await site.configure(activity_retention_ms=1_000)
    work = Work(site)
    await work.schedule("managed")
    await live(site, task_queue="queue")
    await work.poll("w")
    await site.advance(LEASE_MS)
    await site.activities.CancelActivity(
        activity_pb2.CancelActivityRequest(
            namespace=NAMESPACE,
            id=activity_pb2.ActivityId(workflow_id="workflow-managed", run_id="run", activity_id="managed"),
        )
    )
    [moved] = (await certificate(site)).activities
    assert moved.state == activity_pb2.ACTIVITY_STATE_CANCELLED
    await site.advance(2_000)
    await site.server.maintenance.checkpoint()
    await site.server.maintenance.retain()
    [moved] = (await certificate(site)).activities
    assert moved.activity.activity_id == "managed"
    assert (moved.state, moved.attempt, moved.worker_instance_key) == (0, 0, "")


async def test_what_a_worker_held_is_found_page_by_page(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(death_desk, "PAGE", 3)
    await live(site, sequence=1, bound_activities=[activity("first")])
    for n in range(10):
        await live(site, sequence=n + 2, bound_activities=[activity(f"a{n}")])
    await site.advance(LEASE_MS)
    death = await certificate(site)
    assert [moved.activity.activity_id for moved in death.activities] == [
        "first",
        *(f"a{n}" for n in range(10)),
    ]


# -- verdicts


async def test_the_same_session_coming_back_makes_the_verdict_false(site: Site) -> None:
    died = await die(site, sequence=1)
    assert (await certificate(site)).verdict == STANDS
    await site.advance(3_000)
    await live(site, sequence=2)
    death = await certificate(site)
    assert (death.verdict, death.lease_epoch) == (FALSE, 1)
    assert death.refuted_time.ToMilliseconds() == died + 3_000
    assert await site.server.store.verdicts() == {NAMESPACE: Verdicts(deaths=1, refuted=1)}


async def test_a_new_session_lets_the_verdict_stand(site: Site) -> None:
    await die(site, sequence=1)
    await live(site, session_id="s2", sequence=1)
    assert (await certificate(site)).verdict == STANDS
    assert await site.server.store.verdicts() == {NAMESPACE: Verdicts(deaths=1, refuted=0)}


async def test_who_has_no_session_lets_the_verdict_stand(site: Site) -> None:
    await die(site, session_id="")
    await live(site, session_id="")
    assert (await certificate(site)).verdict == STANDS


async def test_each_of_several_deaths_is_found_by_its_epoch(site: Site) -> None:
    first = await die(site, sequence=1)
    second = await die(site, sequence=2)
    await live(site, session_id="s2", sequence=1)
    await site.shut_down()
    await live(site, session_id="s2", sequence=2)
    found = [await certificate(site, epoch=epoch) for epoch in (1, 2, 0)]
    assert [death.lease_epoch for death in found] == [1, 2, 2]
    assert [death.verdict for death in found] == [FALSE, STANDS, STANDS]
    assert [death.time.ToMilliseconds() for death in found] == [first, second, second]
    not_so = await refusal(certificate(site, epoch=3))
    assert (not_so.code, not_so.reason) == (grpc.StatusCode.NOT_FOUND, "DEATH_NOT_FOUND")
    assert not_so.message == (
        "Worker w has not died in lease epoch 3, as far as its history is kept; it is ACTIVE."
    )
    assert await site.server.store.verdicts() == {NAMESPACE: Verdicts(deaths=2, refuted=1)}


async def test_a_verdict_outlives_restart_cleanup_and_the_tombstone(site: Site) -> None:
    await site.configure(cleanup_delay_ms=1_000, tombstone_retention_ms=1_000)
    await die(site, sequence=1, host_name="db-3")
    await die(site, sequence=2, host_name="db-3")
    await site.restart()
    await site.advance(3_000)
    await site.server.maintenance.retain()
    await site.advance(1)
    assert (await refusal(site.describe())).reason == "WORKER_NOT_FOUND"
    assert (await certificate(site, epoch=1)).verdict == FALSE
    assert (await certificate(site)).host_name == "db-3"
    assert await site.server.store.verdicts() == {NAMESPACE: Verdicts(deaths=2, refuted=1)}
    await live(site, session_id="s1", sequence=9)
    assert (await certificate(site, epoch=2)).verdict == STANDS, "a new life under the key is not the old one"


async def test_namespaces_are_counted_apart(site: Site) -> None:
    await live(site, sequence=1)
    await die(site, sequence=1, namespace="billing")
    await live(site, sequence=2, namespace="billing")
    assert await site.server.store.verdicts() == {
        NAMESPACE: Verdicts(deaths=1, refuted=0),
        "billing": Verdicts(deaths=1, refuted=1),
    }
    assert (await certificate(site)).verdict == STANDS


# -- who has none


async def test_who_has_not_died_has_no_certificate(site: Site) -> None:
    await live(site)
    alive = await refusal(certificate(site))
    assert (alive.code, alive.reason) == (grpc.StatusCode.NOT_FOUND, "DEATH_NOT_FOUND")
    assert alive.message == "Worker w has not died, as far as its history is kept; it is ACTIVE."
    await site.shut_down()
    gone = await refusal(certificate(site))
    assert gone.message == "Worker w has not died, as far as its history is kept; it is INACTIVE."
    assert (gone.fields["state"], gone.fields["worker"]) == ("INACTIVE", "w")


async def test_nobody_has_no_certificate(site: Site) -> None:
    await die(site, namespace="billing")
    unknown = await refusal(certificate(site))
    assert (unknown.code, unknown.reason) == (grpc.StatusCode.NOT_FOUND, "WORKER_NOT_FOUND")
    assert (await refusal(certificate(site, ""))).reason == "INVALID_FIELD"


# -- deaths from before there were certificates


async def die_uncertified(site: Site, reason: InactiveReason, detail: str) -> None:
    key = WorkerKey(NAMESPACE, "w")
    shard = site.server.node.shard(*key)
    shard.deactivate(key, Deactivate(reason, detail, site.server.node.policies.of(NAMESPACE)))
    await site.server.node.durable(shard)


async def test_an_old_death_is_told_as_far_as_it_can_be(site: Site) -> None:
    heard = await live(site, sequence=1, host_name="db-3", bound_activities=[activity("x"), activity("y")])
    await live(site, sequence=2, host_name="db-3", unbound_activities=[activity("y")])
    await site.advance(5_000)
    await die_uncertified(site, InactiveReason.DISCONNECTED, "its stream broke")
    death = await certificate(site)
    assert (death.lease_epoch, death.session_id, death.host_name) == (1, "s1", "db-3")
    assert (death.silence, death.granted_lease_duration) == (duration(5_000), duration(LEASE_MS))
    assert death.last_heartbeat_time.ToMilliseconds() == heard
    assert (death.activity_count, len(death.activities), len(death.heartbeats)) == (1, 1, 0)
    await live(site, sequence=3)
    death = await certificate(site, epoch=1)
    assert (death.verdict, death.session_id, death.activity_count) == (FALSE, "s1", 1)
    assert not death.HasField("silence"), "the worker's state has moved on, and the detail does not tell"
    assert not death.HasField("last_heartbeat_time")
    assert (await refusal(certificate(site, epoch=2))).reason == "DEATH_NOT_FOUND"


async def test_an_old_death_between_others_is_found_by_its_epoch(site: Site) -> None:
    await die(site, sequence=1)
    await live(site, sequence=2)
    detail = "no heartbeat for 10007 ms of a 10000 ms lease"
    await die_uncertified(site, InactiveReason.LEASE_EXPIRED, detail)
    await die(site, sequence=3)
    found = [await certificate(site, epoch=epoch) for epoch in (1, 2, 3)]
    assert [death.lease_epoch for death in found] == [1, 2, 3]
    assert [len(death.heartbeats) for death in found] == [1, 0, 1]
    assert found[1].silence == duration(10_007)
    assert [death.verdict for death in found] == [FALSE, FALSE, STANDS]
