"""Conditions for texts that begin with a prefix, which an index can answer."""

from __future__ import annotations

from sqlalchemy import Column, ColumnElement, and_


def starts_with(column: Column[str], prefix: str) -> ColumnElement[bool]:
    end = prefix_upper_bound(prefix)
    return column >= prefix if end is None else and_(column >= prefix, column < end)


def prefix_upper_bound(prefix: str) -> str | None:
    """The least string that sorts after all strings that start with `prefix`. UTF-8 sorts like its code points."""
    for index in range(len(prefix) - 1, -1, -1):
        point = ord(prefix[index])
        if point < 0x10FFFF:
            return prefix[:index] + chr(0xE000 if point == 0xD7FF else point + 1)
    return None
