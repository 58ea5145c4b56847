"""Attempts stay within the numbers of the API, whatever a worker declares or an earlier version has stored."""

from __future__ import annotations

import grpc
import pytest

from liveness.dispatch.remote import RemoteOwnershipResponder
from liveness.domain.activity import ATTEMPT_MAX
from liveness.domain.keys import WorkerKey
from liveness.domain.worker import BoundActivity
from liveness.v1 import activity_pb2, worker_pb2
from tests.integration.server.server_harness import NAMESPACE, ServerHarness, refusal

INT32_MAX = 2**31 - 1


def ref(attempt: int) -> worker_pb2.ActivityRef:
    return worker_pb2.ActivityRef(
        workflow_id="f", run_id="r", activity_id="a", attempt=attempt, task_queue="q"
    )


async def listed(harness: ServerHarness) -> list[activity_pb2.Activity]:
    response = await harness.activities.ListActivities(
        activity_pb2.ListActivitiesRequest(namespace=NAMESPACE)
    )
    return list(response.activities)


async def poll(harness: ServerHarness, worker: str) -> list[activity_pb2.ActivityTask]:
    request = activity_pb2.PollActivityRequest(
        namespace=NAMESPACE, worker_instance_key=worker, session_id="s", task_queue="q"
    )
    request.wait.SetInParent()
    response = await harness.activities.PollActivity(request)
    return list(response.activities)


async def complete(harness: ServerHarness, worker: str, task: activity_pb2.ActivityTask) -> None:
    await harness.activities.CompleteActivity(
        activity_pb2.CompleteActivityRequest(
            namespace=NAMESPACE,
            id=task.id,
            worker_instance_key=worker,
            lease_epoch=task.lease_epoch,
            attempt=task.attempt,
        )
    )


@pytest.mark.parametrize("attempt", [ATTEMPT_MAX + 1, INT32_MAX])
async def test_a_worker_cannot_declare_an_attempt_without_room_for_the_next(
    sqlite_harness: ServerHarness, attempt: int
) -> None:
    refused = await refusal(sqlite_harness.beat(bound_activities=[ref(attempt)]))
    assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert refused.fields["field"] == "heartbeat.bound_activities.attempt"
    assert await sqlite_harness.count() == {}


async def test_the_highest_attempt_is_rescheduled_handed_out_confirmed_and_completed(
    harness: ServerHarness,
) -> None:
    await harness.beat("first", bound_activities=[ref(ATTEMPT_MAX)])
    await harness.shut_down("first")
    await harness.advance(1_000)
    [activity] = await listed(harness)
    assert activity.attempt == ATTEMPT_MAX + 1
    await harness.beat("second", session_id="s", task_queue="q")
    [task] = await poll(harness, "second")
    await harness.beat("second", session_id="s", sequence=2, bound_activities=[ref(task.attempt)])
    await complete(harness, "second", task)
    assert [activity.state for activity in await listed(harness)] == [activity_pb2.ACTIVITY_STATE_COMPLETED]


async def test_an_attempt_beyond_the_api_that_was_stored_before_is_listed_and_can_be_finished(
    harness: ServerHarness,
) -> None:
    await harness.beat("first")
    # Past the validation of calls, as versions before stored it.
    bound = BoundActivity("f", "r", "a", 2**31, "q", b"")
    await RemoteOwnershipResponder(harness.server.node).bind(WorkerKey(NAMESPACE, "first"), "", [bound])
    assert [activity.attempt for activity in (await harness.describe("first")).bound_activities] == [
        INT32_MAX
    ]
    await harness.shut_down("first")
    assert [task.activity.attempt for task in await harness.tasks()] == [INT32_MAX]
    await harness.advance(1_000)
    await harness.restart()
    assert [activity.state for activity in await listed(harness)] == [activity_pb2.ACTIVITY_STATE_AVAILABLE]
    await harness.beat("second", session_id="s", task_queue="q")
    [task] = await poll(harness, "second")
    await complete(harness, "second", task)
    assert [activity.state for activity in await listed(harness)] == [activity_pb2.ACTIVITY_STATE_COMPLETED]
