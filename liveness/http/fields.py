"""Finds fields of messages by name, and parses their values from text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from liveness.domain.errors import InvalidField

TEXT_MESSAGES = frozenset({"google.protobuf.Duration", "google.protobuf.Timestamp"})
"""Messages that are strings in JSON."""


@dataclass(frozen=True, slots=True)
class FieldPath:
    """A field, possibly nested: filter.states."""

    fields: tuple[FieldDescriptor, ...]

    @property
    def leaf(self) -> FieldDescriptor:
        return self.fields[-1]

    def __str__(self) -> str:
        return ".".join(field.name for field in self.fields)

    def json_with(self, value: Any) -> dict[str, Any]:
        """The JSON of a message in which only this field is set."""
        for field in reversed(self.fields):
            value = {field.name: value}
        return value  # type: ignore[no-any-return]

    def value_in(self, message: Any) -> Any:
        """None if it is not set."""
        for field in self.fields:
            if field.has_presence and not message.HasField(field.name):
                return None
            message = getattr(message, field.name)
        return message if self.leaf.has_presence or message != self.leaf.default_value else None


def field_named(message: Descriptor, name: str) -> FieldDescriptor | None:
    """The field with this name in the proto file, or with this name in lowerCamelCase."""
    if not name.isascii():
        return None  # protobuf's own lookup fails on half of a surrogate pair
    return message.fields_by_name.get(name) or message.fields_by_camelcase_name.get(name)


def field_path(message: Descriptor, dotted: str) -> FieldPath | None:
    fields: list[FieldDescriptor] = []
    nested: Descriptor | None = message
    for name in dotted.split("."):
        field = None if nested is None else field_named(nested, name)
        if field is None or (fields and fields[-1].is_repeated):
            return None
        fields.append(field)
        nested = None if field.message_type is not None and is_scalar(field) else field.message_type
    return FieldPath(tuple(fields))


def is_scalar(field: FieldDescriptor) -> bool:
    """Whether a value of the field can be written as one text."""
    return field.message_type is None or field.message_type.full_name in TEXT_MESSAGES


def is_text_map(field: FieldDescriptor) -> bool:
    """Whether the field maps texts to texts. In a query, each entry is a parameter: labels[queue]=gpu."""
    entry = field.message_type
    if entry is None or not entry.GetOptions().map_entry:
        return False
    return all(part.type == FieldDescriptor.TYPE_STRING for part in entry.fields)


def parse_text(path: FieldPath, text: str) -> Any:
    """Convert a text from the path or the query to the field's JSON value."""
    if path.leaf.type == FieldDescriptor.TYPE_BOOL:
        if text not in ("true", "false"):
            raise InvalidField(field=str(path), rule=f"must be true or false, not {text!r}")
        return text == "true"
    if path.leaf.enum_type is not None:
        return enum_value(path.leaf.enum_type, text)
    return text


def enum_value(enum: EnumDescriptor, value: Any) -> Any:
    """Complete a short name: ACTIVE is WORKER_STATE_ACTIVE."""
    if isinstance(value, str) and value.isascii() and value not in enum.values_by_name:
        full = f"{_upper_snake(enum.name)}_{value}"
        if full in enum.values_by_name:
            return full
    return value


def _upper_snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()
