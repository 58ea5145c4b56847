"""Rows as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.rounds import OURS

Row = Mapping[str, Any]


def number(value: float) -> str:
    if abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def spread_of(values: dict[str, float]) -> str:
    if values["min"] == values["max"]:
        return number(values["median"])
    return f"{number(values['median'])} ({number(values['min'])} to {number(values['max'])})"


def bar_of(row: Row) -> str:
    """Return the bar as text; empty without a bar."""
    bar = row.get("bar")
    if bar is None:
        return ""
    whose = f" {row['unit'].partition(',')[0]}" if bar["of"] == OURS else " ×"
    aim = f", aim {number(bar['aim'])}" if "aim" in bar else ""
    return f"{bar['sense']} {number(bar['value'])}{whose}{aim}"


def verdict(row: Row) -> str:
    if "skipped" in row:
        return "skipped"
    if "failed" in row:
        return "FAILED"
    return "" if "bar" not in row else "met" if row["bar"]["met"] else "MISSED"


def details(row: Row) -> list[str]:
    """Return the additional figures, a line each."""
    lines = []
    for name, value in row.get("more", {}).items():
        if isinstance(value, dict):
            lines.append(f"{name}: " + ", ".join(f"{side} {number(found)}" for side, found in value.items()))
        else:
            lines.append(f"{name}: {number(value)}")
    return lines


def heading(machine: dict[str, Any]) -> str:
    return (
        f"{machine['cores']} cores ({machine['processor']}), {machine['memory_gib']} GiB, {machine['kernel']}, "
        f"{machine['python']}, SQLite {machine['sqlite']}, h2load: {machine['h2load']}"
    )


def line(row: Row) -> str:
    if "ratio" not in row:
        return f"\n{row['row']}: {verdict(row)}: {row.get('skipped') or row.get('failed')}"
    sides = "; ".join(f"{name} {spread_of(values)}" for name, values in row["sides"].items())
    judged = f"   {bar_of(row)}: {verdict(row)}" if "bar" in row else ""
    detail_lines = "".join(f"\n    {text}" for text in details(row))
    return f"\n{row['row']}: {spread_of(row['ratio'])} ×{judged}\n    {row['unit']}: {sides}{detail_lines}"


def summary(rows: Sequence[Row]) -> str:
    judged = [row for row in rows if "bar" in row]
    missed = [row["row"] for row in judged if not row["bar"]["met"]]
    skipped = [row["row"] for row in rows if "skipped" in row]
    failed = [row["row"] for row in rows if "failed" in row]
    parts = [f"{len(judged) - len(missed)} of {len(judged)} bars met"]
    for word, names in (("missed", missed), ("skipped", skipped), ("failed", failed)):
        if names:
            parts.append(f"{word}: {'; '.join(names)}")
    return "\n" + "\n".join(parts)
