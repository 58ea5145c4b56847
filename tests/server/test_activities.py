"""The life of an activity, over gRPC and on both databases."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from liveness.v1 import activity_pb2 as pb
from tests.server.site import NAMESPACE, Site, refusal
from tests.server.work import (
    AVAILABLE,
    CANCELLED,
    COMPLETED,
    FAILED,
    QUARANTINED,
    QUEUE,
    STARTED,
    WAITING,
    Work,
    activity_id,
)
from tests.shard.engine import duration


@pytest.fixture
async def work(place: Site) -> Work:
    return Work(await place.start(takeover_grace_ms=0))


# -- scheduling


async def test_a_scheduled_activity_is_handed_to_a_poll_and_completed(work: Work) -> None:
    await work.beat()
    answer = await work.schedule("a", activity_type="resize", input=b"photo")
    assert (answer.created, answer.state) == (True, AVAILABLE)
    task = await work.take()
    assert (task.activity_type, task.input, task.lease_epoch, task.attempt) == ("resize", b"photo", 1, 1)
    held = await work.describe("a")
    assert (held.state, held.worker_instance_key, held.lease_epoch) == (STARTED, "w", 1)
    assert [bound.activity_id for bound in (await work.site.describe()).bound_activities] == ["a"]
    await work.complete(task, result=b"done")
    done = await work.describe("a")
    assert (done.state, done.result, done.worker_instance_key) == (COMPLETED, b"done", "")
    assert (await work.site.describe()).bound_activity_count == 0


async def test_scheduling_the_same_again_changes_nothing_whatever_became_of_it(work: Work) -> None:
    await work.beat()
    await work.schedule("a", input=b"1")
    assert (await work.schedule("a", input=b"1")).created is False
    task = await work.take()
    again = await work.schedule("a", input=b"1")
    assert (again.created, again.state) == (False, STARTED)
    await work.complete(task)
    again = await work.schedule("a", input=b"1")
    assert (again.created, again.state) == (False, COMPLETED)
    assert await work.poll() == []


async def test_scheduling_something_else_under_the_same_id_is_refused(work: Work) -> None:
    await work.schedule("a", input=b"1")
    refused = await refusal(work.schedule("a", input=b"2"))
    assert (refused.code, refused.reason) == (grpc.StatusCode.ALREADY_EXISTS, "ACTIVITY_DIFFERS")
    assert "another input" in refused.message
    assert (await work.describe("a")).input == b"1"


async def test_a_delayed_activity_becomes_available_when_its_time_has_come(work: Work) -> None:
    await work.beat()
    answer = await work.schedule("a", start_delay=duration(5_000))
    assert answer.state == WAITING
    await work.site.advance(4_900)
    assert await work.poll() == []
    await work.site.advance(200)
    assert (await work.take()).attempt == 1


# -- polling


async def test_a_waiting_poll_is_answered_by_what_is_scheduled_later(work: Work) -> None:
    await work.beat()
    waiting = asyncio.ensure_future(work.take())
    while not work.site.server.matching._polls:
        await asyncio.sleep(0.001)
    await work.schedule("a")
    assert (await waiting).id == activity_id("a")


async def test_a_poll_takes_several_and_leaves_the_rest(work: Work) -> None:
    await work.beat()
    for name in "abcde":
        await work.schedule(name)
    first = await work.poll(max_activities=3)
    assert [task.id.activity_id for task in first] == ["a", "b", "c"], "in the order in which they came"
    assert len(await work.poll(max_activities=3)) == 2


async def test_only_a_live_worker_may_poll(work: Work) -> None:
    refused = await refusal(work.poll("nobody"))
    assert refused.reason == "WORKER_NOT_FOUND"
    await work.beat(lease_ms=1_000)
    assert (await refusal(work.poll(session_id="another"))).reason == "SESSION_NOT_CURRENT"
    await work.site.shut_down()
    assert (await refusal(work.poll())).reason == "WORKER_NOT_ACTIVE"


async def test_a_poll_ends_when_the_lease_does(work: Work) -> None:
    await work.beat(lease_ms=1_000)
    waiting = asyncio.ensure_future(refusal(work.take()))
    while not work.site.server.matching._polls:
        await asyncio.sleep(0.001)
    await work.site.advance(1_500)
    assert (await waiting).reason == "WORKER_NOT_ACTIVE"


async def test_queues_and_namespaces_are_kept_apart(work: Work) -> None:
    await work.beat()
    await work.schedule("a", task_queue="other")
    await work.schedule("a", namespace="billing")
    assert await work.poll() == []
    assert len(await work.poll(task_queue="other")) == 1


async def test_a_worker_is_never_handed_more_than_its_quota(work: Work) -> None:
    await work.site.configure(max_bindings_per_worker=2)
    await work.beat()
    for name in "abc":
        await work.schedule(name)
    taken = await work.poll(max_activities=10)
    assert len(taken) == 2
    assert await work.poll() == []
    await work.complete(taken[0])
    assert len(await work.poll()) == 1


# -- fencing


async def test_a_zombies_completion_is_refused_and_exactly_one_is_recorded(work: Work) -> None:
    await work.beat("zombie", lease_ms=1_000)
    await work.beat("heir", lease_ms=60_000)
    await work.schedule("a")
    stale = await work.take("zombie")
    await work.site.advance(1_500)
    fresh = await work.take("heir")
    assert (fresh.attempt, fresh.failures) == (2, 1)
    refused = await refusal(work.complete(stale, "zombie", b"old"))
    assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "FENCED_OFF")
    assert "attempt 2 is held by worker heir" in refused.message
    await work.complete(fresh, "heir", b"new")
    assert (await refusal(work.complete(stale, "zombie", b"old"))).reason == "FENCED_OFF"
    assert (await work.describe("a")).result == b"new"


async def test_a_token_is_refused_from_the_moment_the_lease_is_over(work: Work) -> None:
    """Also before anything was done about the activity."""
    await work.beat()
    await work.schedule("a")
    task = await work.take()
    await work.site.expire()
    refused = await refusal(work.complete(task))
    assert refused.reason == "FENCED_OFF"
    assert "INACTIVE" in refused.message


@pytest.mark.parametrize("token", [{"lease_epoch": 2}, {"attempt": 2}])
async def test_a_token_must_be_right_in_every_part(work: Work, token: dict[str, int]) -> None:
    await work.beat()
    await work.schedule("a")
    task = await work.take()
    assert (await refusal(work.complete(task, **token))).reason == "FENCED_OFF"  # type: ignore[arg-type]
    assert await work.state("a") == STARTED


async def test_a_resurrected_workers_old_token_is_refused(work: Work) -> None:
    await work.beat(lease_ms=1_000)
    await work.schedule("a")
    task = await work.take()
    await work.site.advance(1_500)
    back = await work.beat()
    assert [ref.activity_id for ref in back.cancel_activities] == ["a"]
    refused = await refusal(work.complete(task))
    assert refused.reason == "FENCED_OFF"
    again = await work.take()
    assert (again.lease_epoch, again.attempt) == (2, 2)
    await work.complete(again)


async def test_completing_failing_and_releasing_again_are_answered_alike(work: Work) -> None:
    await work.beat()
    for name in "abc":
        await work.schedule(name)
    a, b, c = await work.poll(max_activities=3)
    for _ in range(2):
        await work.complete(a, result=b"1")
        await work.fail(b)
        await work.release(c)
    assert (await work.describe("a")).result == b"1"
    assert (await work.describe("b")).failures == 1
    assert (await work.describe("c")).attempt == 2


# -- retries


async def test_a_failed_attempt_is_tried_again_after_its_back_off(work: Work) -> None:
    retry = pb.RetryPolicy(initial_interval=duration(1_000), backoff_coefficient=3)
    await work.beat(lease_ms=60_000)
    await work.schedule("a", retry_policy=retry)
    for failures, wait_ms in enumerate((1_000, 3_000, 9_000), start=1):
        task = await work.take()
        assert (await work.fail(task, message=f"no {failures}")).state == WAITING
        await work.site.advance(wait_ms - 100)
        assert await work.poll() == []
        await work.site.advance(200)
        seen = await work.describe("a")
        assert (seen.state, seen.failures, seen.last_failure) == (AVAILABLE, failures, f"no {failures}")


async def test_an_exhausted_retry_policy_ends_it(work: Work) -> None:
    await work.beat()
    await work.schedule("a", retry_policy=pb.RetryPolicy(maximum_attempts=2))
    assert (await work.fail(await work.take())).state == WAITING
    await work.site.advance(2_000)
    assert (await work.fail(await work.take(), message="twice")).state == FAILED
    assert (await work.describe("a")).last_failure == "twice"
    assert await work.retry("a") == AVAILABLE
    assert (await work.take()).failures == 0, "a fresh start"


async def test_a_failure_may_rule_out_or_hasten_the_next_attempt(work: Work) -> None:
    await work.beat()
    await work.schedule("a")
    await work.schedule("b")
    a, b = await work.poll(max_activities=2)
    assert (await work.fail(a, non_retryable=True)).state == FAILED
    await work.fail(b, retry_after=duration(0))
    await work.site.advance(100)
    assert (await work.take()).id == activity_id("b")


async def test_an_activity_that_kills_its_workers_is_quarantined(work: Work) -> None:
    await work.schedule("poison")
    for number in range(3):
        worker = f"w{number}"
        await work.beat(worker, lease_ms=1_000)
        await work.take(worker)
        await work.site.advance(1_500)
    seen = await work.describe("poison")
    assert (seen.state, seen.worker_deaths) == (QUARANTINED, 3)
    assert "3 workers in a row died with it" in seen.last_failure
    await work.beat("fourth", lease_ms=60_000)
    assert await work.poll("fourth") == []
    assert await work.retry("poison") == AVAILABLE
    assert (await work.take("fourth")).failures == 0


async def test_an_attempt_that_ends_otherwise_breaks_the_row_of_deaths(work: Work) -> None:
    await work.schedule("a", retry_policy=pb.RetryPolicy(maximum_worker_deaths=2))
    for ends in ("dies", "fails", "dies", "leaves", "dies"):
        await work.beat(ends, lease_ms=1_000)
        task = await work.take(ends)
        if ends == "fails":
            await work.fail(task, ends, retry_after=duration(0))
        elif ends == "leaves":
            await work.site.shut_down(ends)
        await work.site.advance(1_500)
    assert await work.state("a") == AVAILABLE


async def test_the_namespace_says_how_many_deaths_are_too_many(work: Work) -> None:
    await work.site.configure(max_worker_deaths=1)
    await work.schedule("a")
    await work.beat(lease_ms=1_000)
    await work.take()
    await work.site.advance(1_500)
    assert await work.state("a") == QUARANTINED


# -- claims


async def test_a_claim_is_exclusive_and_may_be_repeated(work: Work) -> None:
    await work.beat("first")
    await work.beat("second")
    claimed = await work.claim("file", "first", input=b"path")
    assert await work.claim("file", "first", input=b"path") == claimed
    refused = await refusal(work.claim("file", "second"))
    assert (refused.reason, refused.fields["holder"]) == ("ACTIVITY_HELD", "first")
    await work.complete(claimed, "first")
    assert (await refusal(work.claim("file", "second"))).reason == "ACTIVITY_FINISHED"


async def test_of_many_that_claim_at_once_one_succeeds(work: Work) -> None:
    workers = [f"w{number}" for number in range(20)]
    for worker in workers:
        await work.beat(worker)
    answers = await asyncio.gather(
        *(work.claim("file", worker) for worker in workers), return_exceptions=True
    )
    assert sum(isinstance(answer, pb.ActivityTask) for answer in answers) == 1


async def test_what_a_lost_worker_had_claimed_can_be_claimed_by_another(work: Work) -> None:
    await work.beat("first", lease_ms=1_000)
    await work.beat("second", lease_ms=60_000)
    await work.claim("file", "first", input=b"path")
    await work.site.advance(1_500)
    claimed = await work.claim("file", "second")
    assert (claimed.attempt, claimed.input) == (2, b"path")


async def test_a_released_claim_is_free(work: Work) -> None:
    await work.beat("first")
    await work.beat("second")
    await work.release(await work.claim("file", "first"), "first")
    assert (await work.site.describe("first")).bound_activity_count == 0
    assert (await work.claim("file", "second")).attempt == 2


async def test_a_claim_needs_a_live_lease_and_room(work: Work) -> None:
    assert (await refusal(work.claim("file"))).reason == "WORKER_NOT_FOUND"
    await work.site.configure(max_bindings_per_worker=1)
    await work.beat()
    await work.claim("file")
    assert (await refusal(work.claim("other"))).reason == "BINDING_QUOTA_EXCEEDED"
    assert (await refusal(work.describe("other"))).reason == "ACTIVITY_NOT_FOUND", "nothing changed"


# -- cancelling


async def test_a_cancelled_activity_is_over_and_its_worker_is_told(work: Work) -> None:
    await work.beat()
    await work.schedule("a")
    task = await work.take()
    assert await work.cancel("a", "not needed") is True
    assert await work.state("a") == CANCELLED
    told = await work.beat()
    assert [(ref.activity_id, ref.attempt) for ref in told.cancel_activities] == [("a", 1)]
    assert (await refusal(work.complete(task))).reason == "FENCED_OFF"
    assert await work.cancel("a") is False, "the same again"
    assert not (await work.beat(unbound_activities=told.cancel_activities)).cancel_activities


async def test_an_available_activity_is_cancelled_before_anybody_gets_it(work: Work) -> None:
    await work.beat()
    await work.schedule("a")
    assert await work.cancel("a") is False
    assert await work.poll() == []
    await work.schedule("b")
    task = await work.take()
    await work.complete(task)
    assert (await refusal(work.cancel("b"))).reason == "ACTIVITY_FINISHED"


# -- lost answers


async def test_what_is_never_confirmed_is_taken_back(work: Work) -> None:
    """The poll's answer got lost: the worker heartbeats on and knows nothing of what it holds."""
    await work.beat("deaf", lease_ms=60_000)
    await work.beat("other", lease_ms=60_000)
    await work.schedule("a")
    task = await work.take("deaf")
    await work.site.advance(9_000)
    await work.beat("deaf", lease_ms=60_000)
    assert await work.poll("other") == []
    await work.site.advance(1_500)
    assert (await work.take("other")).attempt == 2
    told = await work.beat("deaf", lease_ms=60_000)
    assert [(ref.activity_id, ref.attempt) for ref in told.cancel_activities] == [("a", 1)]
    assert (await refusal(work.complete(task, "deaf"))).reason == "FENCED_OFF"


