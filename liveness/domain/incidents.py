"""Incidents: workers of a namespace that died within a minute and have something in common which those that live do not.

Pure: deaths and the living go in, incidents with their likely causes come out. Three workers that die in the same minute by chance
are no incident; so a cause is named only if chance would hardly have chosen these workers (`chance_of`), and what all workers have in common,
dead or alive, is never one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from math import exp, lgamma
from typing import NamedTuple

from liveness.domain.death_certificate import CONCURRENT_DEATHS_WINDOW_MS
from liveness.domain.policy import Policy
from liveness.domain.storm import is_storm

WORKERS_MIN = 3
"""Fewer deaths are no incident."""
SHARE_MIN = 0.8
"""The share of the dead that a cause must explain."""
CHANCE_MAX = 0.05
"""How likely chance may be to explain as much, given how many traits were looked at."""


class TraitKind(IntEnum):
    """Of several traits that explain the same, the first one is named: a host fails more often than what runs on it."""

    HOST = 1
    LABEL = 2
    BUILD = 3
    TASK_QUEUE = 4


class Trait(NamedTuple):
    kind: TraitKind
    name: str
    """Of a label; empty for others."""
    value: str


class WorkerDeath(NamedTuple):
    wall_ms: int
    worker: str
    traits: frozenset[Trait]


class Living(NamedTuple):
    """The workers that live."""

    total: int
    with_trait: Mapping[Trait, int]


class Cause(NamedTuple):
    trait: Trait | None
    """What the dead have in common; None if they were too many to be one part of the namespace."""
    dead_with: int
    living_with: int
    chance: float
    """How likely it is that deaths which have nothing to do with the trait hit as many workers with it."""


class Incident(NamedTuple):
    began_ms: int
    ended_ms: int
    """The last death."""
    deaths: Sequence[WorkerDeath]
    """One of each worker, oldest first."""
    living: int
    cause: Cause

    @property
    def workers(self) -> list[str]:
        return [death.worker for death in self.deaths]


def group_deaths(deaths: Iterable[WorkerDeath]) -> list[list[WorkerDeath]]:
    """Group the deaths of each minute that begins with a death, oldest first. Groups of too few workers are left out."""
    groups: list[list[WorkerDeath]] = []
    seen: set[str] = set()
    for death in sorted(deaths, key=lambda death: (death.wall_ms, death.worker)):
        if not groups or death.wall_ms - groups[-1][0].wall_ms > CONCURRENT_DEATHS_WINDOW_MS:
            groups.append([])
            seen = set()
        if death.worker not in seen:  # it may have come back, and died again
            seen.add(death.worker)
            groups[-1].append(death)
    return [group for group in groups if len(group) >= WORKERS_MIN]


def find_incident(group: Sequence[WorkerDeath], living: Living, policy: Policy) -> Incident | None:
    """Return None if the deaths have nothing in common and are too few to have a common cause all the same."""
    cause = find_cause(group, living)
    if cause is None and is_storm(len(group), living.total, policy):
        cause = Cause(None, len(group), living.total, 0.0)
    if cause is None:
        return None
    return Incident(group[0].wall_ms, group[-1].wall_ms, group, living.total, cause)


def find_cause(dead: Sequence[WorkerDeath], living: Living) -> Cause | None:
    """Return the trait that best tells the dead from the living, if one does."""
    counts = Counter(trait for death in dead for trait in death.traits)
    # With more traits, chance has more to choose from: each one that could have been named counts.
    traits = {
        trait
        for trait in counts.keys() | living.with_trait.keys()
        if WORKERS_MIN <= counts[trait] + living.with_trait.get(trait, 0) < len(dead) + living.total
    }
    candidates = [
        trait
        for trait, dead_with in counts.items()
        if dead_with >= max(WORKERS_MIN, SHARE_MIN * len(dead))
        and living.with_trait.get(trait, 0) < living.total
        and trait.value
    ]
    causes = []
    for trait in candidates:
        dead_with, living_with = counts[trait], min(living.with_trait.get(trait, 0), living.total)
        chance = min(1.0, chance_of(len(dead), dead_with, living.total, living_with) * len(traits))
        if chance <= CHANCE_MAX:
            causes.append(Cause(trait, dead_with, living_with, chance))

    def rank(cause: Cause) -> tuple[float, Trait]:
        assert cause.trait is not None
        explained = cause.dead_with / len(dead)
        hit = cause.dead_with / (cause.dead_with + cause.living_with)
        return -explained * hit, cause.trait

    return min(causes, key=rank, default=None)


def chance_of(dead: int, dead_with: int, living: int, living_with: int) -> float:
    """Return how likely it is that, of so many deaths at random, at least `dead_with` hit workers with the trait: the tail of the
    hypergeometric distribution."""
    workers, workers_with = dead + living, dead_with + living_with
    most = min(dead, workers_with)
    total = _log_choices(workers, dead)
    return min(
        1.0,
        sum(
            exp(_log_choices(workers_with, hit) + _log_choices(workers - workers_with, dead - hit) - total)
            for hit in range(dead_with, most + 1)
            if dead - hit <= workers - workers_with
        ),
    )


def _log_choices(of: int, chosen: int) -> float:
    return lgamma(of + 1) - lgamma(chosen + 1) - lgamma(of - chosen + 1)
