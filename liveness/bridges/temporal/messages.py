"""Temporal's messages as values: what the bridge reads of them, and those that it sends itself.

Field numbers are those of `temporal.api.workflowservice.v1`; they never change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from liveness.bridges.temporal.wire import Fields, Writable, write_message

SERVICE = "/temporal.api.workflowservice.v1.WorkflowService/"
IDENTITY = "liveness-bridge"
FAILURE_TYPE = "LivenessWorkerLost"

STATUS_SHUTTING_DOWN = 2
"""A value of `temporal.api.enums.v1.WorkerStatus`."""
PENDING_CANCEL_REQUESTED = 3
"""A value of `temporal.api.enums.v1.PendingActivityState`."""


def duration_ms(fields: Fields) -> int:
    return fields.number(1) * 1_000 + fields.number(2) // 1_000_000


class Caller(NamedTuple):
    """The worker that sends a poll or completes a workflow task."""

    namespace: str
    worker_key: str
    identity: str
    task_queue: str = ""
    build_id: str = ""


def read_poll(request: bytes) -> Caller:
    """Read PollActivityTaskQueue or PollWorkflowTaskQueue. Nexus polls say nothing about activities: a worker that has only those is known
    by its heartbeats."""
    fields = Fields(request)
    options = fields.message(6)
    return Caller(
        namespace=fields.text(1),
        worker_key=fields.text(8),
        identity=fields.text(3),
        task_queue=fields.message(2).text(1),
        # WorkerDeploymentOptions.build_id, or WorkerVersionCapabilities.build_id of older SDKs.
        build_id=options.text(2) or fields.message(5).text(1),
    )


def read_namespace(request: bytes) -> str:
    """Read the namespace of DescribeNamespace."""
    return Fields(request).text(1)


def write_describe_namespace(namespace: str) -> bytes:
    return write_message({1: namespace})


def read_workflow_task_completion(request: bytes) -> Caller:
    fields = Fields(request)
    return Caller(namespace=fields.text(9), worker_key=fields.text(19), identity=fields.text(3))


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOut:
    """An attempt of an activity as a poll's answer names it."""

    task_token: bytes
    workflow_id: str
    """Empty for a standalone activity."""
    run_id: str
    """Of the workflow, or of the standalone activity."""
    activity_id: str
    activity_type: str
    attempt: int
    maximum_attempts: int
    """0: no limit."""
    opted_out: bool
    """Whether the activity's header says `liveness=off`."""


def read_activity_task(answer: bytes) -> HandedOut | None:
    """Read the answer of PollActivityTaskQueue; None if it brings no task."""
    fields = Fields(answer)
    task_token = fields.data(1)
    if not task_token:
        return None
    execution = fields.message(4)
    return HandedOut(
        task_token=task_token,
        workflow_id=execution.text(1),
        run_id=execution.text(2) or fields.text(20),
        activity_id=fields.text(6),
        activity_type=fields.message(5).text(1),
        attempt=fields.number(13),
        maximum_attempts=fields.message(17).number(4),
        opted_out=is_off(fields.message(7).map(1).get("liveness")),
    )


def read_eager_tasks(answer: bytes) -> list[HandedOut]:
    """Read the activities that the answer of RespondWorkflowTaskCompleted hands out."""
    tasks = [read_activity_task(task) for task in Fields(answer).all_data(2)]
    return [task for task in tasks if task is not None]


def has_eager_task(answer: bytes) -> bool:
    """Whether the answer of StartActivityExecution hands the standalone activity out to its caller."""
    return bool(Fields(answer).data(4))


def is_off(payload: bytes | None) -> bool:
    """Whether a payload is the text `off`, plain or as JSON."""
    return payload is not None and Fields(payload).data(2).strip(b'"').lower() == b"off"


class Completion(NamedTuple):
    """A call that ends an attempt, or a heartbeat of one. By token, or by the ids where `task_token` is empty."""

    namespace: str
    identity: str
    task_token: bytes = b""
    workflow_id: str = ""
    run_id: str = ""
    activity_id: str = ""


