"""Builds a request message from path, query and body, by protobuf's JSON mapping.

Field names are those of the proto files; lowerCamelCase is accepted as well. Unknown names are refused: a misspelt filter that
was ignored would select everything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from liveness.domain.errors import InvalidField, InvalidRequest
from liveness.http.endpoints import WHOLE_BODY, Endpoint, Match
from liveness.http.fields import (
    FieldPath,
    enum_value,
    field_named,
    field_path,
    is_scalar,
    is_text_map,
    parse_text,
)

QUERY_FIELDS_MAX = 1_000
VALUES_MAX = 100_000
"""In a body. A thousand heartbeats have a few dozen values each."""
MESSAGES_PER_LIST_MAX = 1_000
"""No call takes more: heartbeats of a batch, activities of a heartbeat."""
TEXTS_PER_LIST_MAX = 10_000
"""Also of names and numbers in a list, and of entries in a map."""
TEXT_CHARS_MAX = 350 * 1024
"""A payload of 256 KiB in base64. ParseDict searches each text with a regular expression, during which no thread can run."""
MESSAGE_CHARS_MAX = 200
_MAP_ENTRY = re.compile(r"([\w.]+)\[(.*)\]", re.DOTALL)


class MalformedJson(InvalidRequest):
    reason = "MALFORMED_JSON"
    template = "The body is not valid JSON: {detail}."

    detail: str


class TooManyValues(InvalidRequest):
    reason = "TOO_MANY_VALUES"
    template = "The body has more than {limit} values; send it in several calls."

    limit: int


class UnfitBody(InvalidRequest):
    reason = "UNFIT_BODY"
    template = "The body does not fit {type}: {detail}."

    type: str
    detail: str


class UnknownField(InvalidRequest):
    reason = "UNKNOWN_FIELD"
    template = "There is no field {field} in the body; {type} has: {known}."

    field: str
    type: str
    known: str


class UnknownParameter(InvalidRequest):
    reason = "UNKNOWN_PARAMETER"
    template = "There is no query parameter {parameter} for {method}."

    parameter: str
    method: str


def build_request(match: Match, query: str, body: bytes) -> Message:
    endpoint = match.endpoint
    message = GetMessageClass(endpoint.method.input_type)()
    if endpoint.body:
        value = _json(body)
        if endpoint.body != WHOLE_BODY:
            value = {endpoint.body: value}
        problem = _parse_into(message, _check_names(endpoint.method.input_type, value, ""))
        if problem:
            raise UnfitBody(type=message.DESCRIPTOR.name, detail=problem)
    for path, text in match.values:
        given = path.value_in(message)
        _set(message, path, parse_text(path, text))
        if given is not None and given != path.value_in(message):
            raise InvalidField(field=str(path), rule="has one value in the path and another in the body")
    for name, value in _parameters(match, query).items():
        _set(message, name, value)
    return message


def _json(body: bytes) -> Any:
    if not body.strip():
        return {}
    if _has_too_many_values(body):
        raise TooManyValues(limit=VALUES_MAX)
    try:
        return json.loads(
            body.decode(), object_pairs_hook=_reject_duplicates, parse_constant=_reject_constant
        )
    except (ValueError, RecursionError) as error:
        raise MalformedJson(detail=_truncate(str(error))) from None


def _has_too_many_values(body: bytes) -> bool:
    """Count values by what comes before each of them. A parsed value takes 20 times the memory of its JSON and more."""
    if body.count(b",") + body.count(b"[") + body.count(b"{") <= VALUES_MAX:
        return False
    # Texts may contain the same characters, so leave them out. There are at most two for each value, and two quotes around each.
    quotes_max = 4 * VALUES_MAX
    parts = body.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"', quotes_max)
    outside = b"".join(parts[::2])
    return (
        len(parts) > quotes_max
        or outside.count(b",") + outside.count(b"[") + outside.count(b"{") > VALUES_MAX
    )


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} occurs twice")
        found[name] = value
    return found


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _check_names(message: Descriptor, value: Any, prefix: str) -> Any:
    """Return the value with short names of enum values completed. Raises on unknown field names."""
    if not message.full_name.startswith("liveness.") or (value is None and prefix):
        return value
    if not isinstance(value, dict):
        raise UnfitBody(type=message.name, detail=f"{prefix.rstrip('.') or 'it'} must be an object")
    checked: dict[str, Any] = {}
    for name, part in value.items():
        field = field_named(message, name)
        if field is None:
            known = ", ".join(message.fields_by_name)
            raise UnknownField(field=_truncate(prefix + name), type=message.name, known=known)
        if field.name in checked:
            raise UnfitBody(
                type=message.name,
                detail=f"{prefix}{field.name} occurs twice, as {field.name} and {field.camelcase_name}",
            )
        checked[field.name] = _check_field_names(field, part, f"{prefix}{field.name}.")
    return checked


def _check_field_names(field: FieldDescriptor, value: Any, prefix: str) -> Any:
    name = prefix.rstrip(".")
    is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
    limit = TEXTS_PER_LIST_MAX if is_map or field.message_type is None else MESSAGES_PER_LIST_MAX
    if field.is_repeated and isinstance(value, list | dict) and len(value) > limit:
        raise InvalidField(field=name, rule=f"must be at most {limit} per call")
    if is_map:
        if isinstance(value, dict):
            for each in (*value, *value.values()):
                _check_length(name, each)
        return value
    if not isinstance(value, list):
        return _check_value_names(field, value, prefix)
    if not field.is_repeated or any(isinstance(part, list) for part in value):
        what = "be one value, not a list" if not field.is_repeated else "not hold lists"
        raise UnfitBody(type=field.full_name.split(".")[-2], detail=f"{name} must {what}")
    return [_check_value_names(field, part, prefix) for part in value]


def _check_value_names(field: FieldDescriptor, value: Any, prefix: str) -> Any:
    _check_length(prefix.rstrip("."), value)
    if field.enum_type is not None:
        if (
            isinstance(value, str) and not value.isascii()
        ):  # protobuf's own lookup fails on half of a surrogate pair
            raise UnfitBody(type=field.enum_type.name, detail=f"{prefix.rstrip('.')} has an unknown name")
        return enum_value(field.enum_type, value)
    return value if field.message_type is None else _check_names(field.message_type, value, prefix)


def _check_length(name: str, value: Any) -> None:
    if isinstance(value, str) and len(value) > TEXT_CHARS_MAX:
        raise InvalidField(field=name, rule=f"must be at most {TEXT_CHARS_MAX} characters")


def _parameters(match: Match, query: str) -> Mapping[FieldPath, Any]:
    endpoint = match.endpoint
    if re.search(r"%(?![0-9A-Fa-f]{2})", query):
        raise InvalidField(field="the query", rule="holds a % that does not begin an escape such as %25")
    try:
        pairs = parse_qsl(
            query, keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX, separator="&"
        )
    except ValueError:
        raise InvalidField(
            field="the query", rule=f"must be UTF-8 and have at most {QUERY_FIELDS_MAX} parameters"
        ) from None
    found: dict[FieldPath, Any] = {}
    for name, text in pairs:
        if (entry := _map_entry(endpoint, name)) is not None:
            map_path, key = entry
            entries = found.setdefault(map_path, {})
            if key in entries:
                raise InvalidField(field=name, rule="occurs twice in the query")
            entries[key] = text
            continue
        path = None if endpoint.body == WHOLE_BODY else field_path(endpoint.method.input_type, name)
        if (
            path is None
            or not is_scalar(path.leaf)
            or path in endpoint.variables
            or path.fields[0].name == endpoint.body
        ):
            raise UnknownParameter(parameter=_truncate(name), method=endpoint.method.name)
        value = parse_text(path, text)
        if path.leaf.is_repeated:
            found.setdefault(path, []).append(value)
        elif path in found:
            raise InvalidField(field=str(path), rule="occurs twice in the query")
        else:
            found[path] = value
    return found


def _map_entry(endpoint: Endpoint, name: str) -> tuple[FieldPath, str] | None:
    """The map field and the key that a parameter like labels[queue] names."""
    parts = _MAP_ENTRY.fullmatch(name)
    if parts is None or endpoint.body == WHOLE_BODY:
        return None
    path = field_path(endpoint.method.input_type, parts[1])
    if path is None or not is_text_map(path.leaf) or path.fields[0].name == endpoint.body:
        return None
    return path, parts[2]


def _set(message: Message, path: FieldPath, value: Any) -> None:
    problem = _parse_into(message, path.json_with(value))
    if problem:
        raise InvalidField(field=str(path), rule=f"cannot be {_truncate(str(value))!r}: {problem}")


def _parse_into(message: Message, value: Any) -> str:
    """Fill the message. Returns the problem, or an empty text."""
    try:
        json_format.ParseDict(value, message)
    # ParseDict lets some of Python's own errors through, for instance for half of a surrogate pair.
    except (json_format.ParseError, ValueError, TypeError, AttributeError, RecursionError) as error:
        return _truncate(str(error)).rstrip(".")
    return ""


def _truncate(text: str) -> str:
    text = text.encode(errors="replace").decode()
    return text if len(text) <= MESSAGE_CHARS_MAX else text[:MESSAGE_CHARS_MAX] + "…"
