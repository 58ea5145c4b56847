"""Errors as HTTP responses: the canonical mapping of gRPC codes, with the details of google.rpc as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from liveness.domain.errors import LivenessError
from liveness.http.json_output import to_json_value
from liveness.rpc.status import status_of
from liveness.rpc_details import DOMAIN, parse_details, status_code, status_from_trailer

HTTP_CODES: Mapping[grpc.StatusCode, int] = {
    grpc.StatusCode.CANCELLED: 499,
    grpc.StatusCode.UNKNOWN: 500,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DATA_LOSS: 500,
    grpc.StatusCode.UNAUTHENTICATED: 401,
}


class HttpError(Exception):
    """An error response."""

    def __init__(
        self, status: Status, *, code: int | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """`code`: the HTTP status, where it says more than the canonical one."""
        super().__init__(status.message)
        self._grpc_code = status_code(status)
        self._status = status
        self.code = code or HTTP_CODES[self._grpc_code]
        self.headers = {**_retry_after(status), **_challenge(self.code), **(headers or {})}

    def as_json(self) -> dict[str, Any]:
        details = [to_json_value(detail) for detail in self._status.details]
        return {
            "error": {
                "code": self.code,
                "status": self._grpc_code.name,
                "message": self._status.message,
                "reason": parse_details(self._status).reason,
                "details": details,
            }
        }


def from_error(error: LivenessError) -> HttpError:
    return HttpError(status_of(error))


def from_rpc_error(error: grpc.aio.AioRpcError) -> HttpError:
    """The node's error, with its details."""
    status = status_from_trailer(error.code(), error.trailing_metadata())
    return HttpError(status or Status(code=error.code().value[0], message=error.details() or ""))


def http_error(
    code: int,
    grpc_code: grpc.StatusCode,
    reason: str,
    message: str,
    *,
    headers: Mapping[str, str] | None = None,
    retry_after_s: int = 0,
    **metadata: str,
) -> HttpError:
    """An error of the HTTP server itself."""
    status = Status(code=grpc_code.value[0], message=message)
    status.details.add().Pack(ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata))
    if retry_after_s:
        status.details.add().Pack(RetryInfo(retry_delay=Duration(seconds=retry_after_s)))
    return HttpError(status, code=code, headers=headers)


def _challenge(code: int) -> dict[str, str]:
    """HTTP requires that a 401 says how to sign in."""
    return {"WWW-Authenticate": "Bearer"} if code == 401 else {}


def _retry_after(status: Status) -> dict[str, str]:
    retry_after_ms = parse_details(status).retry_after_ms
    return {"Retry-After": str(-(-retry_after_ms // 1_000))} if retry_after_ms else {}
