"""Format activities for people."""

from __future__ import annotations

from liveness.cli.durations import format_ms, humanize_ms, to_ms
from liveness.cli.output import enum_name, format_age, format_time, format_time_left, payload_text
from liveness.cli.payloads import described_payload
from liveness.v1.activity_pb2 import (
    ACTIVITY_STATE_STARTED,
    ACTIVITY_STATE_WAITING,
    Activity,
    ActivityAttempt,
    ActivityId,
    ActivityState,
    AttemptOutcome,
    Priority,
    RetryPolicy,
    TimeoutType,
)


def activity_name(id: ActivityId) -> str:
    """The name in the form that the server uses in its error messages."""
    return f"{id.workflow_id}/{id.run_id}/{id.activity_id}"


def state_name(number: int) -> str:
    return enum_name(ActivityState, number)


def activity_row(activity: Activity) -> tuple[object, ...]:
    id = activity.id
    return (
        id.workflow_id,
        id.run_id,
        id.activity_id,
        _state_text(activity),
        activity.activity_type,
        activity.task_queue,
        activity.attempt,
        activity.failures,
        activity.worker_instance_key,
        format_age(activity, "since"),
        activity.last_failure,
    )


def activity_fields(activity: Activity) -> list[tuple[str, object]]:
    id = activity.id
    held = activity.state == ACTIVITY_STATE_STARTED
    since = format_time(activity, "since")
    return [
        ("workflow", id.workflow_id),
        ("run", id.run_id),
        ("activity", id.activity_id),
        ("namespace", activity.namespace),
        ("state", _state_text(activity)),
        ("since", since and f"{since} ({format_age(activity, 'since')})"),
        ("due", format_time(activity, "due_time")),
        ("waits because", activity.waiting_reason),
        ("type", activity.activity_type),
        ("task queue", activity.task_queue),
        ("attempt", activity.attempt),
        ("worker", f"{activity.worker_instance_key} (epoch {activity.lease_epoch})" if held else ""),
        ("failures", activity.failures),
        ("worker deaths", f"{activity.worker_deaths} in a row" if activity.worker_deaths else ""),
        ("last failure", activity.last_failure),
        ("time limits", _timeouts_text(activity)),
        ("time is over", _timeout_text(activity)),
        ("last heartbeat", format_age(activity, "last_heartbeat_time")),
        ("progress", _progress_text(activity)),
        ("priority", _priority_text(activity.priority) if activity.HasField("priority") else ""),
        ("retries", _retry_policy_text(activity.retry_policy) if activity.HasField("retry_policy") else ""),
        ("shard", activity.shard_id),
        ("input", described_payload(activity.input, activity.input_encoding)),
        ("result", described_payload(activity.result, activity.result_encoding)),
        ("token", payload_text(activity.token)),
    ]


def attempt_row(attempt: ActivityAttempt) -> tuple[object, ...]:
    took = ""
    if attempt.HasField("start_time") and attempt.HasField("end_time"):
        took = humanize_ms(attempt.end_time.ToMilliseconds() - attempt.start_time.ToMilliseconds())
    return (
        attempt.attempt,
        attempt.worker_instance_key,
        attempt.lease_epoch,
        format_time(attempt, "start_time"),
        took,
        enum_name(AttemptOutcome, attempt.outcome).lower().replace("_", " "),
        attempt.message,
    )


def _state_text(activity: Activity) -> str:
    word = state_name(activity.state)
    if activity.state == ACTIVITY_STATE_WAITING and activity.HasField("due_time"):
        return f"{word} (due {format_time_left(activity, 'due_time')})"
    return word


def _timeouts_text(activity: Activity) -> str:
    return ", ".join(
        f"{field.name.removesuffix('_timeout').replace('_', ' ')} {format_ms(to_ms(limit))}"
        for field, limit in activity.timeouts.ListFields()
    )


def _timeout_text(activity: Activity) -> str:
    if not activity.HasField("timeout_time"):
        return ""
    limit = enum_name(TimeoutType, activity.next_timeout_type).lower().replace("_", " ")
    return f"{format_time_left(activity, 'timeout_time')} ({limit})"


def _priority_text(priority: Priority) -> str:
    key = priority.fairness_key
    weight = f", weight {priority.fairness_weight:g}" if priority.fairness_weight != 1 else ""
    return f"{priority.priority_key}" + (f"; fairness key {key}{weight}" if key else weight)


def _progress_text(activity: Activity) -> str:
    if not activity.HasField("heartbeat_details_time"):
        return ""
    details = described_payload(activity.heartbeat_details, activity.heartbeat_details_encoding)
    return f"{details} ({format_age(activity, 'heartbeat_details_time')})"


def _retry_policy_text(policy: RetryPolicy) -> str:
    attempts = policy.maximum_attempts
    first, longest = format_ms(to_ms(policy.initial_interval)), format_ms(to_ms(policy.maximum_interval))
    parts = [
        f"{attempts} attempt{'' if attempts == 1 else 's'} at most" if attempts else "any number of attempts",
        f"{first} before the second, then {policy.backoff_coefficient:g} times as long each, up to {longest}",
    ]
    if policy.HasField("maximum_worker_deaths"):
        deaths = policy.maximum_worker_deaths
        parts.append(
            f"quarantined after {deaths} worker death{'' if deaths == 1 else 's'}"
            if deaths
            else "never quarantined"
        )
    return "; ".join(parts)
