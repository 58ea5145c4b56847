"""How many activities of each namespace are open (not finished), and how many bytes of payload they keep in memory.

An activity counts from the decision that opens it, before that is durable, and until the event that finished it is durable.
So the counts are never below those of the database, whichever of the two commits may fail.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import NamedTuple

from liveness.domain.activity import FINISHED_ACTIVITY_STATES, Activity
from liveness.domain.keys import ActivityKey
from liveness.engine.counts import add_count


class _Decrease(NamedTuple):
    seq: int
    """The event that caused it."""
    namespace: str
    activities: int
    payload_bytes: int


def payload_bytes(activity: Activity) -> int:
    return len(activity.input) + len(activity.token) + len(activity.result)


def is_open(activity: Activity | None) -> bool:
    return activity is not None and activity.state not in FINISHED_ACTIVITY_STATES


class OpenActivities:
    """The counts of one shard, or of all shards that serve on a node."""

    __slots__ = ("_decreases", "_node_total", "counts", "payload_bytes")

    def __init__(self, activities: Iterable[tuple[ActivityKey, Activity]] = ()) -> None:
        self.counts: Counter[str] = Counter()
        self.payload_bytes: Counter[str] = Counter()
        self._decreases: deque[_Decrease] = deque()
        """Not durable yet."""
        self._node_total: OpenActivities | None = None
        for key, activity in activities:
            if is_open(activity):
                self._add(key.namespace, 1, payload_bytes(activity))

    def attach(self, node_total: OpenActivities) -> None:
        """Add the shard's counts to the node's, now and with every change."""
        self._node_total = node_total
        for namespace, count in self.counts.items():
            node_total._add(namespace, count, self.payload_bytes[namespace])

    def detach(self) -> None:
        """Take the shard's counts out of the node's. Later changes to the shard change only its own counts."""
        if self._node_total is not None:
            for namespace, count in self.counts.items():
                self._node_total._add(namespace, -count, -self.payload_bytes[namespace])
            self._node_total = None

    def record_change(self, namespace: str, before: Activity | None, after: Activity, seq: int) -> None:
        """`seq`: of the event that made `after`."""
        was_open, stays_open = is_open(before), is_open(after)
        added = stays_open - was_open
        added_bytes = (payload_bytes(after) if stays_open else 0) - (
            payload_bytes(before) if was_open and before is not None else 0
        )
        if added > 0 or added_bytes > 0:
            self._add(namespace, added, added_bytes)
        elif added or added_bytes:
            self._decreases.append(_Decrease(seq, namespace, added, added_bytes))

    def mark_durable(self, durable_seq: int) -> None:
        decreases = self._decreases
        while decreases and decreases[0].seq <= durable_seq:
            _, namespace, added, added_bytes = decreases.popleft()
            self._add(namespace, added, added_bytes)

    def _add(self, namespace: str, activities: int, added_bytes: int) -> None:
        add_count(self.counts, namespace, activities)
        add_count(self.payload_bytes, namespace, added_bytes)
        if self._node_total is not None:
            self._node_total._add(namespace, activities, added_bytes)
