"""The only mapping between the messages of ClusterService and domain values. Nodes trust each other's messages."""

from __future__ import annotations

from liveness.dispatch.remote import HeldAttempt
from liveness.dispatch.worker_bindings import HolderView
from liveness.domain.activity import Activity, ActivityState
from liveness.domain.keys import ActivityId, WorkerKey
from liveness.domain.worker import BoundActivity, WorkerState
from liveness.v1 import activity_pb2, cluster_pb2, worker_pb2


def id_message(id: ActivityId) -> activity_pb2.ActivityId:
    return activity_pb2.ActivityId(**id._asdict())


def activity_id(message: activity_pb2.ActivityId) -> ActivityId:
    return ActivityId(message.workflow_id, message.run_id, message.activity_id)


def bound_activity(message: worker_pb2.ActivityRef) -> BoundActivity:
    return BoundActivity(
        message.workflow_id,
        message.run_id,
        message.activity_id,
        message.attempt,
        message.task_queue,
        message.token,
    )


def holder_view_message(view: HolderView | None) -> cluster_pb2.LookAtHoldersResponse.Answer:
    if view is None:
        return cluster_pb2.LookAtHoldersResponse.Answer(known=False)
    return cluster_pb2.LookAtHoldersResponse.Answer(
        known=True,
        state=view.state,  # type: ignore[arg-type]
        lease_epoch=view.epoch,
        inactive_detail=view.inactive_detail,
        bound_attempt=view.bound_attempt,
        unconfirmed=view.unconfirmed,
        silent_ms=view.silent_ms,
        task_queue=view.task_queue,
        principal=view.principal,
        session_id=view.session_id,
    )


def holder_view(answer: cluster_pb2.LookAtHoldersResponse.Answer) -> HolderView | None:
    if not answer.known:
        return None
    return HolderView(
        WorkerState(answer.state),
        answer.lease_epoch,
        answer.inactive_detail,
        answer.bound_attempt,
        answer.unconfirmed,
        answer.silent_ms,
        answer.task_queue,
        answer.principal,
        answer.session_id,
    )


def held_attempt(message: cluster_pb2.HeldAttempt) -> HeldAttempt:
    return HeldAttempt(
        WorkerKey(message.namespace, message.worker_instance_key), activity_id(message.id), message.attempt
    )


def held_attempt_message(held_attempt: HeldAttempt) -> cluster_pb2.HeldAttempt:
    return cluster_pb2.HeldAttempt(
        namespace=held_attempt.worker.namespace,
        worker_instance_key=held_attempt.worker.instance_key,
        id=id_message(held_attempt.id),
        attempt=held_attempt.attempt,
    )


def activity_from_task(task: activity_pb2.ActivityTask, worker: str) -> Activity:
    """Builds the activity from the fields that its worker is told."""
    return Activity(
        id=activity_id(task.id),
        state=ActivityState.STARTED,
        attempt=task.attempt,
        task_queue=task.task_queue,
        token=task.token,
        releases=(),
        type=task.activity_type,
        input=task.input,
        input_encoding=task.input_encoding,
        worker=worker,
        epoch=task.lease_epoch,
        failures=task.failures,
        last_failure=task.last_failure,
    )
