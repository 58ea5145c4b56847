"""How large a request of each method may be, checked on its bytes before protobuf parses them.

Parsing costs time and memory per field rather than per byte: 6 MiB of empty heartbeats would take a second and two GiB. So
each method has a limit of bytes, small unless the method carries payloads or lists, and a request that is large within its
limit has its fields counted first. The limits are such that no request takes longer than about 20 ms to parse.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from google.protobuf.descriptor import Descriptor, MethodDescriptor

from liveness.domain.errors import MalformedRequest, RequestTooLarge
from liveness.server.listener_options import MESSAGE_BYTES_MAX

_KIB = 1024

DEFAULT_BYTES_MAX = 64 * _KIB
_PAYLOAD_BYTES_MAX = 320 * _KIB
"""A payload of 256 KiB and all names."""
_NAMES_BYTES_MAX = 320 * _KIB
"""A thousand names of 255 bytes."""

FIELDS_MAX = 100_000
"""How many fields a request may have, if it is so large that they are counted."""
_UNCOUNTED_BYTES_MAX = 64 * _KIB
"""The fields of a smaller request are not counted: they are few."""
_UNCOUNTED_PART_BYTES_MAX = 512
"""The same for a part of a request, so that counting costs a batch of plain heartbeats next to nothing."""


class Bounds(NamedTuple):
    bytes_max: int
    items_max: int = FIELDS_MAX
    """How many fields the request itself may have, those of its parts not included."""


_BOUNDS: Mapping[str, Bounds] = {
    "LivenessService/RecordWorkerHeartbeat": Bounds(4 * _KIB * _KIB),
    # A frontend concatenates single requests, so a namespace precedes each heartbeat.
    "LivenessService/RecordWorkerHeartbeats": Bounds(MESSAGE_BYTES_MAX, 2_010),
    "LivenessService/WatchEvents": Bounds(320 * _KIB),  # a resume token has a position for each shard
    "ActivityService/ScheduleActivity": Bounds(_PAYLOAD_BYTES_MAX),
    "ActivityService/ClaimActivity": Bounds(_PAYLOAD_BYTES_MAX),
    "ActivityService/CompleteActivity": Bounds(_PAYLOAD_BYTES_MAX),
    "ActivityService/PollActivity": Bounds(_NAMES_BYTES_MAX, 1_100),
    "ComponentService/OrderComponents": Bounds(_NAMES_BYTES_MAX, 1_100),
    "ComponentService/SendComponentLogs": Bounds(4 * _KIB * _KIB + 64 * _KIB, 1_100),
    "ComponentMetricsService/ReportMetrics": Bounds(2 * _KIB * _KIB, 1_100),
    "RegistryService/Register": Bounds(128 * _KIB, 2_100),  # labels and capabilities as in a heartbeat
    "ClusterService/Hint": Bounds(4 * _KIB * _KIB),
    "ClusterService/LookUpWorkers": Bounds(_NAMES_BYTES_MAX, 1_100),
    "ClusterService/LookAtHolders": Bounds(2 * _KIB * _KIB, 1_100),
    "ClusterService/BindAttempts": Bounds(512 * _KIB, 1_100),
    "ClusterService/FindNotHeld": Bounds(2 * _KIB * _KIB, 1_100),
    "ClusterService/HandOut": Bounds(_NAMES_BYTES_MAX, 1_100),
    "ClusterService/TakeBack": Bounds(512 * _KIB, 1_100),
}

# Wire types of protobuf.
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5

Parts = dict[int, "Parts"]
"""The fields of a message, by number, that hold messages with lists in them."""


class RequestBounds:
    """Checks the serialized requests of one method."""

    __slots__ = ("_bounds", "_name", "_parts")

    def __init__(self, method: MethodDescriptor) -> None:
        name = f"{method.containing_service.name}/{method.name}"
        self._name = method.name
        self._bounds = _BOUNDS.get(name, Bounds(DEFAULT_BYTES_MAX))
        self._parts = _parts_with_lists(method.input_type)

    def check(self, request: bytes) -> MalformedRequest | None:
        """Returns the error instead of raising it, because it is gRPC that calls."""
        size = len(request)
        if size <= _UNCOUNTED_BYTES_MAX:
            return None
        bytes_max, items_max = self._bounds
        if size > bytes_max:
            return RequestTooLarge(detail=f"{size} bytes; {self._name} takes at most {bytes_max}")
        try:
            left = _count(request, 0, size, items_max, FIELDS_MAX, self._parts)
        except (IndexError, ValueError):
            return MalformedRequest(detail="its fields cannot be told apart")
        if left < 0:
            return RequestTooLarge(
                detail=f"too many fields; {self._name} takes at most {items_max}, and {FIELDS_MAX} with those of its parts"
            )
        return None


def _count(data: bytes, at: int, end: int, items_left: int, fields_left: int, parts: Parts) -> int:
    """Returns how many of `fields_left` remain after the fields of the message in data[at:end]; negative if too few."""
    while at < end:
        if items_left == 0 or fields_left == 0:
            return -1
        items_left -= 1
        fields_left -= 1
        tag = data[at]
        at += 1
        if tag >= 0x80:
            # Two bytes, as most of the larger numbers have: a call for each field would double the time.
            second = data[at]
            if second < 0x80:
                tag, at = tag & 0x7F | second << 7, at + 1
            else:
                tag, at = _varint(data, at, tag)
        kind = tag & 7
        if kind == _LENGTH:
            size = data[at]
            at += 1
            if size >= 0x80:
                size, at = _varint(data, at, size)
            if size > _UNCOUNTED_PART_BYTES_MAX and (part := parts.get(tag >> 3)) is not None:
                fields_left = _count(data, at, min(at + size, end), FIELDS_MAX, fields_left, part)
                if fields_left < 0:
                    return -1
            at += size
        elif kind == _VARINT:
            first = data[at]
            at += 1
            if first >= 0x80:
                _, at = _varint(data, at, first)
        elif kind == _FIXED64:
            at += 8
        elif kind == _FIXED32:
            at += 4
        else:
            raise ValueError("proto3 has no groups")
    return fields_left


def _varint(data: bytes, at: int, first: int) -> tuple[int, int]:
    """Returns the number whose first byte, the one before `at`, is given, and where it ends."""
    value, shift = first & 0x7F, 7
    while shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a varint has at most ten bytes")


def _parts_with_lists(message: Descriptor) -> Parts:
    return {
        field.number: _parts_with_lists(field.message_type)
        for field in message.fields
        if field.message_type is not None and _has_list(field.message_type)
    }


def _has_list(message: Descriptor) -> bool:
    return any(
        field.is_repeated or (field.message_type is not None and _has_list(field.message_type))
        for field in message.fields
    )
