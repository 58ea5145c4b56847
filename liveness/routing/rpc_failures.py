"""A failed call as it came over the wire. Routing reads the reason and a new owner from it and passes the rest on unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import grpc
from google.rpc.status_pb2 import Status

from liveness.domain.errors import LivenessError, NodeLost
from liveness.routing.routing_rules import RetrySafety
from liveness.routing.routing_table import Owner
from liveness.rpc.status import code_of, status_of
from liveness.rpc_details import (
    DETAILS_KEY,
    RpcDetails,
    details_from_trailer,
    has_details,
    parse_details,
    status_code,
    status_from_trailer,
)

Metadata = tuple[tuple[str, str | bytes], ...]

SHARD_MOVED = "SHARD_MOVED"
WRONG_NODE = "WRONG_NODE"
"""Another node answers at the address: the wanted one is gone, as after `NODE_LOST`, but the call was certainly not served."""
SHARD_UNAVAILABLE = "SHARD_UNAVAILABLE"
SHUTTING_DOWN = "SHUTTING_DOWN"
NODE_LOST = "NODE_LOST"
"""Set by this process, not by a node: the connection failed, or the call ended without error details."""

_RETRYABLE_REASONS: Mapping[RetrySafety, frozenset[str]] = {
    RetrySafety.ALWAYS: frozenset({SHARD_MOVED, WRONG_NODE, SHARD_UNAVAILABLE, SHUTTING_DOWN, NODE_LOST}),
    RetrySafety.IF_NOT_SERVED: frozenset({SHARD_MOVED, WRONG_NODE, SHARD_UNAVAILABLE, SHUTTING_DOWN}),
    # A shard that is being recovered may have started the call before.
    RetrySafety.IF_NOT_STARTED: frozenset({SHARD_MOVED, WRONG_NODE, SHUTTING_DOWN}),
}
_CONNECTION_CODES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class RpcFailure(NamedTuple):
    code: grpc.StatusCode
    message: str
    trailing_metadata: Metadata = ()
    reason: str = ""
    """Machine-readable; empty if the node gave none, or if it does not matter for routing."""
    fields: Mapping[str, str] = {}
    initial_metadata: Metadata = ()

    def can_retry(self, retry_safety: RetrySafety) -> bool:
        return self.reason in _RETRYABLE_REASONS[retry_safety]

    @property
    def new_owner(self) -> tuple[int, Owner] | None:
        """The shard and its owner, if the node said that the shard moved."""
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
    details = RpcDetails()
    if code in _CONNECTION_CODES:
        if not has_details(trailing_metadata):
            return node_lost(owner)
        details = details_from_trailer(code, trailing_metadata)
    return RpcFailure(
        code,
        error.details() or "",
        trailing_metadata,
        details.reason,
        details.fields,
        tuple(error.initial_metadata() or ()),
    )


def from_status(status: Status) -> RpcFailure:
    """The failure of one item of a batch, as the caller would have seen it in a call of its own."""
    details = parse_details(status)
    trailer = ((DETAILS_KEY, status.SerializeToString()),)
    return RpcFailure(status_code(status), status.message, trailer, details.reason, details.fields)


def from_error(error: LivenessError) -> RpcFailure:
    details = ((DETAILS_KEY, status_of(error).SerializeToString()),)
    fields = {name: str(value) for name, value in error.fields.items()}
    return RpcFailure(code_of(error), str(error), details, error.reason, fields)


def node_lost(owner: Owner) -> RpcFailure:
    return from_error(NodeLost(node_id=owner.node_id, address=owner.address))


def to_status(failure: RpcFailure) -> Status:
    """The status of one item of a batch."""
    status = status_from_trailer(failure.code, failure.trailing_metadata)
    return status or Status(code=failure.code.value[0], message=failure.message)
