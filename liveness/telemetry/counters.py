"""Counters per namespace since the server started, or since the namespace got counters of its own. They never decrease."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from liveness.engine.counter_totals import NOTHING_COUNTED, Counted

NAMESPACES_MAX = 100
"""How many namespaces have their own counters; the others share one set."""
CANDIDATES_MAX = 1_000
"""How many other namespaces are watched, in order to give counters to those that are busier."""
BUSIER_FACTOR = 2
"""A namespace takes the place of another if it has so many times its heartbeats, so that equals do not take turns."""
OTHER = "_other"


class NamespaceCounters:
    __slots__ = (
        "cleanups",
        "counted",
        "deactivations",
        "false_deaths",
        "heartbeats",
        "progress_errors",
        "progress_repeated",
        "progress_successes",
        "refused",
        "refused_activities",
        "registrations",
        "reschedule_outcomes",
        "reschedules",
        "resurrections",
        "schedule_ticks",
        "session_replacements",
    )  # fmt: skip

    def __init__(self) -> None:
        self.heartbeats = 0
        """All answered heartbeats, refused ones included."""
        self.counted = NOTHING_COUNTED
        """What the heartbeats that were applied counted, as of the last sample."""
        self.refused: Counter[str] = Counter()
        """By error reason."""
        self.refused_activities: Counter[str] = Counter()
        """Activities that a quota did not allow, by error reason."""
        self.registrations = 0
        self.session_replacements = 0
        self.deactivations: Counter[str] = Counter()
        """Workers that left ACTIVE, by reason."""
        self.resurrections = 0
        self.false_deaths = 0
        """Workers that were declared dead and came back in the same session."""
        self.cleanups = 0
        self.reschedules = 0
        """Activities taken from workers."""
        self.progress_successes = 0
        """Successes and errors that durable reports of progress counted, and reports that had been counted before."""
        self.progress_errors = 0
        self.progress_repeated = 0
        self.schedule_ticks: Counter[str] = Counter()
        """Ticks of schedules by what became of them, and triggered firings."""
        self.reschedule_outcomes: Counter[tuple[str, str]] = Counter()
        """Attempts to reschedule them, by outcome and by sink."""

    @property
    def expiries(self) -> int:
        """Leases that ended for silence or a broken stream."""
        return self.deactivations["LEASE_EXPIRED"] + self.deactivations["DISCONNECTED"]


class CountersByNamespace:
    def __init__(self) -> None:
        self._tracked: dict[str, NamespaceCounters] = {}
        self._other = NamespaceCounters()
        self._heartbeats_before: dict[str, int] = {}
        """Of the tracked namespaces, at the last `rebalance`."""
        self._candidates: Counter[str] = Counter()
        """Heartbeats of other namespaces since then."""

    def count_heartbeats(self, namespace: str, heartbeats: int) -> None:
        counters = self._tracked.get(namespace)
        if counters is None:
            counters = self._other
            if namespace in self._candidates or len(self._candidates) < CANDIDATES_MAX:
                self._candidates[namespace] += heartbeats
        counters.heartbeats += heartbeats

    def rebalance(self, has_workers: Callable[[str], bool]) -> list[str]:
        """Give the places of idle namespaces to busier ones that have workers, by the heartbeats since the last call. Returns the
        namespaces that lost theirs. Their counters end; should they come back, they begin at 0, as after a restart."""
        idle_first = sorted(
            (counters.heartbeats - self._heartbeats_before.get(namespace, 0), namespace)
            for namespace, counters in self._tracked.items()
        )
        evicted: list[str] = []
        for namespace, heartbeats in self._candidates.most_common():
            if namespace == OTHER or namespace in self._tracked or not has_workers(namespace):
                continue
            if len(self._tracked) >= NAMESPACES_MAX:
                least, idle = idle_first[len(evicted)]
                if heartbeats <= BUSIER_FACTOR * least:
                    break
                del self._tracked[idle]
                evicted.append(idle)
            self._tracked[namespace] = NamespaceCounters()
            if len(evicted) == len(idle_first):
                break
        self._candidates.clear()
        self._heartbeats_before = {name: counters.heartbeats for name, counters in self._tracked.items()}
        return evicted

    def track(self, namespace: str) -> NamespaceCounters:
        """Returns the counters of a namespace that has workers. Namespaces that clients only name are not tracked, so they
        cannot use up the limit."""
        counters = self._tracked.get(namespace)
        if counters is None:
            if len(self._tracked) >= NAMESPACES_MAX or namespace == OTHER:
                return self._other
            counters = self._tracked[namespace] = NamespaceCounters()
        return counters

    def add_counted(self, namespace: str, counted: Counted, before: Counted) -> None:
        """Add what was counted since `before`."""
        counters = self.get(namespace)
        counters.counted = Counted(
            *(total + now - then for total, now, then in zip(counters.counted, counted, before, strict=True))
        )

    def get(self, namespace: str) -> NamespaceCounters:
        return self._tracked.get(namespace, self._other)

    def is_tracked(self, namespace: str) -> bool:
        return namespace in self._tracked

    def label(self, namespace: str) -> str:
        return namespace if namespace in self._tracked else OTHER

    def items(self) -> Iterator[tuple[str, NamespaceCounters]]:
        yield from self._tracked.items()
        yield OTHER, self._other
