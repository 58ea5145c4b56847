"""The results as a table for people, and as docs/crash.md."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tests.crash.fault_runner import Row
from tests.crash.matrix import FAULTS, INVARIANTS

_INTRODUCTION = """\
# Real processes, real faults

`make crash` starts the server as an operator does, as its own process, puts it under load, and injects faults. The rows
below count {tried} faults and {violated} violated invariants.

The harness does not ask the server whether an invariant was violated. Clients keep a **ledger** outside the server
(`tests/system/server/ledger.py`). It holds the acknowledged heartbeats, the heartbeats that are in doubt because no answer came,
and the states that can follow from both. Every answer, every read of a worker and, at the end, every row of the database must
agree with the ledger. A lease that ended must have lasted on a clock that ran only while the server could listen; each lost
binding must have been rescheduled exactly once; each shard's log must be without gaps. A violation is one disagreement, not
one try.

The rows were measured on {taken}, with CPython {python}, on a shared machine with {cpus} processors, in {minutes:.0f} minutes
altogether. Scale 1 means all tries; a row with a smaller scale ran that fraction of its tries. Each fault can be run by
itself; the table shows the last run of each. `make crash ARGS="--write"` stores the results in
[results/crash.json](results/crash.json) and writes this page from them.

    make crash                          all faults
    make crash ARGS="--list"            list the faults
    make crash ARGS="--only kill"       the faults with this in their names; --only can be repeated
    make crash ARGS="--scale 0.1"       a tenth of the tries
    make crash ARGS="--json"            JSON instead of a table

The exit code is 1 if an invariant was violated or a fault was not tried.

| fault | tried | violated | seconds | scale |
|---|---:|---:|---:|---:|
"""


def one_line(row: Row) -> Text:
    verdict = ("held", "green") if row.held else ("VIOLATED" if row.tried else "NOT TRIED", "bold red")
    return Text.assemble(
        f"{row.name:<56} tried {row.tried:>5}  violated {row.violated:>3}  {row.seconds:7.1f} s  ", verdict
    )


def show(console: Console, rows: Sequence[Row]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("fault", overflow="fold")
    for column in ("tried", "violated", "seconds"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row.name,
            str(row.tried),
            str(row.violated),
            f"{row.seconds:.1f}",
            style=None if row.held else "bold red",
        )
    console.print(table)
    for row in rows:
        if not row.held:
            console.print(f"\n{row.name}:", *row.notes, sep="\n  ", style="red", markup=False)


def as_page(rows: Sequence[dict[str, Any]]) -> str:
    days = sorted({row["taken"] for row in rows})
    lines = [
        _INTRODUCTION.format(
            tried=f"{sum(row['tried'] for row in rows):,}",
            violated=sum(row["violated"] for row in rows),
            taken=days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}",
            python=platform.python_version(),
            cpus=os.cpu_count(),
            minutes=sum(row["seconds"] for row in rows) / 60,
        )
    ]
    lines += [
        f"| {row['row']} | {row['tried']:,} | {row['violated']} | {row['seconds']:.0f} | {row['scale']:g} |\n"
        for row in rows
    ]
    lines.append("\n## The faults, and the invariants that they attack\n")
    for fault in FAULTS:
        attacked = ", ".join(f"{number} {INVARIANTS[number].lower()}" for number in fault.invariants)
        lines.append(f"\n**{fault.name}.** {fault.what} Attacks {attacked}.\n")
        tests = ", ".join(f"`{node.removeprefix('tests/')}`" for node in fault.nodes)
        lines.append(f"In {tests}.\n")
        for row in rows:
            if row["fault"] == fault.name:
                lines += [f"- {row['row']}: {note}\n" for note in row["notes"]]
    return "".join(lines)
