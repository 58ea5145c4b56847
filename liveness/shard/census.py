"""How many workers of each namespace are in each state, kept in step with every change: counting a million of them anew
would take too long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from liveness.domain.worker import WorkerState

Rank = tuple[str, WorkerState]
"""A namespace, and a state of its workers."""


class Census:
    """Of one shard and, while the shard serves, of its part in the whole node's."""

    __slots__ = ("_whole", "counts")

    def __init__(self, workers: Iterable[Rank]) -> None:
        self.counts = Counter(workers)
        self._whole: Counter[Rank] | None = None

    def population(self) -> Counter[str]:
        """ACTIVE and INACTIVE workers per namespace."""
        population: Counter[str] = Counter()
        for (namespace, state), count in self.counts.items():
            if state < WorkerState.CLEANED_UP:
                population[namespace] += count
        return population

    def join(self, whole: Counter[Rank]) -> None:
        self._whole = whole
        whole.update(self.counts)

    def leave(self) -> None:
        """Whoever still holds on to the shard changes nothing but the shard."""
        if self._whole is not None:
            for rank, count in self.counts.items():
                _add(self._whole, rank, -count)
            self._whole = None

    def move(self, namespace: str, before: WorkerState | None, after: WorkerState | None) -> None:
        if before is not after:
            if before is not None:
                self._add((namespace, before), -1)
            if after is not None:
                self._add((namespace, after), 1)

    def _add(self, rank: Rank, count: int) -> None:
        _add(self.counts, rank, count)
        if self._whole is not None:
            _add(self._whole, rank, count)


def _add(counts: Counter[Rank], rank: Rank, count: int) -> None:
    counts[rank] += count
    if not counts[rank]:
        del counts[rank]  # namespaces come and go
