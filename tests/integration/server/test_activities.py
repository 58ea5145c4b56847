"""The life cycle of an activity over gRPC on both databases."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from liveness.v1 import activity_pb2 as pb
from tests.integration.engine.engine import activity, duration
from tests.integration.server.activity_client import (
    AVAILABLE,
    CANCELLED,
    COMPLETED,
    FAILED,
    QUARANTINED,
    QUEUE,
    STARTED,
    WAITING,
    ActivityClient,
    activity_id,
)
from tests.integration.server.server_harness import NAMESPACE, SESSION_REPLACED, ServerHarness, refusal


@pytest.fixture
async def activity_client(stopped_harness: ServerHarness) -> ActivityClient:
    return ActivityClient(await stopped_harness.start(takeover_grace_ms=0))


# -- scheduling


async def test_a_scheduled_activity_is_handed_to_a_poll_and_completed(
    activity_client: ActivityClient,
) -> None:
    await activity_client.beat()
    answer = await activity_client.schedule("a", activity_type="resize", input=b"photo")
    assert (answer.created, answer.state) == (True, AVAILABLE)
    task = await activity_client.take()
    assert (task.activity_type, task.input, task.lease_epoch, task.attempt) == ("resize", b"photo", 1, 1)
    held = await activity_client.describe("a")
    assert (held.state, held.worker_instance_key, held.lease_epoch) == (STARTED, "w", 1)
    assert [bound.activity_id for bound in (await activity_client.harness.describe()).bound_activities] == [
        "a"
    ]
    await activity_client.complete(task, result=b"done")
    done = await activity_client.describe("a")
    assert (done.state, done.result, done.worker_instance_key) == (COMPLETED, b"done", "")
    assert (await activity_client.harness.describe()).bound_activity_count == 0


async def test_scheduling_an_activity_again_changes_nothing_in_any_state(
    activity_client: ActivityClient,
) -> None:
    await activity_client.beat()
    await activity_client.schedule("a", input=b"1")
    assert (await activity_client.schedule("a", input=b"1")).created is False
    task = await activity_client.take()
    again = await activity_client.schedule("a", input=b"1")
    assert (again.created, again.state) == (False, STARTED)
    await activity_client.complete(task)
    again = await activity_client.schedule("a", input=b"1")
    assert (again.created, again.state) == (False, COMPLETED)
    assert await activity_client.poll() == []


async def test_scheduling_a_different_activity_under_the_same_id_is_refused(
    activity_client: ActivityClient,
) -> None:
    await activity_client.schedule("a", input=b"1")
    refused = await refusal(activity_client.schedule("a", input=b"2"))
    assert (refused.code, refused.reason) == (grpc.StatusCode.ALREADY_EXISTS, "ACTIVITY_DIFFERS")
    assert "another input" in refused.message
    assert (await activity_client.describe("a")).input == b"1"


async def test_a_delayed_activity_becomes_available_after_its_delay(
    activity_client: ActivityClient,
) -> None:
    await activity_client.beat()
    answer = await activity_client.schedule("a", start_delay=duration(5_000))
    assert answer.state == WAITING
    await activity_client.harness.advance(4_900)
    assert await activity_client.poll() == []
    await activity_client.harness.advance(200)
    assert (await activity_client.take()).attempt == 1


# -- polling


async def test_a_waiting_poll_gets_an_activity_scheduled_later(activity_client: ActivityClient) -> None:
    await activity_client.beat()
    waiting = asyncio.ensure_future(activity_client.take())
    while not activity_client.harness.server.matching._polls:
        await asyncio.sleep(0.001)
    await activity_client.schedule("a")
    assert (await waiting).id == activity_id("a")


async def test_a_poll_gets_at_most_the_requested_number_of_activities(
    activity_client: ActivityClient,
) -> None:
    await activity_client.beat()
    for name in "abcde":
        await activity_client.schedule(name)
    first = await activity_client.poll(max_activities=3)
    assert [task.id.activity_id for task in first] == ["a", "b", "c"], "in the order of scheduling"
    assert len(await activity_client.poll(max_activities=3)) == 2


async def test_only_the_current_session_of_an_active_worker_may_poll(activity_client: ActivityClient) -> None:
    refused = await refusal(activity_client.poll("unknown"))
    assert refused.reason == "WORKER_NOT_FOUND"
    await activity_client.beat(lease_ms=1_000)
    assert (await refusal(activity_client.poll(session_id="another"))).reason == "SESSION_NOT_CURRENT"
    await activity_client.harness.shut_down()
    assert (await refusal(activity_client.poll())).reason == "WORKER_NOT_ACTIVE"


async def test_a_poll_ends_when_the_lease_ends(activity_client: ActivityClient) -> None:
    await activity_client.beat(lease_ms=1_000)
    waiting = asyncio.ensure_future(refusal(activity_client.take()))
    while not activity_client.harness.server.matching._polls:
        await asyncio.sleep(0.001)
    await activity_client.harness.advance(1_500)
    assert (await waiting).reason == "WORKER_NOT_ACTIVE"


async def test_a_poll_gets_only_activities_of_its_queue_and_namespace(
    activity_client: ActivityClient,
) -> None:
    await activity_client.beat()
    await activity_client.schedule("a", task_queue="other")
    await activity_client.schedule("a", namespace="billing")
    assert await activity_client.poll() == []
    assert len(await activity_client.poll(task_queue="other")) == 1


async def test_a_worker_is_never_handed_more_than_its_quota(activity_client: ActivityClient) -> None:
    await activity_client.harness.configure(max_bindings_per_worker=2)
    await activity_client.beat()
    for name in "abc":
        await activity_client.schedule(name)
    taken = await activity_client.poll(max_activities=10)
    assert len(taken) == 2
    assert await activity_client.poll() == []
    await activity_client.complete(taken[0])
    assert len(await activity_client.poll()) == 1


# -- fencing


async def test_the_completion_of_an_expired_worker_is_refused(
    activity_client: ActivityClient,
) -> None:
    await activity_client.beat("expired", lease_ms=1_000)
    await activity_client.beat("successor", lease_ms=60_000)
    await activity_client.schedule("a")
    stale = await activity_client.take("expired")
    await activity_client.harness.advance(1_500)
    fresh = await activity_client.take("successor")
    assert (fresh.attempt, fresh.failures) == (2, 1)
    refused = await refusal(activity_client.complete(stale, "expired", b"old"))
    assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "FENCED_OFF")
    assert "attempt 2 is held by worker successor" in refused.message
    await activity_client.complete(fresh, "successor", b"new")
    assert (await refusal(activity_client.complete(stale, "expired", b"old"))).reason == "FENCED_OFF"
    assert (await activity_client.describe("a")).result == b"new"


async def test_a_token_is_refused_as_soon_as_the_lease_ends(activity_client: ActivityClient) -> None:
    """Even before the activity is rescheduled."""
    await activity_client.beat()
    await activity_client.schedule("a")
    task = await activity_client.take()
    await activity_client.harness.expire()
    refused = await refusal(activity_client.complete(task))
    assert refused.reason == "FENCED_OFF"
    assert "INACTIVE" in refused.message


@pytest.mark.parametrize("token", [{"lease_epoch": 2}, {"attempt": 2}])
async def test_a_token_with_a_wrong_epoch_or_attempt_is_refused(
    activity_client: ActivityClient, token: dict[str, int]
) -> None:
    await activity_client.beat()
    await activity_client.schedule("a")
    task = await activity_client.take()
    assert (await refusal(activity_client.complete(task, **token))).reason == "FENCED_OFF"  # type: ignore[arg-type]
    assert await activity_client.state("a") == STARTED


async def test_a_resurrected_workers_old_token_is_refused(activity_client: ActivityClient) -> None:
    await activity_client.beat(lease_ms=1_000)
    await activity_client.schedule("a")
    task = await activity_client.take()
    await activity_client.harness.advance(1_500)
    back = await activity_client.beat()
    assert [ref.activity_id for ref in back.cancel_activities] == ["a"]
    refused = await refusal(activity_client.complete(task))
    assert refused.reason == "FENCED_OFF"
    again = await activity_client.take()
    assert (again.lease_epoch, again.attempt) == (2, 2)
    await activity_client.complete(again)


async def test_repeated_complete_fail_and_release_calls_have_no_further_effect(
    activity_client: ActivityClient,
) -> None:
    await activity_client.beat()
    for name in "abc":
        await activity_client.schedule(name)
    a, b, c = await activity_client.poll(max_activities=3)
    for _ in range(2):
        await activity_client.complete(a, result=b"1")
        await activity_client.fail(b)
        await activity_client.release(c)
    assert (await activity_client.describe("a")).result == b"1"
    assert (await activity_client.describe("b")).failures == 1
    assert (await activity_client.describe("c")).attempt == 2


# -- retries


async def test_a_failed_attempt_is_tried_again_after_its_back_off(activity_client: ActivityClient) -> None:
    retry = pb.RetryPolicy(initial_interval=duration(1_000), backoff_coefficient=3)
    await activity_client.beat(lease_ms=60_000)
    await activity_client.schedule("a", retry_policy=retry)
    for failures, wait_ms in enumerate((1_000, 3_000, 9_000), start=1):
        task = await activity_client.take()
        assert (await activity_client.fail(task, message=f"no {failures}")).state == WAITING
        await activity_client.harness.advance(wait_ms - 100)
        assert await activity_client.poll() == []
        await activity_client.harness.advance(200)
        seen = await activity_client.describe("a")
        assert (seen.state, seen.failures, seen.last_failure) == (AVAILABLE, failures, f"no {failures}")


async def test_an_exhausted_retry_policy_fails_the_activity(activity_client: ActivityClient) -> None:
    await activity_client.beat()
    await activity_client.schedule("a", retry_policy=pb.RetryPolicy(maximum_attempts=2))
    assert (await activity_client.fail(await activity_client.take())).state == WAITING
    await activity_client.harness.advance(2_000)
    assert (await activity_client.fail(await activity_client.take(), message="twice")).state == FAILED
    assert (await activity_client.describe("a")).last_failure == "twice"
    assert await activity_client.retry("a") == AVAILABLE
    assert (await activity_client.take()).failures == 0, "a retry resets the failures"


async def test_a_failure_can_forbid_or_schedule_the_next_attempt(activity_client: ActivityClient) -> None:
    await activity_client.beat()
    await activity_client.schedule("a")
    await activity_client.schedule("b")
    a, b = await activity_client.poll(max_activities=2)
    assert (await activity_client.fail(a, non_retryable=True)).state == FAILED
    await activity_client.fail(b, retry_after=duration(0))
    await activity_client.harness.advance(100)
    assert (await activity_client.take()).id == activity_id("b")


async def test_an_activity_that_kills_its_workers_is_quarantined(activity_client: ActivityClient) -> None:
    await activity_client.schedule("poison")
    for number in range(3):
        worker = f"w{number}"
        await activity_client.beat(worker, lease_ms=1_000)
        await activity_client.take(worker)
        await activity_client.harness.advance(1_500)
    seen = await activity_client.describe("poison")
    assert (seen.state, seen.worker_deaths) == (QUARANTINED, 3)
    assert "3 workers in a row died with it" in seen.last_failure
    await activity_client.beat("fourth", lease_ms=60_000)
    assert await activity_client.poll("fourth") == []
    assert await activity_client.retry("poison") == AVAILABLE
    assert (await activity_client.take("fourth")).failures == 0


async def test_an_attempt_that_ends_without_a_death_resets_the_deaths_in_a_row(
    activity_client: ActivityClient,
) -> None:
    await activity_client.schedule("a", retry_policy=pb.RetryPolicy(maximum_worker_deaths=2))
    for ends in ("dies", "fails", "dies", "leaves", "dies"):
        await activity_client.beat(ends, lease_ms=1_000)
        task = await activity_client.take(ends)
        if ends == "fails":
            await activity_client.fail(task, ends, retry_after=duration(0))
        elif ends == "leaves":
            await activity_client.harness.shut_down(ends)
        await activity_client.harness.advance(1_500)
    assert await activity_client.state("a") == AVAILABLE


async def test_the_namespace_sets_the_limit_of_worker_deaths(activity_client: ActivityClient) -> None:
    await activity_client.harness.configure(max_worker_deaths=1)
    await activity_client.schedule("a")
    await activity_client.beat(lease_ms=1_000)
    await activity_client.take()
    await activity_client.harness.advance(1_500)
    assert await activity_client.state("a") == QUARANTINED


# -- claims


async def test_a_claim_is_exclusive_and_may_be_repeated(activity_client: ActivityClient) -> None:
    await activity_client.beat("first")
    await activity_client.beat("second")
    claimed = await activity_client.claim("file", "first", input=b"path")
    assert await activity_client.claim("file", "first", input=b"path") == claimed
    refused = await refusal(activity_client.claim("file", "second"))
    assert (refused.reason, refused.fields["holder"]) == ("ACTIVITY_HELD", "first")
    await activity_client.complete(claimed, "first")
    assert (await refusal(activity_client.claim("file", "second"))).reason == "ACTIVITY_FINISHED"


async def test_exactly_one_of_many_concurrent_claims_succeeds(activity_client: ActivityClient) -> None:
    workers = [f"w{number}" for number in range(20)]
    for worker in workers:
        await activity_client.beat(worker)
    answers = await asyncio.gather(
        *(activity_client.claim("file", worker) for worker in workers), return_exceptions=True
    )
    assert sum(isinstance(answer, pb.ActivityTask) for answer in answers) == 1


async def test_the_claim_of_an_expired_worker_passes_to_another_worker(
    activity_client: ActivityClient,
) -> None:
    await activity_client.beat("first", lease_ms=1_000)
    await activity_client.beat("second", lease_ms=60_000)
    await activity_client.claim("file", "first", input=b"path")
    await activity_client.harness.advance(1_500)
    claimed = await activity_client.claim("file", "second")
    assert (claimed.attempt, claimed.input) == (2, b"path")


async def test_a_released_activity_can_be_claimed_again(activity_client: ActivityClient) -> None:
    await activity_client.beat("first")
    await activity_client.beat("second")
    await activity_client.release(await activity_client.claim("file", "first"), "first")
    assert (await activity_client.harness.describe("first")).bound_activity_count == 0
    assert (await activity_client.claim("file", "second")).attempt == 2


async def test_a_claim_needs_an_active_worker_below_its_binding_quota(
    activity_client: ActivityClient,
) -> None:
    assert (await refusal(activity_client.claim("file"))).reason == "WORKER_NOT_FOUND"
    await activity_client.harness.configure(max_bindings_per_worker=1)
    await activity_client.beat()
    await activity_client.claim("file")
    assert (await refusal(activity_client.claim("other"))).reason == "BINDING_QUOTA_EXCEEDED"
    assert (await refusal(activity_client.describe("other"))).reason == "ACTIVITY_NOT_FOUND", (
        "nothing changed"
    )


# -- cancelling


async def test_a_cancelled_activity_ends_and_its_worker_is_told(activity_client: ActivityClient) -> None:
    await activity_client.beat()
    await activity_client.schedule("a")
    task = await activity_client.take()
    assert await activity_client.cancel("a", "not needed") is True
    assert await activity_client.state("a") == CANCELLED
    reply = await activity_client.beat()
    assert [(ref.activity_id, ref.attempt) for ref in reply.cancel_activities] == [("a", 1)]
    assert (await refusal(activity_client.complete(task))).reason == "FENCED_OFF"
    assert await activity_client.cancel("a") is False, "repeated cancellations change nothing"
    assert not (await activity_client.beat(unbound_activities=reply.cancel_activities)).cancel_activities


async def test_a_cancelled_available_activity_is_not_handed_out(
    activity_client: ActivityClient,
) -> None:
    await activity_client.beat()
    await activity_client.schedule("a")
    assert await activity_client.cancel("a") is False
    assert await activity_client.poll() == []
    await activity_client.schedule("b")
    task = await activity_client.take()
    await activity_client.complete(task)
    assert (await refusal(activity_client.cancel("b"))).reason == "ACTIVITY_FINISHED"


# -- lost poll answers


async def test_an_unconfirmed_hand_out_is_taken_back(activity_client: ActivityClient) -> None:
    """The answer to the poll was lost: the worker sends heartbeats and does not know of the activity."""
    await activity_client.beat("uninformed", lease_ms=60_000)
    await activity_client.beat("other", lease_ms=60_000)
    await activity_client.schedule("a")
    task = await activity_client.take("uninformed")
    await activity_client.harness.advance(9_000)
    await activity_client.beat("uninformed", lease_ms=60_000)
    assert await activity_client.poll("other") == []
    await activity_client.harness.advance(1_500)
    assert (await activity_client.take("other")).attempt == 2
    reply = await activity_client.beat("uninformed", lease_ms=60_000)
    assert [(ref.activity_id, ref.attempt) for ref in reply.cancel_activities] == [("a", 1)]
    assert (await refusal(activity_client.complete(task, "uninformed"))).reason == "FENCED_OFF"


async def test_a_death_before_the_confirmation_counts_as_a_death(
    activity_client: ActivityClient,
) -> None:
    """An activity that kills its worker at once must not look like a lost answer."""
    await activity_client.schedule("poison")
    for number in range(3):
        await activity_client.beat(f"w{number}", lease_ms=30_000)
        await activity_client.take(f"w{number}")
        await activity_client.harness.advance(31_000)
    assert await activity_client.state("poison") == QUARANTINED


async def test_a_confirmed_hand_out_is_not_taken_back(activity_client: ActivityClient) -> None:
    await activity_client.beat(lease_ms=60_000)
    await activity_client.schedule("a")
    await activity_client.take()
    [held] = (await activity_client.harness.describe()).bound_activities
    await activity_client.beat(lease_ms=60_000, bound_activities=[held])
    for _ in range(5):
        await activity_client.harness.advance(30_000)
        await activity_client.beat(lease_ms=60_000)
    assert await activity_client.state("a") == STARTED
    assert (await activity_client.describe("a")).attempt == 1


async def test_a_cancelled_poll_gets_no_activity(activity_client: ActivityClient) -> None:
    await activity_client.beat(lease_ms=60_000)
    waiting = asyncio.ensure_future(activity_client.take())
    while not activity_client.harness.server.matching._polls:
        await asyncio.sleep(0.001)
    waiting.cancel()
    while activity_client.harness.server.matching._polls:
        await asyncio.sleep(0.001)
    await activity_client.schedule("a")
    assert (await activity_client.take()).attempt == 1


async def test_unbinding_a_handed_out_activity_makes_it_available_again(
    activity_client: ActivityClient,
) -> None:
    """Either by an unbinding heartbeat or by a full set that lacks it."""
    await activity_client.beat(lease_ms=60_000)
    await activity_client.schedule("a")
    await activity_client.schedule("b")
    await activity_client.poll(max_activities=2)
    held = list((await activity_client.harness.describe()).bound_activities)
    await activity_client.beat(bound_activities=held)
    await activity_client.beat(unbound_activities=held[:1])
    await activity_client.beat(full_bindings=True)
    await activity_client.harness.advance(1)
    again = await activity_client.poll(max_activities=2)
    assert sorted((task.id.activity_id, task.attempt, task.failures) for task in again) == [
        ("a", 2, 0),
        ("b", 2, 0),
    ]


async def test_a_full_set_sent_before_the_poll_answer_drops_nothing(activity_client: ActivityClient) -> None:
    """The worker built the full set before the answer to its poll arrived."""
    await activity_client.beat(lease_ms=60_000)
    await activity_client.schedule("a")
    await activity_client.take()
    await activity_client.beat(full_bindings=True)
    assert (await activity_client.harness.describe()).bound_activity_count == 1


# -- restarts


async def test_activities_survive_a_restart_in_every_state(activity_client: ActivityClient) -> None:
    await activity_client.beat(lease_ms=60_000)
    for name in ("done", "held", "free", "later", "gone"):
        delay = {"start_delay": duration(30_000)} if name == "later" else {}
        await activity_client.schedule(name, **delay)  # type: ignore[arg-type]
    done, held = await activity_client.poll(max_activities=2)
    await activity_client.complete(done, result=b"r")
    await activity_client.cancel("gone")
    await activity_client.harness.restart()
    states = {row.id.activity_id: row.state for row in (await activity_client.listed()).activities}
    assert states == {
        "done": COMPLETED, "held": STARTED, "free": AVAILABLE, "later": WAITING, "gone": CANCELLED,
    }  # fmt: skip
    assert (await activity_client.describe("done")).result == b"r"
    free = await activity_client.take()
    assert free.id == activity_id("free")
    await activity_client.complete(free)
    await activity_client.complete(held)
    await activity_client.harness.advance(31_000)
    await activity_client.beat()
    assert (await activity_client.take()).id == activity_id("later")


async def test_a_finished_activity_that_left_memory_is_read_from_the_store(
    activity_client: ActivityClient,
) -> None:
    await activity_client.beat()
    await activity_client.schedule("a", input=b"1")
    task = await activity_client.take()
    await activity_client.complete(task, result=b"r")
    await activity_client.harness.server.maintenance.checkpoint()
    assert not any(len(shard.activities) for shard in activity_client.harness.server.node.shards())
    assert (await activity_client.schedule("a", input=b"1")).created is False
    assert (await refusal(activity_client.schedule("a", input=b"2"))).reason == "ACTIVITY_DIFFERS"
    assert (await refusal(activity_client.claim("a"))).reason == "ACTIVITY_FINISHED"
    await activity_client.complete(task, result=b"r")
    assert (await activity_client.describe("a")).result == b"r"


async def test_finished_activities_are_deleted_after_their_retention(
    activity_client: ActivityClient,
) -> None:
    await activity_client.harness.configure(activity_retention_ms=1_000)
    await activity_client.beat()
    await activity_client.schedule("done")
    await activity_client.complete(await activity_client.take())
    await activity_client.schedule("open")
    await activity_client.harness.advance(2_000)
    await activity_client.harness.server.maintenance.checkpoint()
    await activity_client.harness.server.maintenance.apply_retention()
    assert [row.id.activity_id for row in (await activity_client.listed()).activities] == ["open"]
    assert (await activity_client.schedule("done")).created is True


# -- listing


async def test_activities_are_listed_by_state_queue_and_worker(activity_client: ActivityClient) -> None:
    await activity_client.beat()
    await activity_client.schedule("a")
    await activity_client.schedule("b")
    await activity_client.schedule("c", task_queue="other")
    await activity_client.take()

    async def names(**where: object) -> list[str]:
        rows = (await activity_client.listed(filter=pb.ActivityFilter(**where))).activities  # type: ignore[arg-type]
        return [row.id.activity_id for row in rows]

    assert await names() == ["a", "b", "c"]
    assert await names(states=[STARTED]) == ["a"]
    assert await names(task_queue=QUEUE) == ["a", "b"]
    assert await names(worker_instance_key="w") == ["a"]
    assert await names(states=[AVAILABLE], task_queue="other") == ["c"]


async def test_a_long_list_of_activities_is_paged(activity_client: ActivityClient) -> None:
    names = [f"{number:02}" for number in range(25)]
    for name in names:
        await activity_client.schedule(name)
    found, token = [], ""
    while True:
        page = await activity_client.listed(page_size=10, page_token=token)
        found += [row.id.activity_id for row in page.activities]
        token = page.next_page_token
        if not token:
            break
    assert found == names
    first = await activity_client.listed(page_size=10)
    other = pb.ListActivitiesRequest(namespace="billing", page_size=10, page_token=first.next_page_token)
    assert (
        await refusal(activity_client.harness.activities.ListActivities(other))
    ).reason == "PAGE_TOKEN_INVALID"


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
async def test_invalid_input_is_refused_with_its_field_and_changes_nothing(
    activity_client: ActivityClient, method: str, request_: object, field: str
) -> None:
    before = await activity_client.harness.dump("shards", "audit")
    refused = await refusal(getattr(activity_client.harness.activities, method)(request_))
    assert (refused.code, refused.fields["field"]) == (grpc.StatusCode.INVALID_ARGUMENT, field)
    assert await activity_client.harness.dump("shards", "audit") == before


async def test_an_attempt_that_outlives_its_session_shows_the_epoch_that_may_end_it(
    activity_client: ActivityClient,
) -> None:
    harness = activity_client.harness
    await activity_client.beat()
    await activity_client.schedule("photo")
    task = await activity_client.take()
    kept = activity("photo")
    second: dict[str, Any] = {"session_id": "second", "sequence": 1, "task_queue": QUEUE}
    result = await harness.beat(**second, bound_activities=[kept])
    assert (result.outcome, result.lease_epoch) == (SESSION_REPLACED, 2)
    [listed] = (await activity_client.listed()).activities
    for shown in (await activity_client.describe("photo"), listed):
        assert (shown.state, shown.worker_instance_key, shown.attempt) == (STARTED, "w", 1)
        assert shown.lease_epoch == 2
    claimed = await activity_client.claim("photo", session_id="second")
    assert (claimed.lease_epoch, claimed.attempt) == (2, 1), (
        "a claim of what the session holds is answered alike"
    )
    assert (await refusal(activity_client.complete(task))).reason == "FENCED_OFF"
    await activity_client.complete(claimed)
    assert await activity_client.state("photo") == COMPLETED
