"""What happened since the server started, per namespace. Numbers only ever rise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

NAMESPACES_MAX = 100
"""So many namespaces have numbers of their own; those that come later share one."""
OTHER = "_other"


class Tally:
    """Of one namespace."""

    __slots__ = (
        "cleanups", "endings", "heartbeats", "outcomes", "refused", "registrations", "replacements", "reschedules",
        "resurrections",
    )  # fmt: skip

    def __init__(self) -> None:
        self.heartbeats = 0
        """All that were answered, refused ones included."""
        self.refused: Counter[str] = Counter()
        """By the reason that clients are told."""
        self.registrations = 0
        self.replacements = 0
        self.endings: Counter[str] = Counter()
        """Workers that left ACTIVE, by reason."""
        self.resurrections = 0
        self.cleanups = 0
        self.reschedules = 0
        """Activities taken from workers."""
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """Of tries to get them moving: how it went, and who was to take them."""

    @property
    def expiries(self) -> int:
        """Leases that ended for silence or a broken stream."""
        return self.endings["LEASE_EXPIRED"] + self.endings["DISCONNECTED"]


class Tallies:
    def __init__(self) -> None:
        self._own: dict[str, Tally] = {}
        self._other = Tally()

    def adopt(self, namespace: str) -> Tally:
        """Of a namespace that is known to have workers: what clients merely name must not use up the room."""
        tally = self._own.get(namespace)
        if tally is None:
            if len(self._own) >= NAMESPACES_MAX or namespace == OTHER:
                return self._other
            tally = self._own[namespace] = Tally()
        return tally

    def of(self, namespace: str) -> Tally:
        return self._own.get(namespace, self._other)

    def has(self, namespace: str) -> bool:
        return namespace in self._own

    def label(self, namespace: str) -> str:
        return namespace if namespace in self._own else OTHER

    def items(self) -> Iterator[tuple[str, Tally]]:
        yield from self._own.items()
        yield OTHER, self._other
