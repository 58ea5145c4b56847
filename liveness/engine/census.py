"""The number of workers per namespace and state, updated with every change: counting a million workers again would take
too long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from liveness.domain.worker import WorkerState

NamespaceState = tuple[str, WorkerState]
"""A namespace, and a state of its workers."""


class Census:
    """The counts of one shard. While the shard serves, they are part of the counts of the whole node."""

    __slots__ = ("_node_counts", "counts", "population")

    def __init__(self, workers: Iterable[NamespaceState]) -> None:
        self.counts = Counter(workers)
        self.population: Counter[str] = Counter()
        """ACTIVE and INACTIVE workers per namespace."""
        for (namespace, state), count in self.counts.items():
            if state < WorkerState.CLEANED_UP:
                self.population[namespace] += count
        self._node_counts: Counter[NamespaceState] | None = None

    def states(self) -> Counter[WorkerState]:
        return count_by_state(self.counts)

    def attach(self, node_counts: Counter[NamespaceState]) -> None:
        self._node_counts = node_counts
        node_counts.update(self.counts)

    def detach(self) -> None:
        """Take the shard's counts out of the node's. Later changes to the shard change only its own counts."""
        if self._node_counts is not None:
            for namespace_state, count in self.counts.items():
                _add(self._node_counts, namespace_state, -count)
            self._node_counts = None

    def record_transition(
        self, namespace: str, before: WorkerState | None, after: WorkerState | None
    ) -> None:
        if before is not after:
            if before is not None:
                self._add((namespace, before), -1)
            if after is not None:
                self._add((namespace, after), 1)

    def _add(self, namespace_state: NamespaceState, count: int) -> None:
        _add(self.counts, namespace_state, count)
        if namespace_state[1] < WorkerState.CLEANED_UP:
            self.population[namespace_state[0]] += count
        if self._node_counts is not None:
            _add(self._node_counts, namespace_state, count)


def _add(counts: Counter[NamespaceState], namespace_state: NamespaceState, count: int) -> None:
    counts[namespace_state] += count
    if not counts[namespace_state]:
        del counts[namespace_state]  # namespaces come and go


def count_by_state(counts: Counter[NamespaceState]) -> Counter[WorkerState]:
    """Add up the counts of all namespaces."""
    counts_by_state: Counter[WorkerState] = Counter()
    for (_, state), count in counts.items():
        counts_by_state[state] += count
    return counts_by_state
