"""make bench: measure every figure that has a target, side by side with a peer or a bound in one run."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import grpc

from bench import flames, report
from bench.catalogue import FAMILIES, Family, row_order, select_families
from bench.formatting import heading, line, summary
from bench.results import FILE, Results, current_commit, describe_machine
from bench.rounds import Plan, print_progress
from bench.servers import Unavailable
from tests.arguments import above_zero, at_least_one


def main() -> int:
    options = _options()
    families = select_families(options.only)
    if not families:
        sys.exit(f"there is no row or family {' or '.join(options.only)}; --list shows all of them")
    if options.list:
        for family in families:
            print(family.name)
            for name, says in family.names.items():
                print(f"  {name:<48}  {says}")
        return 0
    path = options.out or (FILE if options.write else None)
    results = Results(path, row_order(), commit=current_commit(), machine=describe_machine())
    plan = Plan(scale=options.scale, rounds=options.rounds)
    shown = sys.stderr if options.json else sys.stdout
    print(heading(results.machine), file=shown, flush=True)
    wanted: list[str] = []
    for family in families:
        wanted += family.names
        if options.resume and all(results.has(name, plan.scale) for name in family.names):
            print_progress(f"{family.name}: measured before")
        else:
            _run(family, plan, results, shown)
    rows = [results.rows[name] for name in wanted]
    print(summary(rows), file=shown, flush=True)
    if options.json:
        print(results.as_json(), end="")
    if path == FILE:
        if not options.only:
            flames.draw_all(plan.scale)
        report.write(path)
    return 1 if any("failed" in row for row in rows) else 0


def _run(family: Family, plan: Plan, results: Results, shown) -> None:
    """Store and print each row as soon as it is measured.

    A row that cannot be measured says why, and the others follow.
    """
    print_progress(family.name)
    missing, start = dict.fromkeys(family.names), time.perf_counter()
    said: dict[str, str] = {}
    try:
        for row in family.measure(plan):
            now = time.perf_counter()
            results.add(row, family.name, plan.scale, now - start)
            print(line(row), file=shown, flush=True)
            missing.pop(row["row"])
            start = now
    except Unavailable as error:
        said = {"skipped": str(error)}
    except (Exception, SystemExit) as error:  # noqa: BLE001  # the row shows the error, and the next family starts
        said = {"failed": _words(error)}
    for name in missing:
        row = {"row": name, **(said or {"failed": "it was not measured"})}
        results.add(row, family.name, plan.scale, time.perf_counter() - start)
        print(line(row), file=shown, flush=True)


def _words(error: BaseException) -> str:
    if isinstance(error, grpc.RpcError) and isinstance(error, grpc.Call | grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    first = (str(error).splitlines() or [""])[0]
    return first if isinstance(error, SystemExit) else f"{type(error).__name__}: {first}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    names = ", ".join(family.name for family in FAMILIES)
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PART",
        help=f"run only rows with this in their names; can be repeated. Families: {names}",
    )
    parser.add_argument(
        "--rounds", type=at_least_one, default=5, help="rounds per side (default 5; 3 for slow rows)"
    )
    parser.add_argument("--scale", type=above_zero, default=1.0, help="scale of all sizes (default 1)")
    parser.add_argument("--list", action="store_true", help="list the rows and exit")
    parser.add_argument("--json", action="store_true", help="print JSON; the readable output goes to stderr")
    parser.add_argument(
        "--write",
        action="store_true",
        help="keep each row in docs/results/benchmarks.json, and write docs/benchmarks.md from it; without --only, draw the "
        "flame graphs, too",
    )
    parser.add_argument("--out", type=Path, help="store each row in this file instead")
    parser.add_argument("--resume", action="store_true", help="skip rows that the file has of this commit")
    options = parser.parse_args()
    if options.resume and not (options.write or options.out):
        parser.error("--resume needs --write or --out")
    return options


if __name__ == "__main__":
    sys.exit(main())
