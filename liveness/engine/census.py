"""The number of workers per namespace and state, updated with every change: counting a million workers again would take
too long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from liveness.domain.keys import WorkerKey
from liveness.domain.silences import SilenceCounts
from liveness.domain.verdicts import is_dead
from liveness.domain.worker import NO_STANDING, Worker, WorkerState
from liveness.engine.component_index import ComponentIndex
from liveness.engine.counter_totals import CounterTotals
from liveness.engine.counts import add_count
from liveness.engine.registry_index import RegistryIndex

NamespaceState = tuple[str, WorkerState]
"""A namespace, and a state of its workers."""


class Census:
    """The counts of one shard. While the shard serves, they are part of the counts of the whole node."""

    __slots__ = (
        "_node_counts",
        "components",
        "counts",
        "dead",
        "population",
        "registry",
        "silences",
        "totals",
    )

    def __init__(self, workers: Mapping[WorkerKey, Worker]) -> None:
        self.counts: Counter[NamespaceState] = Counter()
        self.dead: Counter[str] = Counter()
        """INACTIVE workers per namespace that died."""
        self.population: Counter[str] = Counter()
        """ACTIVE and INACTIVE workers per namespace."""
        unusual: dict[WorkerKey, Worker] = {}
        counts: dict[NamespaceState, int] = {}
        for key, worker in workers.items():
            shared = worker.shared
            namespace_state = key.namespace, shared.state
            counts[namespace_state] = counts.get(namespace_state, 0) + 1
            if shared.inactive_reason is not None and is_dead(worker):
                self.dead[key.namespace] += 1
            if shared.standing is not NO_STANDING:
                unusual[key] = worker
        self.counts.update(counts)
        for (namespace, state), count in self.counts.items():
            if state < WorkerState.CLEANED_UP:
                self.population[namespace] += count
        self.components = ComponentIndex(unusual)
        self.registry = RegistryIndex(unusual)
        self.totals = CounterTotals(workers)
        self.silences = SilenceCounts(0)
        self._node_counts: Counter[NamespaceState] | None = None

    def states(self) -> Counter[WorkerState]:
        return count_by_state(self.counts)

    def active(self) -> list[tuple[str, int]]:
        """Return how many ACTIVE workers each namespace has."""
        return [(name, count) for (name, state), count in self.counts.items() if state is WorkerState.ACTIVE]

    def attach(self, node_counts: Counter[NamespaceState]) -> None:
        self._node_counts = node_counts
        node_counts.update(self.counts)

    def detach(self) -> None:
        """Take the shard's counts out of the node's. Later changes to the shard change only its own counts."""
        if self._node_counts is not None:
            for namespace_state, count in self.counts.items():
                add_count(self._node_counts, namespace_state, -count)
            self._node_counts = None

    def record_transition(self, namespace: str, before: Worker | None, after: Worker | None) -> None:
        state_before, state_after = before and before.state, after and after.state
        if state_before is state_after:
            return
        if state_before is not None:
            self._add((namespace, state_before), -1)
        if state_after is not None:
            self._add((namespace, state_after), 1)
        if newly_dead := is_dead(after) - is_dead(before):
            add_count(self.dead, namespace, newly_dead)

    def _add(self, namespace_state: NamespaceState, count: int) -> None:
        add_count(self.counts, namespace_state, count)
        if namespace_state[1] < WorkerState.CLEANED_UP:
            self.population[namespace_state[0]] += count
        if self._node_counts is not None:
            add_count(self._node_counts, namespace_state, count)


def count_by_state(counts: Counter[NamespaceState]) -> Counter[WorkerState]:
    """Add up the counts of all namespaces."""
    counts_by_state: Counter[WorkerState] = Counter()
    for (_, state), count in counts.items():
        counts_by_state[state] += count
    return counts_by_state
