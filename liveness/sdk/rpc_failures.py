"""Parse failed calls, and turn them into the SDK's errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import grpc
from google.rpc.status_pb2 import Status

from liveness.rpc_details import parse_details, status_code, status_from_trailer
from liveness.sdk.errors import (
    AccessRefused,
    ActivityDiffers,
    ActivityFinished,
    ActivityHeld,
    ActivityLost,
    ActivityRefused,
    ActivityUnknown,
    BindingRefused,
    CallFailed,
    InvalidArgument,
    LivenessSdkError,
    NamespaceUnknown,
    NoNewWork,
    NotAuthenticated,
    NotPermitted,
    QuotaReached,
    ServerAway,
    SessionReplaced,
    VersionMismatch,
    WorkerGone,
    WorkerUnknown,
)
from liveness.sdk.values import ActivityRef

API_LEVEL = 2
"""The API level for which this SDK was written."""
SHUTTING_DOWN = "SHUTTING_DOWN"
_LEAVE_REASONS = frozenset({SHUTTING_DOWN, "CUT_OFF", "NO_NODE_REACHABLE"})
"""The node, or frontend, cannot serve any call, and another one may."""

# After these codes the call may or may not have taken effect, or it did not and may later.
_RETRYABLE_CODES = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.ABORTED,
    }
)

# No server answered.
_NO_ANSWER_CODES = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


@dataclass(frozen=True, slots=True)
class RpcFailure:
    code: grpc.StatusCode
    reason: str = ""
    """Machine-readable; empty if the failure does not come from a liveness server."""
    message: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_after_ms: int = 0

    @property
    def is_retryable(self) -> bool:
        """Whether the same call may succeed later."""
        return self.code in _RETRYABLE_CODES or self.reason == "RATE_LIMITED"

    @property
    def should_fail_over(self) -> bool:
        """Whether to try another node, because this one is gone, hangs, is about to stop, or reaches no owner of a shard."""
        if self.reason:
            return self.reason in _LEAVE_REASONS
        return self.code in _NO_ANSWER_CODES

    def __str__(self) -> str:
        return f"{self.message.rstrip('.')} ({self.reason or self.code.name})."


class RpcFailed(Exception):
    """A call failed. Internal to the SDK: programs get errors that name the activity or worker."""

    def __init__(self, rpc_failure: RpcFailure) -> None:
        super().__init__(str(rpc_failure))
        self.rpc_failure = rpc_failure


def failure_of_status(status: Status) -> RpcFailure:
    """Parse the status of an item in a batch, or of a failed call."""
    details = parse_details(status)
    return RpcFailure(
        status_code(status), details.reason, status.message, details.fields, details.retry_after_ms
    )


def failure_of_call(call: grpc.Call) -> RpcFailure:
    """Parse the failure of a call that ended with another code than OK."""
    status = status_from_trailer(call.code(), call.trailing_metadata())
    if status is not None:
        return failure_of_status(status)
    return RpcFailure(call.code(), message=call.details() or "")


_ACCESS_ERRORS: dict[grpc.StatusCode, type[AccessRefused]] = {
    grpc.StatusCode.UNAUTHENTICATED: NotAuthenticated,
    grpc.StatusCode.PERMISSION_DENIED: NotPermitted,
}


def worker_error(
    rpc_failure: RpcFailure, call: str, *, address: str, namespace: str, worker: str
) -> LivenessSdkError:
    """The error for a worker that cannot start or cannot continue."""
    match rpc_failure.reason or rpc_failure.code.name:
        case "WORKER_CLEANED_UP":
            return WorkerGone(worker=worker)
        case "SESSION_SUPERSEDED":
            return SessionReplaced(worker=worker)
        case "NAMESPACE_NOT_FOUND":
            return NamespaceUnknown(address=address, namespace=namespace, detail=str(rpc_failure))
        case "WORKER_QUOTA_EXCEEDED" | "SERIES_QUOTA_EXCEEDED":
            return QuotaReached(detail=str(rpc_failure))
        case "UNIMPLEMENTED":
            return VersionMismatch(level=API_LEVEL, address=address, detail=f"it does not know {call}.")
        case "INVALID_ARGUMENT" | "INVALID_FIELD" | "MALFORMED_REQUEST":
            return InvalidArgument(detail=str(rpc_failure))
    refusal = _ACCESS_ERRORS.get(rpc_failure.code)
    if refusal is not None:
        return refusal(address=address, call=call, detail=str(rpc_failure))
    return CallFailed(
        call=call, detail=rpc_failure.message.rstrip("."), code=rpc_failure.reason or rpc_failure.code.name
    )


_ACTIVITY_ERRORS: dict[str, type[ActivityRefused]] = {
    "ACTIVITY_HELD": ActivityHeld,
    "ACTIVITY_FINISHED": ActivityFinished,
    "ACTIVITY_NOT_FOUND": ActivityUnknown,
    "ACTIVITY_DIFFERS": ActivityDiffers,
    "ACTIVITY_NOT_AVAILABLE": ActivityRefused,
    "ACTIVITY_NOT_RETRYABLE": ActivityRefused,
    "BINDING_QUOTA_EXCEEDED": BindingRefused,
    "WORKER_PAUSED": NoNewWork,
    "WORKER_DRAINING": NoNewWork,
}


def activity_error(
    rpc_failure: RpcFailure, call: str, ref: ActivityRef, *, address: str, namespace: str, worker: str = ""
) -> LivenessSdkError:
    """The error for a failed call about an activity."""
    kind = _ACTIVITY_ERRORS.get(rpc_failure.reason)
    if kind is not None:
        return kind(activity=ref, detail=str(rpc_failure))
    if rpc_failure.reason == "FENCED_OFF":
        return ActivityLost(activity=ref, reason=str(rpc_failure))
    if not rpc_failure.reason and rpc_failure.code in _NO_ANSWER_CODES:
        return ServerAway(address=address, detail=str(rpc_failure))
    return worker_error(rpc_failure, call, address=address, namespace=namespace, worker=worker)


def client_error(
    rpc_failure: RpcFailure, call: str, *, address: str, namespace: str, worker: str
) -> LivenessSdkError:
    """The error for a call of a program that is no worker itself."""
    if rpc_failure.reason == "WORKER_NOT_FOUND":
        return WorkerUnknown(worker=worker, namespace=namespace, detail=str(rpc_failure))
    if not rpc_failure.reason and rpc_failure.code in _NO_ANSWER_CODES:
        return ServerAway(address=address, detail=str(rpc_failure))
    return worker_error(rpc_failure, call, address=address, namespace=namespace, worker=worker)
