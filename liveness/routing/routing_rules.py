"""To which shard each call belongs, and whether it may be sent twice. One table for all methods of all services."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

ShardKey = tuple[str, str]
"""Namespace and name: what `shard_of` needs."""


class RoutingKind(Enum):
    BY_SHARD = "by shard"
    HEARTBEAT = "by shard, and may travel with others"
    HEARTBEAT_BATCH = "each of its items by shard"
    STREAM = "each worker on it by shard"
    ANY_NODE = "any node"


class RetrySafety(Enum):
    """After which failures a call may be sent again."""

    ALWAYS = "also when it is unknown whether it had an effect: a second time has none"
    IF_NOT_SERVED = "only when the node said that it did not serve it"
    IF_NOT_STARTED = "only when the node said that it did not even begin to"


class RoutingRule(NamedTuple):
    kind: RoutingKind
    retry_safety: RetrySafety = RetrySafety.ALWAYS
    shard_key: Callable[[Any], ShardKey] | None = None
    wait_ms_max: int = 0
    """How long the node may let the caller wait on purpose."""


POLL_MS_MAX = 60_000


def _by_worker(request: Any) -> ShardKey:
    return request.namespace, request.worker_instance_key


def _by_heartbeat(request: Any) -> ShardKey:
    return request.namespace, request.heartbeat.worker_instance_key


def _by_workflow(request: Any) -> ShardKey:
    return request.namespace, request.id.workflow_id


def _by_namespace(request: Any) -> ShardKey:
    return request.namespace, ""


REPLAY_MS_MAX = 3_600_000

WORKER_SHARD = RoutingRule(RoutingKind.BY_SHARD, shard_key=_by_worker)
"""Orders for many workers name none, and belong where their namespace's settings do."""
WORKFLOW_SHARD = RoutingRule(RoutingKind.BY_SHARD, shard_key=_by_workflow)
NAMESPACE_SHARD = RoutingRule(RoutingKind.BY_SHARD, shard_key=_by_namespace)
ANY_NODE = RoutingRule(RoutingKind.ANY_NODE)

ROUTING_RULES: dict[str, RoutingRule] = {
    "LivenessService/RecordWorkerHeartbeat": RoutingRule(RoutingKind.HEARTBEAT, shard_key=_by_heartbeat),
    "LivenessService/RecordWorkerHeartbeats": RoutingRule(RoutingKind.HEARTBEAT_BATCH),
    "LivenessService/Attach": RoutingRule(RoutingKind.STREAM),
    "LivenessService/ShutdownWorker": WORKER_SHARD,
    "LivenessService/DescribeWorker": WORKER_SHARD,
    "LivenessService/GetWorkerHistory": WORKER_SHARD,
    "LivenessService/GetDeathCertificate": WORKER_SHARD,
    "LivenessService/ListWorkers": ANY_NODE,
    "LivenessService/CountWorkers": ANY_NODE,
    "LivenessService/WatchEvents": ANY_NODE,
    "LivenessService/GetServerInfo": ANY_NODE,
    # Twice would hand out more than the worker asked for, of which it hears late.
    "ActivityService/PollActivity": RoutingRule(
        RoutingKind.BY_SHARD, RetrySafety.IF_NOT_SERVED, _by_worker, POLL_MS_MAX
    ),
    "ActivityService/ScheduleActivity": WORKFLOW_SHARD,
    "ActivityService/CompleteActivity": WORKFLOW_SHARD,
    "ActivityService/FailActivity": WORKFLOW_SHARD,
    "ActivityService/ClaimActivity": WORKFLOW_SHARD,
    "ActivityService/ReleaseActivity": WORKFLOW_SHARD,
    "ActivityService/DescribeActivity": WORKFLOW_SHARD,
    "ActivityService/CancelActivity": WORKFLOW_SHARD,
    # A fresh start given twice is two, or an error that hides the first.
    "ActivityService/RetryActivity": RoutingRule(
        RoutingKind.BY_SHARD, RetrySafety.IF_NOT_STARTED, _by_workflow
    ),
    "ActivityService/ListActivities": ANY_NODE,
    "AdminService/ExpireWorker": WORKER_SHARD,
    "AdminService/DrainWorker": WORKER_SHARD,
    "AdminService/PauseWorkers": WORKER_SHARD,
    "AdminService/ResumeWorkers": WORKER_SHARD,
    "AdminService/ReleaseStorm": ANY_NODE,
    "AdminService/GetConfig": NAMESPACE_SHARD,
    "AdminService/UpdateConfig": NAMESPACE_SHARD,
    "AdminService/ListShards": ANY_NODE,
    "AdminService/ListNodes": ANY_NODE,
    "AdminService/GetFleet": ANY_NODE,
    "AdminService/ListTasks": ANY_NODE,
    "AdminService/RetryTask": RoutingRule(RoutingKind.ANY_NODE, RetrySafety.IF_NOT_STARTED),
    "AdminService/DiscardTask": RoutingRule(RoutingKind.ANY_NODE, RetrySafety.IF_NOT_STARTED),
    "AdminService/GetRelayStatus": ANY_NODE,
    # Twice is once for the broker, but it takes its time.
    "AdminService/ReplayRelay": RoutingRule(
        RoutingKind.ANY_NODE, RetrySafety.IF_NOT_STARTED, wait_ms_max=REPLAY_MS_MAX
    ),
}


def rule_of(service: str, method: str) -> RoutingRule:
    """What is not known here, any node may know."""
    return ROUTING_RULES.get(f"{service}/{method}", ANY_NODE)
