"""Report a broken rule: find the smallest world that still breaks it, and print the steps that concern it, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from tests.simulation.plan import Plan, overrides_from
from tests.simulation.rules import RULES
from tests.simulation.world import Outcome, Step, live

LINES_MAX = 60
SIMILAR_SHOWN = 3
"""Of many similar steps in a row, show this many at either end."""
TRIES_MAX = 40
EXTRA_S = 5.0
"""A smaller world has this much more time to break the rule."""


def failure_report(outcome: Outcome, lines_max: int = LINES_MAX) -> str:
    shown_steps = list(_lines(_concerned(outcome)))
    left_out = max(0, len(shown_steps) - lines_max)
    text = [
        f'seed {outcome.seed} breaks the rule "{outcome.rule}": {RULES[outcome.rule]}',
        f"  {outcome.violation.removeprefix(f'{outcome.rule}: ')}",
        f"  {_world(outcome)}",
        "",
    ]
    if left_out:
        text.append(f"  ({left_out} earlier lines)")
    text += shown_steps[left_out:]
    text += ["", f"  run it again: {command(outcome)}"]
    return "\n".join(text)


def command(outcome: Outcome) -> str:
    """Return the command that runs the same world again."""
    options = overrides_from(outcome.seed, outcome.plan).options()
    return f'make sim ARGS="{" ".join((f"--first {outcome.seed} --seeds 1", *options))}"'


def _world(outcome: Outcome) -> str:
    plan = outcome.plan
    leases = " or ".join(f"{ms / 1_000:g} s" for ms in plan.leases_ms)
    return (
        f"{_count(plan.nodes_max, 'node')}, {_count(plan.shards, 'shard')}, {_count(plan.workers, 'worker')} with leases of "
        f"{leases}, a grace of {plan.grace_ms / 1_000:g} s after a take-over, {_count(len(outcome.acted), 'fault')}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _concerned(outcome: Outcome) -> list[Step]:
    """Return the steps about the workers concerned, their shards, and the nodes that owned these shards."""
    about = set(outcome.about)
    if not about:
        return outcome.history
    shards = {name for name in about if name.startswith("shard ")}
    owners: set[str] = set()
    found = []
    for step in outcome.history:
        if shards.intersection(step.about):
            owners.update(name for name in step.about if name.startswith("node"))
        if not step.about or about.intersection(step.about) or owners.intersection(step.about):
            found.append(step)
    return found


def _lines(steps: Iterable[Step]) -> Iterator[str]:
    for alike, group in groupby(steps, key=lambda step: step.alike or id(step)):
        some = list(group)
        if not isinstance(alike, str) or len(some) <= 2 * SIMILAR_SHOWN + 1:
            yield from map(_line, some)
            continue
        yield from map(_line, some[:SIMILAR_SHOWN])
        yield f"{'':>14}… {len(some) - 2 * SIMILAR_SHOWN} more of {alike}"
        yield from map(_line, some[-SIMILAR_SHOWN:])


def _line(step: Step) -> str:
    return f"  {step.at_s - 1_000:9.3f} s  {step.text}"


# -- search for the smallest world


def shrink(outcome: Outcome) -> Outcome:
    """Break the same rule in a smaller world: with fewer workers, nodes and shards, and only the faults that it takes."""
    search = _Search(outcome)
    search.smaller()
    search.fewer_faults()
    return search.best


class _Search:
    def __init__(self, outcome: Outcome) -> None:
        self.best = outcome
        self._left = TRIES_MAX

    def _breaks(self, plan: Plan) -> bool:
        if self._left == 0:
            return False
        self._left -= 1
        found = live(self.best.seed, plan, self.best.virtual_s + EXTRA_S)
        if found.rule != self.best.rule:
            return False
        self.best = found
        return True

    def smaller(self) -> None:
        for workers in (1, 2, 5, 10, 20):
            if workers >= self.best.plan.workers or self._breaks(replace(self.best.plan, workers=workers)):
                break
        for nodes in range(1, self.best.plan.nodes_max):
            if self._breaks(replace(self.best.plan, nodes_max=nodes)):
                break
        if self.best.plan.shards > 1:
            self._breaks(replace(self.best.plan, shards=1))

    def fewer_faults(self) -> None:
        """Try the last few faults alone; then leave out a half, a quarter, … as long as the rule is still broken."""
        all_faults = self.best.acted
        for last in (0, 1, 2, 4, 8):
            if last >= len(all_faults) or self._breaks(
                replace(self.best.plan, only=tuple(all_faults[len(all_faults) - last :]))
            ):
                break
        size = len(self.best.acted) // 2
        while size >= 1 and self._left:
            acts, at = self.best.acted, 0
            while at < len(acts):
                kept = [*acts[:at], *acts[at + size :]]
                if len(kept) < len(acts) and self._breaks(replace(self.best.plan, only=tuple(kept))):
                    acts = self.best.acted
                else:
                    at += size
            size //= 2
