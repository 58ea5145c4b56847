"""What callers are not shown: session ids, which are capabilities; for readers the payloads of activities; and for all but
operators the last lines that a process wrote, which may contain secrets."""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from liveness.domain.errors import LivenessError
from liveness.security.grants import Role
from liveness.security.principal import Principal, current_caller

HASH_CHARS = 8
SESSION_FIELD = "session_id"
PAYLOAD_FIELDS = ("input", "result", "token", "heartbeat_details")
PAYLOAD_ROLES = frozenset({Role.PRODUCER})
"""Who may see payloads: those who schedule activities, and admins."""

OUTPUT_FIELD = "last_lines"
OUTPUT_ROLES = frozenset({Role.OPERATOR})
"""Who may see what a process wrote: those who operate it, and admins."""

TRACE_FIELD = "stack_trace"
"""For both."""

_WORKER_FIELDS = ("worker_instance_key", "component_id")

_REDACTED_TYPES = frozenset(
    f"liveness.v1.{name}"
    for name in (
        "Worker",
        "Event",
        "DeathCertificate",
        "Activity",
        "ScheduledActivity",
        "ActivityRef",
        "ActivityAttempt",
        "ProcessExit",
        "Replica",
    )
)


class _Rights(NamedTuple):
    """What the caller may see of a namespace and a worker."""

    payloads: bool
    output: bool


def short_hash(session_id: str) -> str:
    """Enough to tell sessions apart, and useless as a session id."""
    return hashlib.sha256(session_id.encode()).hexdigest()[:HASH_CHARS] if session_id else ""


def redact_error(error: LivenessError) -> LivenessError:
    """The error as its caller is shown it."""
    if current_caller.get() is None or SESSION_FIELD not in error.fields:
        return error
    return type(error)(**{**error.fields, SESSION_FIELD: short_hash(str(error.fields[SESSION_FIELD]))})


def has_redacted_fields(descriptor: Descriptor, seen: frozenset[str] = frozenset()) -> bool:
    """Whether messages of this type can contain something that is not shown to everybody."""
    if descriptor.full_name in _REDACTED_TYPES:
        return True
    if descriptor.full_name in seen:
        return False
    return any(
        field.message_type is not None
        and has_redacted_fields(field.message_type, seen | {descriptor.full_name})
        for field in descriptor.fields
    )


def redact(message: Message, principal: Principal) -> None:
    """Replace session ids, and remove payloads and output that the principal may not see. `message` comes from a handler, and
    was not redacted before."""
    _redact(message, principal, "", "")


def _rights(principal: Principal, namespace: str, worker: str) -> _Rights:
    return _Rights(
        "" in principal.key_prefixes(PAYLOAD_ROLES, namespace),
        any(map(worker.startswith, principal.key_prefixes(OUTPUT_ROLES, namespace))),
    )


def _redact(message: Any, principal: Principal, namespace: str, worker: str) -> None:
    descriptor = message.DESCRIPTOR
    fields = descriptor.fields_by_name
    if "namespace" in fields and fields["namespace"].type == fields["namespace"].TYPE_STRING:
        namespace = message.namespace or namespace
    for name in _WORKER_FIELDS:
        if name in fields and fields[name].type == fields[name].TYPE_STRING:
            worker = getattr(message, name) or worker
    if descriptor.full_name in _REDACTED_TYPES:
        rights = _rights(principal, namespace, worker)
        if SESSION_FIELD in fields:
            message.session_id = short_hash(message.session_id)
        if "data_json" in fields and message.data_json:
            message.data_json = redact_json(
                message.data_json, shows_payloads=rights.payloads, shows_output=rights.output
            )
        if not rights.payloads:
            for name in PAYLOAD_FIELDS:
                if name in fields:
                    message.ClearField(name)
        if not rights.output and OUTPUT_FIELD in fields:
            message.ClearField(OUTPUT_FIELD)
        if not (rights.payloads or rights.output) and TRACE_FIELD in fields:
            message.ClearField(TRACE_FIELD)
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for part in (value,) if isinstance(value, Message) else value:
            if part.DESCRIPTOR.full_name.startswith("liveness."):
                _redact(part, principal, namespace, worker)


def redact_json(text: str, *, shows_payloads: bool, shows_output: bool) -> str:
    """The same for an event's fields as JSON."""
    hidden = (() if shows_payloads else PAYLOAD_FIELDS) + (() if shows_output else (OUTPUT_FIELD,))
    if not (shows_payloads or shows_output):
        hidden += (TRACE_FIELD,)
    value = json.loads(text)
    return json.dumps(_redact_value(value, hidden), separators=(",", ":"), ensure_ascii=False)


def _redact_value(value: Any, hidden: tuple[str, ...]) -> Any:
    if isinstance(value, list):
        return [_redact_value(part, hidden) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        name: short_hash(part)
        if name == SESSION_FIELD and isinstance(part, str)
        else _redact_value(part, hidden)
        for name, part in value.items()
        if name not in hidden
    }
