"""DescribeWorker, ListWorkers, CountWorkers, GetWorkerHistory."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from liveness.v1 import service_pb2, worker_pb2
from tests.server.site import ACTIVE, CLEANED_UP, INACTIVE, Site, refusal
from tests.shard.engine import activity, duration


def only(**fields: Any) -> service_pb2.WorkerFilter:
    return service_pb2.WorkerFilter(**fields)


async def names(site: Site, **fields: object) -> list[str]:
    response = await site.listed(filter=only(**fields), page_size=1_000)
    return [worker.worker_instance_key for worker in response.workers]


async def test_describing_a_worker_tells_all_that_it_told(site: Site) -> None:
    told: dict[str, Any] = {
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
    await site.beat(session_id="s1", sequence=4, lease_ms=20_000, successes=5, errors=2, **told)
    await site.beat(
        session_id="s1", sequence=5, lease_ms=20_000, successes=1, bound_activities=[activity("a")]
    )
    worker = await site.describe()
    for name, value in told.items():
        if name != "status":
            assert getattr(worker, name) == value, name
    assert (worker.namespace, worker.worker_instance_key, worker.state) == ("orders", "w", ACTIVE)
    assert (worker.session_id, worker.sequence, worker.lease_epoch) == ("s1", 5, 1)
    assert (worker.successes, worker.errors) == (6, 2)
    assert worker.granted_lease_duration == duration(20_000)
    assert worker.lease_deadline.ToMilliseconds() == site.clock.wall_ms() + 20_000
    assert worker.last_heartbeat_time.ToMilliseconds() == site.clock.wall_ms()
    assert list(worker.bound_activities) == [activity("a")]
    assert worker.bound_activity_count == 1
    assert not worker.HasField("cleanup_time")


async def test_an_activity_without_a_task_queue_is_on_its_workers(site: Site) -> None:
    await site.beat(task_queue="mine", bound_activities=[activity("a", task_queue="")])
    [bound] = (await site.describe()).bound_activities
    assert bound.task_queue == "mine"
    refused = await refusal(site.beat("other", bound_activities=[activity("a", task_queue="")]))
    assert refused.fields["field"] == "heartbeat.bound_activities.task_queue"


async def test_a_worker_that_was_never_heard_of_is_not_found(site: Site) -> None:
    for call in (site.describe("nobody"), site.history("nobody")):
        refused = await refusal(call)
        assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "WORKER_NOT_FOUND")


async def test_an_inactive_worker_is_described_with_why_and_until_when(site: Site) -> None:
    await site.configure(cleanup_delay_ms=60_000)
    await site.beat(bound_activities=[activity("a")])
    await site.shut_down(reason="deploy")
    worker = await site.describe()
    assert (worker.state, worker.inactive_detail) == (INACTIVE, "deploy")
    assert worker.cleanup_time.ToMilliseconds() == site.clock.wall_ms() + 60_000
    assert not worker.HasField("lease_deadline")
    assert list(worker.cancel_activities) == [activity("a")]


async def test_lists_and_counts_filter_by_every_condition_together(site: Site) -> None:
    await site.configure(cleanup_delay_ms=0)
    await site.beat("a-1", task_queue="q1", build_id="b1", host_name="h1")
    await site.beat("a-2", task_queue="q1", build_id="b2", host_name="h1")
    await site.beat("b-1", task_queue="q2", build_id="b1", host_name="h2")
    await site.shut_down("a-2")
    await site.beat("gone", task_queue="q1")
    await site.configure(cleanup_delay_ms=3_600_000)
    await site.beat("a-3", task_queue="q2")
    await site.shut_down("a-3")
    await site.advance(50)
    assert await names(site) == ["a-1", "a-2", "a-3", "b-1", "gone"]
    assert await names(site, states=[ACTIVE]) == ["a-1", "b-1", "gone"]
    assert await names(site, states=[INACTIVE]) == ["a-3"]
    assert await names(site, states=[CLEANED_UP]) == ["a-2"]
    assert await names(site, states=[CLEANED_UP, INACTIVE, INACTIVE]) == ["a-2", "a-3"]
    assert await names(site, task_queue="q1") == ["a-1", "gone"], "a tombstone does not know it any more"
    assert await names(site, build_id="b1") == ["a-1", "b-1"]
    assert await names(site, host_name="h1", build_id="b1") == ["a-1"]
    assert await names(site, key_prefix="a-") == ["a-1", "a-2", "a-3"]
    assert await names(site, key_prefix="a-", states=[ACTIVE]) == ["a-1"]
    assert await names(site, key_prefix="%") == []
    assert await site.count() == {ACTIVE: 3, INACTIVE: 1, CLEANED_UP: 1}
    assert await site.count(filter=only(key_prefix="a-")) == {ACTIVE: 1, INACTIVE: 1, CLEANED_UP: 1}
    assert await site.count(filter=only(host_name="nowhere")) == {}


async def test_a_list_follows_what_a_worker_says_of_itself(site: Site) -> None:
    await site.beat(task_queue="before")
    await site.beat(task_queue="after")
    assert await names(site, task_queue="before") == []
    assert await names(site, task_queue="after") == ["w"]


async def test_a_list_shows_the_lease_as_of_now_without_the_activities(site: Site) -> None:
    await site.beat(session_id="s", sequence=1, bound_activities=[activity("a")])
    await site.advance(5_000)
    await site.beat(session_id="s", sequence=2)
    [worker] = (await site.listed()).workers
    assert worker.sequence == 2
    assert worker.last_heartbeat_time.ToMilliseconds() == site.clock.wall_ms()
    assert worker.bound_activity_count == 1
    assert not worker.bound_activities


async def test_pages_hold_every_worker_once_while_others_come_and_go(site: Site) -> None:
    stay = [f"w{number:03}" for number in range(0, 60, 2)]
    for name in stay:
        await site.beat(name)
    seen, token, turn = [], "", 0
    while True:
        page = await site.listed(page_size=7, page_token=token)
        assert len(page.workers) <= 7
        seen += [worker.worker_instance_key for worker in page.workers]
        token = page.next_page_token
        if not token:
            break
        turn += 1
        await site.beat(f"w{2 * turn + 1:03}")  # before or after the place of the page
        await site.beat(f"w{59 - 2 * turn:03}")
        await site.shut_down(stay[turn])
    assert seen == sorted(seen, key=str.encode)
    assert len(seen) == len(set(seen))
    assert set(stay) <= set(seen)


async def test_the_last_full_page_has_no_next(site: Site) -> None:
    for name in "abcd":
        await site.beat(name)
    first = await site.listed(page_size=2)
    second = await site.listed(page_size=2, page_token=first.next_page_token)
    assert [worker.worker_instance_key for worker in second.workers] == ["c", "d"]
    assert not second.next_page_token


async def test_a_page_token_serves_its_own_namespace_and_filter_only(site: Site) -> None:
    for name in "abc":
        await site.beat(name)
        await site.beat(name, namespace="billing")
    token = (await site.listed(page_size=1)).next_page_token
    wrong = [
        site.listed("billing", page_token=token),
        site.listed(filter=only(key_prefix="a"), page_token=token),
        site.listed(filter=only(states=[ACTIVE]), page_token=token),
        site.history("a", page_token=token),
        site.tasks(page_token=token),
    ]
    for call in wrong:
        refused = await refusal(call)
        assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "PAGE_TOKEN_INVALID")
    assert len((await site.listed(page_size=2, page_token=token)).workers) == 2


@pytest.mark.parametrize("newest_first", [False, True])
async def test_history_is_paged_in_both_directions(site: Site, newest_first: bool) -> None:
    await site.beat("other")
    for turn in range(6):
        await site.beat(session_id=f"s{turn}", sequence=1)
        await site.beat(session_id=f"s{turn}", sequence=2)
    whole = [event.sequence for event in (await site.history(newest_first=newest_first)).events]
    assert len(whole) == 6, "plain renewals are no history"
    assert whole == sorted(whole, reverse=newest_first)
    seen, token = [], ""
    while True:
        page = await site.history(newest_first=newest_first, page_size=4, page_token=token)
        seen += [event.sequence for event in page.events]
        token = page.next_page_token
        if not token:
            break
        await site.beat(session_id=f"later-{len(seen)}")
    assert seen[: len(whole)] == whole


async def test_a_history_token_serves_its_own_direction_and_worker_only(site: Site) -> None:
    for session in ("s1", "s2", "s3"):
        await site.beat(session_id=session)
        await site.beat("x", session_id=session)
    token = (await site.history(page_size=1)).next_page_token
    assert (await refusal(site.history(page_token=token, newest_first=True))).reason == "PAGE_TOKEN_INVALID"
    assert (await refusal(site.history("x", page_token=token))).reason == "PAGE_TOKEN_INVALID"


async def test_history_says_what_happened_in_words_and_json(site: Site) -> None:
    await site.beat(
        session_id="s1", sequence=1, lease_ms=5_000, bound_activities=[activity("a", token=b"\xff")]
    )
    await site.advance(11_000)
    registered, deactivated = (await site.history()).events
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
    assert deactivated.time.ToMilliseconds() <= site.clock.wall_ms()
