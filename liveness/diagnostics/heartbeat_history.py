"""When workers were heard lately, so that a death certificate can show how a worker fell silent.

In memory only, beside the workers: their state must follow from the last renewal alone. This is on the way of every
heartbeat, so it is done for a whole row of renewals at a time, and a worker's last heartbeats are one number: 40 bits of
observed time each, the newest on top. 40 bits are 34 years.

Heartbeats of one row came within one commit of each other and are taken to have come when the last of them did. Of a
worker's very last heartbeat, the worker itself knows better.
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
        """By worker number. Those who come when it is full have none."""

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
        """A lease begins, with a heartbeat."""
        self._times.pop(number, None)
        self.record((number,), at_ms)

    def forget(self, number: int) -> None:
        self._times.pop(number, None)

    def of(self, number: int, last_ms: int) -> tuple[int, ...]:
        """Of the current lease, oldest first. `last_ms`: when the worker was heard last."""
        packed, times = self._times.get(number, 0), []
        while packed:
            if time := packed & _TIME_MASK:
                times.append(time - 1)
            packed >>= _BITS
        if times and times[-1] >= last_ms:
            times.pop()  # the last one itself; otherwise its row is still open
        times.append(last_ms)
        return tuple(times[-HEARTBEATS_KEPT:])
