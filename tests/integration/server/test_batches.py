"""RecordWorkerHeartbeats: many heartbeats in one call, each handled separately."""

from __future__ import annotations

import grpc
from google.protobuf.duration_pb2 import Duration

from tests.integration.engine.engine import activity
from tests.integration.server.server_harness import (
    REGISTERED,
    RENEWED,
    REPEATED,
    SESSION_REPLACED,
    ServerHarness,
    heartbeat,
    refusal,
    unpack_status,
)


async def test_an_invalid_heartbeat_fails_alone_and_the_order_is_kept(harness: ServerHarness) -> None:
    await harness.beat("stale", session_id="s", sequence=9)
    items = await harness.batch(
        heartbeat("a", session_id="s", sequence=1),
        heartbeat("b", lease_duration=Duration(seconds=-1)),
        heartbeat("stale", session_id="s", sequence=3),
        heartbeat(""),
        heartbeat("c", bound_activities=[activity("x")]),
    )
    reasons = [unpack_status(item.status).reason if item.HasField("status") else "" for item in items]
    assert reasons == ["", "INVALID_FIELD", "STALE_HEARTBEAT", "INVALID_FIELD", ""]
    assert items[0].result.outcome == items[4].result.outcome == REGISTERED
    assert {worker.worker_instance_key for worker in (await harness.listed()).workers} == {"stale", "a", "c"}


async def test_several_heartbeats_of_one_worker_are_applied_in_order(harness: ServerHarness) -> None:
    items = await harness.batch(
        heartbeat(session_id="s1", sequence=1, bound_activities=[activity("a")]),
        heartbeat(session_id="s1", sequence=2, bound_activities=[activity("b")]),
        heartbeat(session_id="s1", sequence=2, bound_activities=[activity("b")]),
        heartbeat(session_id="s1", sequence=3),
        heartbeat(session_id="s1", sequence=4, unbound_activities=[activity("a")]),
        heartbeat(session_id="s2", sequence=1, bound_activities=[activity("c")]),
        heartbeat(session_id="s1", sequence=5),
        heartbeat(session_id="s2", sequence=2),
    )
    outcomes = [item.result.outcome if item.HasField("result") else None for item in items]
    assert outcomes == [REGISTERED, RENEWED, REPEATED, RENEWED, RENEWED, SESSION_REPLACED, None, RENEWED]
    assert unpack_status(items[6].status).reason == "SESSION_SUPERSEDED"
    await harness.advance(1)
    worker = await harness.describe()
    assert list(worker.bound_activities) == [activity("c")]
    assert [task.activity for task in await harness.tasks(4)] == [activity("b")]
    await harness.restart()
    assert (await harness.describe()).sequence == 2


async def test_an_empty_batch_gets_an_empty_answer(harness: ServerHarness) -> None:
    assert await harness.batch() == []


async def test_an_invalid_namespace_fails_the_whole_batch(harness: ServerHarness) -> None:
    refused = await refusal(harness.batch(heartbeat(), namespace=""))
    assert (refused.code, refused.fields["field"]) == (grpc.StatusCode.INVALID_ARGUMENT, "namespace")


async def test_a_thousand_workers_register_and_renew_in_one_call_each(harness: ServerHarness) -> None:
    workers = [f"w{number}" for number in range(1_000)]
    first = await harness.batch(*(heartbeat(worker, session_id="s", sequence=1) for worker in workers))
    assert {item.result.outcome for item in first} == {REGISTERED}
    for sequence in (2, 3):
        later = await harness.batch(
            *(heartbeat(worker, session_id="s", sequence=sequence) for worker in workers)
        )
        assert {item.result.outcome for item in later} == {RENEWED}
    await harness.restart()
    assert (await harness.describe("w999")).sequence == 3
    assert await harness.count() == {1: 1_000}


async def test_a_batch_above_the_quota_is_served_up_to_the_quota(harness: ServerHarness) -> None:
    await harness.configure(max_workers=3)
    items = await harness.batch(*(heartbeat(f"w{number}") for number in range(5)))
    assert [item.HasField("result") for item in items] == [True, True, True, False, False]
    refused = unpack_status(items[4].status)
    assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "WORKER_QUOTA_EXCEEDED")
    assert refused.retry_ms
