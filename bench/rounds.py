"""Two sides measured in turn, several times: conditions that both share, such as a busy machine, cancel out in each
round's ratio.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

AT_LEAST, AT_MOST = "at least", "at most"
RATIO, OURS = "ratio", "ours"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to measure."""

    scale: float = 1.0
    rounds: int = 5

    def sized(self, count: float, least: int = 1) -> int:
        return max(least, round(count * self.scale))

    @property
    def few_rounds(self) -> int:
        """Return fewer rounds, for rows whose round takes half a minute."""
        return max(1, min(self.rounds, 3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The target for the ratio, or for our own figure."""

    sense: str
    value: float
    of: str = RATIO
    aim: float | None = None

    def met(self, value: float) -> bool:
        return value >= self.value if self.sense == AT_LEAST else value <= self.value


def print_progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def rounded(value: float) -> float:
    """Round to four digits, which is more than the measurements can tell."""
    return float(f"{value:.4g}")


def spread(values: Iterable[float]) -> dict[str, float]:
    known = list(values)
    return {
        "median": rounded(statistics.median(known)),
        "min": rounded(min(known)),
        "max": rounded(max(known)),
    }


def quantile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def alternate(
    label: str, sides: Mapping[str, Callable[[], float]], rounds: int, warm: bool = False
) -> dict[str, list[float]]:
    """Measure each side once per round, in alternating order. `warm`: run each once before, without counting it."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    if warm:
        for measure in sides.values():
            measure()
    for number in range(rounds):
        for name in list(sides) if number % 2 == 0 else reversed(list(sides)):
            found[name].append(sides[name]())
        print_progress(f"{label}: round {number + 1} of {rounds}")
    return found


def median_ratios(
    ours: Sequence[float], theirs: Sequence[float], rounds: int
) -> tuple[list[float], list[float], list[float]]:
    """Of short windows that were measured by turns: per round, the median of ours, of theirs, and of ours / theirs window by
    window. A burst of other load falls on a few windows, and the median ignores them."""
    size = len(ours) // rounds
    pairs = list(zip(ours, theirs, strict=True))
    parts = [pairs[at : at + size] for at in range(0, size * rounds, size)]
    return (
        [statistics.median(mine for mine, _ in part) for part in parts],
        [statistics.median(other for _, other in part) for part in parts],
        [statistics.median(mine / other for mine, other in part) for part in parts],
    )


def row(
    name: str,
    unit: str,
    found: Mapping[str, Sequence[float]],
    ours: str,
    theirs: str,
    bar: Bar | None = None,
    notes: Sequence[str] = (),
    more: Mapping[str, Any] | None = None,
    ratios: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Return one row of the result: both sides, and ours / theirs round by round, unless `ratios` has them."""
    if ratios is None:
        ratios = [mine / other for mine, other in zip(found[ours], found[theirs], strict=True)]
    made: dict[str, Any] = {
        "row": name,
        "unit": unit,
        "ours": ours,
        "theirs": theirs,
        "sides": {side: spread(values) for side, values in found.items()},
        "ratio": spread(ratios),
    }
    if bar is not None:
        judged = statistics.median(ratios if bar.of == RATIO else found[ours])
        made["bar"] = {"sense": bar.sense, "value": bar.value, "of": bar.of, "met": bar.met(judged)}
        if bar.aim is not None:
            made["bar"]["aim"] = bar.aim
    if more:
        made["more"] = dict(more)
    if notes:
        made["notes"] = list(notes)
    return made
