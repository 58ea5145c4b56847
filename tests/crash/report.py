"""The matrix, for people and for the docs."""

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

_HOW = """\
# Real processes, real faults

`make crash` starts the server as an operator does, as a process of its own, puts it under load, and lets something happen to
it: {tried} times in the rows below, and {violated} times an invariant was violated.

Whether one was violated is not asked of the server. Clients keep a **ledger** outside it (`tests/system/server/ledger.py`): what
was acknowledged, what is in doubt because no answer came, and which states can follow from that. Every answer, every look at
a worker and, at the end, every row of the database has to agree with it. A lease that ended must have lasted on a clock
that ran only while the server could listen; each lost binding must have been rescheduled exactly once; each shard's log
must be without gaps. A violation is one disagreement, not one try.

The rows below were taken on {taken}, with CPython {python}, on a machine of {cpus} processors that others used as well, in
{minutes:.0f} minutes altogether. Scale 1 is all there is; where a row says less, it was run with a part of its tries. Each kind can
be run by itself; of one that was run more than once, the last run is shown. The table is written by
`make crash ARGS="--write"` from [results/crash.json](results/crash.json).

    make crash                          everything
    make crash ARGS="--list"            what there is
    make crash ARGS="--only kill"       one kind, or several: --only is repeated
    make crash ARGS="--scale 0.1"       a tenth of the tries
    make crash ARGS="--json"            for programs

The exit code is 1 if anything was violated, or was not tried.

| what | tried | violated | seconds | scale |
|---|---:|---:|---:|---:|
"""


def one_line(row: Row) -> Text:
    verdict = ("held", "green") if row.held else ("VIOLATED" if row.tried else "NOT TRIED", "bold red")
    return Text.assemble(
        f"{row.name:<56} tried {row.tried:>5}  violated {row.violated:>3}  {row.seconds:7.1f} s  ", verdict
    )


def show(console: Console, rows: Sequence[Row]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("what", overflow="fold")
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
        _HOW.format(
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
    lines.append("\n## What each does, and what it attacks\n")
    for fault in FAULTS:
        attacked = ", ".join(f"{number} {INVARIANTS[number].lower()}" for number in fault.invariants)
        lines.append(f"\n**{fault.name}.** {fault.what} Attacks {attacked}.\n")
        tests = ", ".join(f"`{node.removeprefix('tests/')}`" for node in fault.nodes)
        lines.append(f"In {tests}.\n")
        for row in rows:
            if row["fault"] == fault.name:
                lines += [f"- {row['row']}: {note}\n" for note in row["notes"]]
    return "".join(lines)
