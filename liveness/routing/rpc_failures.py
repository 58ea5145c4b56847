"""What a node refused, as it came over the wire: read as far as the way to the owner needs, passed on unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from liveness.domain.errors import LivenessError, NodeLost
from liveness.routing.routing_rules import RetrySafety
from liveness.routing.routing_table import Owner
from liveness.rpc.status import DETAILS_KEY, DOMAIN, code_of, status_of

Metadata = tuple[tuple[str, str | bytes], ...]

SHARD_MOVED = "SHARD_MOVED"
WRONG_NODE = "WRONG_NODE"
SHARD_UNAVAILABLE = "SHARD_UNAVAILABLE"
SHUTTING_DOWN = "SHUTTING_DOWN"
NODE_LOST = "NODE_LOST"
"""Said here, not by a node: the connection failed, or the node ended the call without a word."""

_RETRYABLE_REASONS: Mapping[RetrySafety, frozenset[str]] = {
    RetrySafety.ALWAYS: frozenset({SHARD_MOVED, SHARD_UNAVAILABLE, SHUTTING_DOWN, NODE_LOST}),
    RetrySafety.IF_NOT_SERVED: frozenset({SHARD_MOVED, SHARD_UNAVAILABLE, SHUTTING_DOWN}),
    # A shard that is being re-read may have taken the call up before.
    RetrySafety.IF_NOT_STARTED: frozenset({SHARD_MOVED, SHUTTING_DOWN}),
}
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_CONNECTION_CODES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class RpcFailure(NamedTuple):
    code: grpc.StatusCode
    message: str
    trailing_metadata: Metadata = ()
    reason: str = ""
    """Machine-readable, if the node gave one and it may matter here."""
    fields: Mapping[str, str] = {}
    initial_metadata: Metadata = ()

    def can_retry(self, retry_safety: RetrySafety) -> bool:
        return self.reason in _RETRYABLE_REASONS[retry_safety]

    @property
    def new_owner(self) -> tuple[int, Owner] | None:
        """The shard, and who serves it instead."""
        if self.reason != SHARD_MOVED:
            return None
        fields = self.fields
        try:
            shard_id, epoch = int(fields["shard_id"]), int(fields["epoch"])
            return shard_id, Owner(fields["node_id"], fields["address"], epoch)
        except (KeyError, ValueError):
            return None


def from_rpc_error(error: grpc.aio.AioRpcError, owner: Owner) -> RpcFailure:
    trailing_metadata = tuple(error.trailing_metadata() or ())
    code = error.code()
    reason: str = ""
    fields: Mapping[str, str] = {}
    if code in _CONNECTION_CODES:
        details = next((value for name, value in trailing_metadata if name == DETAILS_KEY), b"")
        if not details:
            return node_lost(owner)
        reason, fields = _parse_reason(details if isinstance(details, bytes) else b"")
    return RpcFailure(
        code, error.details() or "", trailing_metadata, reason, fields, tuple(error.initial_metadata() or ())
    )


def from_status(status: Status) -> RpcFailure:
    """Of one item of a batch: what the caller would have been told had it come alone."""
    details = status.SerializeToString()
    code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    reason, fields = _parse_reason(details)
    return RpcFailure(code, status.message, ((DETAILS_KEY, details),), reason, fields)


def from_error(error: LivenessError) -> RpcFailure:
    details = ((DETAILS_KEY, status_of(error).SerializeToString()),)
    fields = {name: str(value) for name, value in error.fields.items()}
    return RpcFailure(code_of(error), str(error), details, error.reason, fields)


def node_lost(owner: Owner) -> RpcFailure:
    return from_error(NodeLost(node_id=owner.node_id, address=owner.address))


def to_status(failure: RpcFailure) -> Status:
    """For one item of a batch."""
    for name, value in failure.trailing_metadata:
        if name == DETAILS_KEY and isinstance(value, bytes):
            try:
                return Status.FromString(value)
            except DecodeError:
                break
    return Status(code=failure.code.value[0], message=failure.message)


def _parse_reason(details: bytes) -> tuple[str, Mapping[str, str]]:
    try:
        status = Status.FromString(details)
    except DecodeError:
        return "", {}
    info = ErrorInfo()
    for detail in status.details:
        if detail.Unpack(info) and info.domain == DOMAIN:
            return info.reason, dict(info.metadata)
    return "", {}
