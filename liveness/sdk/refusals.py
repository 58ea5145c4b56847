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
from liveness.sdk.values import ActivityRef, ms_of

API_LEVEL = 2
"""What this SDK was written for."""
DOMAIN = "liveness"
SHUTTING_DOWN = "SHUTTING_DOWN"
_STATUS_KEY = "grpc-status-details-bin"
_CODES = {code.value[0]: code for code in grpc.StatusCode}

# After these nobody knows whether the call took effect, or it certainly did not and may later.
_PASSING = frozenset(
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
_SILENT = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


@dataclass(frozen=True, slots=True)
class Refusal:
    code: grpc.StatusCode
    reason: str = ""
    """Machine-readable; empty if it is not a liveness server that speaks."""
    message: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_after_ms: int = 0

    @property
    def passing(self) -> bool:
        """The same call again may well succeed."""
        return self.code in _PASSING or self.reason == "RATE_LIMITED"

    @property
    def elsewhere(self) -> bool:
        """Another node is to be asked: this one is gone, hangs, or is about to end."""
        if self.reason:
            return self.reason == SHUTTING_DOWN
        return self.code in _SILENT

    def __str__(self) -> str:
        return f"{self.message.rstrip('.')} ({self.reason or self.code.name})."


class Refused(Exception):
    """A call ended with a refusal. Inside the SDK only: programs get errors that name what they asked for."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


def of_status(status: Status) -> Refusal:
    """From an item of a batch, or from the details of a failed call."""
    reason, metadata, retry_after_ms = "", {}, 0
    for detail in status.details:
        info, retry = ErrorInfo(), RetryInfo()
        if detail.Unpack(info) and info.domain == DOMAIN:
            reason, metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(retry):
            retry_after_ms = ms_of(retry.retry_delay)
    code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    return Refusal(code, reason, status.message, metadata, retry_after_ms)


def of_call(call: grpc.Call) -> Refusal:
    """From a call that has ended otherwise than with OK."""
    code, message = call.code(), call.details() or ""
    for key, value in call.trailing_metadata() or ():
        if key == _STATUS_KEY and isinstance(value, bytes):
            try:
                status = Status.FromString(value)
            except DecodeError:
                break
            if status.code == code.value[0]:
                return of_status(status)
    return Refusal(code, message=message)


def worker_error(
    refusal: Refusal, call: str, *, address: str, namespace: str, worker: str
) -> LivenessSdkError:
    """Why a worker cannot be, or cannot go on."""
    match refusal.reason or refusal.code.name:
        case "WORKER_CLEANED_UP":
            return WorkerGone(worker=worker)
        case "SESSION_SUPERSEDED":
            return SessionReplaced(worker=worker)
        case "NAMESPACE_NOT_FOUND":
            return NamespaceUnknown(address=address, namespace=namespace, detail=refusal)
        case "WORKER_QUOTA_EXCEEDED":
            return QuotaReached(detail=refusal)
        case "UNIMPLEMENTED":
            return VersionMismatch(level=API_LEVEL, address=address, detail=f"it does not know {call}.")
        case "INVALID_ARGUMENT" | "INVALID_FIELD" | "MALFORMED_REQUEST":
            return InvalidArgument(detail=refusal)
    return CallFailed(call=call, detail=refusal.message.rstrip("."), code=refusal.reason or refusal.code.name)


_ABOUT_ACTIVITIES: dict[str, type[ActivityRefused]] = {
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
    refusal: Refusal, call: str, ref: ActivityRef, *, address: str, namespace: str, worker: str = ""
) -> LivenessSdkError:
    """Why something could not be done with an activity."""
    kind = _ABOUT_ACTIVITIES.get(refusal.reason)
    if kind is not None:
        return kind(activity=ref, detail=refusal)
    if refusal.reason == "FENCED_OFF":
        return ActivityLost(activity=ref, reason=refusal)
    if not refusal.reason and refusal.code in _SILENT:
        return ServerAway(address=address, detail=refusal)
    return worker_error(refusal, call, address=address, namespace=namespace, worker=worker)
