"""make mutants: plant each bug in a copy of the tree and check that a test catches it."""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed

from rich.console import Console

from tests.arguments import at_least_one
from tests.mutants.bug import ROOT, Bug, read_bugs
from tests.mutants.mutation_run import Result, mutation_runner
from tests.mutants.report import as_json, as_page, one_line, show

PAGE = ROOT / "docs" / "mutants.md"
RESULTS = ROOT / "docs" / "results" / "mutants.json"


def main() -> int:
    options = _options()
    invariants, known = read_bugs()
    bugs = _chosen(known, options.names)
    if options.list:
        for bug in bugs:
            print(f"{bug.invariant:>2}  {bug.name:<34}  {bug.breaks}")
        return 0
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    width = max(len(bug.name) for bug in bugs)
    results: dict[str, Result] = {}
    with mutation_runner(ROOT, every=options.every) as runner, ThreadPoolExecutor(options.jobs) as pool:
        try:
            for future in as_completed([pool.submit(runner.run_bug, bug) for bug in bugs]):
                result = future.result()
                results[result.bug.name] = result
                progress.print(one_line(result, width))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    ordered = [results[bug.name] for bug in bugs]
    if options.json:
        print(json.dumps(as_json(ordered), indent=1))
    else:
        show(Console(highlight=False), invariants, ordered)
    if options.write:
        stored = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
        by_name = {result["bug"]: result for result in [*stored, *as_json(ordered)]}
        RESULTS.parent.mkdir(exist_ok=True)
        in_order = [by_name[bug.name] for bug in known if bug.name in by_name]
        RESULTS.write_text(json.dumps(in_order, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(as_page(invariants, known, by_name), encoding="utf-8")
    return 0 if all(result.noticed for result in ordered) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="bugs to plant, or parts of their names (default: all bugs)"
    )
    parser.add_argument(
        "--jobs", type=at_least_one, default=2, help="bugs that run in parallel (default: %(default)s)"
    )
    parser.add_argument(
        "--every", action="store_true", help="run all harnesses of a bug, also after one has caught it"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--list", action="store_true", help="list the bugs and exit")
    parser.add_argument("--write", action="store_true", help="store the results and write docs/mutants.md")
    return parser.parse_args()


def _chosen(known: list[Bug], names: list[str]) -> list[Bug]:
    chosen = [bug for bug in known if not names or any(name in bug.name for name in names)]
    if not chosen:
        sys.exit(f"no planted bug is called {' or '.join(names)}; --list shows all names")
    return chosen


if __name__ == "__main__":
    sys.exit(main())
