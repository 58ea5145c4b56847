"""Keeps the times of each worker's last heartbeats, so that a death certificate can show how the worker fell silent.

The history is in memory only and apart from the worker's state, which must follow from the last renewal alone. Every
heartbeat passes here, so times are recorded for a whole log row of renewals at once, and a worker's times are packed
into one integer: 40 bits of observed time each, the newest in the highest bits. 40 bits are 34 years.

The heartbeats of one row arrived within one commit of each other; all of them get the time of the last. The exact time
of a worker's very last heartbeat is in the worker's state.
"""

from __future__ import annotations

from collections.abc import Iterable

HEARTBEATS_KEPT = 6
_BITS = 40
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

    def record(self, numbers: Iterable[int], at_ms: int) -> None:
        times, newest = self._times, at_ms + 1 << _TOP_SHIFT
        for number in numbers:
            try:
                times[number] = newest | times[number] >> _BITS
            except KeyError:
                if len(times) < self._workers_max:
                    times[number] = newest

    def start_lease(self, number: int, at_ms: int) -> None:
        """Replace the history by the heartbeat that began the lease."""
        self._times.pop(number, None)
        self.record((number,), at_ms)

    def forget(self, number: int) -> None:
        self._times.pop(number, None)

    def times_of(self, number: int, last_ms: int) -> tuple[int, ...]:
        """Return the heartbeat times of the current lease, oldest first. `last_ms`: the exact time of the last one."""
        packed, times = self._times.get(number, 0), []
        while packed:
            if time := packed & _TIME_MASK:
                times.append(time - 1)
            packed >>= _BITS
        if times and times[-1] >= last_ms:
            times.pop()  # the last heartbeat itself; if it is missing, its row is not closed yet
        times.append(last_ms)
        return tuple(times[-HEARTBEATS_KEPT:])