async def test_a_worker_that_dies_before_it_can_confirm_is_counted_as_a_death(work: Work) -> None:
    """An activity that kills its worker at once must not look like an answer that was lost."""
    await work.schedule("poison")
    for number in range(3):
        await work.beat(f"w{number}", lease_ms=30_000)
        await work.take(f"w{number}")
        await work.site.advance(31_000)
    assert await work.state("poison") == QUARANTINED


async def test_what_is_confirmed_stays(work: Work) -> None:
    await work.beat(lease_ms=60_000)
    await work.schedule("a")
    await work.take()
    [held] = (await work.site.describe()).bound_activities
    await work.beat(lease_ms=60_000, bound_activities=[held])
    for _ in range(5):
        await work.site.advance(30_000)
        await work.beat(lease_ms=60_000)
    assert await work.state("a") == STARTED
    assert (await work.describe("a")).attempt == 1


async def test_a_caller_that_left_is_handed_nothing(work: Work) -> None:
    await work.beat(lease_ms=60_000)
    waiting = asyncio.ensure_future(work.take())
    while not work.site.server.matching._polls:
        await asyncio.sleep(0.001)
    waiting.cancel()
    while work.site.server.matching._polls:
        await asyncio.sleep(0.001)
    await work.schedule("a")
    assert (await work.take()).attempt == 1


