"""JSON schemas of the messages, for the OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

import liveness.v1

Schema = dict[str, Any]

_SCALARS: dict[int, Schema] = {
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_DOUBLE: {"type": "number", "format": "double"},
    FieldDescriptor.TYPE_INT32: {"type": "integer", "format": "int32", "minimum": -(2**31), "maximum": 2**31 - 1},
    FieldDescriptor.TYPE_INT64: {"type": "string", "format": "int64", "pattern": "^-?[0-9]{1,19}$"},
    FieldDescriptor.TYPE_UINT64: {"type": "string", "format": "uint64", "pattern": "^[0-9]{1,20}$"},
}  # fmt: skip
_WELL_KNOWN: dict[str, Schema] = {
    "google.protobuf.Duration": {
        "type": "string",
        "pattern": r"^-?[0-9]{1,12}(\.[0-9]{1,9})?s$",
        "examples": ["30s", "0.25s"],
    },
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.Any": {
        "type": "object",
        "properties": {"@type": {"type": "string"}},
        "required": ["@type"],
    },
}


@cache
def _comments() -> dict[str, str]:
    """The comments of the proto files, which the generated code does not contain."""
    file = Path(liveness.v1.__file__).parent / "comments.json"
    return json.loads(file.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def comment_of(name: str) -> str:
    return _comments().get(name, "")


class Schemas:
    """Collects the schemas that the document refers to, each once."""

    def __init__(self, request_types: Iterable[Descriptor]) -> None:
        """`request_types`: the messages that clients send, in which any field is optional. In responses, all fields without
        presence are always there."""
        self.by_name: dict[str, Schema] = {}
        self._request_type_names: set[str] = set()
        for message in request_types:
            self._add_request_type(message)

    def _add_request_type(self, message: Descriptor) -> None:
        if message.full_name not in self._request_type_names:
            self._request_type_names.add(message.full_name)
            for field in message.fields:
                if field.message_type is not None:
                    self._add_request_type(field.message_type)

    def of_message(self, message: Descriptor) -> Schema:
        if message.full_name in _WELL_KNOWN:
            return dict(_WELL_KNOWN[message.full_name])
        name = _name(message)
        if name not in self.by_name:
            self.by_name[name] = {}  # a message may contain itself
            self.by_name[name] = self.of_fields(message, message.fields)
        return {"$ref": f"#/components/schemas/{name}"}

    def of_fields(self, message: Descriptor, fields: Iterable[FieldDescriptor]) -> Schema:
        """The schema of a message with only these fields."""
        kept = list(fields)
        schema: Schema = {
            "type": "object",
            "properties": {field.name: self.of_field(field) for field in kept},
            "additionalProperties": False,
        }
        always = [field.name for field in kept if not field.has_presence]
        if always and message.full_name not in self._request_type_names:
            schema["required"] = always
        return _described(schema, message.full_name)

    def of_field(self, field: FieldDescriptor) -> Schema:
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            values = self._of_value(entry.fields_by_name["value"])
            return _described({"type": "object", "additionalProperties": values}, field.full_name)
        value = self._of_value(field)
        if field.is_repeated:
            value = {"type": "array", "items": value}
        return _described(value, field.full_name)

    def _of_value(self, field: FieldDescriptor) -> Schema:
        if field.message_type is not None:
            return self.of_message(field.message_type)
        if field.enum_type is not None:
            return self._of_enum(field.enum_type)
        return dict(_SCALARS[field.type])

    def _of_enum(self, enum: EnumDescriptor) -> Schema:
        name = _name(enum)
        if name not in self.by_name:
            descriptions = [comment_of(enum.full_name)]
            descriptions += [
                f"{value.name}: {text}"
                for value in enum.values
                if (text := comment_of(f"{enum.full_name}.{value.name}"))
            ]
            schema: Schema = {"type": "string", "enum": [value.name for value in enum.values]}
            if any(descriptions):
                schema["description"] = "\n\n".join(filter(None, descriptions))
            self.by_name[name] = schema
        return {"$ref": f"#/components/schemas/{name}"}


def _described(schema: Schema, name: str) -> Schema:
    text = comment_of(name)
    return {**schema, "description": text} if text else schema


def _name(descriptor: Descriptor | EnumDescriptor) -> str:
    """The full name without the package liveness.v1; a nested message keeps the name of the outer one."""
    return descriptor.full_name.removeprefix("liveness.v1.")
