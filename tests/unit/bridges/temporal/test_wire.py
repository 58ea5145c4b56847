"""The hand-written reader and writer agree with protobuf and with Temporal's own messages."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.activity.v1 import ActivityExecutionInfo
from temporalio.api.common.v1 import Header, Payload, RetryPolicy, SearchAttributes, WorkflowExecution
from temporalio.api.deployment.v1 import WorkerDeploymentOptions, WorkerDeploymentVersion
from temporalio.api.enums.v1 import PendingActivityState, WorkerStatus
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.worker.v1 import WorkerHeartbeat, WorkerHostInfo, WorkerSlotsInfo
from temporalio.api.workflow.v1 import PendingActivityInfo, WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import request_response_pb2 as pb

from liveness.bridges.temporal import messages
from liveness.bridges.temporal.wire import Fields, Malformed, read_fields, write_message


@given(
    st.dictionaries(
        st.integers(1, 2**20),
        st.one_of(
            st.integers(1, 2**63 - 1),
            st.text(min_size=1),
            st.binary(min_size=1),
            st.lists(st.binary(), min_size=1),
        ),
    )
)
def test_what_is_written_is_read(fields: dict[int, int | str | bytes | list[bytes]]) -> None:
    read = Fields(write_message(fields))  # type: ignore[arg-type]  # a dictionary of the same values
    for number, value in fields.items():
        if isinstance(value, int):
            assert read.number(number) == value
        elif isinstance(value, str):
            assert read.text(number) == value
        elif isinstance(value, bytes):
            assert read.data(number) == value
        else:
            assert read.all_data(number) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        list(read_fields(data))
    except Malformed:
        pass


@pytest.mark.parametrize(
    "data", [b"\x0a", b"\x0a\x05ab", b"\x08", b"\x08" + b"\xff" * 10, b"\x0b", b"\x09\x00"]
)
def test_broken_messages_are_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        Fields(data)


def test_polls() -> None:
    poll = pb.PollActivityTaskQueueRequest(
        namespace="n",
        worker_instance_key="k",
        identity="i",
        task_queue=TaskQueue(name="q"),
        deployment_options=WorkerDeploymentOptions(deployment_name="d", build_id="b"),
    )
    wanted = messages.Caller("n", "k", "i", "q", "b")
    assert messages.read_poll(poll.SerializeToString()) == wanted
    completed = pb.RespondWorkflowTaskCompletedRequest(namespace="n", worker_instance_key="k", identity="i")
    read = messages.read_workflow_task_completion(completed.SerializeToString())
    assert read == messages.Caller("n", "k", "i")


def test_hand_outs() -> None:
    task = pb.PollActivityTaskQueueResponse(
        task_token=b"t",
        workflow_execution=WorkflowExecution(workflow_id="w", run_id="r"),
        activity_id="7",
        attempt=3,
        retry_policy=RetryPolicy(maximum_attempts=5, backoff_coefficient=2.0),
        header=Header(fields={"liveness": Payload(data=b"off"), "other": Payload(data=b"x")}),
    )
    task.activity_type.name = "charge"
    read = messages.read_activity_task(task.SerializeToString())
    assert read == messages.HandedOut(
        task_token=b"t",
        workflow_id="w",
        run_id="r",
        activity_id="7",
        activity_type="charge",
        attempt=3,
        maximum_attempts=5,
        opted_out=True,
    )
    answer = pb.RespondWorkflowTaskCompletedResponse(activity_tasks=[task, task])
    assert messages.read_eager_tasks(answer.SerializeToString()) == [read, read]
    assert messages.read_activity_task(b"") is None


def test_ends_of_attempts() -> None:
    for kind in ("Completed", "Failed", "Canceled"):
        request = getattr(pb, f"RespondActivityTask{kind}Request")(
            task_token=b"t", identity="i", namespace="n"
        )
        assert messages.read_completion(request.SerializeToString()) == messages.Completion("n", "i", b"t")
        by_id = getattr(pb, f"RespondActivityTask{kind}ByIdRequest")(
            namespace="n", workflow_id="w", run_id="r", activity_id="7", identity="i"
        )
        read = messages.read_completion_by_id(by_id.SerializeToString())
        assert read == messages.Completion("n", "i", b"", "w", "r", "7")
    beat = pb.RecordActivityTaskHeartbeatRequest(task_token=b"t", identity="i", namespace="n")
    assert messages.read_completion(beat.SerializeToString()) == messages.Completion("n", "i", b"t")


def test_worker_heartbeats_and_shutdowns() -> None:
    beat = WorkerHeartbeat(
        worker_instance_key="k",
        worker_identity="i",
        host_info=WorkerHostInfo(host_name="h", process_id="17"),
        task_queue="q",
        deployment_version=WorkerDeploymentVersion(build_id="b", deployment_name="d"),
        sdk_name="s",
        sdk_version="v",
        status=WorkerStatus.WORKER_STATUS_SHUTTING_DOWN,
        start_time=Timestamp(seconds=100),
        elapsed_since_last_heartbeat=Duration(seconds=1, nanos=500_000_000),
        activity_task_slots_info=WorkerSlotsInfo(current_used_slots=4, current_available_slots=6),
    )
    request = pb.RecordWorkerHeartbeatRequest(namespace="n", worker_heartbeat=[beat])
    wanted = messages.WorkerBeat(
        worker_key="k",
        identity="i",
        host_name="h",
        process_id="17",
        task_queue="q",
        build_id="b",
        deployment="d",
        sdk_name="s",
        sdk_version="v",
        status=messages.STATUS_SHUTTING_DOWN,
        start_time_s=100,
        interval_ms=1_500,
        used_activity_slots=4,
    )
    assert messages.read_worker_beats(request.SerializeToString()) == ("n", [wanted])
    shutdown = pb.ShutdownWorkerRequest(namespace="n", worker_instance_key="k", reason="bye")
    assert messages.read_shutdown(shutdown.SerializeToString()) == messages.Shutdown("n", "k", "bye")


def test_the_calls_of_a_rescue() -> None:
    described = pb.DescribeWorkflowExecutionRequest.FromString(
        messages.write_describe_workflow("n", "w", "r")
    )
    assert described == pb.DescribeWorkflowExecutionRequest(
        namespace="n", execution=WorkflowExecution(workflow_id="w", run_id="r")
    )
    update = pb.UpdateActivityOptionsRequest.FromString(
        messages.write_maximum_attempts("n", "w", "r", "7", 4)
    )
    assert (update.namespace, update.execution.run_id, update.id) == ("n", "r", "7")
    assert update.activity_options.retry_policy == RetryPolicy(maximum_attempts=4)
    assert list(update.update_mask.paths) == ["retry_policy.maximum_attempts"]
    failed = pb.RespondActivityTaskFailedRequest.FromString(messages.write_failure("n", b"t", "why"))
    assert (failed.namespace, failed.task_token, failed.failure.message) == ("n", b"t", "why")
    info = failed.failure.application_failure_info
    assert (info.type, info.non_retryable, info.next_retry_delay.nanos) == (
        "LivenessWorkerLost",
        False,
        1_000_000,
    )
    canceled = pb.RespondActivityTaskCanceledRequest.FromString(messages.write_cancellation("n", b"t"))
    assert (canceled.namespace, canceled.task_token) == ("n", b"t")


def test_described_workflows() -> None:
    answer = pb.DescribeWorkflowExecutionResponse(
        workflow_execution_info=WorkflowExecutionInfo(
            search_attributes=SearchAttributes(indexed_fields={"liveness": Payload(data=b'"off"')})
        ),
        pending_activities=[
            PendingActivityInfo(
                activity_id="7",
                state=PendingActivityState.PENDING_ACTIVITY_STATE_CANCEL_REQUESTED,
                attempt=2,
            )
        ],
    ).SerializeToString()
    expected = messages.PendingActivity(messages.PENDING_CANCEL_REQUESTED, 2, opted_out=True)
    assert messages.read_described_workflow(answer, "7") == expected
    assert messages.read_described_workflow(answer, "8") is None


def test_standalone_activities() -> None:
    task = pb.PollActivityTaskQueueResponse(task_token=b"t", activity_id="7", activity_run_id="r", attempt=2)
    read = messages.read_activity_task(task.SerializeToString())
    assert read is not None
    assert (read.workflow_id, read.run_id, read.activity_id) == ("", "r", "7")

    asked = messages.write_describe_standalone("n", "7", "r")
    assert pb.DescribeActivityExecutionRequest.FromString(asked) == pb.DescribeActivityExecutionRequest(
        namespace="n", activity_id="7", run_id="r"
    )
    running = pb.DescribeActivityExecutionResponse(
        info=ActivityExecutionInfo(
            run_state=PendingActivityState.PENDING_ACTIVITY_STATE_STARTED,
            attempt=2,
            search_attributes=SearchAttributes(indexed_fields={"liveness": Payload(data=b'"off"')}),
        )
    )
    expected = messages.PendingActivity(2, 2, opted_out=True)
    assert messages.read_described_standalone(running.SerializeToString()) == expected
    over = pb.DescribeActivityExecutionResponse(info=ActivityExecutionInfo(attempt=2))
    assert messages.read_described_standalone(over.SerializeToString()) is None

    update = pb.UpdateActivityExecutionOptionsRequest.FromString(
        messages.write_standalone_maximum_attempts("n", "7", "r", 4)
    )
    assert (update.namespace, update.activity_id, update.run_id) == ("n", "7", "r")
    assert update.activity_options.retry_policy == RetryPolicy(maximum_attempts=4)
    assert list(update.update_mask.paths) == ["retry_policy.maximum_attempts"]

    started = pb.StartActivityExecutionResponse(run_id="r")
    assert not messages.has_eager_task(started.SerializeToString())
    started.eager_activity_task.CopyFrom(task)
    assert messages.has_eager_task(started.SerializeToString())
