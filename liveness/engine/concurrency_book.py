"""The concurrency limits of a shard, and how many activities of each limited workflow run and wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from liveness.domain import concurrency
from liveness.domain.activity import Activity, ActivityState
from liveness.domain.concurrency import ConcurrencyLimit, LimitKey
from liveness.domain.events import ConcurrencyLimitEvent
from liveness.domain.keys import ActivityKey
from liveness.engine.counts import add_count
from liveness.engine.pending import Pending
from liveness.store.api import ObjectKey
from liveness.store.object_rows import LIMIT_KIND

NO_LIMIT = 2**31
"""How many activities of a workflow without a limit may start, as good as any number."""


class ConcurrencyBook:
    __slots__ = ("_limits", "counts", "running", "waiting")

    def __init__(
        self,
        limits: Mapping[LimitKey, ConcurrencyLimit],
        activities: Iterable[tuple[ActivityKey, Activity]],
    ) -> None:
        self._limits = dict(limits)
        self.counts: Counter[str] = Counter(key.namespace for key in limits)
        """Limits per namespace."""
        self.running: Counter[LimitKey] = Counter()
        """STARTED activities of each workflow with a limit, decided ones included that are not durable yet."""
        self.waiting: Counter[LimitKey] = Counter()
        """AVAILABLE ones."""
        if limits:
            for key, activity in activities:
                self._count(LimitKey(key.namespace, key.workflow_id), activity, 1)

    def __bool__(self) -> bool:
        return bool(self._limits)

    def __contains__(self, key: LimitKey) -> bool:
        return key in self._limits

    def get(self, key: LimitKey) -> ConcurrencyLimit | None:
        return self._limits.get(key)

    def free_slots(self, key: LimitKey) -> int:
        """How many activities of the workflow may start now; negative if the limit was lowered below what runs."""
        limit = self._limits.get(key)
        return NO_LIMIT if limit is None else limit.maximum - self.running[key]

    def record_change(self, key: ActivityKey, before: Activity | None, after: Activity | None) -> None:
        if not self._limits:
            return
        limit_key = LimitKey(key.namespace, key.workflow_id)
        self._count(limit_key, before, -1)
        self._count(limit_key, after, 1)

    def _count(self, key: LimitKey, activity: Activity | None, change: int) -> None:
        if activity is None or key not in self._limits:
            return
        if activity.state is ActivityState.STARTED:
            add_count(self.running, key, change)
        elif activity.state is ActivityState.AVAILABLE:
            add_count(self.waiting, key, change)

    def apply(
        self,
        key: LimitKey,
        event: ConcurrencyLimitEvent,
        activities: Iterable[tuple[ActivityKey, Activity]],
        pending: Pending,
        wall_ms: int,
        now_ms: int,
    ) -> ConcurrencyLimit | None:
        pending.add(
            event,
            number=None,
            namespace=key.namespace,
            worker=None,
            workflow_id=None,
            wall_ms=wall_ms,
            observed_ms=now_ms,
        )
        before = self._limits.get(key)
        after = concurrency.evolve(before, event, wall_ms)
        pending.objects[ObjectKey(key.namespace, LIMIT_KIND, key.workflow_id)] = after
        add_count(self.counts, key.namespace, (after is not None) - (before is not None))
        if after is None:
            del self._limits[key]
            self.running.pop(key, None)
            self.waiting.pop(key, None)
            return None
        self._limits[key] = after
        if before is None:
            for activity_key, activity in activities:
                if (activity_key.namespace, activity_key.workflow_id) == key:
                    self._count(key, activity, 1)
        return after
