"""The gRPC status of each error: one table, with details in the standard google.rpc messages."""

from __future__ import annotations

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from liveness.domain.errors import (
    Denied,
    Exhausted,
    Exists,
    InvalidField,
    InvalidRequest,
    LivenessError,
    NotFound,
    PeerNotAllowed,
    RateLimited,
    Refused,
    StoreFull,
    Unauthenticated,
    Unavailable,
    error_from_reason,
)
from liveness.rpc_details import DOMAIN, details_from_trailer

RETRY_AFTER_MS = {StoreFull: 2_000, Unavailable: 200, Exhausted: 1_000}
"""The first class that an error belongs to counts."""

_CODES: tuple[tuple[type[LivenessError], grpc.StatusCode], ...] = (
    (InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT),
    (Refused, grpc.StatusCode.FAILED_PRECONDITION),
    (Exists, grpc.StatusCode.ALREADY_EXISTS),
    (Exhausted, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (PeerNotAllowed, grpc.StatusCode.PERMISSION_DENIED),
    (NotFound, grpc.StatusCode.NOT_FOUND),
    (Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (Denied, grpc.StatusCode.PERMISSION_DENIED),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
)


def code_of(error: LivenessError) -> grpc.StatusCode:
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    raise AssertionError(f"{type(error).__name__} has no status code")


def status_of(error: LivenessError) -> Status:
    number, _ = code_of(error).value
    status = Status(code=number, message=str(error))
    fields = {name: str(value) for name, value in error.fields.items()}
    status.details.add().Pack(ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=fields))
    if isinstance(error, InvalidField):
        violation = BadRequest.FieldViolation(field=error.field, description=error.rule)
        status.details.add().Pack(BadRequest(field_violations=[violation]))
    for kind, default_ms in RETRY_AFTER_MS.items():
        if isinstance(error, kind):
            after_ms = error.retry_after_ms if isinstance(error, RateLimited) else default_ms
            status.details.append(_retry_after(after_ms))
            break
    return status


def error_from_rpc(error: grpc.aio.AioRpcError) -> LivenessError:
    """Rebuild the error that another node reported; Unavailable if this version does not know it."""
    details = details_from_trailer(error.code(), error.trailing_metadata())
    return error_from_reason(details.reason, details.fields) or Unavailable()


def _retry_after(ms: int) -> Any:
    packed = Any()
    packed.Pack(RetryInfo(retry_delay=Duration(seconds=ms // 1_000, nanos=ms % 1_000 * 1_000_000)))
    return packed
