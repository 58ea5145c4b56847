"""What a node refused, as it came over the wire: read as far as the way to the owner needs, passed on unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from liveness.domain.errors import LivenessError, NodeLost
from liveness.frontend.routes import Owner
from liveness.frontend.rules import Repeat
from liveness.statuses import DETAILS_KEY, DOMAIN, code_of, status_of

Metadata = tuple[tuple[str, str | bytes], ...]

MOVED = "SHARD_MOVED"
WRONG_NODE = "WRONG_NODE"
UNAVAILABLE = "SHARD_UNAVAILABLE"
SHUTTING_DOWN = "SHUTTING_DOWN"
LOST = "NODE_LOST"
"""Said here, not by a node: the connection failed, or the node ended the call without a word."""

_REPEATABLE: Mapping[Repeat, frozenset[str]] = {
    Repeat.BLINDLY: frozenset({MOVED, UNAVAILABLE, SHUTTING_DOWN, LOST}),
    Repeat.REFUSED: frozenset({MOVED, UNAVAILABLE, SHUTTING_DOWN}),
    # A shard that is being re-read may have taken the call up before.
    Repeat.NOT_TAKEN_UP: frozenset({MOVED, SHUTTING_DOWN}),
}
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_ENDED_FROM_OUTSIDE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class Refusal(NamedTuple):
    code: grpc.StatusCode
    message: str
    trailing: Metadata = ()
    reason: str = ""
    """Machine-readable, if the node gave one and it may matter here."""
    fields: Mapping[str, str] = {}
    initial: Metadata = ()

    def may_repeat(self, repeat: Repeat) -> bool:
        return self.reason in _REPEATABLE[repeat]

    @property
    def owner(self) -> tuple[int, Owner] | None:
        """The shard, and who serves it instead."""
        if self.reason != MOVED:
            return None
        fields = self.fields
        try:
            shard_id, epoch = int(fields["shard_id"]), int(fields["epoch"])
            return shard_id, Owner(fields["node_id"], fields["address"], epoch)
        except (KeyError, ValueError):
            return None


def from_call(error: grpc.aio.AioRpcError, owner: Owner) -> Refusal:
    trailing = tuple(error.trailing_metadata() or ())
    code = error.code()
    reason: str = ""
    fields: Mapping[str, str] = {}
    if code in _ENDED_FROM_OUTSIDE:
        details = next((value for name, value in trailing if name == DETAILS_KEY), b"")
        if not details:
            return lost(owner)
        reason, fields = _reason(details if isinstance(details, bytes) else b"")
    return Refusal(
        code, error.details() or "", trailing, reason, fields, tuple(error.initial_metadata() or ())
    )


def from_status(status: Status) -> Refusal:
    """Of one item of a batch: what the caller would have been told had it come alone."""
    details = status.SerializeToString()
    code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    reason, fields = _reason(details)
    return Refusal(code, status.message, ((DETAILS_KEY, details),), reason, fields)


def from_error(error: LivenessError) -> Refusal:
    details = ((DETAILS_KEY, status_of(error).SerializeToString()),)
    fields = {name: str(value) for name, value in error.fields.items()}
    return Refusal(code_of(error), str(error), details, error.reason, fields)


def lost(owner: Owner) -> Refusal:
    return from_error(NodeLost(node_id=owner.node_id, address=owner.address))


def to_status(refusal: Refusal) -> Status:
    """For one item of a batch."""
    for name, value in refusal.trailing:
        if name == DETAILS_KEY and isinstance(value, bytes):
            try:
                return Status.FromString(value)
            except DecodeError:
                break
    return Status(code=refusal.code.value[0], message=refusal.message)


def _reason(details: bytes) -> tuple[str, Mapping[str, str]]:
    try:
        status = Status.FromString(details)
    except DecodeError:
        return "", {}
    info = ErrorInfo()
    for detail in status.details:
        if detail.Unpack(info) and info.domain == DOMAIN:
            return info.reason, dict(info.metadata)
    return "", {}
