"""Leases that wait for their turn to end, in order, with their number in each namespace and what they cost a commit."""

from __future__ import annotations

from collections import Counter, OrderedDict

from liveness.domain.keys import WorkerKey
from liveness.engine.shard import Shard
from liveness.expiry.throttle import DueLease

LEASE_COST_MIN = 12
"""A lease costs as much as its activities, but never less than this: what follows its commit (counts, a line of the log) takes
as long for a lease without activities as for any other."""


def commit_cost(lease: DueLease[Shard]) -> int:
    return max(LEASE_COST_MIN, 1 + len(lease.worker.bindings))


class WaitingLeases:
    def __init__(self) -> None:
        self._leases: OrderedDict[WorkerKey, DueLease[Shard]] = OrderedDict()
        self.counts: Counter[str] = Counter()
        """By namespace."""
        self.cost = 0

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, key: WorkerKey) -> bool:
        return key in self._leases

    def add(self, lease: DueLease[Shard]) -> None:
        """Add a lease. One of the same worker is replaced: it was found to be over twice."""
        earlier = self._leases.get(lease.key)
        if earlier is not None:
            self._uncount(earlier)
        self._leases[lease.key] = lease
        self.counts[lease.key.namespace] += 1
        self.cost += commit_cost(lease)

    def pop_first(self) -> DueLease[Shard]:
        _, lease = self._leases.popitem(last=False)
        self._uncount(lease)
        return lease

    def _uncount(self, lease: DueLease[Shard]) -> None:
        namespace = lease.key.namespace
        self.counts[namespace] -= 1
        if not self.counts[namespace]:
            del self.counts[namespace]
        self.cost -= commit_cost(lease)