def read_completion(request: bytes) -> Completion:
    fields = Fields(request)
    return Completion(fields.text(4), fields.text(3), fields.data(1))


def read_completion_by_id(request: bytes) -> Completion:
    fields = Fields(request)
    return Completion(fields.text(1), fields.text(6), b"", fields.text(2), fields.text(3), fields.text(4))


class WorkerBeat(NamedTuple):
    """A WorkerHeartbeat of Temporal's."""

    worker_key: str
    identity: str
    host_name: str
    process_id: str
    task_queue: str
    build_id: str
    deployment: str
    sdk_name: str
    sdk_version: str
    status: int
    start_time_s: int
    interval_ms: int
    """Since the worker's last one; 0 in the first."""
    used_activity_slots: int | None
    """None if it does not say."""


def read_worker_beats(request: bytes) -> tuple[str, list[WorkerBeat]]:
    """Read RecordWorkerHeartbeat: the namespace and the heartbeats of the process's workers."""
    fields = Fields(request)
    return fields.text(1), [read_worker_beat(beat) for beat in fields.all_data(3)]


def read_worker_beat(beat: bytes) -> WorkerBeat:
    fields = Fields(beat)
    host, version = fields.message(3), fields.message(5)
    slots = fields.data(13)
    return WorkerBeat(
        worker_key=fields.text(1),
        identity=fields.text(2),
        host_name=host.text(1),
        process_id=host.text(2),
        task_queue=fields.text(4),
        build_id=version.text(1),
        deployment=version.text(2),
        sdk_name=fields.text(6),
        sdk_version=fields.text(7),
        status=fields.number(8),
        start_time_s=fields.message(9).number(1),
        interval_ms=duration_ms(fields.message(11)),
        used_activity_slots=Fields(slots).number(2) if slots else None,
    )


class Shutdown(NamedTuple):
    namespace: str
    worker_key: str
    reason: str


def read_shutdown(request: bytes) -> Shutdown:
    fields = Fields(request)
    key = fields.text(6) or fields.message(5).text(1)
    return Shutdown(fields.text(1), key, fields.text(4))


# -- what the bridge itself asks of Temporal


def write_execution(workflow_id: str, run_id: str) -> bytes:
    return write_message({1: workflow_id, 2: run_id})


def write_describe_workflow(namespace: str, workflow_id: str, run_id: str) -> bytes:
    return write_message({1: namespace, 2: write_execution(workflow_id, run_id)})


class PendingActivity(NamedTuple):
    state: int
    attempt: int
    opted_out: bool
    """The search attribute `liveness`, of its workflow or its own, is `off`."""


def read_described_workflow(answer: bytes, activity_id: str) -> PendingActivity | None:
    """Read what DescribeWorkflowExecution says about an activity; None if it is not pending."""
    fields = Fields(answer)
    opted_out = _is_opted_out(fields.message(2).message(11))
    for activity in map(Fields, fields.all_data(3)):
        if activity.text(1) == activity_id:
            return PendingActivity(activity.number(3), activity.number(7), opted_out)
    return None


def write_describe_standalone(namespace: str, activity_id: str, run_id: str) -> bytes:
    """Write DescribeActivityExecution."""
    return write_message({1: namespace, 2: activity_id, 3: run_id})


def read_described_standalone(answer: bytes) -> PendingActivity | None:
    """Read DescribeActivityExecution; None if the activity is over."""
    info = Fields(answer).message(2)
    if not info.number(5):
        return None
    return PendingActivity(info.number(5), info.number(15), _is_opted_out(info.message(29)))


def _is_opted_out(search_attributes: Fields) -> bool:
    return is_off(search_attributes.map(1).get("liveness"))


# Both set an absolute value, so they may be repeated.


