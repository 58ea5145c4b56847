"""Which nodes have fallen silent, by the clock of whoever looks on.

The rules are those of the observed clock: time counts only between two looks that both succeeded, and of each gap at
most `STEP_MS_MAX`. So an observer that stood still, or could not read the database, holds its own absence against
nobody, and no clock is compared with another machine's.

Why a node can rely on it: it raises its beat in a transaction that begins at time t of its own clock. A look that shows
the new beat ends later than t, and only the time from the end of one look to the beginning of the next counts. So until
t + lease, nobody takes the node for lost, as long as clocks run at about the same speed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

STEP_MS_MAX = 1_000


class Beating(Protocol):
    """What is kept about a node, as far as this is concerned."""

    @property
    def node_id(self) -> str: ...

    @property
    def beat(self) -> int: ...

    @property
    def lease_ms(self) -> int: ...


class Lookout:
    def __init__(self) -> None:
        self._ended_ms: int | None = None
        self._beats: dict[str, int] = {}
        self._silent_ms: dict[str, int] = {}

    def look(self, nodes: Iterable[Beating], began_ms: int, ended_ms: int) -> set[str]:
        """What a look at the registry showed, and when it began and ended on a monotonic clock. Returns who is lost."""
        step_ms = 0 if self._ended_ms is None else min(began_ms - self._ended_ms, STEP_MS_MAX)
        self._ended_ms = ended_ms
        lost = set()
        beats, silent = {}, {}
        for node in nodes:
            same = self._beats.get(node.node_id) == node.beat
            beats[node.node_id] = node.beat
            silent[node.node_id] = self._silent_ms[node.node_id] + step_ms if same else 0
            if silent[node.node_id] >= node.lease_ms:
                lost.add(node.node_id)
        self._beats, self._silent_ms = beats, silent
        return lost

    def silent_ms(self, node_id: str) -> int:
        return self._silent_ms.get(node_id, 0)
