"""Converts messages to JSON values, by protobuf's mapping, with proto field names and all fields without presence.

protobuf's own printer inspects every field descriptor for each message; a page of a thousand workers would block the node's
event loop for a tenth of a second. Here each message type is inspected once.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import msgspec
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

Converter = Callable[[Any], Any]

_INT64_TYPES = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
_FLOAT_TYPES = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)


def to_json_value(message: Any) -> Any:
    return _converter(message.DESCRIPTOR)(message)


def json_bytes(value: Any) -> bytes:
    return msgspec.json.encode(value)


@cache
def _converter(kind: Descriptor) -> Converter:
    well_known = _WELL_KNOWN.get(kind.full_name)
    if well_known is not None:
        return well_known
    always: list[tuple[str, Converter]] = []
    present: list[tuple[str, Converter]] = []
    for field in kind.fields:
        (present if field.has_presence else always).append((field.name, _field_converter(field)))

    def convert(message: Any) -> dict[str, Any]:
        values = {name: convert_field(getattr(message, name)) for name, convert_field in always}
        for name, convert_field in present:
            if message.HasField(name):
                values[name] = convert_field(getattr(message, name))
        return values

    return convert


def _field_converter(field: FieldDescriptor) -> Converter:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        convert_value = _value_converter(field.message_type.fields_by_name["value"])
        return lambda entries: {_key(key): convert_value(value) for key, value in entries.items()}
    convert = _value_converter(field)
    if not field.is_repeated:
        return convert
    return list if convert is _unchanged else lambda values: [convert(value) for value in values]


def _value_converter(field: FieldDescriptor) -> Converter:
    if field.message_type is not None:
        kind = field.message_type
        return lambda message: _converter(kind)(
            message
        )  # looked up late, because a message may contain itself
    if field.enum_type is not None:
        return _enum_converter(field.enum_type)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return lambda value: b64encode(value).decode()
    if field.cpp_type in _INT64_TYPES:
        return str
    return _float_value if field.cpp_type in _FLOAT_TYPES else _unchanged


def _unchanged(value: Any) -> Any:
    return value


def _enum_converter(enum: EnumDescriptor) -> Converter:
    names = {number: value.name for number, value in enum.values_by_number.items()}
    return lambda number: names.get(number, number)


def _float_value(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _key(key: object) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _duration(value: Duration) -> str:
    sign = "-" if value.seconds < 0 or value.nanos < 0 else ""
    return f"{sign}{abs(value.seconds)}{_fraction(abs(value.nanos))}s"


def _timestamp(value: Timestamp) -> str:
    return f"{_second(value.seconds)}{_fraction(value.nanos)}Z"


@lru_cache(maxsize=4_096)
def _second(seconds: int) -> str:
    # Cached, because many timestamps fall into the same second.
    return Timestamp(seconds=seconds).ToJsonString()[:-1]


def _fraction(nanos: int) -> str:
    """The fraction with three, six or nine digits; empty if it is zero."""
    if nanos == 0:
        return ""
    digits = f"{nanos:09}"
    return "." + (digits[:3] if nanos % 1_000_000 == 0 else digits[:6] if nanos % 1_000 == 0 else digits)


def _any(value: Any) -> Any:
    try:
        return json_format.MessageToDict(
            value, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
    except (TypeError, DecodeError):  # a type that only newer nodes know
        return {"@type": value.type_url, "value": b64encode(value.value).decode()}


_WELL_KNOWN: dict[str, Converter] = {
    "google.protobuf.Duration": _duration,
    "google.protobuf.Timestamp": _timestamp,
    "google.protobuf.Any": _any,
}
