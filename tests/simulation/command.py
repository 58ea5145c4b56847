"""`make sim`: run many seeds, say what was met, and tell the story of the first one that breaks a rule."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tests.simulation.plan import ACTS, Plan, plan_of
from tests.simulation.sometimes import SITUATIONS
from tests.simulation.world import Outcome, World

STORY_LINES = 60
OFTEN = 5
"""A situation that was met less often over the default seeds was hardly tried."""


@dataclass
class Sum:
    seeds: int = 0
    steps: int = 0
    virtual_s: float = 0.0
    messages: int = 0
    transactions: int = 0
    rows: int = 0
    sometimes: Counter[str] = field(default_factory=Counter)
    seeds_with: Counter[str] = field(default_factory=Counter)
    acts: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    violations: dict[int, str] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.steps += outcome.steps
        self.virtual_s += outcome.virtual_s
        self.messages += outcome.messages
        self.transactions += outcome.transactions
        self.rows += outcome.rows
        self.sometimes += outcome.sometimes
        self.seeds_with.update(outcome.sometimes.keys())
        self.acts += outcome.acts
        self.answers += outcome.answers
        if outcome.violation:
            self.violations[outcome.seed] = outcome.violation


def run_seed(seed: int, workers: int = 0) -> Outcome:
    plan = plan_of(seed)
    return World(seed, replace(plan, workers=workers) if workers else plan).run()


def story(outcome: Outcome, lines: int = STORY_LINES) -> str:
    """What happened to whom the broken rule is about, in plain words."""
    about = set(outcome.about)
    told = [
        step for step in outcome.story if not about or not step.about or about.intersection(step.about)
    ] or outcome.story
    text = [f"seed {outcome.seed}: {outcome.violation}", f"  {outcome.plan}"]
    text += [f"  {step.at_s - 1_000:9.3f} s  {step.text}" for step in told[-lines:]]
    text.append(f'  again: make sim ARGS="--first {outcome.seed} --seeds 1"')
    return "\n".join(text)


def shrunk(outcome: Outcome) -> Outcome:
    """The same seed in a smaller world, if that breaks a rule too: fewer workers, fewer kinds of trouble, less time."""
    best = outcome
    tried = 0

    def breaks(plan: Plan) -> bool:
        nonlocal best, tried
        tried += 1
        found = World(outcome.seed, plan).run()
        if found.violation:
            best = found
        return bool(found.violation)

    for act in outcome.plan.acts:
        if len(best.plan.acts) > 1 and tried < 30:
            breaks(replace(best.plan, acts=tuple(other for other in best.plan.acts if other != act)))
    while best.plan.workers > 1 and tried < 40 and breaks(replace(best.plan, workers=best.plan.workers // 2)):
        pass
    return best


def _outcomes(seeds: Sequence[int], workers: int, jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from (run_seed(seed, workers) for seed in seeds)
        return
    # Spawned: a world shares nothing with another, not even what is left in memory.
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=50) as pool:
        tasks = [pool.apply_async(run_seed, (seed, workers)) for seed in seeds]
        for task in tasks:
            yield task.get()


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0, help="in each world, instead of what the seed says")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="print the sum as JSON")
    parser.add_argument("--hashes", action="store_true", help="print each seed's trace hash")
    parser.add_argument("--story", type=int, default=STORY_LINES, help="lines of a broken seed's story")
    parser.add_argument("--no-shrink", action="store_true")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    total, first = Sum(), None
    began_s = time.perf_counter()
    for outcome in _outcomes(seeds, options.workers, min(options.jobs, len(seeds))):
        total.add(outcome)
        if options.hashes:
            print(outcome.seed, outcome.trace, flush=True)
        if outcome.violation and first is None:
            first = outcome
        if outcome.violation or (total.seeds % 20 == 0 and not options.json):
            state = outcome.violation or "no rule broken"
            print(
                f"{total.seeds}/{len(seeds)} seeds, {total.virtual_s / 3_600:.1f} virtual hours: {state}",
                file=sys.stderr,
            )
    took_s = time.perf_counter() - began_s
    if first is not None:
        print(story(first if options.no_shrink else shrunk(first), options.story))
    never = [name for name in SITUATIONS if not total.sometimes[name]]
    if options.json:
        print(json.dumps(_as_json(total, took_s), indent=2))
    elif not options.hashes:
        _print(total, took_s)
    if never and len(seeds) >= 100:
        print(f"never reached: {', '.join(never)}", file=sys.stderr)
    return bool(total.violations) or (bool(never) and len(seeds) >= 100)


def _as_json(total: Sum, took_s: float) -> dict[str, object]:
    return {
        "seeds": total.seeds,
        "steps": total.steps,
        "virtual_hours": round(total.virtual_s / 3_600, 2),
        "messages": total.messages,
        "transactions": total.transactions,
        "log_rows": total.rows,
        "seconds": round(took_s, 1),
        "acts": dict(sorted(total.acts.items())),
        "answers": dict(sorted(total.answers.items())),
        "sometimes": {name: [total.sometimes[name], total.seeds_with[name]] for name in SITUATIONS},
        "violations": total.violations,
    }


def _print(total: Sum, took_s: float) -> None:
    print(f"seeds              {total.seeds:>12,}")
    print(f"steps              {total.steps:>12,}   {total.steps / max(took_s, 0.001):,.0f} a second")
    print(f"virtual hours      {total.virtual_s / 3_600:>12,.1f}   in {took_s:,.0f} s")
    print(f"messages           {total.messages:>12,}")
    print(f"transactions       {total.transactions:>12,}   {total.rows:,} rows of the log")
    print("\nwhat was done")
    for act in ACTS:
        print(f"  {act:<62}{total.acts[act]:>9,}")
    print("\nsituations                                                       times    seeds")
    for name in SITUATIONS:
        print(f"  {name:<62}{total.sometimes[name]:>9,}{total.seeds_with[name]:>9,}")
    print(f"\nrules broken: {len(total.violations)}")
    for seed, text in total.violations.items():
        print(f"  seed {seed}: {text}")
