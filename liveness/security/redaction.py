"""What callers are not shown: session ids, which are capabilities, and for readers the payloads of activities."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from liveness.domain.errors import LivenessError
from liveness.security.grants import Role
from liveness.security.principal import Principal, current_caller

HASH_CHARS = 8
SESSION_FIELD = "session_id"
PAYLOAD_FIELDS = ("input", "result", "token")
PAYLOAD_ROLES = frozenset({Role.PRODUCER})
"""Who may see payloads: those who schedule activities, and admins."""

_REDACTED_TYPES = frozenset(
    f"liveness.v1.{name}" for name in ("Worker", "Event", "DeathCertificate", "Activity", "ActivityRef")
)


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
    """Replace session ids, and remove payloads that the principal may not see. `message` comes from a handler, and was not
    redacted before."""
    _redact(message, lambda namespace: "" in principal.key_prefixes(PAYLOAD_ROLES, namespace), "")


def _redact(message: Any, shows_payloads: Callable[[str], bool], namespace: str) -> None:
    descriptor = message.DESCRIPTOR
    fields = descriptor.fields_by_name
    if "namespace" in fields and fields["namespace"].type == fields["namespace"].TYPE_STRING:
        namespace = message.namespace or namespace
    if descriptor.full_name in _REDACTED_TYPES:
        if SESSION_FIELD in fields:
            message.session_id = short_hash(message.session_id)
        if "data_json" in fields and message.data_json:
            message.data_json = redact_json(message.data_json, shows_payloads=shows_payloads(namespace))
        if not shows_payloads(namespace):
            for name in PAYLOAD_FIELDS:
                if name in fields:
                    message.ClearField(name)
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for part in (value,) if isinstance(value, Message) else value:
            if part.DESCRIPTOR.full_name.startswith("liveness."):
                _redact(part, shows_payloads, namespace)


def redact_json(text: str, *, shows_payloads: bool) -> str:
    """The same for an event's fields as JSON."""
    value = json.loads(text)
    return json.dumps(_redact_value(value, shows_payloads), separators=(",", ":"), ensure_ascii=False)


def _redact_value(value: Any, shows_payloads: bool) -> Any:
    if isinstance(value, list):
        return [_redact_value(part, shows_payloads) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        name: short_hash(part)
        if name == SESSION_FIELD and isinstance(part, str)
        else _redact_value(part, shows_payloads)
        for name, part in value.items()
        if shows_payloads or name not in PAYLOAD_FIELDS
    }
