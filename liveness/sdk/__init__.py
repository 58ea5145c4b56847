"""The Python SDK: the names that worker programs import.

async with Worker("localhost:7400", task_queue="resize") as worker:
    @worker.activity("resize")
    async def resize(task): ...
    await worker.run()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from liveness.client_credentials import TLS, TokenFile
    from liveness.sdk.activity_info import ActivityInfo, AttemptInfo, LimitInfo
    from liveness.sdk.binding import Binding
    from liveness.sdk.blocking_client import BlockingActivityHandle, BlockingClient, BlockingSchedules
    from liveness.sdk.client import ActivityHandle, Client, Schedules
    from liveness.sdk.converter import Converter, DefaultConverter, Payload
    from liveness.sdk.errors import (
        AccessRefused,
        ActivityDiffers,
        ActivityFailed,
        ActivityFinished,
        ActivityHeld,
        ActivityLost,
        ActivityRefused,
        ActivityUnknown,
        AlreadyBound,
        BindingRefused,
        CallFailed,
        CannotStart,
        GiveUp,
        InvalidArgument,
        InvalidCredentials,
        LeaseLost,
        LivenessSdkError,
        NamespaceUnknown,
        NoNewWork,
        NotAuthenticated,
        NotConvertible,
        NotPermitted,
        Quarantine,
        QuotaReached,
        RetryLater,
        ScheduleExists,
        ScheduleUnknown,
        ServerAway,
        SessionReplaced,
        VersionMismatch,
        WorkerEnded,
        WorkerGone,
        WorkerStopped,
        WorkerUnknown,
    )
    from liveness.sdk.held_attempt import LostSignal
    from liveness.sdk.metrics import MetricPoint, MetricSeries
    from liveness.sdk.registration import Registration
    from liveness.sdk.schedules import Schedule, ScheduleFiring, ScheduleInfo
    from liveness.sdk.task import Stats, Task
    from liveness.sdk.timeouts import Priority, Timeouts
    from liveness.sdk.values import ActivityRef, ActivityState, FencingToken, RetryPolicy
    from liveness.sdk.worker import Worker
    from liveness.sdk.worker_info import (
        Death,
        InactiveReason,
        LivenessEvent,
        MovedActivity,
        WorkerInfo,
        WorkerState,
        WorkerStatus,
    )

__all__ = [
    "TLS",
    "AccessRefused",
    "ActivityDiffers",
    "ActivityFailed",
    "ActivityFinished",
    "ActivityHandle",
    "ActivityHeld",
    "ActivityInfo",
    "ActivityLost",
    "ActivityRef",
    "ActivityRefused",
    "ActivityState",
    "ActivityUnknown",
    "AlreadyBound",
    "AttemptInfo",
    "Binding",
    "BindingRefused",
    "BlockingActivityHandle",
    "BlockingClient",
    "BlockingSchedules",
    "CallFailed",
    "CannotStart",
    "Client",
    "Converter",
    "Death",
    "DefaultConverter",
    "FencingToken",
    "GiveUp",
    "InactiveReason",
    "InvalidArgument",
    "InvalidCredentials",
    "LeaseLost",
    "LimitInfo",
    "LivenessEvent",
    "LivenessSdkError",
    "LostSignal",
    "MetricPoint",
    "MetricSeries",
    "MovedActivity",
    "NamespaceUnknown",
    "NoNewWork",
    "NotAuthenticated",
    "NotConvertible",
    "NotPermitted",
    "Payload",
    "Priority",
    "Quarantine",
    "QuotaReached",
    "Registration",
    "RetryLater",
    "RetryPolicy",
    "Schedule",
    "ScheduleExists",
    "ScheduleFiring",
    "ScheduleInfo",
    "ScheduleUnknown",
    "Schedules",
    "ServerAway",
    "SessionReplaced",
    "Stats",
    "Task",
    "Timeouts",
    "TokenFile",
    "VersionMismatch",
    "Worker",
    "WorkerEnded",
    "WorkerGone",
    "WorkerInfo",
    "WorkerState",
    "WorkerStatus",
    "WorkerStopped",
    "WorkerUnknown",
]

_MODULES = (
    "liveness.client_credentials",
    "liveness.sdk.activity_info",
    "liveness.sdk.binding",
    "liveness.sdk.blocking_client",
    "liveness.sdk.client",
    "liveness.sdk.converter",
    "liveness.sdk.errors",
    "liveness.sdk.held_attempt",
    "liveness.sdk.metrics",
    "liveness.sdk.registration",
    "liveness.sdk.schedules",
    "liveness.sdk.task",
    "liveness.sdk.timeouts",
    "liveness.sdk.values",
    "liveness.sdk.worker",
    "liveness.sdk.worker_info",
)


def __getattr__(name: str) -> object:
    """Load all names on first use. A program that only imports `liveness.sdk.health` never loads gRPC."""
    if name not in __all__:
        raise AttributeError(f"module 'liveness.sdk' has no attribute {name!r}")
    for module in map(import_module, _MODULES):
        globals().update({found: getattr(module, found) for found in __all__ if hasattr(module, found)})
    return globals()[name]
