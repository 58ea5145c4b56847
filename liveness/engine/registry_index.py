"""Which workers are registered components, and how many there are of each kind and status.

It is updated with every change of an entry, so that lists and metrics never look at the other workers, of which there may be a
million.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterator, Mapping

from liveness.domain.keys import WorkerKey
from liveness.domain.registry import DEFAULT_STATUS, OFFLINE, kind_of
from liveness.domain.registry_decider import current_status
from liveness.domain.worker import Worker, WorkerState
from liveness.engine.counts import add_count

COUNTED_KINDS = ("worker_pool", "server_api", "broker")
COUNTED_STATUSES = (DEFAULT_STATUS, OFFLINE)
OTHER = "_other"


class RegistryTotals:
    """The numbers of a node, over all shards that serve here."""

    def __init__(self) -> None:
        self.statuses: Counter[tuple[str, str, str]] = Counter()
        """Entries by namespace, kind and status as shown: well-known ones, and `OTHER`."""


class RegistryIndex:
    """The entries of one shard. While the shard serves, they are counted in the totals of the node."""

    __slots__ = ("_keys", "_totals", "statuses")

    def __init__(self, workers: Mapping[WorkerKey, Worker]) -> None:
        self.statuses: dict[WorkerKey, str] = {
            key: status for key, worker in workers.items() if (status := _listed_status(worker)) is not None
        }
        """As shown; of all entries of the shard that lists show."""
        self._keys: dict[str, list[str]] = {}
        """Sorted instance keys by namespace."""
        for key in sorted(self.statuses):
            self._keys.setdefault(key.namespace, []).append(key.instance_key)
        self._totals: RegistryTotals | None = None

    def keys_after(self, namespace: str, kind: str, after: str) -> Iterator[str]:
        """The instance keys of a namespace that follow `after`, in order; of one kind only if one is given."""
        keys = self._keys.get(namespace, [])
        start = bisect_right(keys, after)
        if kind:
            start = max(start, bisect_left(keys, f"{kind}:"))
        for index in range(start, len(keys)):
            if kind and kind_of(keys[index]) != kind:
                return
            yield keys[index]

    def attach(self, totals: RegistryTotals) -> None:
        self._totals = totals
        totals.statuses.update(_counted(key, status) for key, status in self.statuses.items())

    def detach(self) -> None:
        """Take the shard's entries out of the node's numbers."""
        if self._totals is not None:
            for key, status in self.statuses.items():
                add_count(self._totals.statuses, _counted(key, status), -1)
            self._totals = None

    def record(self, key: WorkerKey, after: Worker | None) -> None:
        """Record a change of a worker that is, or was, a registered component."""
        status = None if after is None else _listed_status(after)
        before = self.statuses.get(key)
        if status == before:
            return
        if before is None:
            insort(self._keys.setdefault(key.namespace, []), key.instance_key)
        elif status is None:
            del self.statuses[key]
            self._remove(key)
        if status is not None:
            self.statuses[key] = status
        if self._totals is not None:
            for changed, number in ((before, -1), (status, 1)):
                if changed is not None:
                    add_count(self._totals.statuses, _counted(key, changed), number)

    def _remove(self, key: WorkerKey) -> None:
        keys = self._keys[key.namespace]
        del keys[bisect_left(keys, key.instance_key)]
        if not keys:
            del self._keys[key.namespace]


def _listed_status(worker: Worker) -> str | None:
    """None for a worker that is no registered component, or was cleaned up."""
    entry = worker.standing.entry
    return None if entry is None or worker.state is WorkerState.CLEANED_UP else current_status(worker, entry)


def _counted(key: WorkerKey, status: str) -> tuple[str, str, str]:
    """Components choose their kinds and statuses themselves, perhaps each its own; those that few have are counted together."""
    kind = kind_of(key.instance_key)
    return (
        key.namespace,
        kind if kind in COUNTED_KINDS else OTHER,
        status if status in COUNTED_STATUSES else OTHER,
    )
