"""Time limits of an activity, and its place in the line."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta

from liveness.sdk.values import to_duration
from liveness.v1 import activity_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long an activity may take, in seconds; None: any time. Time in which no server listens does not count."""

    schedule_to_close: float | timedelta | None = None
    """From when the activity could first start until it is finished, over all attempts. Then it fails."""
    schedule_to_start: float | timedelta | None = None
    """How long an attempt may wait for a worker. Then the activity fails."""
    start_to_close: float | timedelta | None = None
    """How long a worker may hold one attempt. Then the attempt is lost, and the activity is tried again by its retry
    policy."""
    heartbeat: float | timedelta | None = None
    """The longest time between two calls of `task.progress`. Then as with `start_to_close`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Priority:
    """In which order activities that wait in one task queue are handed out."""

    priority_key: int = 3
    """1 to 5; lower ones come first."""
    fairness_key: str = ""
    """Activities of one priority are handed out to these keys by turns, for example to tenants."""
    fairness_weight: float = 1.0
    """How many turns the key gets, compared with others."""


def priority_to_proto(priority: Priority | None) -> activity_pb2.Priority | None:
    if priority is None:
        return None
    return activity_pb2.Priority(
        priority_key=priority.priority_key,
        fairness_key=priority.fairness_key,
        fairness_weight=priority.fairness_weight,
    )


def timeouts_to_proto(timeouts: Timeouts | None) -> activity_pb2.ActivityTimeouts | None:
    if timeouts is None:
        return None
    given = {field.name: getattr(timeouts, field.name) for field in fields(timeouts)}
    return activity_pb2.ActivityTimeouts(
        **{f"{name}_timeout": to_duration(span) for name, span in given.items() if span is not None}
    )


def timed_out_from_proto(number: int) -> str:
    """The name of the limit; empty for none, and for one that this SDK does not know."""
    name = activity_pb2.TimeoutType.Name(number) if number in activity_pb2.TimeoutType.values() else ""  # type: ignore[arg-type]
    return "" if number == 0 else name.removeprefix("TIMEOUT_TYPE_").lower()
