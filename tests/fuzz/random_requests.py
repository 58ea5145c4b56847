"""Random requests for any method, from its descriptor: mostly plausible names, with odd values in every kind of field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tests.fuzz.credentials import ADMIN, SPARE

INT32 = (0, 1, 2, -1, 99, 1_000, 2**31 - 1, -(2**31))
INT64 = (*INT32, 2**31, 2**53, 2**62, 2**63 - 1, -(2**63))
UINT64 = (0, 1, 2, 99, 2**31, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
DOUBLES = (0.0, 1.0, 1.5, -1.0, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"))
TEXTS = (
    "",
    "",
    "a\0b",
    "x" * 255,
    "x" * 256,
    "é" * 127,
    "\u202e",
    "😀",
    "a\nb",
    " ",
    "-",
    "%",
    "../..",
    "x" * 5_000,
)
PAYLOADS = (b"", b"\0", b"\xff" * 10, b"x" * 3_000)
ENUMS = (0, 1, 2, 3, 4, 5, 99, -1, 2**31 - 1)
DEPTH_MAX = 4

NAMES: Mapping[str, tuple[Any, ...]] = {
    "namespace": ("orders", "orders", "orders", "other"),
    "worker_instance_key": ("w", "w", "w2", "unknown", "pool:a", "pool:b", "worker:g:0", "supervisor:g"),
    "session_id": ("", "s", "s2"),
    "workflow_id": ("f", "f", "g"),
    "run_id": ("r",),
    "activity_id": ("a", "b"),
    "task_queue": ("q", "q2", ""),
    "node_id": ("n1", "n2"),
    "address": ("127.0.0.1:1",),
    "unit": ("u", "u", "v"),
    "group": ("g",),
    "component_ids": ("worker:g:0", "worker:g:1"),
    "kind": ("pool", ""),
    "runtime_json": (
        '{"type":"cpu"}',
        "",
        '{"a":' + "[" * 2_000 + "]" * 2_000 + "}",
        '{"a":1' + "0" * 4_080 + "}",
    ),
    "details_json": ('{"a":1}', "", '{"a":' + "[" * 2_000 + "]" * 2_000 + "}", '{"a":1' + "0" * 4_080 + "}"),
    "unset": ("max_workers", "paused", "nothing"),
    "token_id": (SPARE.token_id, "unknown"),
    "principal": ("alice", "bob", SPARE.owner),
    "grants": ("reader:orders", "worker:*:w", "admin:*"),
    "authorization": (f"Bearer {ADMIN.text}", f"Bearer {SPARE.text}", "Bearer lvt_a_b"),
}
"""What fields with these names usually hold, so that many requests get past validation."""
_POOLS, _COMPONENTS, _SUPERVISORS = (
    {"worker_instance_key": keys} for keys in (("pool:a", "pool:b"), ("worker:g:0", "worker:g:1"), ("supervisor:g",))
)  # fmt: skip
NAMES_OF: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "RegisterRequest": _POOLS,
    "HeartbeatRequest": _POOLS,
    "DeregisterRequest": _POOLS,
    "GetEntryRequest": _POOLS,
    "ReportComponentRequest": {
        **_COMPONENTS,
        "session_id": ("s",),
        "number": (1, 2, 3, 4),
        "restart_count": (0, 1),
    },
    "GetComponentRequest": _COMPONENTS,
    "GetComponentLogsRequest": _COMPONENTS,
    "PollComponentOrdersRequest": {**_SUPERVISORS, "session_id": ("s",)},
    "SendComponentLogsRequest": _SUPERVISORS,
    "MetricSample": {"name": ("m", "m", "n"), "value": (1.0, 2.5, -1e200)},
}
"""The same for the fields of one message."""
LEFT_UNSET = {("MetricSample", "time"), ("QueryMetricsRequest", "start_time")}
"""Mostly, because they are compared with the time."""


def random_request(kind: Descriptor, random: Random) -> Message:
    message = GetMessageClass(kind)()
    _fill(message, random, 0)
    return message


def _fill(message: Message, random: Random, depth: int) -> None:
    is_odd = random.random() < 0.5
    """Half of all messages have plausible names only."""
    names = {**NAMES, **NAMES_OF.get(message.DESCRIPTOR.name, {})}
    for field in message.DESCRIPTOR.fields:
        if field.name not in names and random.random() < 0.4:
            continue
        if (message.DESCRIPTOR.name, field.name) in LEFT_UNSET and random.random() < 0.9:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for _ in range(random.randrange(3)):
                getattr(message, field.name)[random.choice(TEXTS)] = random.choice(TEXTS)
        elif field.message_type is not None:
            if depth >= DEPTH_MAX:
                continue
            if field.is_repeated:
                for _ in range(random.randrange(4)):
                    _fill(getattr(message, field.name).add(), random, depth + 1)
            else:
                part = getattr(message, field.name)
                part.SetInParent()
                _fill(part, random, depth + 1)
        elif field.is_repeated:
            getattr(message, field.name).extend(
                _value(field, names, random, is_odd) for _ in range(random.randrange(4))
            )
        else:
            setattr(message, field.name, _value(field, names, random, is_odd))


def _value(field: Any, names: Mapping[str, tuple[Any, ...]], random: Random, is_odd: bool) -> Any:
    if field.name in names and not (is_odd and random.random() < 0.3):
        return random.choice(names[field.name])
    if not is_odd and random.random() < 0.97:
        return _plausible(field, random)
    return _VALUES[field.cpp_type](random, field)


def _plausible(field: Any, random: Random) -> Any:
    """A value with which a request is probably valid."""
    if field.name == "nanos":
        return 0
    if field.enum_type is not None:
        return random.choice(field.enum_type.values).number
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return random.random() < 0.3
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        is_bytes, is_token = field.type == FieldDescriptor.TYPE_BYTES, field.name.endswith("_token")
        return b"x" if is_bytes else "" if is_token else random.choice(("", "a", "b"))
    return random.choice((1, 1, 1, 2, 5))


_VALUES: dict[int, Callable[[Random, FieldDescriptor], Any]] = {
    FieldDescriptor.CPPTYPE_INT32: lambda random, _: random.choice(INT32),
    FieldDescriptor.CPPTYPE_INT64: lambda random, _: random.choice(INT64),
    FieldDescriptor.CPPTYPE_UINT64: lambda random, _: random.choice(UINT64),
    FieldDescriptor.CPPTYPE_UINT32: lambda random, _: random.choice(INT32[:6]),
    FieldDescriptor.CPPTYPE_DOUBLE: lambda random, _: random.choice(DOUBLES),
    FieldDescriptor.CPPTYPE_BOOL: lambda random, _: random.random() < 0.5,
    FieldDescriptor.CPPTYPE_ENUM: lambda random, _: random.choice(ENUMS),
    FieldDescriptor.CPPTYPE_STRING: lambda random, field: (
        random.choice(PAYLOADS) if field.type == FieldDescriptor.TYPE_BYTES else random.choice(TEXTS)
    ),
}