async def test_a_worker_that_lets_go_of_what_it_was_handed_sends_it_back(work: Work) -> None:
    """By a heartbeat that unbinds it, or one with the whole set and without it."""
    await work.beat(lease_ms=60_000)
    await work.schedule("a")
    await work.schedule("b")
    await work.poll(max_activities=2)
    held = list((await work.site.describe()).bound_activities)
    await work.beat(bound_activities=held)
    await work.beat(unbound_activities=held[:1])
    await work.beat(full_bindings=True)
    await work.site.advance(1)
    again = await work.poll(max_activities=2)
    assert sorted((task.id.activity_id, task.attempt, task.failures) for task in again) == [
        ("a", 2, 0),
        ("b", 2, 0),
    ]


async def test_a_whole_set_that_crosses_a_poll_drops_nothing(work: Work) -> None:
    """The worker wrote it before the poll's answer came."""
    await work.beat(lease_ms=60_000)
    await work.schedule("a")
    await work.take()
    await work.beat(full_bindings=True)
    assert (await work.site.describe()).bound_activity_count == 1


# -- restarts


async def test_everything_is_there_after_a_restart(work: Work) -> None:
    await work.beat(lease_ms=60_000)
    for name in ("done", "held", "free", "later", "gone"):
        delay = {"start_delay": duration(30_000)} if name == "later" else {}
        await work.schedule(name, **delay)  # type: ignore[arg-type]
    done, held = await work.poll(max_activities=2)
    await work.complete(done, result=b"r")
    await work.cancel("gone")
    await work.site.restart()
    states = {row.id.activity_id: row.state for row in (await work.listed()).activities}
    assert states == {
        "done": COMPLETED, "held": STARTED, "free": AVAILABLE, "later": WAITING, "gone": CANCELLED,
    }  # fmt: skip
    assert (await work.describe("done")).result == b"r"
    free = await work.take()
    assert free.id == activity_id("free")
    await work.complete(free)
    await work.complete(held)
    await work.site.advance(31_000)
    await work.beat()
    assert (await work.take()).id == activity_id("later")


