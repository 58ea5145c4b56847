"""The google.rpc details of a failed call, parsed in one place for nodes, frontend, HTTP, SDK and command line.

A server sends the status as a whole, details included, in the trailer `grpc-status-details-bin`. The items of a batch carry
their status in the response itself. This module imports nothing else of the package, so that the SDK stays light.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

DOMAIN = "liveness"
"""The `ErrorInfo.domain` of this service; other domains are those of proxies."""
DETAILS_KEY = "grpc-status-details-bin"

_CODES: Mapping[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


class RpcDetails(NamedTuple):
    reason: str = ""
    """Machine-readable; empty if the status does not come from a liveness server."""
    fields: Mapping[str, str] = {}
    """The fields of the error that the reason names."""
    retry_after_ms: int = 0


def status_code(status: Status) -> grpc.StatusCode:
    return _CODES.get(status.code, grpc.StatusCode.UNKNOWN)


def parse_details(status: Status) -> RpcDetails:
    reason, fields, retry_after_ms = "", {}, 0
    for detail in status.details:
        info, retry = ErrorInfo(), RetryInfo()
        if detail.Unpack(info):
            if info.domain == DOMAIN and not reason:
                reason, fields = info.reason, dict(info.metadata)
        elif detail.Unpack(retry):
            retry_after_ms = retry.retry_delay.ToMilliseconds()
    return RpcDetails(reason, fields, retry_after_ms)


def has_details(trailing_metadata: Iterable[tuple[str, str | bytes]]) -> bool:
    return any(key == DETAILS_KEY and value for key, value in trailing_metadata)


def status_from_trailer(
    code: grpc.StatusCode, trailing_metadata: Iterable[tuple[str, str | bytes]] | None
) -> Status | None:
    """Return the status that a failed call carries in its trailer.

    None if there is none, if it cannot be decoded, or if it contradicts the code of the call: a proxy that replaces the code
    leaves the trailer of the server behind.
    """
    for key, value in trailing_metadata or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                status = Status.FromString(value)
            except DecodeError:
                return None
            return status if status_code(status) is code else None
    return None


def details_from_trailer(
    code: grpc.StatusCode, trailing_metadata: Iterable[tuple[str, str | bytes]] | None
) -> RpcDetails:
    status = status_from_trailer(code, trailing_metadata)
    return parse_details(status) if status is not None else RpcDetails()
