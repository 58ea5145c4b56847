"""The only mapping between the messages of ClusterService and domain values. Requests are validated as those of clients are:
a node of another version, or anything else that reaches this service, must not be able to store what no client can."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from liveness.dispatch.remote import HeldAttempt
from liveness.dispatch.worker_bindings import HolderView
from liveness.domain.activity import Activity, ActivityState
from liveness.domain.activity_decider import AttemptHolder
from liveness.domain.errors import InvalidField
from liveness.domain.keys import ActivityId, ActivityKey, WorkerKey
from liveness.domain.worker import BoundActivity, WorkerState
from liveness.server.activity_wire import ACTIVITY_TYPES_PER_POLL_MAX, EPOCH_MAX, activity_types, task_limits
from liveness.server.validation import (
    SEQUENCE_MAX,
    check_count,
    optional_identifier,
    require_identifier,
)
from liveness.server.wire import activities, attempt_number, worker_key
from liveness.telemetry.sample_ring import RETENTION_MS
from liveness.v1 import activity_pb2, cluster_pb2, worker_pb2

ITEMS_MAX = 1_000
"""In a question about workers or attempts."""
HINT_ITEMS_MAX = 50_000
"""In each list of a hint, which gathers all news since the hint before."""
ACTIVITIES_PER_HAND_OUT_MAX = 100
WORKERS_MAX = 2**53
WALL_MS_MAX = 253_402_300_799_999
"""The last moment of the year 9999."""


# -- from messages


def activity_id(message: activity_pb2.ActivityId) -> ActivityId:
    return ActivityId(
        require_identifier("id.workflow_id", message.workflow_id),
        require_identifier("id.run_id", message.run_id),
        require_identifier("id.activity_id", message.activity_id),
    )


def worker_keys(message: cluster_pb2.LookUpWorkersRequest) -> list[WorkerKey]:
    check_count("worker_instance_keys", message.worker_instance_keys, ITEMS_MAX)
    return [worker_key(message.namespace, key) for key in message.worker_instance_keys]


def questions(message: cluster_pb2.LookAtHoldersRequest) -> list[tuple[WorkerKey, ActivityId]]:
    check_count("questions", message.questions, ITEMS_MAX)
    return [
        (worker_key(question.namespace, question.worker_instance_key), activity_id(question.id))
        for question in message.questions
    ]


def bound_activities(refs: Sequence[worker_pb2.ActivityRef]) -> tuple[BoundActivity, ...]:
    check_count("activities", refs, ACTIVITIES_PER_HAND_OUT_MAX)
    return activities("activities", refs)


def attempt(number: int) -> int:
    if number < 0:
        raise InvalidField(field="attempt", rule="must not be negative")
    return number


def held_attempts(message: cluster_pb2.FindNotHeldRequest) -> list[HeldAttempt]:
    check_count("attempts", message.attempts, ITEMS_MAX)
    return [held_attempt(item) for item in message.attempts]


def held_attempt(message: cluster_pb2.HeldAttempt) -> HeldAttempt:
    return HeldAttempt(
        worker_key(message.namespace, message.worker_instance_key),
        activity_id(message.id),
        attempt(message.attempt),
    )


def taken_back(message: cluster_pb2.TakeBackRequest) -> list[tuple[ActivityKey, AttemptHolder]]:
    key = worker_key(message.namespace, message.worker_instance_key)
    if message.lease_epoch > EPOCH_MAX:
        raise InvalidField(field="lease_epoch", rule="must be the one that came with the activity")
    return [
        (
            ActivityKey(key.namespace, *activity.id),
            AttemptHolder(key.instance_key, message.lease_epoch, activity.attempt),
        )
        for activity in bound_activities(message.activities)
    ]


def hand_out_limit(count: int) -> int:
    if not 1 <= count <= ACTIVITIES_PER_HAND_OUT_MAX:
        raise InvalidField(field="max_activities", rule=f"must be 1 to {ACTIVITIES_PER_HAND_OUT_MAX}")
    return count


def range_ms(value: int) -> int:
    if not 0 <= value <= RETENTION_MS:
        raise InvalidField(field="range_ms", rule=f"must be 0 to {RETENTION_MS}")
    return value


def wall_ms(value: int) -> int:
    if not 0 <= value <= WALL_MS_MAX:
        raise InvalidField(field="wall_ms", rule="must lie in the years 1970 to 9999")
    return value


def check_hint(message: cluster_pb2.HintRequest, shard_count: int) -> None:
    """Check a hint as a whole, so that one that is refused has changed nothing."""
    require_identifier("node_id", message.node_id)
    require_identifier("address", message.address)
    check_count("wake_shards", message.wake_shards, HINT_ITEMS_MAX)
    check_count("owned", message.owned, HINT_ITEMS_MAX)
    check_count("released", message.released, HINT_ITEMS_MAX)
    check_count("offers", message.offers, HINT_ITEMS_MAX)
    check_count("heads", message.heads, HINT_ITEMS_MAX)
    check_count("struck", message.struck, HINT_ITEMS_MAX)
    _check_shard_ids("wake_shards", message.wake_shards, shard_count)
    _check_shard_ids("owned.shard_id", (route.shard_id for route in message.owned), shard_count)
    _check_shard_ids("released", message.released, shard_count)
    _check_shard_ids("heads.shard_id", (head.shard_id for head in message.heads), shard_count)
    for route in message.owned:
        require_identifier("owned.node_id", route.node_id)
        if route.epoch > EPOCH_MAX:
            raise InvalidField(field="owned.epoch", rule="must be below 2^63")
    for offer in message.offers:
        require_identifier("offers.namespace", offer.namespace)
        optional_identifier("offers.task_queue", offer.task_queue)
        check_count("offers.activity_types", offer.activity_types, ACTIVITY_TYPES_PER_POLL_MAX)
        activity_types(offer.activity_types)
    for head in message.heads:
        if head.sequence > SEQUENCE_MAX:
            raise InvalidField(field="heads.sequence", rule="must be below 2^63")
    for struck in message.struck:
        require_identifier("struck.namespace", struck.namespace)
        if not 0 <= struck.workers <= WORKERS_MAX or not 0 <= struck.of <= WORKERS_MAX:
            raise InvalidField(field="struck.workers and of", rule="must be 0 to 2^53")


def _check_shard_ids(field: str, ids: Iterable[int], shard_count: int) -> None:
    for shard_id in ids:
        if not 0 <= shard_id < shard_count:
            raise InvalidField(field=field, rule=f"must be 0 to {shard_count - 1}")


# -- to messages


def id_message(id: ActivityId) -> activity_pb2.ActivityId:
    return activity_pb2.ActivityId(**id._asdict())


def holder_view_message(view: HolderView | None) -> cluster_pb2.LookAtHoldersResponse.Answer:
    if view is None:
        return cluster_pb2.LookAtHoldersResponse.Answer(known=False)
    return cluster_pb2.LookAtHoldersResponse.Answer(
        known=True,
        state=view.state,  # type: ignore[arg-type]
        lease_epoch=view.epoch,
        inactive_detail=view.inactive_detail,
        bound_attempt=attempt_number(view.bound_attempt),
        unconfirmed=view.unconfirmed,
        silent_ms=view.silent_ms,
        task_queue=view.task_queue,
        principal=view.principal,
        session_id=view.session_id,
    )


def held_attempt_message(held_attempt: HeldAttempt) -> cluster_pb2.HeldAttempt:
    return cluster_pb2.HeldAttempt(
        namespace=held_attempt.worker.namespace,
        worker_instance_key=held_attempt.worker.instance_key,
        id=id_message(held_attempt.id),
        attempt=attempt_number(held_attempt.attempt),
    )


# -- from responses of other nodes


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


def activity_from_task(task: activity_pb2.ActivityTask, worker: str) -> Activity:
    """Builds the activity from the fields that its worker is told."""
    return Activity(
        id=ActivityId(task.id.workflow_id, task.id.run_id, task.id.activity_id),
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
        limits=task_limits(task),
        details=task.heartbeat_details,
        details_encoding=task.heartbeat_details_encoding,
    )
