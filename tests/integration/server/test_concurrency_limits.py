"""Concurrency limits: never more activities of a workflow run than allowed, and every end of an attempt frees its slot."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from liveness.domain.activity import Activity, ActivityState, evolve
from liveness.domain.events import ActivityEvent
from liveness.domain.keys import ActivityId
from liveness.store.api import ShardCommit
from liveness.v1 import activity_pb2 as pb
from liveness.v1.service_pb2 import DescribeWorkerRequest
from tests.integration.server.server_harness import NAMESPACE, ServerHarness, refusal
from tests.integration.store.faulty_store import CommitObserver, Fault

SECOND = 1_000
STARTED = pb.ACTIVITY_STATE_STARTED


class LimitClient:
    def __init__(self, harness: ServerHarness) -> None:
        self.harness = harness
        self.sequence: dict[str, int] = {}

    @property
    def stub(self) -> Any:
        return self.harness.activities

    async def set(self, maximum: int, workflow: str = "tenant") -> pb.ConcurrencyLimit:
        answer = await self.stub.SetConcurrencyLimit(
            pb.SetConcurrencyLimitRequest(namespace=NAMESPACE, workflow_id=workflow, maximum=maximum)
        )
        found: pb.ConcurrencyLimit = answer.limit
        return found

    async def listed(self) -> list[pb.ConcurrencyLimit]:
        answer = await self.stub.ListConcurrencyLimits(pb.ListConcurrencyLimitsRequest(namespace=NAMESPACE))
        return list(answer.limits)

    async def schedule(self, *names: str, workflow: str = "tenant", **fields: Any) -> None:
        for name in names:
            await self.stub.ScheduleActivity(
                pb.ScheduleActivityRequest(
                    namespace=NAMESPACE,
                    id=pb.ActivityId(workflow_id=workflow, run_id=name, activity_id="a"),
                    task_queue="queue",
                    activity_type="work",
                    **fields,
                )
            )

    async def beat(self, worker: str, lease_ms: int = 60_000, **fields: Any) -> None:
        self.sequence[worker] = self.sequence.get(worker, 0) + 1
        await self.harness.beat(
            worker,
            lease_ms=lease_ms,
            session_id="s",
            sequence=self.sequence[worker],
            task_queue="queue",
            **fields,
        )

    async def poll(self, worker: str = "w", limit: int = 100) -> list[pb.ActivityTask]:
        answer = await self.stub.PollActivity(
            pb.PollActivityRequest(
                namespace=NAMESPACE, worker_instance_key=worker, wait=Duration(), max_activities=limit
            )
        )
        return list(answer.activities)

    def _token(self, task: pb.ActivityTask, worker: str) -> dict[str, Any]:
        return {
            "namespace": NAMESPACE,
            "id": task.id,
            "worker_instance_key": worker,
            "lease_epoch": task.lease_epoch,
            "attempt": task.attempt,
        }

    async def complete(self, task: pb.ActivityTask, worker: str = "w") -> None:
        await self.stub.CompleteActivity(pb.CompleteActivityRequest(**self._token(task, worker)))

    async def fail(self, task: pb.ActivityTask, worker: str = "w") -> None:
        await self.stub.FailActivity(pb.FailActivityRequest(**self._token(task, worker), message="no"))

    async def release(self, task: pb.ActivityTask, worker: str = "w") -> None:
        await self.stub.ReleaseActivity(pb.ReleaseActivityRequest(**self._token(task, worker)))

    async def cancel(self, task: pb.ActivityTask, worker: str = "w") -> None:
        await self.stub.CancelActivity(pb.CancelActivityRequest(namespace=NAMESPACE, id=task.id))

    async def running(self, workflow: str = "tenant") -> int:
        answer = await self.stub.ListActivities(
            pb.ListActivitiesRequest(namespace=NAMESPACE, page_size=1_000)
        )
        return sum(
            activity.state == STARTED and activity.id.workflow_id == workflow
            for activity in answer.activities
        )


def names_of(tasks: Sequence[pb.ActivityTask]) -> list[str]:
    return [task.id.run_id for task in tasks]


@pytest.fixture
async def client(harness: ServerHarness) -> LimitClient:
    found = LimitClient(harness)
    await found.beat("w")
    return found


async def test_no_more_run_than_allowed_and_the_oldest_waits_least(client: LimitClient) -> None:
    await client.set(2)
    await client.schedule("1", "2", "3", "4", "5")
    await client.schedule("free", workflow="other")
    tasks = await client.poll()
    assert sorted(names_of(tasks)) == ["1", "2", "free"]
    assert await client.poll() == []
    described = await client.stub.DescribeActivity(
        pb.DescribeActivityRequest(
            namespace=NAMESPACE, id=pb.ActivityId(workflow_id="tenant", run_id="3", activity_id="a")
        )
    )
    assert described.activity.waiting_reason == "2 of 2 activities of tenant are running"
    [limit] = await client.listed()
    assert (limit.workflow_id, limit.maximum, limit.running, limit.waiting) == ("tenant", 2, 2, 3)
    first, second = (task for task in tasks if task.id.workflow_id == "tenant")
    await client.complete(first)
    [third] = await client.poll()
    await client.complete(second)
    [fourth] = await client.poll()
    assert names_of([third, fourth]) == ["3", "4"]


@pytest.mark.parametrize("end", ["complete", "fail", "release", "cancel"])
async def test_every_end_of_an_attempt_frees_its_slot(client: LimitClient, end: str) -> None:
    await client.set(1)
    await client.schedule("1", "2")
    [task] = await client.poll()
    await getattr(client, end)(task)
    assert await client.running() == 0
    assert len(await client.poll()) == 1
    assert await client.running() == 1


async def test_a_lost_worker_and_a_time_limit_free_slots(harness: ServerHarness, client: LimitClient) -> None:
    await client.set(1)
    await client.schedule("1", "2", timeouts=pb.ActivityTimeouts(start_to_close_timeout=Duration(seconds=20)))
    await client.beat("short", 2_000)
    assert len(await client.poll("short")) == 1
    await harness.advance(10 * SECOND)
    assert len(await client.poll()) == 1, "the lease of the first holder is over"
    await harness.advance(25 * SECOND)
    assert len(await client.poll()) == 1, "the attempt took too long"
    assert await client.running() == 1


async def test_limits_and_running_activities_survive_a_restart(
    harness: ServerHarness, client: LimitClient
) -> None:
    await client.set(1)
    await client.schedule("1", "2")
    [task] = await client.poll()
    await harness.restart()
    await client.beat("w")
    assert await client.poll() == []
    await client.complete(task)
    assert names_of(await client.poll()) == ["2"]


async def test_a_claim_beyond_the_limit_is_refused(client: LimitClient) -> None:
    await client.set(1)

    def claim(name: str) -> Any:
        return client.stub.ClaimActivity(
            pb.ClaimActivityRequest(
                namespace=NAMESPACE,
                id=pb.ActivityId(workflow_id="tenant", run_id=name, activity_id="a"),
                worker_instance_key="w",
            )
        )

    task = (await claim("1")).activity
    why = await refusal(claim("2"))
    assert (why.code, why.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "CONCURRENCY_LIMIT_REACHED")
    worker = (
        await client.harness.liveness.DescribeWorker(
            DescribeWorkerRequest(namespace=NAMESPACE, worker_instance_key="w")
        )
    ).worker
    assert len(worker.bound_activities) == 1, "the refused claim left no binding"
    await client.complete(task)
    await claim("2")


async def test_a_limit_can_be_lowered_raised_and_removed(client: LimitClient) -> None:
    await client.schedule("1", "2", "3", "4", "5")
    tasks = await client.poll(limit=3)
    assert (await client.set(1)).running == 3
    assert await client.poll() == []
    for task in tasks[:2]:
        await client.complete(task)
    assert await client.poll() == [], "one runs still"
    await client.set(2)
    assert len(await client.poll()) == 1
    await client.stub.RemoveConcurrencyLimit(
        pb.RemoveConcurrencyLimitRequest(namespace=NAMESPACE, workflow_id="tenant")
    )
    assert len(await client.poll()) == 1
    assert await client.listed() == []
    why = await refusal(
        client.stub.RemoveConcurrencyLimit(
            pb.RemoveConcurrencyLimitRequest(namespace=NAMESPACE, workflow_id="tenant")
        )
    )
    assert why.reason == "CONCURRENCY_LIMIT_NOT_FOUND"
    assert (await refusal(client.set(-1))).code is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_waiting_poll_gets_the_slot_that_another_worker_frees(client: LimitClient) -> None:
    await client.set(1)
    await client.schedule("1", "2")
    [task] = await client.poll()
    await client.beat("v")
    waiting = asyncio.ensure_future(
        client.stub.PollActivity(
            pb.PollActivityRequest(namespace=NAMESPACE, worker_instance_key="v", wait=Duration(seconds=30))
        )
    )
    await asyncio.sleep(0)
    await client.complete(task)
    assert names_of((await waiting).activities) == ["2"]


class RunningCounter(CommitObserver):
    """Folds what became durable, and counts what runs after each event: independent of the counts of the server."""

    def __init__(self) -> None:
        self.activities: dict[ActivityId, Activity] = {}
        self.most = 0

    def on_committed(self, commits: Sequence[ShardCommit]) -> None:
        for commit in commits:
            for entry in commit.entries:
                if not isinstance(entry.event, ActivityEvent) or entry.workflow_id != "tenant":
                    continue
                id = ActivityId(entry.workflow_id, entry.event.run_id, entry.event.activity_id)
                before = self.activities.get(id)
                self.activities[id] = evolve(before, entry.event, entry.workflow_id, entry.wall_ms)
                self.most = max(self.most, self.running)

    @property
    def running(self) -> int:
        return sum(activity.state is ActivityState.STARTED for activity in self.activities.values())


@pytest.mark.parametrize("seed", range(3))
async def test_random_calls_with_lost_commits_never_exceed_the_limit_and_leak_no_slot(
    stopped_harness: ServerHarness, seed: int
) -> None:
    """Compared with a fold of what became durable, through failing commits, deaths, restarts and many polls at once."""
    draw = random.Random(seed)
    harness = await stopped_harness.start(faulty=True)
    harness.lift_rate_limits()
    counter, client, limit = RunningCounter(), LimitClient(harness), 3
    assert harness.store is not None
    harness.store.observer = counter
    workers = ["a", "b", "c"]
    await client.set(limit)
    held: list[tuple[str, pb.ActivityTask]] = []
    scheduled = 0

    async def attempt(call: Any) -> Any:
        try:
            return await call
        except grpc.aio.AioRpcError:
            return None

    for _ in range(60):
        for worker in workers:
            await attempt(client.beat(worker, draw.choice((2_000, 60_000))))
        if draw.random() < 0.3:
            harness.store.faults.append(draw.choice((Fault.REJECTED, Fault.UNKNOWN_LOST, Fault.UNKNOWN_DONE)))
        if scheduled < 40:
            scheduled += 1
            await attempt(client.schedule(str(scheduled)))
        found = await asyncio.gather(*(attempt(client.poll(worker, 2)) for worker in workers))
        held += [(worker, task) for worker, tasks in zip(workers, found, strict=True) for task in tasks or ()]
        if held and draw.random() < 0.7:
            worker, task = held.pop(draw.randrange(len(held)))
            end = draw.choice((client.complete, client.fail, client.release, client.cancel))
            await attempt(end(task, worker))
        await harness.advance(draw.choice((0, 250, 1_000, 5_000)))
        if draw.random() < 0.05:
            await harness.restart()
            assert harness.store is not None
            harness.store.observer = counter
            harness.lift_rate_limits()
    assert 0 < counter.most <= limit
    # Leak check: when all that is left can be done, all of it gets done.
    harness.store.faults.clear()
    left: list[Activity] = []
    for _ in range(400):
        await harness.advance(2_000)
        await attempt(client.beat("a", 3_600_000))
        for task in await attempt(client.poll("a", 10)) or ():
            await attempt(client.complete(task, "a"))
        left = [
            one for one in counter.activities.values() if not one.state.name.startswith(("COMPL", "CANC"))
        ]
        if not any(one.state is not ActivityState.QUARANTINED for one in left):
            break
    assert {one.state for one in left} <= {ActivityState.QUARANTINED}
    assert counter.most <= limit
    [found_limit] = await client.listed()
    assert (found_limit.running, found_limit.waiting) == (0, 0)
