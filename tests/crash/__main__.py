"""make crash: inject real faults into real processes, and count the violated invariants."""

from __future__ import annotations

import argparse
import json
import sys

from rich.console import Console

from tests.arguments import above_zero
from tests.crash.fault_runner import ROOT, Row, as_data, run
from tests.crash.matrix import FAULTS, Fault
from tests.crash.report import as_page, one_line, show

RESULTS = ROOT / "docs" / "results" / "crash.json"
PAGE = ROOT / "docs" / "crash.md"


def main() -> int:
    options = _options()
    faults = _chosen(options.only)
    if options.list:
        for fault in faults:
            print(f"{fault.name:<44}  {fault.what}")
        return 0
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    rows: list[Row] = []
    for fault in faults:
        progress.print(f"-- {fault.name}", style="bold")
        for row in run(fault, options.scale):
            rows.append(row)
            progress.print(one_line(row))
    if options.json:
        print(json.dumps([as_data(row) for row in rows], indent=1))
    else:
        show(Console(highlight=False), rows)
    if options.write:
        _write(rows, {fault.name for fault in faults})
    return 0 if all(row.held for row in rows) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument(
        "--only", action="append", default=[], metavar="PART", help="run only faults whose names contain PART"
    )
    parser.add_argument(
        "--scale", type=above_zero, default=1.0, help="fraction of the tries to run (default: 1)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--list", action="store_true", help="list the faults and exit")
    parser.add_argument("--write", action="store_true", help="store these rows and write docs/crash.md")
    return parser.parse_args()


def _chosen(parts: list[str]) -> list[Fault]:
    chosen = [fault for fault in FAULTS if not parts or any(part in fault.name for part in parts)]
    if not chosen:
        sys.exit(f"no fault is called {' or '.join(parts)}; --list shows them")
    return chosen


def _write(rows: list[Row], faults: set[str]) -> None:
    """Replace the rows of these faults, and keep the rows of all others: each row carries its own date."""
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    merged = [row for row in known if row["fault"] not in faults] + [as_data(row) for row in rows]
    order = {fault.name: number for number, fault in enumerate(FAULTS)}
    merged = sorted((row for row in merged if row["fault"] in order), key=lambda row: order[row["fault"]])
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(merged, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(as_page(merged), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
