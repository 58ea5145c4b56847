"""The life cycle of a worker over gRPC on each database, on a manual clock."""

from __future__ import annotations

import grpc

from liveness.v1 import admin_pb2, worker_pb2
from tests.integration.engine.engine import activity, duration
from tests.integration.server.server_harness import (
    ACTIVE,
    CLEANED_UP,
    INACTIVE,
    REGISTERED,
    RENEWED,
    REPEATED,
    RESURRECTED,
    SESSION_REPLACED,
    ServerHarness,
    refusal,
)

HOUR_MS = 3_600_000


async def types(harness: ServerHarness, worker: str = "w") -> list[str]:
    return [event.type for event in (await harness.history(worker)).events]


async def test_a_worker_registers_expires_is_resurrected_cleaned_up_and_forgotten(
    harness: ServerHarness,
) -> None:
    await harness.configure(cleanup_delay_ms=5_000, tombstone_retention_ms=20_000)
    charge, ship = activity("charge"), activity("ship")

    first = await harness.beat(session_id="s1", sequence=1, lease_ms=30_000)
    assert (first.outcome, first.state, first.lease_epoch) == (REGISTERED, ACTIVE, 1)
    assert first.granted_lease_duration == duration(30_000)

    await harness.advance(10_000)
    second = await harness.beat(session_id="s1", sequence=2, lease_ms=30_000, bound_activities=[charge, ship])
    assert (second.outcome, second.lease_epoch) == (RENEWED, 1)
    again = await harness.beat(session_id="s1", sequence=2, lease_ms=30_000, bound_activities=[charge, ship])
    assert (again.outcome, again.lease_epoch) == (REPEATED, 1)
    worker = await harness.describe()
    assert list(worker.bound_activities) == [charge, ship]

    await harness.advance(29_999)
    assert (await harness.describe()).state == ACTIVE, "its lease is not over"
    await harness.advance(1_000)
    worker = await harness.describe()
    assert (worker.state, worker.inactive_reason) == (INACTIVE, worker_pb2.INACTIVE_REASON_LEASE_EXPIRED)
    assert not worker.bound_activities
    done = await harness.tasks(admin_pb2.TASK_STATE_DONE)
    assert [(task.activity, task.lease_epoch) for task in done] == [(charge, 1), (ship, 1)]
    available_activities = harness.server.matching.available_activities("orders", "queue")
    assert sorted((a.id.activity_id, a.attempt) for a in available_activities) == [("charge", 2), ("ship", 2)]

    back = await harness.beat(
        session_id="s1", sequence=3, lease_ms=1_000, bound_activities=[activity("pack")]
    )
    assert (back.outcome, back.lease_epoch) == (RESURRECTED, 2)
    assert list(back.cancel_activities) == [charge, ship]
    worker = await harness.describe()
    assert list(worker.bound_activities) == [activity("pack")], (
        "only the bindings of the resurrecting heartbeat"
    )
    obeyed = await harness.beat(
        session_id="s1", sequence=4, lease_ms=1_000, unbound_activities=[charge, ship]
    )
    assert not obeyed.cancel_activities

    await harness.advance(2_000)
    assert (await harness.describe()).state == INACTIVE
    await harness.advance(5_000)
    assert (await harness.describe()).state == CLEANED_UP
    refused = await refusal(harness.beat(session_id="s9", sequence=1))
    assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "WORKER_CLEANED_UP")
    await harness.restart()
    assert (await refusal(harness.beat(session_id="s9", sequence=1))).reason == "WORKER_CLEANED_UP"

    await harness.advance(20_000)
    await harness.server.maintenance.apply_retention()
    anew = await harness.beat(session_id="s9", sequence=1)
    assert (anew.outcome, anew.lease_epoch) == (REGISTERED, 3)
    assert await types(harness) == [
        "WorkerRegistered",
        "BindingsChanged",
        "WorkerDeactivated",
        "WorkerResurrected",
        "BindingsChanged",
        "WorkerDeactivated",
        "WorkerCleanedUp",
        "WorkerForgotten",
        "WorkerRegistered",
    ]


async def test_a_shutdown_deactivates_the_worker_and_reschedules_its_work_at_once(
    harness: ServerHarness,
) -> None:
    await harness.beat(session_id="s1", sequence=1, bound_activities=[activity("charge")])
    answer = await harness.shut_down(session_id="s1", reason="deploy")
    assert (answer.state, answer.rescheduled_activities) == (INACTIVE, 1)
    worker = await harness.describe()
    assert worker.inactive_reason == worker_pb2.INACTIVE_REASON_SHUTDOWN
    assert worker.inactive_detail == "deploy"
    await harness.advance(1)
    assert [task.activity for task in await harness.tasks(admin_pb2.TASK_STATE_DONE)] == [activity("charge")]
    assert (await harness.shut_down()).rescheduled_activities == 0, "a second shutdown changes nothing"


