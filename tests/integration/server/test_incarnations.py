"""Keys with more than one life: new incarnations after a cleanup, and workers that are forgotten, over gRPC."""

from __future__ import annotations

import json
from typing import Any

import grpc

from liveness.v1 import admin_pb2
from tests.integration.engine.engine import activity
from tests.integration.server.activity_client import AVAILABLE, ActivityClient
from tests.integration.server.server_harness import (
    ACTIVE,
    CLEANED_UP,
    INACTIVE,
    REGISTERED,
    RENEWED,
    REPEATED,
    ServerHarness,
    heartbeat,
    refusal,
)


async def clean_up(harness: ServerHarness, worker: str = "w") -> None:
    await harness.configure(cleanup_delay_ms=1_000)
    await harness.shut_down(worker)
    await harness.advance(2_000)
    assert (await harness.describe(worker)).state == CLEANED_UP


async def test_a_key_that_said_goodbye_begins_a_new_incarnation(harness: ServerHarness) -> None:
    await harness.beat(session_id="zombie", sequence=1)
    await harness.beat(session_id="old", sequence=1, bound_activities=[activity("x")])
    await clean_up(harness)
    assert (await refusal(harness.beat(session_id="new", sequence=1))).reason == "WORKER_CLEANED_UP"

    first: dict[str, Any] = {"session_id": "new", "sequence": 1, "new_incarnation": True}
    result = await harness.beat(**first)
    assert (result.outcome, result.state, result.lease_epoch) == (REGISTERED, ACTIVE, 3)
    assert not result.cancel_activities
    again = await harness.beat(**first)
    assert (again.outcome, again.lease_epoch) == (REPEATED, 3)
    assert (await harness.beat(session_id="new", sequence=2)).outcome == RENEWED
    await harness.restart()
    assert (await harness.beat(session_id="new", sequence=3)).outcome == RENEWED
    for session_id in ("zombie", "old"):
        refused = await refusal(harness.beat(session_id=session_id, sequence=9, new_incarnation=True))
        assert (refused.code, refused.reason) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "SESSION_SUPERSEDED",
        )
    assert [event.type for event in (await harness.history()).events][-2:] == [
        "WorkerCleanedUp",
        "WorkerRegistered",
    ]


async def test_a_tombstone_remembers_sessions_across_a_restart(harness: ServerHarness) -> None:
    await harness.beat(session_id="zombie", sequence=1)
    await harness.beat(session_id="old", sequence=1)
    await clean_up(harness)
    await harness.restart()
    refused = await refusal(harness.beat(session_id="zombie", sequence=9, new_incarnation=True))
    assert refused.reason == "SESSION_SUPERSEDED"
    refused = await refusal(harness.beat(session_id="old", sequence=9, new_incarnation=True))
    assert refused.reason == "WORKER_CLEANED_UP"


async def test_a_heartbeat_with_new_incarnation_may_be_repeated_on_the_fast_path(
    harness: ServerHarness,
) -> None:
    """A client that says it in every heartbeat changes nothing, until it is cleaned up."""
    for sequence in range(1, 5):
        beat = heartbeat(session_id="s", sequence=sequence, new_incarnation=True)
        [item] = await harness.batch(beat)
        assert item.result.lease_epoch == 1
    await clean_up(harness)
    refused = await refusal(harness.beat(session_id="s", sequence=5, new_incarnation=True))
    assert refused.reason == "WORKER_CLEANED_UP"


async def test_a_new_incarnation_counts_against_the_quota(harness: ServerHarness) -> None:
    await harness.beat(session_id="old", sequence=1)
    await clean_up(harness)
    await harness.configure(max_workers=1)
    await harness.beat("other")
    first: dict[str, Any] = {"session_id": "new", "sequence": 1, "new_incarnation": True}
    assert (await refusal(harness.beat(**first))).reason == "WORKER_QUOTA_EXCEEDED"
    assert (await harness.describe()).state == CLEANED_UP
    await harness.configure(max_workers=2)
    assert (await harness.beat(**first)).outcome == REGISTERED
    assert await harness.count() == {ACTIVE: 2}


async def test_renewals_of_a_new_incarnation_survive_a_restart(harness: ServerHarness) -> None:
    """The earlier life's number and its checkpointed renewals are not taken for those of the new one."""
    await harness.beat(session_id="old", sequence=1)
    await harness.beat(session_id="old", sequence=7)
    await harness.server.maintenance.checkpoint()
    await clean_up(harness)
    await harness.beat(session_id="new", sequence=1, new_incarnation=True)
    await harness.beat(session_id="new", sequence=2)
    before = await harness.describe()
    await harness.restart()
    after = await harness.describe()
    assert (after.session_id, after.sequence, after.lease_epoch) == ("new", 2, before.lease_epoch)


# -- forgetting


