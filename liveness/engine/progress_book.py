"""The progress of a shard's units, in memory: all of them, because a namespace has a limited number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from liveness.domain import progress
from liveness.domain.errors import UnitNotFound
from liveness.domain.events import ProgressForgotten, ProgressReported
from liveness.domain.progress import ProgressReport, UnitKey, UnitProgress
from liveness.engine.counts import add_count
from liveness.engine.pending import Pending
from liveness.engine.success_rates import SuccessRates


class ProgressBook:
    __slots__ = ("_rates", "_units", "counts")

    def __init__(self, units: Mapping[UnitKey, UnitProgress]) -> None:
        self._units = dict(units)
        self.counts: Counter[str] = Counter(key.namespace for key in units)
        """Units per namespace."""
        self._rates: dict[UnitKey, SuccessRates] = {}

    def __contains__(self, key: UnitKey) -> bool:
        return key in self._units

    def __getitem__(self, key: UnitKey) -> UnitProgress:
        found = self._units.get(key)
        if found is None:
            raise UnitNotFound(unit=key.unit, namespace=key.namespace)
        return found

    def rates_of(self, key: UnitKey, now_ms: int) -> tuple[int, int]:
        """Successes in the last minute and in the last hour, as far as they were reported here."""
        rates = self._rates.get(key)
        return (rates.per_minute(now_ms), rates.per_hour(now_ms)) if rates is not None else (0, 0)

    def report(
        self, key: UnitKey, report: ProgressReport, pending: Pending, wall_ms: int, now_ms: int
    ) -> bool:
        """Returns whether the report counts; it does not if it was counted before."""
        event = progress.report(self._units.get(key), key, report)
        if event is None:
            return False
        self._apply(key, event, pending, wall_ms, now_ms)
        if report.successes:
            self._rates.setdefault(key, SuccessRates()).add(report.successes, now_ms)
        return True

    def forget(self, key: UnitKey, reason: str, by: str, pending: Pending, wall_ms: int, now_ms: int) -> None:
        self._apply(key, progress.forget(self._units.get(key), key, reason, by), pending, wall_ms, now_ms)
        self._rates.pop(key, None)

    def _apply(
        self,
        key: UnitKey,
        event: ProgressReported | ProgressForgotten,
        pending: Pending,
        wall_ms: int,
        now_ms: int,
    ) -> None:
        pending.add(
            event,
            number=None,
            namespace=key.namespace,
            worker=None,
            workflow_id=None,
            wall_ms=wall_ms,
            observed_ms=now_ms,
        )
        before = self._units.get(key)
        after = pending.progress[key] = progress.evolve(before, event, wall_ms)
        add_count(self.counts, key.namespace, (after is not None) - (before is not None))
        if after is None:
            del self._units[key]
        else:
            self._units[key] = after