async def test_a_finished_activity_is_remembered_when_it_has_left_memory(work: Work) -> None:
    await work.beat()
    await work.schedule("a", input=b"1")
    task = await work.take()
    await work.complete(task, result=b"r")
    await work.site.server.maintenance.checkpoint()
    assert not any(len(shard.activities) for shard in work.site.server.node.shards())
    assert (await work.schedule("a", input=b"1")).created is False
    assert (await refusal(work.schedule("a", input=b"2"))).reason == "ACTIVITY_DIFFERS"
    assert (await refusal(work.claim("a"))).reason == "ACTIVITY_FINISHED"
    await work.complete(task, result=b"r")
    assert (await work.describe("a")).result == b"r"


async def test_finished_activities_are_let_go_of_after_their_retention(work: Work) -> None:
    await work.site.configure(activity_retention_ms=1_000)
    await work.beat()
    await work.schedule("done")
    await work.complete(await work.take())
    await work.schedule("open")
    await work.site.advance(2_000)
    await work.site.server.maintenance.checkpoint()
    await work.site.server.maintenance.retain()
    assert [row.id.activity_id for row in (await work.listed()).activities] == ["open"]
    assert (await work.schedule("done")).created is True


# -- listing


async def test_activities_are_listed_by_state_queue_and_worker(work: Work) -> None:
    await work.beat()
    await work.schedule("a")
    await work.schedule("b")
    await work.schedule("c", task_queue="other")
    await work.take()

    async def names(**where: object) -> list[str]:
        rows = (await work.listed(filter=pb.ActivityFilter(**where))).activities  # type: ignore[arg-type]
        return [row.id.activity_id for row in rows]

    assert await names() == ["a", "b", "c"]
    assert await names(states=[STARTED]) == ["a"]
    assert await names(task_queue=QUEUE) == ["a", "b"]
    assert await names(worker_instance_key="w") == ["a"]
    assert await names(states=[AVAILABLE], task_queue="other") == ["c"]