async def test_only_the_current_session_may_shut_down(harness: ServerHarness) -> None:
    await harness.beat(session_id="s1", sequence=1)
    await harness.beat(session_id="s2", sequence=1)
    assert (await refusal(harness.shut_down(session_id="s1"))).reason == "SESSION_SUPERSEDED"
    assert (await refusal(harness.shut_down(session_id="s3"))).reason == "SESSION_NOT_CURRENT"
    assert (await harness.describe()).state == ACTIVE
    assert (await harness.shut_down(session_id="s2")).state == INACTIVE


async def test_an_operator_forces_a_worker_out(harness: ServerHarness) -> None:
    await harness.beat(bound_activities=[activity("charge")])
    answer = await harness.expire()
    assert (answer.state, answer.rescheduled_activities) == (INACTIVE, 1)
    assert (await harness.describe()).inactive_reason == worker_pb2.INACTIVE_REASON_FORCED
    assert (await refusal(harness.expire())).reason == "WORKER_NOT_ACTIVE"
    assert (await refusal(harness.expire("unknown"))).reason == "WORKER_NOT_FOUND"
    assert (await refusal(harness.shut_down("unknown"))).code is grpc.StatusCode.NOT_FOUND


async def test_a_new_session_replaces_the_old_one_which_is_refused_from_then_on(
    harness: ServerHarness,
) -> None:
    charge, ship = activity("charge"), activity("ship")
    await harness.beat(session_id="s1", sequence=5, bound_activities=[charge, ship])
    replaced = await harness.beat(session_id="s2", sequence=1, bound_activities=[ship])
    assert (replaced.outcome, replaced.lease_epoch) == (SESSION_REPLACED, 2)
    assert not replaced.cancel_activities, "the old process is gone and has nothing to cancel"
    await harness.advance(1)
    assert [task.activity for task in await harness.tasks(admin_pb2.TASK_STATE_DONE)] == [charge]
    superseded = await refusal(harness.beat(session_id="s1", sequence=6, bound_activities=[charge]))
    assert (superseded.code, superseded.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "SESSION_SUPERSEDED")
    worker = await harness.describe()
    assert (worker.session_id, list(worker.bound_activities)) == ("s2", [ship])


async def test_a_heartbeat_that_was_overtaken_changes_nothing(harness: ServerHarness) -> None:
    await harness.beat(session_id="s1", sequence=7, bound_activities=[activity("charge")])
    before = await harness.dump("shards", "audit")
    stale = await refusal(harness.beat(session_id="s1", sequence=6, unbound_activities=[activity("charge")]))
    assert (stale.code, stale.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "STALE_HEARTBEAT")
    assert stale.fields == {"sequence": "6", "last_sequence": "7"}
    assert await harness.dump("shards", "audit") == before


async def test_a_client_without_session_and_sequence_is_served(harness: ServerHarness) -> None:
    assert (await harness.beat()).outcome == REGISTERED
    assert (await harness.beat()).outcome == RENEWED
    await harness.shut_down()
    assert (await harness.beat()).outcome == RESURRECTED


async def test_a_sequence_without_a_session_does_not_lower_that_of_a_named_session(
    harness: ServerHarness,
) -> None:
    await harness.beat(session_id="s1", sequence=10)
    await harness.beat(sequence=3)
    assert (await refusal(harness.beat(session_id="s1", sequence=5))).reason == "STALE_HEARTBEAT"
    await harness.shut_down()
    assert (await harness.beat(sequence=3)).outcome == RESURRECTED
    assert (await refusal(harness.beat(session_id="s1", sequence=5))).reason == "STALE_HEARTBEAT"


async def test_changes_in_a_repeated_heartbeat_are_ignored_until_the_next_sequence(
    harness: ServerHarness,
) -> None:
    await harness.beat(session_id="s1", sequence=1, lease_ms=30_000)
    await harness.beat(session_id="s1", sequence=2, lease_ms=30_000)
    repeated = await harness.beat(
        session_id="s1", sequence=2, lease_ms=60_000, status=worker_pb2.WORKER_STATUS_PAUSED
    )
    assert (repeated.outcome, repeated.granted_lease_duration) == (REPEATED, duration(30_000))
    renewed = await harness.beat(
        session_id="s1", sequence=3, lease_ms=60_000, status=worker_pb2.WORKER_STATUS_PAUSED
    )
    assert (renewed.outcome, renewed.granted_lease_duration) == (RENEWED, duration(60_000))
    assert (await harness.describe()).status == worker_pb2.WORKER_STATUS_PAUSED


