"""Run the tests of one fault in their own process, and count their tries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from tests.crash.matrix import Fault
from tests.crash.scale import VARIABLE

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 3_600
WORDS_MAX = 600


class Row(NamedTuple):
    name: str
    fault: str
    tried: int
    violated: int
    seconds: float
    scale: float = 1.0
    notes: tuple[str, ...] = ()
    """What the tests reported, and their failures."""

    @property
    def held(self) -> bool:
        return self.tried > 0 and self.violated == 0


def run(fault: Fault, scale: float) -> list[Row]:
    """Return one row, or one row for each name that the tests reported."""
    with tempfile.TemporaryDirectory(prefix="liveness-crash-") as folder:
        results = Path(folder) / "results.xml"
        command = [
            sys.executable, "-m", "pytest", *fault.nodes,
            "-m", "crash_long or not crash_long", "-q", "--no-header", "--tb=short", "--show-capture=no",
            f"--timeout={SECONDS_MAX}", f"--junitxml={results}",
        ]  # fmt: skip
        # pytest's output is progress: it goes to stderr, beside the table.
        subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, VARIABLE: str(scale)},
            stdout=sys.stderr.fileno(),
            check=False,
        )
        if not results.exists():
            return [_untried(fault, "pytest itself failed")]
        rows = read(fault, ElementTree.parse(results).getroot())
        return [row._replace(scale=scale) for row in rows]


def _untried(fault: Fault, why: str) -> Row:
    return Row(fault.name, fault.name, 0, 0, 0.0, notes=(why,))


def read(fault: Fault, results: ElementTree.Element) -> list[Row]:
    rows: defaultdict[str, list[Row]] = defaultdict(list)
    for case in results.iter("testcase"):
        for row in _rows(fault, case):
            rows[row.name].append(row)
    if not rows:
        return [_untried(fault, "there is no such test")]
    return [_sum(parts) for parts in rows.values()]


def _rows(fault: Fault, case: ElementTree.Element) -> list[Row]:
    told = [
        json.loads(found.get("value", "")) for found in case.iter("property") if found.get("name") == "told"
    ]
    name = case.get("name", "")
    row = Row(fault.name, fault.name, 1, 0, float(case.get("time", "0")))
    if (skipped := case.find("skipped")) is not None:
        return [row._replace(tried=0, notes=(f"{name} skipped: {skipped.get('message', '')}",))]
    if failed := [*case.iter("failure"), *case.iter("error")]:
        words = tuple(f"{name} failed: {(end.text or '')[-WORDS_MAX:].strip()}" for end in failed)
        tried, violated = (max(1, sum(part[count] for part in told)) for count in ("tried", "violated"))
        return [row._replace(tried=tried, violated=violated, notes=words)]
    counted = [part for part in told if part["tried"]]
    # A test that reports no count is one try.
    return [_counted(row, part) for part in counted] or [row]


def _counted(row: Row, part: dict[str, Any]) -> Row:
    return row._replace(
        name=f"{row.fault}: {part['row']}" if part["row"] else row.name,
        tried=part["tried"],
        violated=part["violated"],
        seconds=row.seconds if part["seconds"] is None else part["seconds"],
        notes=() if part["text"] == part["row"] else (part["text"],) if part["row"] else (),
    )


def _sum(parts: list[Row]) -> Row:
    first = parts[0]
    return first._replace(
        tried=sum(part.tried for part in parts),
        violated=sum(part.violated for part in parts),
        seconds=sum(part.seconds for part in parts),
        notes=tuple(note for part in parts for note in part.notes),
    )


def as_data(row: Row) -> dict[str, Any]:
    return {
        "row": row.name,
        "fault": row.fault,
        "tried": row.tried,
        "violated": row.violated,
        "seconds": round(row.seconds, 1),
        "scale": row.scale,
        "taken": time.strftime("%Y-%m-%d", time.gmtime()),
        "notes": list(row.notes),
    }
