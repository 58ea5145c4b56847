"""Detects nodes that have fallen silent, by the clock of the node that observes them.

The rules are those of the observed clock: time counts only between two reads of the registry that both succeeded, and of
each gap at most `STEP_MS_MAX`. So an observer that stalled, or could not read the database, does not count its own absence
as the silence of others, and no clock is compared with another machine's.

Why a node can rely on it: it raises its beat in a transaction that begins at time t of its own clock. The first read that
shows the new beat ends later than t, and silence counts from there to the beginning of the last read that still shows the
same beat. So until t + lease, no observer declares the node lost, as long as clocks run at about the same speed. The
duration of the reads in between changes nothing: many calls that fail at a dead node cause many reads in quick succession,
and those must not delay its detection.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

STEP_MS_MAX = 1_000


class NodeHeartbeat(Protocol):
    """The part of a registry row that the detector needs."""

    @property
    def node_id(self) -> str: ...

    @property
    def beat(self) -> int: ...

    @property
    def lease_ms(self) -> int: ...


class FailureDetector:
    def __init__(self) -> None:
        self._previous_began_ms = 0
        """When the previous read began."""
        self._first_seen_ms: dict[str, int] = {}
        """The end of the read that was the first to show a node's current beat."""
        self._beats: dict[str, int] = {}
        self._silent_ms_by_id: dict[str, int] = {}

    def refresh(self, nodes: Iterable[NodeHeartbeat], began_ms: int, ended_ms: int) -> set[str]:
        """Take in one read of the registry, which began and ended at these times of the monotonic clock. Returns the ids
        of the nodes that are lost."""
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
