"""Counters per namespace since the server started. They never decrease."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

NAMESPACES_MAX = 100
"""How many namespaces have their own counters; later ones share one set."""
OTHER = "_other"


class NamespaceCounters:
    __slots__ = (
        "cleanups",
        "deactivations",
        "false_deaths",
        "heartbeats",
        "refused",
        "refused_activities",
        "registrations",
        "reschedule_outcomes",
        "reschedules",
        "resurrections",
        "session_replacements",
    )  # fmt: skip

    def __init__(self) -> None:
        self.heartbeats = 0
        """All answered heartbeats, refused ones included."""
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

    def track(self, namespace: str) -> NamespaceCounters:
        """Returns the counters of a namespace that has workers. Namespaces that clients only name are not tracked, so they
        cannot use up the limit."""
        counters = self._tracked.get(namespace)
        if counters is None:
            if len(self._tracked) >= NAMESPACES_MAX or namespace == OTHER:
                return self._other
            counters = self._tracked[namespace] = NamespaceCounters()
        return counters

    def get(self, namespace: str) -> NamespaceCounters:
        return self._tracked.get(namespace, self._other)

    def is_tracked(self, namespace: str) -> bool:
        return namespace in self._tracked

    def label(self, namespace: str) -> str:
        return namespace if namespace in self._tracked else OTHER

    def items(self) -> Iterator[tuple[str, NamespaceCounters]]:
        yield from self._tracked.items()
        yield OTHER, self._other
