"""To which shard each call belongs, and whether it may be sent twice. One table for all methods of all services."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

Place = tuple[str, str]
"""Namespace and name: what `shard_of` needs."""


class Kind(Enum):
    BY_SHARD = "by shard"
    HEARTBEAT = "by shard, and may travel with others"
    HEARTBEATS = "each of its items by shard"
    STREAM = "each worker on it by shard"
    ANYWHERE = "any node"


class Repeat(Enum):
    """After which failures a call may be sent again."""

    BLINDLY = "also when it is unknown whether it had an effect: a second time has none"
    REFUSED = "only when the node said that it did not serve it"
    NOT_TAKEN_UP = "only when the node said that it did not even begin to"


class Rule(NamedTuple):
    kind: Kind
    repeat: Repeat = Repeat.BLINDLY
    place: Callable[[Any], Place] | None = None
    wait_ms_max: int = 0
    """How long the node may let the caller wait on purpose."""


POLL_MS_MAX = 60_000


def _by_worker(request: Any) -> Place:
    return request.namespace, request.worker_instance_key


def _by_heartbeat(request: Any) -> Place:
    return request.namespace, request.heartbeat.worker_instance_key


def _by_workflow(request: Any) -> Place:
    return request.namespace, request.id.workflow_id


def _by_namespace(request: Any) -> Place:
    return request.namespace, ""


REPLAY_MS_MAX = 3_600_000

WORKER = Rule(Kind.BY_SHARD, place=_by_worker)
"""Orders for many workers name none, and belong where their namespace's settings do."""
ACTIVITY = Rule(Kind.BY_SHARD, place=_by_workflow)
CONFIG = Rule(Kind.BY_SHARD, place=_by_namespace)
ANYWHERE = Rule(Kind.ANYWHERE)

RULES: dict[str, Rule] = {
    "LivenessService/RecordWorkerHeartbeat": Rule(Kind.HEARTBEAT, place=_by_heartbeat),
    "LivenessService/RecordWorkerHeartbeats": Rule(Kind.HEARTBEATS),
    "LivenessService/Attach": Rule(Kind.STREAM),
    "LivenessService/ShutdownWorker": WORKER,
    "LivenessService/DescribeWorker": WORKER,
    "LivenessService/GetWorkerHistory": WORKER,
    "LivenessService/GetDeathCertificate": WORKER,
    "LivenessService/ListWorkers": ANYWHERE,
    "LivenessService/CountWorkers": ANYWHERE,
    "LivenessService/WatchEvents": ANYWHERE,
    "LivenessService/GetServerInfo": ANYWHERE,
    # Twice would hand out more than the worker asked for, of which it hears late.
    "ActivityService/PollActivity": Rule(Kind.BY_SHARD, Repeat.REFUSED, _by_worker, POLL_MS_MAX),
    "ActivityService/ScheduleActivity": ACTIVITY,
    "ActivityService/CompleteActivity": ACTIVITY,
    "ActivityService/FailActivity": ACTIVITY,
    "ActivityService/ClaimActivity": ACTIVITY,
    "ActivityService/ReleaseActivity": ACTIVITY,
    "ActivityService/DescribeActivity": ACTIVITY,
    "ActivityService/CancelActivity": ACTIVITY,
    # A fresh start given twice is two, or an error that hides the first.
    "ActivityService/RetryActivity": Rule(Kind.BY_SHARD, Repeat.NOT_TAKEN_UP, _by_workflow),
    "ActivityService/ListActivities": ANYWHERE,
    "AdminService/ExpireWorker": WORKER,
    "AdminService/DrainWorker": WORKER,
    "AdminService/PauseWorkers": WORKER,
    "AdminService/ResumeWorkers": WORKER,
    "AdminService/ReleaseStorm": ANYWHERE,
    "AdminService/GetConfig": CONFIG,
    "AdminService/UpdateConfig": CONFIG,
    "AdminService/ListShards": ANYWHERE,
    "AdminService/ListNodes": ANYWHERE,
    "AdminService/GetFleet": ANYWHERE,
    "AdminService/ListTasks": ANYWHERE,
    "AdminService/RetryTask": Rule(Kind.ANYWHERE, Repeat.NOT_TAKEN_UP),
    "AdminService/DiscardTask": Rule(Kind.ANYWHERE, Repeat.NOT_TAKEN_UP),
    "AdminService/GetRelayStatus": ANYWHERE,
    # Twice is once for the broker, but it takes its time.
    "AdminService/ReplayRelay": Rule(Kind.ANYWHERE, Repeat.NOT_TAKEN_UP, wait_ms_max=REPLAY_MS_MAX),
}


def rule_of(service: str, method: str) -> Rule:
    """What is not known here, any node may know."""
    return RULES.get(f"{service}/{method}", ANYWHERE)
