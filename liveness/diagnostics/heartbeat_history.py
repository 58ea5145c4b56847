"""Keeps the times of each worker's last heartbeats, so that a death certificate can show how the worker fell silent.

The history is in memory only and apart from the worker's state, which each renewal would copy. Every
heartbeat passes here, so times are recorded for a whole log row of renewals at once, and a worker's times are packed
into one integer: 42 bits of wall time each, the newest in the highest bits. 42 bits last until the year 2109.
"""

from __future__ import annotations

from liveness.store.codec import RenewalBatch

HEARTBEATS_KEPT = 6
_BITS = 42
_TOP_SHIFT = (HEARTBEATS_KEPT - 1) * _BITS
_TIME_MASK = (1 << _BITS) - 1


class HeartbeatHistory:
    __slots__ = ("_times", "_workers_max")

    def __init__(self, workers_max: int) -> None:
        self._workers_max = workers_max
        self._times: dict[int, int] = {}
        """By worker number. Workers that come when it is full have no history."""

    def __len__(self) -> int:
        return len(self._times)

    def record(self, batch: RenewalBatch, wall_offset_ms: int) -> None:
        """Record the renewals of a log row. `wall_offset_ms`: wall time minus observed time."""
        times, last_ms, newest = self._times, None, 0
        for number, (_, at_ms, _, _) in zip(*batch, strict=True):
            if at_ms != last_ms:  # those of one call share it
                last_ms, newest = at_ms, at_ms + wall_offset_ms << _TOP_SHIFT
            earlier = times.get(number)
            if earlier is not None:
                times[number] = newest | earlier >> _BITS
            elif len(times) < self._workers_max:
                times[number] = newest

    def start_lease(self, number: int, wall_ms: int) -> None:
        """Replace the history by the heartbeat that began the lease."""
        self._times.pop(number, None)
        if len(self._times) < self._workers_max:
            self._times[number] = wall_ms << _TOP_SHIFT

    def forget(self, number: int) -> None:
        self._times.pop(number, None)

    def times_of(self, number: int, last_wall_ms: int) -> tuple[int, ...]:
        """Return the heartbeat times of the current lease, oldest first. `last_wall_ms`: the time of the last one."""
        packed, times = self._times.get(number, 0), []
        while packed:
            if time := packed & _TIME_MASK:
                times.append(time)
            packed >>= _BITS
        if not times or times[-1] != last_wall_ms:
            times.append(last_wall_ms)  # its row is not closed yet
        return tuple(times[-HEARTBEATS_KEPT:])