async def test_a_forgotten_key_never_gets_an_earlier_epoch_again(harness: ServerHarness) -> None:
    """Whatever happens to the log and the process meanwhile."""
    for number in range(1, 4):
        assert (await harness.beat(session_id=f"s{number}", sequence=1)).lease_epoch == number
    await harness.expire()
    await harness.forget()
    await harness.server.maintenance.checkpoint()
    await harness.configure(event_retention_ms=1)
    await harness.advance(2_000)
    await harness.server.maintenance.apply_retention()
    await harness.restart()
    result = await harness.beat(session_id="next", sequence=1)
    assert (result.outcome, result.lease_epoch) == (REGISTERED, 4)


async def test_retention_raises_the_floor_as_an_operator_does(harness: ServerHarness) -> None:
    await harness.configure(cleanup_delay_ms=1_000, tombstone_retention_ms=1_000)
    await harness.beat(session_id="a", sequence=1)
    await harness.beat(session_id="b", sequence=1)
    await harness.shut_down()
    await harness.advance(2_000)
    await harness.advance(2_000)
    await harness.server.maintenance.apply_retention()
    assert (await refusal(harness.describe())).reason == "WORKER_NOT_FOUND"
    await harness.restart()
    assert (await harness.beat(session_id="c", sequence=1)).lease_epoch == 3


async def test_a_token_of_the_first_life_is_refused_in_the_second(harness: ServerHarness) -> None:
    """With equal epochs, a process of the first life could complete what its successor holds."""
    activity_client = ActivityClient(harness)
    await activity_client.beat()
    await activity_client.schedule("photo")
    old = await activity_client.take()
    await activity_client.release(old)
    await harness.expire()
    await harness.forget()
    await activity_client.beat()
    new = await activity_client.take()
    assert (new.lease_epoch, new.attempt) == (2, 2)
    refused = await refusal(activity_client.complete(new, lease_epoch=old.lease_epoch))
    assert refused.reason == "FENCED_OFF"
    await activity_client.complete(new)


async def test_the_session_of_a_forgotten_worker_cannot_take_the_key_from_its_next_one(
    harness: ServerHarness,
) -> None:
    first = await harness.beat(session_id="first", sequence=1)
    await harness.expire()
    await harness.forget()
    await harness.beat(session_id="second", sequence=1)
    await harness.restart()
    refused = await refusal(harness.beat(session_id="first", sequence=2, lease_epoch=first.lease_epoch))
    assert refused.reason == "SESSION_SUPERSEDED"
    worker = await harness.describe()
    assert (worker.session_id, worker.lease_epoch) == ("second", 2)


async def test_what_a_forgotten_keys_next_life_loses_is_rescheduled(harness: ServerHarness) -> None:
    """With equal epochs, the second loss would look like a repeated delivery of the first."""
    for _ in range(2):
        await harness.beat(session_id="s", sequence=1, bound_activities=[activity("x")])
        await harness.expire()
        await harness.advance(1_000)
        await harness.forget()
    done = await harness.tasks(admin_pb2.TASK_STATE_DONE)
    assert [(task.activity.attempt, task.lease_epoch) for task in done] == [(1, 1), (1, 2)]
    [known] = (await ActivityClient(harness).listed()).activities
    assert (known.state, known.attempt) == (AVAILABLE, 3)
    epochs = [
        json.loads(event.data_json)["epoch"]
        for event in (await harness.history()).events
        if event.type == "WorkerRegistered"
    ]
    assert epochs == [1, 2]


async def test_an_active_worker_is_not_forgotten(harness: ServerHarness) -> None:
    await harness.beat()
    refused = await refusal(harness.forget())
    assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "WORKER_ACTIVE")
    assert (await harness.describe()).state == ACTIVE


async def test_forgetting_frees_the_quota_and_is_recorded_with_its_reason(harness: ServerHarness) -> None:
    await harness.configure(max_workers=1)
    await harness.beat()
    await harness.expire()
    assert (await refusal(harness.beat("other"))).fields["inactive"] == "1"
    answer = await harness.forget(reason="host is gone")
    assert (answer.previous_state, answer.lease_epoch) == (INACTIVE, 1)
    assert (await harness.beat("other")).state == ACTIVE
    assert (await refusal(harness.forget())).reason == "WORKER_NOT_FOUND"
    cleaned_up, forgotten = (await harness.history()).events[-2:]
    assert (cleaned_up.type, forgotten.type) == ("WorkerCleanedUp", "WorkerForgotten")
    assert json.loads(forgotten.data_json) == {"epoch_floor": 2, "reason": "host is gone", "by": ""}


async def test_a_tombstone_can_be_forgotten_before_its_retention_ends(harness: ServerHarness) -> None:
    await harness.beat()
    await clean_up(harness)
    assert (await harness.forget()).previous_state == CLEANED_UP
    assert (await harness.beat()).outcome == REGISTERED
