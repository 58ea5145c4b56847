"""What the server says when it does not do something, taken apart once for everybody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from liveness.sdk.errors import (
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
    QuotaReached,
    ServerAway,
    SessionReplaced,
    VersionMismatch,
    WorkerGone,
)
from liveness.sdk.values import ActivityRef, duration_to_ms

API_LEVEL = 2
"""What this SDK was written for."""
DOMAIN = "liveness"
SHUTTING_DOWN = "SHUTTING_DOWN"
_STATUS_KEY = "grpc-status-details-bin"
_CODES = {code.value[0]: code for code in grpc.StatusCode}

# After these nobody knows whether the call took effect, or it certainly did not and may later.
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

# Nobody has answered.
_NO_ANSWER_CODES = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


@dataclass(frozen=True, slots=True)
class RpcFailure:
    code: grpc.StatusCode
    reason: str = ""
    """Machine-readable; empty if it is not a liveness server that speaks."""
    message: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_after_ms: int = 0

    @property
    def is_retryable(self) -> bool:
        """The same call again may well succeed."""
        return self.code in _RETRYABLE_CODES or self.reason == "RATE_LIMITED"

    @property
    def should_fail_over(self) -> bool:
        """Another node is to be asked: this one is gone, hangs, or is about to end."""
        if self.reason:
            return self.reason == SHUTTING_DOWN
        return self.code in _NO_ANSWER_CODES

    def __str__(self) -> str:
        return f"{self.message.rstrip('.')} ({self.reason or self.code.name})."


class RpcFailed(Exception):
    """A call ended with a refusal. Inside the SDK only: programs get errors that name what they asked for."""

    def __init__(self, rpc_failure: RpcFailure) -> None:
        super().__init__(str(rpc_failure))
        self.rpc_failure = rpc_failure


def failure_of_status(status: Status) -> RpcFailure:
    """From an item of a batch, or from the details of a failed call."""
    reason, metadata, retry_after_ms = "", {}, 0
    for detail in status.details:
        info, retry = ErrorInfo(), RetryInfo()
        if detail.Unpack(info) and info.domain == DOMAIN:
            reason, metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(retry):
            retry_after_ms = duration_to_ms(retry.retry_delay)
    code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    return RpcFailure(code, reason, status.message, metadata, retry_after_ms)


def failure_of_call(call: grpc.Call) -> RpcFailure:
    """From a call that has ended otherwise than with OK."""
    code, message = call.code(), call.details() or ""
    for key, value in call.trailing_metadata() or ():
        if key == _STATUS_KEY and isinstance(value, bytes):
            try:
                status = Status.FromString(value)
            except DecodeError:
                break
            if status.code == code.value[0]:
                return failure_of_status(status)
    return RpcFailure(code, message=message)


def worker_error(
    rpc_failure: RpcFailure, call: str, *, address: str, namespace: str, worker: str
) -> LivenessSdkError:
    """Why a worker cannot be, or cannot go on."""
    match rpc_failure.reason or rpc_failure.code.name:
        case "WORKER_CLEANED_UP":
            return WorkerGone(worker=worker)
        case "SESSION_SUPERSEDED":
            return SessionReplaced(worker=worker)
        case "NAMESPACE_NOT_FOUND":
            return NamespaceUnknown(address=address, namespace=namespace, detail=rpc_failure)
        case "WORKER_QUOTA_EXCEEDED":
            return QuotaReached(detail=rpc_failure)
        case "UNIMPLEMENTED":
            return VersionMismatch(level=API_LEVEL, address=address, detail=f"it does not know {call}.")
        case "INVALID_ARGUMENT" | "INVALID_FIELD" | "MALFORMED_REQUEST":
            return InvalidArgument(detail=rpc_failure)
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
    """Why something could not be done with an activity."""
    kind = _ACTIVITY_ERRORS.get(rpc_failure.reason)
    if kind is not None:
        return kind(activity=ref, detail=rpc_failure)
    if rpc_failure.reason == "FENCED_OFF":
        return ActivityLost(activity=ref, reason=rpc_failure)
    if not rpc_failure.reason and rpc_failure.code in _NO_ANSWER_CODES:
        return ServerAway(address=address, detail=rpc_failure)
    return worker_error(rpc_failure, call, address=address, namespace=namespace, worker=worker)
