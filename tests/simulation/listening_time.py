"""When a node could hear heartbeats: shards have owners, and owners stop, die and lose their connections."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict

STEP_S_MAX = 1.0
"""The most that a shard's clock may count of a time in which no node listened."""


class ListeningTime:
    def __init__(self) -> None:
        self._owners: defaultdict[int, list[tuple[float, str]]] = defaultdict(list)
        self._absent: defaultdict[str, list[list[float]]] = defaultdict(list)
        self._open: defaultdict[str, int] = defaultdict(int)

    def owned(self, shard_id: int, host: str, now: float) -> None:
        self._owners[shard_id].append((now, host))

    def away(self, host: str, now: float) -> None:
        """The host cannot hear or commit from now on; several reasons can overlap."""
        self._open[host] += 1
        if self._open[host] == 1:
            self._absent[host].append([now, float("inf")])

    def back(self, host: str, now: float) -> None:
        self._open[host] -= 1
        if self._open[host] == 0:
            self._absent[host][-1][1] = now

    def listened_s(self, shard_id: int, since: float, until: float) -> float:
        """Return the longest time for which a node listened for the shard's workers, with what the clock may count of
        the gaps.
        """
        owners = self._owners[shard_id]
        at = max(0, bisect_right(owners, (since, chr(0x10FFFF))) - 1)
        total, last_end = 0.0, since
        gaps: list[tuple[float, float]] = []
        for index in range(at, len(owners)):
            start = max(since, owners[index][0])
            end = min(until, owners[index + 1][0] if index + 1 < len(owners) else until)
            if end > start:
                gaps += [
                    (max(start, a), min(end, b))
                    for a, b in self._absent[owners[index][1]]
                    if a < end and b > start
                ]
        for start, end in _joined(gaps):
            total += start - last_end + min(end - start, STEP_S_MAX)
            last_end = end
        return total + until - last_end


def _joined(gaps: list[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for start, end in sorted(gaps):
        if joined and start <= joined[-1][1] + 1e-9:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
