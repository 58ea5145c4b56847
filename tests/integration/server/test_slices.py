"""Large work is done in slices and large answers in parts, and nothing is lost, doubled or reordered by that."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import pytest

from liveness.store.api import ShardCommit
from liveness.store.pages import PAGE_BYTES_MAX
from liveness.v1 import activity_pb2, admin_pb2, cluster_pb2, service_pb2
from liveness.v1.cluster_pb2_grpc import ClusterServiceStub
from tests.integration.engine.engine import activity
from tests.integration.server.server_harness import (
    NAMESPACE,
    REGISTERED,
    RENEWED,
    ServerHarness,
    heartbeat,
    refusal,
    unpack_status,
)
from tests.integration.store.faulty_store import CommitObserver, Fault

LARGE = "j" * 16_000
"""As much as a heartbeat may say about its worker."""


@pytest.fixture
async def faulty_harness(stopped_harness: ServerHarness) -> ServerHarness:
    harness = await stopped_harness.start(faulty=True)
    harness.lift_rate_limits()
    return harness


async def test_a_large_batch_lets_others_commit_in_between(faulty_harness: ServerHarness) -> None:
    store = faulty_harness.store
    assert store is not None
    before = store.commits
    items = await faulty_harness.batch(*(heartbeat(f"w{number}", current_job=LARGE) for number in range(300)))
    assert [item.result.outcome for item in items] == [REGISTERED] * 300
    assert store.commits - before > 1, "each slice can be committed while the next is decided"


async def test_heartbeats_of_one_worker_keep_their_order_across_slices(
    faulty_harness: ServerHarness,
) -> None:
    items = await faulty_harness.batch(
        *(heartbeat("w", session_id="s", sequence=n, current_job=LARGE + str(n)) for n in range(1, 301))
    )
    assert [item.result.outcome for item in items] == [REGISTERED] + [RENEWED] * 299
    worker = await faulty_harness.describe("w")
    assert (worker.sequence, worker.current_job) == (300, LARGE + "300")


@pytest.mark.parametrize("fault", [Fault.REJECTED, Fault.UNKNOWN_LOST])
@pytest.mark.parametrize("failed_commit", [0, 1])
async def test_exactly_the_heartbeats_of_a_lost_slice_are_refused(
    faulty_harness: ServerHarness, fault: Fault, failed_commit: int
) -> None:
    """The shards of a slice are lost while the next slices are decided: no commit, no OK."""
    harness, store = faulty_harness, faulty_harness.store
    assert store is not None
    store.faults.extend([*[Fault.NONE] * failed_commit, fault])
    names = [f"w{number:03}" for number in range(300)]
    items = await harness.batch(*(heartbeat(name, current_job=LARGE) for name in names))
    served = {name for name, item in zip(names, items, strict=True) if item.HasField("result")}
    refused = {unpack_status(item.status).code for item in items if item.HasField("status")}
    assert refused == {grpc.StatusCode.UNAVAILABLE}
    await harness.restart()
    stored, token = set(), ""
    while True:
        page = await harness.listed(page_size=1_000, page_token=token)
        stored |= {worker.worker_instance_key for worker in page.workers}
        token = page.next_page_token
        if not token:
            break
    assert stored == served


async def test_many_large_batches_at_once_do_not_make_one_large_commit(faulty_harness: ServerHarness) -> None:
    sizes: list[int] = []

    class Sizes(CommitObserver):
        def on_committed(self, commits: Sequence[ShardCommit]) -> None:
            sizes.append(sum(len(commit.entries) for commit in commits))

    assert faulty_harness.store is not None
    faulty_harness.store.observer = Sizes()
    batches = [
        faulty_harness.batch(*(heartbeat(f"w{batch}-{n}", current_job=LARGE) for n in range(40)))
        for batch in range(20)
    ]
    for items in await asyncio.gather(*batches):
        assert [item.result.outcome for item in items] == [REGISTERED] * 40
    assert sum(sizes) == 800
    assert max(sizes) < 40


async def test_batches_of_refusals_wait_for_no_commit(faulty_harness: ServerHarness) -> None:
    """They make no commit, so there is none to wait for."""
    invalid = [heartbeat(f"w{n}", current_job=LARGE + LARGE) for n in range(100)]
    for items in await asyncio.gather(*(faulty_harness.batch(*invalid) for _ in range(5))):
        assert {unpack_status(item.status).code for item in items} == {grpc.StatusCode.INVALID_ARGUMENT}
    assert (await faulty_harness.beat("w")).outcome == REGISTERED


async def test_an_order_reaches_all_workers_although_it_is_given_in_slices(harness: ServerHarness) -> None:
    for start in (0, 500):
        await harness.batch(*(heartbeat(f"w{number}") for number in range(start, start + 500)))
    pause = admin_pb2.PauseWorkersRequest(namespace=NAMESPACE, filter=service_pb2.WorkerFilter())
    assert (await harness.admin.PauseWorkers(pause)).changed == 1_000
    assert (await harness.describe("w999")).paused
    resume = admin_pb2.ResumeWorkersRequest(namespace=NAMESPACE, all=True)
    assert (await harness.admin.ResumeWorkers(resume)).changed == 1_000


# -- pages


async def test_pages_of_large_workers_are_cut_and_lose_none(harness: ServerHarness) -> None:
    names = [f"w{number:03}" for number in range(150)]
    await harness.batch(*(heartbeat(name, current_job=LARGE) for name in names))
    found: list[str] = []
    token, pages = "", 0
    while not pages or token:
        page = await harness.listed(page_size=1_000, page_token=token)
        assert page.ByteSize() < 2 * PAGE_BYTES_MAX
        found += [worker.worker_instance_key for worker in page.workers]
        token, pages = page.next_page_token, pages + 1
    assert found == names
    assert pages == 3


@pytest.mark.parametrize("newest_first", [False, True])
async def test_pages_of_large_events_are_cut_and_lose_none(
    harness: ServerHarness, newest_first: bool
) -> None:
    harness.lift_rate_limits()
    count = 4
    for number in range(count):
        bound = [activity(f"{number}-{n}", token=b"x" * 2_000) for n in range(400)]
        await harness.beat("w", bound_activities=bound, full_bindings=True)
    sequences: list[int] = []
    token, pages = "", 0
    while not pages or token:
        page = await harness.history("w", page_size=1_000, page_token=token, newest_first=newest_first)
        assert len(page.events) in (1, 2)
        sequences += [event.sequence for event in page.events]
        token, pages = page.next_page_token, pages + 1
    assert sequences == sorted(sequences, reverse=newest_first)
    assert len(sequences) == count
    recent = await harness.liveness.ListRecentEvents(
        service_pb2.ListRecentEventsRequest(namespace=NAMESPACE, page_size=1_000)
    )
    assert [event.sequence for event in recent.events] == sorted(sequences)[-len(recent.events) :]
    assert len(recent.events) < count
    watch = harness.liveness.WatchEvents(
        service_pb2.WatchEventsRequest(namespace=NAMESPACE, from_beginning=True)
    )
    seen: list[int] = []
    while len(seen) < count:
        seen += [event.sequence for event in (await watch.read()).events]
    watch.cancel()
    assert seen == sorted(sequences)


async def schedule(harness: ServerHarness, number: int) -> None:
    request = activity_pb2.ScheduleActivityRequest(
        namespace=NAMESPACE,
        id=activity_pb2.ActivityId(workflow_id=f"f{number:03}", run_id="r", activity_id="a"),
        task_queue="q",
        input=b"\xff" * 250_000,
    )
    await harness.activities.ScheduleActivity(request)


async def test_large_activities_are_listed_and_handed_out_in_parts(harness: ServerHarness) -> None:
    count = 40
    for number in range(count):
        await schedule(harness, number)
    names: list[str] = []
    token, pages = "", 0
    while not pages or token:
        page = await harness.activities.ListActivities(
            activity_pb2.ListActivitiesRequest(namespace=NAMESPACE, page_size=1_000, page_token=token)
        )
        names += [each.id.workflow_id for each in page.activities]
        token, pages = page.next_page_token, pages + 1
    assert names == [f"f{number:03}" for number in range(count)]
    assert pages > 1
    await harness.beat("w", session_id="s", task_queue="q")
    poll: Any = activity_pb2.PollActivityRequest(
        namespace=NAMESPACE, worker_instance_key="w", session_id="s", max_activities=100
    )
    handed: list[str] = []
    while len(handed) < count:
        answer = await harness.activities.PollActivity(poll)
        assert 0 < len(answer.activities) < count
        assert answer.ByteSize() < 5 * 1024 * 1024
        handed += [task.id.workflow_id for task in answer.activities]
    assert handed == names


async def test_more_attempts_than_a_node_hands_out_at_once_are_refused(harness: ServerHarness) -> None:
    stub: Any = ClusterServiceStub(harness.cluster_channel)
    for method, kind in (
        ("BindAttempts", cluster_pb2.BindAttemptsRequest),
        ("TakeBack", cluster_pb2.TakeBackRequest),
    ):
        request = kind(namespace=NAMESPACE, worker_instance_key="w", activities=[activity("a")] * 101)
        refused = await refusal(getattr(stub, method)(request))
        assert (refused.code, refused.fields["field"]) == (grpc.StatusCode.INVALID_ARGUMENT, "activities")
