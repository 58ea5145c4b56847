"""The shard of each call, and whether the call may be sent twice: one table for all methods of all services."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from liveness.domain.component import group_of, supervisor_key
from liveness.domain.progress import name_of_unit
from liveness.domain.schedule import workflow_of

ShardKey = tuple[str, str]
"""Namespace and name, the arguments of `shard_of`."""


class RoutingKind(Enum):
    BY_SHARD = "by shard"
    HEARTBEAT = "by shard, and may be sent in a batch with others"
    HEARTBEAT_BATCH = "each item by shard"
    STREAM = "each worker by shard"
    ANY_NODE = "any node"


class RetrySafety(Enum):
    """After which failures a call may be sent again."""

    ALWAYS = "after any failure, also an unknown outcome: the call is idempotent"
    IF_NOT_SERVED = "only if the node said that it did not serve the call"
    IF_NOT_STARTED = "only if the node said that it did not start the call"


class RoutingRule(NamedTuple):
    kind: RoutingKind
    retry_safety: RetrySafety = RetrySafety.ALWAYS
    shard_key: Callable[[Any], ShardKey] | None = None
    wait_ms_max: int = 0
    """How long the node may hold the call before it answers, as a long poll does."""


POLL_MS_MAX = 60_000
OUTPUT_MS_MAX = 5_000
BULK_MS_MAX = 30_000


def _by_worker(request: Any) -> ShardKey:
    return request.namespace, request.worker_instance_key


def _by_heartbeat(request: Any) -> ShardKey:
    return request.namespace, request.heartbeat.worker_instance_key


def _by_workflow(request: Any) -> ShardKey:
    return request.namespace, request.id.workflow_id


def _by_limit(request: Any) -> ShardKey:
    return request.namespace, request.workflow_id


def _by_group(request: Any) -> ShardKey:
    return request.namespace, supervisor_key(request.group)


def _by_group_of_component(request: Any) -> ShardKey:
    return request.namespace, supervisor_key(group_of(request.worker_instance_key) or "")


def _by_unit(request: Any) -> ShardKey:
    return request.namespace, name_of_unit(request.unit)


def _by_schedule(request: Any) -> ShardKey:
    return request.namespace, workflow_of(request.schedule_id)


def _by_namespace(request: Any) -> ShardKey:
    return request.namespace, ""


REPLAY_MS_MAX = 3_600_000

WORKER_SHARD = RoutingRule(RoutingKind.BY_SHARD, shard_key=_by_worker)
"""A command for many workers names none; it goes to the shard that holds the settings of its namespace."""
WORKFLOW_SHARD = RoutingRule(RoutingKind.BY_SHARD, shard_key=_by_workflow)
NAMESPACE_SHARD = RoutingRule(RoutingKind.BY_SHARD, shard_key=_by_namespace)
SCHEDULE_SHARD = RoutingRule(RoutingKind.BY_SHARD, shard_key=_by_schedule)
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
    "LivenessService/ListRecentEvents": ANY_NODE,
    "LivenessService/GetServerInfo": ANY_NODE,
    # A second call would hand out activities that the worker did not ask for and learns of late.
    "ActivityService/PollActivity": RoutingRule(
        RoutingKind.BY_SHARD, RetrySafety.IF_NOT_SERVED, _by_worker, POLL_MS_MAX
    ),
    "ActivityService/ScheduleActivity": WORKFLOW_SHARD,
    "ActivityService/CompleteActivity": WORKFLOW_SHARD,
    "ActivityService/FailActivity": WORKFLOW_SHARD,
    "ActivityService/RecordActivityHeartbeat": WORKFLOW_SHARD,
    "ActivityService/ClaimActivity": WORKFLOW_SHARD,
    "ActivityService/ReleaseActivity": WORKFLOW_SHARD,
    "ActivityService/DescribeActivity": WORKFLOW_SHARD,
    "ActivityService/GetActivityHistory": WORKFLOW_SHARD,
    "ActivityService/CancelActivity": WORKFLOW_SHARD,
    # A second call would restart the activity twice, or return an error that hides the first restart.
    "ActivityService/RetryActivity": RoutingRule(
        RoutingKind.BY_SHARD, RetrySafety.IF_NOT_STARTED, _by_workflow
    ),
    "ActivityService/ListActivities": ANY_NODE,
    "ActivityService/ListTaskQueues": ANY_NODE,
    "ActivityService/SetConcurrencyLimit": RoutingRule(RoutingKind.BY_SHARD, shard_key=_by_limit),
    # A second call would answer that there is no such limit, which hides the first.
    "ActivityService/RemoveConcurrencyLimit": RoutingRule(
        RoutingKind.BY_SHARD, RetrySafety.IF_NOT_STARTED, _by_limit
    ),
    "ActivityService/ListConcurrencyLimits": ANY_NODE,
    # A second call would find nothing more to do.
    "ActivityService/BulkUpdateActivities": RoutingRule(RoutingKind.ANY_NODE, wait_ms_max=BULK_MS_MAX),
    "ComponentService/ReportComponent": WORKER_SHARD,
    "ComponentService/PollComponentOrders": RoutingRule(
        RoutingKind.BY_SHARD, shard_key=_by_worker, wait_ms_max=POLL_MS_MAX
    ),
    "ComponentService/SendComponentLogs": WORKER_SHARD,
    "ComponentService/OrderComponents": RoutingRule(
        RoutingKind.BY_SHARD, RetrySafety.IF_NOT_STARTED, _by_group
    ),
    "ComponentService/GetComponent": WORKER_SHARD,
    "ComponentService/ListComponents": ANY_NODE,
    "ComponentService/ListComponentGroups": ANY_NODE,
    "ComponentService/GetComponentLogs": RoutingRule(
        RoutingKind.BY_SHARD, shard_key=_by_group_of_component, wait_ms_max=OUTPUT_MS_MAX
    ),
    # Samples of the same time replace each other, so a second report changes nothing.
    "ComponentMetricsService/ReportMetrics": WORKER_SHARD,
    "ComponentMetricsService/QueryMetrics": ANY_NODE,
    "RegistryService/Register": WORKER_SHARD,
    "RegistryService/Heartbeat": WORKER_SHARD,
    "RegistryService/Deregister": WORKER_SHARD,
    "RegistryService/GetEntry": WORKER_SHARD,
    "RegistryService/ListEntries": ANY_NODE,
    # A second call counts the same work again, unless it has a report_id; its reporter then sends it again by itself.
    "ProgressService/ReportProgress": RoutingRule(RoutingKind.BY_SHARD, RetrySafety.IF_NOT_STARTED, _by_unit),
    "ProgressService/GetProgress": RoutingRule(RoutingKind.BY_SHARD, shard_key=_by_unit),
    "ProgressService/ListProgress": ANY_NODE,
    # A second call would answer that there is no such unit, which hides the first.
    "ProgressService/ForgetProgress": RoutingRule(RoutingKind.BY_SHARD, RetrySafety.IF_NOT_STARTED, _by_unit),
    "ScheduleService/CreateSchedule": SCHEDULE_SHARD,
    "ScheduleService/UpdateSchedule": SCHEDULE_SHARD,
    "ScheduleService/GetSchedule": SCHEDULE_SHARD,
    "ScheduleService/ListSchedules": ANY_NODE,
    "ScheduleService/PauseSchedule": SCHEDULE_SHARD,
    "ScheduleService/ResumeSchedule": SCHEDULE_SHARD,
    # A second call fires again, unless it has a trigger_id; its sender then repeats it by itself.
    "ScheduleService/TriggerSchedule": RoutingRule(
        RoutingKind.BY_SHARD, RetrySafety.IF_NOT_STARTED, _by_schedule
    ),
    # A second call would answer that there is no such schedule, which hides the first.
    "ScheduleService/DeleteSchedule": RoutingRule(
        RoutingKind.BY_SHARD, RetrySafety.IF_NOT_STARTED, _by_schedule
    ),
    "AdminService/ExpireWorker": WORKER_SHARD,
    # A second call would answer that there is no such worker, which hides the first.
    "AdminService/ForgetWorker": RoutingRule(RoutingKind.BY_SHARD, RetrySafety.IF_NOT_STARTED, _by_worker),
    "AdminService/DrainWorker": WORKER_SHARD,
    "AdminService/PauseWorkers": WORKER_SHARD,
    "AdminService/ResumeWorkers": WORKER_SHARD,
    "AdminService/ReleaseStorm": ANY_NODE,
    "AdminService/GetConfig": NAMESPACE_SHARD,
    "AdminService/UpdateConfig": NAMESPACE_SHARD,
    "AdminService/ListShards": ANY_NODE,
    "AdminService/ListNodes": ANY_NODE,
    "AdminService/GetFleet": ANY_NODE,
    "AdminService/TuneNamespace": ANY_NODE,
    "AdminService/ListIncidents": ANY_NODE,
    "AdminService/ListTasks": ANY_NODE,
    "AdminService/RetryTask": RoutingRule(RoutingKind.ANY_NODE, RetrySafety.IF_NOT_STARTED),
    "AdminService/DiscardTask": RoutingRule(RoutingKind.ANY_NODE, RetrySafety.IF_NOT_STARTED),
    "AdminService/GetRelayStatus": ANY_NODE,
    # A second call would create a second token, whose secret the first answer does not tell.
    "AdminService/CreateToken": RoutingRule(RoutingKind.ANY_NODE, RetrySafety.IF_NOT_STARTED),
    "AdminService/ListTokens": ANY_NODE,
    "AdminService/RevokeToken": ANY_NODE,
    "AdminService/CreateSession": ANY_NODE,
    "AdminService/EndSession": ANY_NODE,
    "AdminService/WhoAmI": ANY_NODE,
    "AdminService/ListAudit": ANY_NODE,
    "AdminService/CanI": ANY_NODE,
    # The broker drops duplicates, but a second replay takes as long as the first.
    "AdminService/ReplayRelay": RoutingRule(
        RoutingKind.ANY_NODE, RetrySafety.IF_NOT_STARTED, wait_ms_max=REPLAY_MS_MAX
    ),
}


def rule_of(service: str, method: str) -> RoutingRule:
    """The rule of a method. Any node may serve a method that is not in the table."""
    return ROUTING_RULES.get(f"{service}/{method}", ANY_NODE)
