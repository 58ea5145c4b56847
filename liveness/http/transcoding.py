"""Requests from path, query and body, by protobuf's own mapping of JSON.

Names are those of the contract; what comes in may have lowerCamelCase, too. What is not known is refused by name: a
misspelt filter that is ignored would choose everything.
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
from liveness.http.bindings import WHOLE, Match
from liveness.http.fields import FieldPath, enum_value, field_named, field_path, from_text, is_text

QUERY_FIELDS_MAX = 1_000
SHOWN_CHARACTERS_MAX = 200


class MalformedJson(InvalidRequest):
    """The body is not valid JSON: {detail}."""


class UnfitBody(InvalidRequest):
    """The body does not fit {type}: {detail}."""


class UnknownField(InvalidRequest):
    """There is no field {field} in the body; {type} has: {known}."""


class UnknownParameter(InvalidRequest):
    """There is no query parameter {parameter} for {method}."""


def request_of(match: Match, query: str, body: bytes) -> Message:
    binding = match.binding
    message = GetMessageClass(binding.method.input_type)()
    if binding.body:
        value = _json(body)
        if binding.body != WHOLE:
            value = {binding.body: value}
        fault = _fault_of(message, _checked(binding.method.input_type, value, ""))
        if fault:
            raise UnfitBody(type=message.DESCRIPTOR.name, detail=fault)
    for path, text in match.values:
        given = path.value_in(message)
        _set(message, path, from_text(path, text))
        if given is not None and given != path.value_in(message):
            raise InvalidField(field=str(path), rule="is one thing in the path and another in the body")
    for name, value in _parameters(match, query).items():
        _set(message, name, value)
    return message


def _json(body: bytes) -> Any:
    if not body.strip():
        return {}
    try:
        return json.loads(body.decode(), object_pairs_hook=_without_repeats, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise MalformedJson(detail=_short(str(error))) from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} is there twice")
        found[name] = value
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _checked(message: Descriptor, value: Any, where: str) -> Any:
    """The same with short names of enum values made whole, and nothing in it that is not known."""
    if not message.full_name.startswith("liveness.") or (value is None and where):
        return value
    if not isinstance(value, dict):
        raise UnfitBody(type=message.name, detail=f"{where.rstrip('.') or 'it'} must be an object")
    checked = {}
    for name, part in value.items():
        field = field_named(message, name)
        if field is None:
            known = ", ".join(message.fields_by_name)
            raise UnknownField(field=_short(where + name), type=message.name, known=known)
        checked[name] = _checked_field(field, part, f"{where}{field.name}.")
    return checked


def _checked_field(field: FieldDescriptor, value: Any, where: str) -> Any:
    if isinstance(value, list):
        return [_checked_field(field, part, where) for part in value]
    if field.enum_type is not None:
        return enum_value(field.enum_type, value)
    inside = field.message_type
    if inside is None or inside.GetOptions().map_entry:
        return value
    return _checked(inside, value, where)


def _parameters(match: Match, query: str) -> Mapping[FieldPath, Any]:
    binding = match.binding
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
        path = None if binding.body == WHOLE else field_path(binding.method.input_type, name)
        if (
            path is None
            or not is_text(path.leaf)
            or path in binding.variables
            or path.fields[0].name == binding.body
        ):
            raise UnknownParameter(parameter=_short(name), method=binding.method.name)
        value = from_text(path, text)
        if path.leaf.is_repeated:
            found.setdefault(path, []).append(value)
        elif path in found:
            raise InvalidField(field=str(path), rule="is there twice in the query")
        else:
            found[path] = value
    return found


def _set(message: Message, path: FieldPath, value: Any) -> None:
    fault = _fault_of(message, path.holding(value))
    if fault:
        raise InvalidField(field=str(path), rule=f"cannot be {_short(str(value))!r}: {fault}")


def _fault_of(message: Message, value: Any) -> str:
    """Fill the message; empty if that went well."""
    try:
        json_format.ParseDict(value, message)
    # The library lets some of Python's own errors through, for instance for half of a surrogate pair.
    except (json_format.ParseError, ValueError, TypeError, AttributeError, RecursionError) as error:
        return _short(str(error)).rstrip(".")
    return ""


def _short(text: str) -> str:
    text = text.encode(errors="replace").decode()
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[:SHOWN_CHARACTERS_MAX] + "…"
