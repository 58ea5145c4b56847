"""`make sim`: run many seeds, count the situations that they reached, and report the first broken rule."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Iterator, Sequence

from tests.arguments import above_zero, at_least_one
from tests.simulation.failure_report import LINES_MAX, failure_report, shrink
from tests.simulation.plan import NO_OVERRIDES, PlanOverrides
from tests.simulation.results import RunTotals, as_json, printed, store_result
from tests.simulation.world import Outcome, live

DEFAULT_SEEDS = 400
OFTEN = 10
"""DEFAULT_SEEDS worlds must reach each situation this often; other numbers of worlds in proportion."""
MANY = 100
"""Smaller runs need not reach every situation."""


def run_seed(seed: int, overrides: PlanOverrides = NO_OVERRIDES) -> Outcome:
    return live(seed, overrides.plan(seed))


def _outcomes(seeds: Sequence[int], overrides: PlanOverrides, jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from (run_seed(seed, overrides) for seed in seeds)
        return
    # Spawned, so that worlds share no memory.
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=50) as pool:
        tasks = [pool.apply_async(run_seed, (seed, overrides)) for seed in seeds]
        for task in tasks:
            yield task.get()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__)
    parser.add_argument("--seeds", type=at_least_one, default=DEFAULT_SEEDS, help="how many")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--jobs", type=at_least_one, default=os.cpu_count() or 1)
    parser.add_argument(
        "--seconds", type=above_zero, default=float("inf"), help="start no new world after this time"
    )
    parser.add_argument("--write", action="store_true", help="store the result in docs/")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--hashes", action="store_true", help="print only each seed's trace hash")
    parser.add_argument("--story", type=int, default=LINES_MAX, help="lines of the failure report")
    parser.add_argument(
        "--no-shrink", action="store_true", help="report the failure without looking for a smaller world"
    )
    parser.add_argument(
        "--workers", type=int, default=0, help="workers in each world (default: chosen by the seed)"
    )
    parser.add_argument(
        "--nodes", type=int, default=0, help="nodes in each world (default: chosen by the seed)"
    )
    parser.add_argument(
        "--shards", type=int, default=0, help="shards in each world (default: chosen by the seed)"
    )
    parser.add_argument("--only", type=_numbers, help="numbers of the faults to inject, or none")
    return parser.parse_args()


def _numbers(text: str) -> tuple[int, ...]:
    return () if text == "none" else tuple(int(number) for number in text.split(","))


def main() -> int:
    options = _options()
    warnings.filterwarnings("ignore", message="coroutine .* was never awaited")  # its process was killed
    seeds = range(options.first, options.first + options.seeds)
    overrides = PlanOverrides(options.workers, options.nodes, options.shards, options.only)
    total, first = RunTotals(), None
    began_s = time.perf_counter()
    for outcome in _outcomes(seeds, overrides, min(options.jobs, len(seeds))):
        total.add(outcome)
        if options.hashes:
            print(outcome.seed, outcome.trace, flush=True)
        elif outcome.violation or total.seeds % 20 == 0:
            so_far = ", ".join(total.rare(OFTEN)) or "nothing"
            state = (
                f"seed {outcome.seed}: {outcome.violation}" if outcome.violation else f"rare so far: {so_far}"
            )
            hours = total.virtual_s / 3_600
            print(f"{total.seeds}/{len(seeds)} seeds, {hours:.1f} virtual hours: {state}", file=sys.stderr)
        if outcome.violation and first is None:
            first = outcome
        if time.perf_counter() - began_s > options.seconds:
            break
    took_s = time.perf_counter() - began_s
    if options.hashes:
        return bool(total.violations)
    if first is not None:
        print(failure_report(first if options.no_shrink or options.only else shrink(first), options.story))
    result = as_json(total, options.first, took_s)
    print(json.dumps(result, indent=2) if options.json else printed(total, took_s))
    if options.write:
        store_result(result)
    often = max(1, OFTEN * total.seeds // DEFAULT_SEEDS)
    rare = total.rare(often) if total.seeds >= MANY else []
    if rare:
        print(f"reached less than {often} times: {', '.join(rare)}", file=sys.stderr)
    return bool(total.violations or rare)
