"""What happened since the server started, per namespace. Numbers only ever rise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

NAMESPACES_MAX = 100
"""So many namespaces have numbers of their own; those that come later share one."""
OTHER = "_other"


class NamespaceCounters:
    """Of one namespace."""

    __slots__ = (
        "cleanups",
        "deactivations",
        "false_deaths",
        "heartbeats",
        "refused",
        "registrations",
        "reschedule_outcomes",
        "reschedules",
        "resurrections",
        "session_replacements",
    )  # fmt: skip

    def __init__(self) -> None:
        self.heartbeats = 0
        """All that were answered, refused ones included."""
        self.refused: Counter[str] = Counter()
        """By the reason that clients are told."""
        self.registrations = 0
        self.session_replacements = 0
        self.deactivations: Counter[str] = Counter()
        """Workers that left ACTIVE, by reason."""
        self.resurrections = 0
        self.false_deaths = 0
        """Of those who died, whose very session came back."""
        self.cleanups = 0
        self.reschedules = 0
        """Activities taken from workers."""
        self.reschedule_outcomes: Counter[tuple[str, str]] = Counter()
        """Of tries to get them moving: how it went, and who was to take them."""

    @property
    def expiries(self) -> int:
        """Leases that ended for silence or a broken stream."""
        return self.deactivations["LEASE_EXPIRED"] + self.deactivations["DISCONNECTED"]


class CountersByNamespace:
    def __init__(self) -> None:
        self._tracked: dict[str, NamespaceCounters] = {}
        self._other = NamespaceCounters()

    def track(self, namespace: str) -> NamespaceCounters:
        """Of a namespace that is known to have workers: what clients merely name must not use up the room."""
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