async def test_a_long_list_comes_in_pages(work: Work) -> None:
    names = [f"{number:02}" for number in range(25)]
    for name in names:
        await work.schedule(name)
    found, token = [], ""
    while True:
        page = await work.listed(page_size=10, page_token=token)
        found += [row.id.activity_id for row in page.activities]
        token = page.next_page_token
        if not token:
            break
    assert found == names
    first = await work.listed(page_size=10)
    other = pb.ListActivitiesRequest(namespace="billing", page_size=10, page_token=first.next_page_token)
    assert (await refusal(work.site.activities.ListActivities(other))).reason == "PAGE_TOKEN_INVALID"


@pytest.mark.parametrize(
    ("method", "request_", "field"),
    [
        ("ScheduleActivity", pb.ScheduleActivityRequest(id=activity_id("a"), task_queue="q"), "namespace"),
        ("ScheduleActivity", pb.ScheduleActivityRequest(namespace=NAMESPACE, task_queue="q"), "id.workflow_id"),
        ("ScheduleActivity", pb.ScheduleActivityRequest(namespace=NAMESPACE, id=activity_id("a")), "task_queue"),
        ("ScheduleActivity", pb.ScheduleActivityRequest(namespace=NAMESPACE, id=activity_id("a"), task_queue="q",
            input=b"x" * (256 * 1024 + 1)), "input"),
        ("ScheduleActivity", pb.ScheduleActivityRequest(namespace=NAMESPACE, id=activity_id("a"), task_queue="q",
            retry_policy=pb.RetryPolicy(backoff_coefficient=0.5)), "retry_policy.backoff_coefficient"),
        ("ScheduleActivity", pb.ScheduleActivityRequest(namespace=NAMESPACE, id=activity_id("a"), task_queue="q",
            retry_policy=pb.RetryPolicy(backoff_coefficient=float("nan"))), "retry_policy.backoff_coefficient"),
        ("ScheduleActivity", pb.ScheduleActivityRequest(namespace=NAMESPACE, id=activity_id("a"), task_queue="q",
            retry_policy=pb.RetryPolicy(maximum_attempts=-1)), "retry_policy.maximum_attempts"),
        ("PollActivity", pb.PollActivityRequest(namespace=NAMESPACE, worker_instance_key="w",
            wait=duration(61_000)), "wait"),
        ("PollActivity", pb.PollActivityRequest(namespace=NAMESPACE, worker_instance_key="w",
            max_activities=101), "max_activities"),
        ("CompleteActivity", pb.CompleteActivityRequest(namespace=NAMESPACE, id=activity_id("a"),
            worker_instance_key="w", attempt=1), "lease_epoch"),
        ("FailActivity", pb.FailActivityRequest(namespace=NAMESPACE, id=activity_id("a"),
            worker_instance_key="w", lease_epoch=1), "attempt"),
    ],
)  # fmt: skip
async def test_bad_input_is_refused_by_name_and_changes_nothing(
    work: Work, method: str, request_: object, field: str
) -> None:
    before = await work.site.dump("shards")
    refused = await refusal(getattr(work.site.activities, method)(request_))
    assert (refused.code, refused.fields["field"]) == (grpc.StatusCode.INVALID_ARGUMENT, field)
    assert await work.site.dump("shards") == before
