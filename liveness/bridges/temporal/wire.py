"""Reads and writes the few fields of Temporal's messages that the bridge needs, in protobuf's wire format.

Messages pass through the bridge as bytes and are never written anew, so fields that this program does not know cannot be
lost. Bytes that are no message raise `Malformed`; the caller then passes them on without a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_VARINT_BYTES_MAX = 10

Value: TypeAlias = int | bytes


class Malformed(ValueError):
    """The bytes are no protobuf message."""


def read_fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Yield each field's number and value: an integer, or the bytes of a text, of bytes or of a message inside."""
    position, end = 0, len(message)
    while position < end:
        tag, position = _read_varint(message, position)
        kind = tag & 7
        value: Value
        if kind == LENGTH:
            size, position = _read_varint(message, position)
            if size > end - position:
                raise Malformed("a field is longer than its message")
            value = message[position : position + size]
            position += size
        elif kind == VARINT:
            value, position = _read_varint(message, position)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
            if size > end - position:
                raise Malformed("a field is longer than its message")
            value = int.from_bytes(message[position : position + size], "little")
            position += size
        else:
            raise Malformed(f"wire type {kind} is not used any more")
        yield tag >> 3, value


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    value = 0
    for index in range(_VARINT_BYTES_MAX):
        try:
            byte = message[position + index]
        except IndexError:
            raise Malformed("the message ends inside a number") from None
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise Malformed("a number has more than ten bytes")


class Fields:
    """The fields of one message, by number. Of a field that is there more than once, the last value counts."""

    __slots__ = ("_values",)

    def __init__(self, message: bytes) -> None:
        self._values: dict[int, list[Value]] = {}
        for number, value in read_fields(message):
            self._values.setdefault(number, []).append(value)

    def number(self, field: int) -> int:
        """An integer; a negative one of 32 or 64 bits as such."""
        value = self._values.get(field, (0,))[-1]
        if not isinstance(value, int):
            raise Malformed(f"field {field} is no number")
        return value - (1 << 64) if value >= 1 << 63 else value

    def data(self, field: int) -> bytes:
        value = self._values.get(field, (b"",))[-1]
        if not isinstance(value, bytes):
            raise Malformed(f"field {field} is no text, bytes or message")
        return value

    def text(self, field: int) -> str:
        try:
            return self.data(field).decode()
        except UnicodeDecodeError:
            raise Malformed(f"field {field} is not UTF-8") from None

    def message(self, field: int) -> Fields:
        return Fields(self.data(field))

    def all_data(self, field: int) -> list[bytes]:
        values = self._values.get(field, [])
        if not all(isinstance(value, bytes) for value in values):
            raise Malformed(f"field {field} is no text, bytes or message")
        return [value for value in values if isinstance(value, bytes)]

    def map(self, field: int) -> dict[str, bytes]:
        """A map from texts to texts, bytes or messages."""
        entries = [Fields(entry) for entry in self.all_data(field)]
        return {entry.text(1): entry.data(2) for entry in entries}


Writable: TypeAlias = int | str | bytes | Iterable[bytes]


def write_message(fields: dict[int, Writable]) -> bytes:
    """Write a message. Empty and zero values are left out; an iterable of bytes is a repeated field."""
    out = bytearray()
    for number, value in fields.items():
        if isinstance(value, int):
            if value:
                out += _varint(number << 3 | VARINT) + _varint(value & (1 << 64) - 1)
            continue
        if isinstance(value, str):
            value = value.encode()
        for item in ([value] if value else []) if isinstance(value, bytes) else value:
            out += _varint(number << 3 | LENGTH) + _varint(len(item)) + item
    return bytes(out)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
