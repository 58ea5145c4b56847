"""Which workers are components, how many there are in each status, and when each crashed last.

It is updated with every change of a component, so that metrics and alerts never look at the other workers, of which there may
be a million.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from liveness.domain.component import ComponentStatus, group_of
from liveness.domain.component_decider import current_status
from liveness.domain.keys import WorkerKey
from liveness.domain.policy import MINUTE_MS
from liveness.domain.worker import Worker
from liveness.engine.counts import add_count

RECENT_MS = 5 * MINUTE_MS
"""Restarts and crashes within this time tell of trouble."""
TOGETHER_MS = MINUTE_MS
"""Crashes within this time may have one cause."""
CRASHES = frozenset((ComponentStatus.CRASHED, ComponentStatus.FAILED))


class ComponentTotals:
    """The numbers of a node. Restarts and crashes are counted since its start, and never decrease."""

    def __init__(self) -> None:
        self.statuses: Counter[tuple[str, ComponentStatus]] = Counter()
        """Components by namespace and status, over all shards that serve here."""
        self.restarts: Counter[str] = Counter()
        self.crashes: Counter[str] = Counter()


class ComponentIndex:
    """The components of one shard. While the shard serves, they are counted in the totals of the node."""

    __slots__ = ("_totals", "group_sizes", "last_crash_ms", "statuses")

    def __init__(self, workers: Mapping[WorkerKey, Worker]) -> None:
        self.statuses: dict[WorkerKey, ComponentStatus] = {}
        self.group_sizes: Counter[tuple[str, str]] = Counter()
        """Components that are not STOPPED, by namespace and group."""
        self.last_crash_ms: dict[WorkerKey, int] = {}
        """Wall times; only of components that ever crashed."""
        self._totals: ComponentTotals | None = None
        for key, worker in workers.items():
            if worker.standing.component is not None:
                self._set_status(key, current_status(worker))
                if crash_ms := _recorded_crash_ms(worker):
                    self.last_crash_ms[key] = crash_ms

    def attach(self, totals: ComponentTotals) -> None:
        self._totals = totals
        totals.statuses.update((key.namespace, status) for key, status in self.statuses.items())

    def detach(self) -> None:
        """Take the shard's components out of the node's numbers."""
        if self._totals is not None:
            for key, status in self.statuses.items():
                add_count(self._totals.statuses, (key.namespace, status), -1)
            self._totals = None

    def record(self, key: WorkerKey, after: Worker | None, wall_ms: int) -> None:
        """Record a change of a worker that is, or was, a component."""
        before = self.statuses.get(key)
        status = None if after is None else current_status(after)
        if status is None:
            self.last_crash_ms.pop(key, None)
        elif status in CRASHES and before not in CRASHES:
            self.last_crash_ms[key] = wall_ms
        if status is before:
            return
        self._set_status(key, status)
        if self._totals is not None:
            if status is ComponentStatus.CRASHED and before is not None:
                self._totals.crashes[key.namespace] += 1
            elif status is ComponentStatus.STARTING and before is not None:
                self._totals.restarts[key.namespace] += 1

    def _set_status(self, key: WorkerKey, status: ComponentStatus | None) -> None:
        before = self.statuses.pop(key, None)
        if status is not None:
            self.statuses[key] = status
        for changed, number in ((before, -1), (status, 1)):
            if changed is None:
                continue
            if changed is not ComponentStatus.STOPPED:
                add_count(self.group_sizes, (key.namespace, group_of(key.instance_key) or ""), number)
            if self._totals is not None:
                add_count(self._totals.statuses, (key.namespace, changed), number)


def _recorded_crash_ms(worker: Worker) -> int:
    """When the component crashed last, as far as its state tells: it is restarted after a crash. 0 if it never crashed."""
    component = worker.standing.component
    assert component is not None
    if component.status in CRASHES:
        return component.since_ms
    if current_status(worker) in CRASHES:  # its lease ended, and nobody reported why
        return max(component.since_ms, worker.deadline_ms + (worker.wall_offset_ms or 0))
    return component.last_restart_ms