def write_maximum_attempts(
    namespace: str, workflow_id: str, run_id: str, activity_id: str, maximum_attempts: int
) -> bytes:
    """Write UpdateActivityOptions for one activity of a workflow."""
    return write_message(
        {
            1: namespace,
            2: write_execution(workflow_id, run_id),
            3: IDENTITY,
            4: _maximum_attempts_options(maximum_attempts),
            5: _MAXIMUM_ATTEMPTS_MASK,
            6: activity_id,
        }
    )


def write_standalone_maximum_attempts(
    namespace: str, activity_id: str, run_id: str, maximum_attempts: int
) -> bytes:
    """Write UpdateActivityExecutionOptions."""
    return write_message(
        {
            1: namespace,
            3: activity_id,
            4: run_id,
            5: IDENTITY,
            6: _maximum_attempts_options(maximum_attempts),
            7: _MAXIMUM_ATTEMPTS_MASK,
        }
    )


_MAXIMUM_ATTEMPTS_MASK = write_message({1: [b"retry_policy.maximum_attempts"]})


def _maximum_attempts_options(maximum_attempts: int) -> bytes:
    return write_message({6: write_message({4: maximum_attempts})})


def write_failure(namespace: str, task_token: bytes, message: str) -> bytes:
    """Write RespondActivityTaskFailed with a failure after which Temporal retries at once."""
    delay = write_message({2: 1_000_000})  # 1 ms; 0 would fail the workflow
    info = write_message({1: FAILURE_TYPE, 4: delay})
    failure = write_message({1: message, 2: "liveness", 5: info})
    return write_message({1: task_token, 2: failure, 3: IDENTITY, 4: namespace})


def write_cancellation(namespace: str, task_token: bytes) -> bytes:
    return write_message({1: task_token, 3: IDENTITY, 4: namespace})


# -- the worker API, answered in place of a server that does not have it


def read_list_workers(request: bytes) -> tuple[str, int, str, str]:
    """Read ListWorkers: namespace, page size, page token, query."""
    fields = Fields(request)
    return fields.text(1), fields.number(2), fields.text(3), fields.text(4)


def read_count_workers(request: bytes) -> tuple[str, str]:
    """Read CountWorkers: namespace, query."""
    fields = Fields(request)
    return fields.text(1), fields.text(2)


def read_described_worker_key(request: bytes) -> tuple[str, str]:
    fields = Fields(request)
    return fields.text(1), fields.text(2)


class ListedWorker(NamedTuple):
    worker_key: str
    identity: str
    task_queue: str
    build_id: str
    sdk_name: str
    sdk_version: str
    status: int
    host_name: str
    process_id: str
    start_time_s: int


def write_worker_info(worker: ListedWorker) -> bytes:
    """Write a WorkerInfo: a WorkerHeartbeat in a message of its own."""
    host = write_message({1: worker.host_name, 2: worker.process_id})
    beat: dict[int, Writable] = {
        1: worker.worker_key,
        2: worker.identity,
        3: host,
        4: worker.task_queue,
        5: write_message({1: worker.build_id}),
        6: worker.sdk_name,
        7: worker.sdk_version,
        8: worker.status,
        9: write_message({1: worker.start_time_s}),
    }
    return write_message({1: write_message(beat)})


def write_worker_list_info(worker: ListedWorker) -> bytes:
    return write_message(
        {
            1: worker.worker_key,
            2: worker.identity,
            3: worker.task_queue,
            4: write_message({1: worker.build_id}),
            5: worker.sdk_name,
            6: worker.sdk_version,
            7: worker.status,
            8: write_message({1: worker.start_time_s}),
            9: worker.host_name,
            11: worker.process_id,
        }
    )


def write_listed_workers(workers: list[ListedWorker], next_page_token: str) -> bytes:
    return write_message(
        {
            1: [write_worker_info(worker) for worker in workers],
            2: next_page_token,
            3: [write_worker_list_info(worker) for worker in workers],
        }
    )


def write_described_worker(worker: ListedWorker) -> bytes:
    return write_message({1: write_worker_info(worker)})


def write_worker_count(count: int) -> bytes:
    return write_message({1: count})
