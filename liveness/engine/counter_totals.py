"""What the workers of each namespace counted, updated with every heartbeat: adding up a million workers would take too long."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from liveness.domain.keys import WorkerKey
from liveness.domain.worker import Worker


class Counted(NamedTuple):
    heartbeats: int = 0
    """Heartbeats that were applied: neither refused nor repeated."""
    successes: int = 0
    errors: int = 0


NOTHING_COUNTED = Counted()


def counted_by(worker: Worker | None) -> Counted:
    """What a worker counted since it registered."""
    return NOTHING_COUNTED if worker is None else Counted(worker.heartbeats, worker.successes, worker.errors)


class CounterTotals:
    """The counts of one shard. They follow from its workers, so they survive whatever the workers survive."""

    __slots__ = ("_opened_with", "applied")

    def __init__(self, workers: Mapping[WorkerKey, Worker]) -> None:
        self.applied: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        """Heartbeats, successes and errors by namespace since the shard was opened. They never decrease."""
        self._opened_with: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        """The same of its workers at that time, less those that were forgotten since."""
        for key, worker in workers.items():
            counts = self._opened_with[key.namespace]
            counts[0] += worker.heartbeats
            counts[1] += worker.successes
            counts[2] += worker.errors

    def record_change(self, namespace: str, before: Worker | None, after: Worker | None) -> None:
        counted_before = counted_by(before)
        if before is not None and (after is None or after.number != before.number):
            _add(self._opened_with[namespace], counted_before, -1)
            counted_before = NOTHING_COUNTED
        if after is not None:
            applied = self.applied[namespace]
            _add(applied, counted_by(after))
            _add(applied, counted_before, -1)

    def totals(self) -> dict[str, Counted]:
        """Of the workers that there are, tombstones included: what each counted since it registered."""
        return add_counted([self._opened_with, self.applied])


def add_counted(parts: Iterable[Mapping[str, Iterable[int]]]) -> dict[str, Counted]:
    found: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for part in parts:
        for namespace, counts in part.items():
            _add(found[namespace], counts)
    return {namespace: Counted(*counts) for namespace, counts in found.items()}


def _add(counts: list[int], added: Iterable[int], factor: int = 1) -> None:
    for index, count in enumerate(added):
        counts[index] += factor * count
