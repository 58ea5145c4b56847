"""Configurations of supervised groups, as text."""

from __future__ import annotations

import shlex


def group(command: list[str], name: str = "g", **settings: object) -> str:
    """One group. Nested tables are given as table__key."""
    lines = [f"command = {shlex.join(command)!r}"]
    nested: dict[str, list[str]] = {}
    for key, value in settings.items():
        table, _, inner = key.rpartition("__")
        text = f"{inner} = {str(value).lower() if isinstance(value, bool) else repr(value)}"
        nested.setdefault(table, []).append(text) if table else lines.append(text)
    tables = [f"[group.{name}.{table}]\n" + "\n".join(items) for table, items in nested.items()]
    return "\n".join([f"[group.{name}]", *lines, *tables]) + "\n"
