"""The queries DescribeWorker, ListWorkers, CountWorkers and GetWorkerHistory."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from liveness.v1 import service_pb2, worker_pb2
from tests.integration.engine.engine import activity, duration
from tests.integration.server.server_harness import ACTIVE, CLEANED_UP, INACTIVE, ServerHarness, refusal


def only(**fields: Any) -> service_pb2.WorkerFilter:
    return service_pb2.WorkerFilter(**fields)


async def names(harness: ServerHarness, **fields: object) -> list[str]:
    response = await harness.listed(filter=only(**fields), page_size=1_000)
    return [worker.worker_instance_key for worker in response.workers]


async def test_describing_a_worker_returns_everything_it_reported(harness: ServerHarness) -> None:
    reported: dict[str, Any] = {
        "worker_identity": "me@host",
        "task_queue": "queue",
        "build_id": "b7",
        "sdk_name": "sdk",
        "sdk_version": "1.2",
        "host_name": "host",
        "process_id": "4711",
        "start_time": Timestamp(seconds=1_700_000_000, nanos=5),
        "labels": {"zone": "b", "arch": "arm"},
        "capabilities": ["gpu", "fast"],
        "current_job": "charging",
        "status": worker_pb2.WORKER_STATUS_RUNNING,
        "last_error": "none yet",
    }
    await harness.beat(session_id="s1", sequence=4, lease_ms=20_000, successes=5, errors=2, **reported)
    await harness.beat(
        session_id="s1", sequence=5, lease_ms=20_000, successes=1, bound_activities=[activity("a")]
    )
    worker = await harness.describe()
    for name, value in reported.items():
        if name != "status":
            assert getattr(worker, name) == value, name
    assert (worker.namespace, worker.worker_instance_key, worker.state) == ("orders", "w", ACTIVE)
    assert (worker.session_id, worker.sequence, worker.lease_epoch) == ("s1", 5, 1)
    assert (worker.successes, worker.errors) == (6, 2)
    assert worker.granted_lease_duration == duration(20_000)
    assert worker.lease_deadline.ToMilliseconds() == harness.clock.wall_ms() + 20_000
    assert worker.last_heartbeat_time.ToMilliseconds() == harness.clock.wall_ms()
    assert list(worker.bound_activities) == [activity("a")]
    assert worker.bound_activity_count == 1
    assert not worker.HasField("cleanup_time")


async def test_an_activity_without_a_task_queue_gets_its_workers_queue(harness: ServerHarness) -> None:
    await harness.beat(task_queue="mine", bound_activities=[activity("a", task_queue="")])
    [bound] = (await harness.describe()).bound_activities
    assert bound.task_queue == "mine"
    refused = await refusal(harness.beat("other", bound_activities=[activity("a", task_queue="")]))
    assert refused.fields["field"] == "heartbeat.bound_activities.task_queue"


async def test_an_unknown_worker_is_not_found(harness: ServerHarness) -> None:
    for call in (harness.describe("unknown"), harness.history("unknown")):
        refused = await refusal(call)
        assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "WORKER_NOT_FOUND")


async def test_an_inactive_worker_is_described_with_its_reason_and_cleanup_time(
    harness: ServerHarness,
) -> None:
    await harness.configure(cleanup_delay_ms=60_000)
    await harness.beat(bound_activities=[activity("a")])
    await harness.shut_down(reason="deploy")
    worker = await harness.describe()
    assert (worker.state, worker.inactive_detail) == (INACTIVE, "deploy")
    assert worker.cleanup_time.ToMilliseconds() == harness.clock.wall_ms() + 60_000
    assert not worker.HasField("lease_deadline")
    assert list(worker.cancel_activities) == [activity("a")]


async def test_lists_and_counts_filter_by_every_condition_together(harness: ServerHarness) -> None:
    await harness.configure(cleanup_delay_ms=0)
    await harness.beat("a-1", task_queue="q1", build_id="b1", host_name="h1")
    await harness.beat("a-2", task_queue="q1", build_id="b2", host_name="h1")
    await harness.beat("b-1", task_queue="q2", build_id="b1", host_name="h2")
    await harness.shut_down("a-2")
    await harness.beat("gone", task_queue="q1")
    await harness.configure(cleanup_delay_ms=3_600_000)
    await harness.beat("a-3", task_queue="q2")
    await harness.shut_down("a-3")
    await harness.advance(50)
    assert await names(harness) == ["a-1", "a-2", "a-3", "b-1", "gone"]
    assert await names(harness, states=[ACTIVE]) == ["a-1", "b-1", "gone"]
    assert await names(harness, states=[INACTIVE]) == ["a-3"]
    assert await names(harness, states=[CLEANED_UP]) == ["a-2"]
    assert await names(harness, states=[CLEANED_UP, INACTIVE, INACTIVE]) == ["a-2", "a-3"]
    assert await names(harness, task_queue="q1") == ["a-1", "gone"], "a tombstone has no task queue"
    assert await names(harness, build_id="b1") == ["a-1", "b-1"]
    assert await names(harness, host_name="h1", build_id="b1") == ["a-1"]
    assert await names(harness, key_prefix="a-") == ["a-1", "a-2", "a-3"]
    assert await names(harness, key_prefix="a-", states=[ACTIVE]) == ["a-1"]
    assert await names(harness, key_prefix="%") == []
    assert await harness.count() == {ACTIVE: 3, INACTIVE: 1, CLEANED_UP: 1}
    assert await harness.count(filter=only(key_prefix="a-")) == {ACTIVE: 1, INACTIVE: 1, CLEANED_UP: 1}
    assert await harness.count(filter=only(host_name="nowhere")) == {}


async def test_a_list_uses_the_latest_description_of_a_worker(harness: ServerHarness) -> None:
    await harness.beat(task_queue="before")
    await harness.beat(task_queue="after")
    assert await names(harness, task_queue="before") == []
    assert await names(harness, task_queue="after") == ["w"]


async def test_a_list_shows_the_current_lease_without_the_activities(harness: ServerHarness) -> None:
    await harness.beat(session_id="s", sequence=1, bound_activities=[activity("a")])
    await harness.advance(5_000)
    await harness.beat(session_id="s", sequence=2)
    [worker] = (await harness.listed()).workers
    assert worker.sequence == 2
    assert worker.last_heartbeat_time.ToMilliseconds() == harness.clock.wall_ms()
    assert worker.bound_activity_count == 1
    assert not worker.bound_activities


async def test_pages_contain_every_worker_once_despite_concurrent_changes(harness: ServerHarness) -> None:
    stay = [f"w{number:03}" for number in range(0, 60, 2)]
    for name in stay:
        await harness.beat(name)
    seen, token, turn = [], "", 0
    while True:
        page = await harness.listed(page_size=7, page_token=token)
        assert len(page.workers) <= 7
        seen += [worker.worker_instance_key for worker in page.workers]
        token = page.next_page_token
        if not token:
            break
        turn += 1
        await harness.beat(f"w{2 * turn + 1:03}")  # before or after the position of the page
        await harness.beat(f"w{59 - 2 * turn:03}")
        await harness.shut_down(stay[turn])
    assert seen == sorted(seen, key=str.encode)
    assert len(seen) == len(set(seen))
    assert set(stay) <= set(seen)


async def test_the_last_full_page_has_no_next_page_token(harness: ServerHarness) -> None:
    for name in "abcd":
        await harness.beat(name)
    first = await harness.listed(page_size=2)
    second = await harness.listed(page_size=2, page_token=first.next_page_token)
    assert [worker.worker_instance_key for worker in second.workers] == ["c", "d"]
    assert not second.next_page_token


async def test_a_page_token_is_valid_only_for_its_namespace_and_filter(harness: ServerHarness) -> None:
    for name in "abc":
        await harness.beat(name)
        await harness.beat(name, namespace="billing")
    token = (await harness.listed(page_size=1)).next_page_token
    wrong = [
        harness.listed("billing", page_token=token),
        harness.listed(filter=only(key_prefix="a"), page_token=token),
        harness.listed(filter=only(states=[ACTIVE]), page_token=token),
        harness.history("a", page_token=token),
        harness.tasks(page_token=token),
    ]
    for call in wrong:
        refused = await refusal(call)
        assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "PAGE_TOKEN_INVALID")
    assert len((await harness.listed(page_size=2, page_token=token)).workers) == 2


@pytest.mark.parametrize("newest_first", [False, True])
async def test_history_is_paged_in_both_directions(harness: ServerHarness, newest_first: bool) -> None:
    await harness.beat("other")
    for turn in range(6):
        await harness.beat(session_id=f"s{turn}", sequence=1)
        await harness.beat(session_id=f"s{turn}", sequence=2)
    whole = [event.sequence for event in (await harness.history(newest_first=newest_first)).events]
    assert len(whole) == 6, "plain renewals are not in the history"
    assert whole == sorted(whole, reverse=newest_first)
    seen, token = [], ""
    while True:
        page = await harness.history(newest_first=newest_first, page_size=4, page_token=token)
        seen += [event.sequence for event in page.events]
        token = page.next_page_token
        if not token:
            break
        await harness.beat(session_id=f"later-{len(seen)}")
    assert seen[: len(whole)] == whole


async def test_a_history_token_is_valid_only_for_its_direction_and_worker(harness: ServerHarness) -> None:
    for session in ("s1", "s2", "s3"):
        await harness.beat(session_id=session)
        await harness.beat("x", session_id=session)
    token = (await harness.history(page_size=1)).next_page_token
    assert (
        await refusal(harness.history(page_token=token, newest_first=True))
    ).reason == "PAGE_TOKEN_INVALID"
    assert (await refusal(harness.history("x", page_token=token))).reason == "PAGE_TOKEN_INVALID"


async def test_history_events_contain_their_type_and_json(harness: ServerHarness) -> None:
    await harness.beat(
        session_id="s1", sequence=1, lease_ms=5_000, bound_activities=[activity("a", token=b"\xff")]
    )
    await harness.advance(11_000)
    registered, deactivated = (await harness.history()).events
    assert (registered.type, registered.namespace, registered.worker_instance_key) == (
        "WorkerRegistered",
        "orders",
        "w",
    )
    data = json.loads(registered.data_json)
    assert (data["session_id"], data["granted_ms"], data["epoch"]) == ("s1", 5_000, 1)
    assert data["bindings"][0]["activity_id"] == "a"
    assert deactivated.type == "WorkerDeactivated"
    data = json.loads(deactivated.data_json)
    assert data["reason"] == "LEASE_EXPIRED"
    assert deactivated.observed_ms >= registered.observed_ms + 5_000
    assert deactivated.time.ToMilliseconds() <= harness.clock.wall_ms()
