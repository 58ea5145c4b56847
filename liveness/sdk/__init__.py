"""The Python SDK: the names that worker programs import.

async with Worker("localhost:7400", task_queue="resize") as worker:
    @worker.activity("resize")
    async def resize(task): ...
    await worker.run()
"""

from liveness.client_credentials import TLS, TokenFile
from liveness.sdk.binding import Binding
from liveness.sdk.client import ActivityInfo, BlockingClient, Client, Scheduled
from liveness.sdk.converter import Converter, DefaultConverter, Payload
from liveness.sdk.errors import (
    AccessRefused,
    ActivityDiffers,
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
    QuotaReached,
    RetryLater,
    ServerAway,
    SessionReplaced,
    VersionMismatch,
    WorkerEnded,
    WorkerGone,
    WorkerStopped,
)
from liveness.sdk.held_attempt import LostSignal
from liveness.sdk.task import Stats, Task
from liveness.sdk.values import ActivityRef, ActivityState, FencingToken, RetryPolicy
from liveness.sdk.worker import Worker

__all__ = [
    "TLS",
    "AccessRefused",
    "ActivityDiffers",
    "ActivityFinished",
    "ActivityHeld",
    "ActivityInfo",
    "ActivityLost",
    "ActivityRef",
    "ActivityRefused",
    "ActivityState",
    "ActivityUnknown",
    "AlreadyBound",
    "Binding",
    "BindingRefused",
    "BlockingClient",
    "CallFailed",
    "CannotStart",
    "Client",
    "Converter",
    "DefaultConverter",
    "FencingToken",
    "GiveUp",
    "InvalidArgument",
    "InvalidCredentials",
    "LeaseLost",
    "LivenessSdkError",
    "LostSignal",
    "NamespaceUnknown",
    "NoNewWork",
    "NotAuthenticated",
    "NotConvertible",
    "NotPermitted",
    "Payload",
    "QuotaReached",
    "RetryLater",
    "RetryPolicy",
    "Scheduled",
    "ServerAway",
    "SessionReplaced",
    "Stats",
    "Task",
    "TokenFile",
    "VersionMismatch",
    "Worker",
    "WorkerEnded",
    "WorkerGone",
    "WorkerStopped",
]