async def test_leases_are_clamped_and_expire_by_the_granted_duration(harness: ServerHarness) -> None:
    short = await harness.beat("short", lease_ms=1)
    assert short.granted_lease_duration == duration(1_000)
    long = await harness.beat("long", lease_ms=100 * HOUR_MS)
    assert long.granted_lease_duration == duration(HOUR_MS)
    unset = await harness.beat("unset")
    assert unset.granted_lease_duration == duration(30_000)
    for result in (short, long, unset):
        after = result.next_heartbeat_after.ToMilliseconds() / result.granted_lease_duration.ToMilliseconds()
        assert 0.29 < after < 0.38
        lasts = result.lease_deadline.ToMilliseconds() - result.server_time.ToMilliseconds()
        assert lasts == result.granted_lease_duration.ToMilliseconds()
    await harness.advance(11_000)
    states = {worker.worker_instance_key: worker.state for worker in (await harness.listed()).workers}
    assert states == {"short": INACTIVE, "long": ACTIVE, "unset": ACTIVE}


async def test_a_shorter_lease_ends_by_its_own_terms(harness: ServerHarness) -> None:
    await harness.advance(10_000)  # past the grace after the start
    await harness.beat(lease_ms=HOUR_MS)
    await harness.beat(lease_ms=2_000)
    await harness.advance(1_999)
    assert (await harness.describe()).state == ACTIVE
    await harness.advance(1)
    assert (await harness.describe()).state == INACTIVE


async def test_activities_missing_from_a_full_set_are_unbound_and_not_rescheduled(
    harness: ServerHarness,
) -> None:
    charge, ship, pack = activity("charge"), activity("ship"), activity("pack")
    await harness.beat(session_id="s1", sequence=1, bound_activities=[charge, ship])
    gap = await harness.beat(session_id="s1", sequence=5)
    assert gap.resync_bindings, "binding changes of the missing heartbeats may be lost"
    whole = await harness.beat(session_id="s1", sequence=6, bound_activities=[ship, pack], full_bindings=True)
    assert not whole.resync_bindings
    assert list((await harness.describe()).bound_activities) == [ship, pack]
    await harness.advance(1)
    assert await harness.tasks(admin_pb2.TASK_STATE_DONE) == []


async def test_a_cancel_signal_ends_when_the_lost_attempt_is_unbound(
    harness: ServerHarness,
) -> None:
    await harness.beat(bound_activities=[activity("a"), activity("b")])
    await harness.shut_down()
    back = await harness.beat(bound_activities=[activity("a")])  # the worker declares one of them again
    assert {lost.activity_id for lost in back.cancel_activities} == {"a", "b"}
    later = await harness.beat(
        unbound_activities=[activity("a"), activity("b")],
        bound_activities=[activity("a", attempt=2), activity("b")],
    )
    assert not later.cancel_activities
    assert list((await harness.describe()).bound_activities) == [activity("a", attempt=2)]


async def test_the_list_of_lost_activities_is_bounded_to_the_newest(
    harness: ServerHarness,
) -> None:
    for turn in range(8):
        names = [f"{turn}-{index}" for index in range(200)]
        await harness.beat(bound_activities=[activity(name) for name in names])
        await harness.shut_down()
    back = await harness.beat()
    assert len(back.cancel_activities) == 1_000
    assert [lost.activity_id for lost in back.cancel_activities][-1] == "7-199"
    await harness.advance(1)
    assert len(harness.server.matching.available_activities("orders", "queue")) == 1_600, (
        "all were rescheduled"
    )


async def test_acknowledged_heartbeats_survive_a_restart(harness: ServerHarness) -> None:
    await harness.beat(
        session_id="s1", sequence=1, bound_activities=[activity("charge")], labels={"zone": "b"}
    )
    await harness.beat(session_id="s1", sequence=2, unbound_activities=[activity("charge")], successes=3)
    await harness.beat(
        session_id="s1", sequence=3, bound_activities=[activity("ship")], errors=1, last_error="no"
    )
    before = await harness.describe()
    await harness.restart()
    assert await harness.describe() == before
    assert (await harness.beat(session_id="s1", sequence=3)).outcome == REPEATED
