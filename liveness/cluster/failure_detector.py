"""Which nodes have fallen silent, by the clock of whoever looks on.

The rules are those of the observed clock: time counts only between two looks that both succeeded, and of each gap at
most `STEP_MS_MAX`. So an observer that stood still, or could not read the database, holds its own absence against
nobody, and no clock is compared with another machine's.

Why a node can rely on it: it raises its beat in a transaction that begins at time t of its own clock. The first look that
shows the new beat ends later than t, and silence counts from there to the beginning of the last look that shows the same
beat still. So until t + lease, nobody takes the node for lost, as long as clocks run at about the same speed. How long
the looks in between take changes nothing: many calls that fail at a dead node make many looks, one close upon the other,
and they must not make its death take longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

STEP_MS_MAX = 1_000


class NodeHeartbeat(Protocol):
    """What is kept about a node, as far as this is concerned."""

    @property
    def node_id(self) -> str: ...

    @property
    def beat(self) -> int: ...

    @property
    def lease_ms(self) -> int: ...


class FailureDetector:
    def __init__(self) -> None:
        self._previous_began_ms = 0
        """The last look."""
        self._first_seen_ms: dict[str, int] = {}
        """The end of the look that was the first to show a node's beat."""
        self._beats: dict[str, int] = {}
        self._silent_ms_by_id: dict[str, int] = {}

    def refresh(self, nodes: Iterable[NodeHeartbeat], began_ms: int, ended_ms: int) -> set[str]:
        """What a look at the registry showed, and when it began and ended on a monotonic clock. Returns who is lost."""
        lost = set()
        beats, silent_ms_by_id, first_seen_ms = {}, {}, {}
        for node in nodes:
            id = node.node_id
            beats[id] = node.beat
            if self._beats.get(id) == node.beat:
                first_seen_ms[id] = self._first_seen_ms[id]
                step_ms = min(began_ms - max(first_seen_ms[id], self._previous_began_ms), STEP_MS_MAX)
                silent_ms_by_id[id] = self._silent_ms_by_id[id] + step_ms
            else:
                first_seen_ms[id], silent_ms_by_id[id] = ended_ms, 0
            if silent_ms_by_id[id] >= node.lease_ms:
                lost.add(id)
        self._beats, self._silent_ms_by_id, self._first_seen_ms, self._previous_began_ms = (
            beats,
            silent_ms_by_id,
            first_seen_ms,
            began_ms,
        )
        return lost

    def silent_ms(self, node_id: str) -> int:
        return self._silent_ms_by_id.get(node_id, 0)
