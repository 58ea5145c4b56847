"""How far this process has read what arrived at its listener.

A server that gets too little processor time hears heartbeats late: they wait in its sockets and queues while leases run
out. So a node calls itself through its own listener (`server/receive_probe.py`), at intervals and whenever a lease is
due. Such a probe waits behind everything that arrived before it, except that calls which the kernel reports together
may be read in any order. A second probe, sent when the first one is answered, comes after all of them. Therefore:

    When a probe is answered, everything has been heard that had arrived when the probe before it was sent.

A lease ends only if everything has been heard that had arrived when the lease was found to be over (`TimerRunner`).
That does not help a worker whose calls are answered so late that it cannot keep its interval, or that gives up waiting
and withdraws them. So the time that a probe waits hardly counts as listening (`ListeningTime.probe_sent`), and a lease
does not end until calls have been heard quickly for a while, compared with its length (`ends_from_ms`).
"""

from __future__ import annotations

import asyncio
from collections import deque

from liveness.clock import Clock
from liveness.engine.observed_clock import PROBE_MS_MAX, ListeningTime

_ALWAYS_MS = 2**63

LEASE_PER_LAG_MIN = 4
"""Workers wait for an answer for a third of their lease. If calls are heard after a quarter of it, they get one."""
RECOVERY_MS = 1_000
"""After calls were heard too late for a lease, its worker has this time and a whole lease to be heard: it sends again
after a third of the lease and a pause of up to a second."""
SLOW_PROBES_KEPT = 64


class ReceiveProgress:
    def __init__(self, clock: Clock, listening: ListeningTime) -> None:
        self._clock = clock
        self._listening = listening
        self.heard_until_ms = _ALWAYS_MS
        """On the monotonic clock: everything that had arrived by then has been heard. While nothing measures it,
        everything counts as heard."""
        self.probe_wanted = asyncio.Event()
        """Set while a lease waits for a probe."""
        self._slow_probes: deque[tuple[int, int]] = deque(maxlen=SLOW_PROBES_KEPT)
        """When probes were answered that waited too long for the shortest lease, and how long each waited."""
        self._sent_ms = 0
        self._answered_sent_ms: int | None = None
        """When the last answered probe was sent; None if the last one was not answered."""

    @property
    def is_measuring(self) -> bool:
        return self.heard_until_ms != _ALWAYS_MS

    def start_measuring(self) -> None:
        self.heard_until_ms = -1

    def stop_measuring(self) -> None:
        """Count everything as heard, because probes do not reach the listener at all."""
        self.heard_until_ms = _ALWAYS_MS
        self._answered_sent_ms = None
        self._listening.probe_ended()

    def probe_sent(self) -> None:
        self.probe_wanted.clear()
        self._sent_ms = self._clock.monotonic_ms()
        self._listening.probe_sent()

    def probe_answered(self) -> int:
        """Return for how many milliseconds the probe waited."""
        if self._answered_sent_ms is not None:
            self.heard_until_ms = self._answered_sent_ms
        self._answered_sent_ms = self._sent_ms
        self._listening.probe_ended()
        now_ms = self._clock.monotonic_ms()
        if (lag_ms := now_ms - self._sent_ms) > PROBE_MS_MAX:
            self._slow_probes.append((now_ms, lag_ms))
        return lag_ms

    def ends_from_ms(self, lease_ms: int) -> int:
        """Return from when on, on the monotonic clock, a lease of this length may end."""
        for answered_ms, lag_ms in reversed(self._slow_probes):
            if lag_ms * LEASE_PER_LAG_MIN > lease_ms:
                return answered_ms + lease_ms + RECOVERY_MS
        return 0

    def probe_failed(self) -> None:
        self._answered_sent_ms = None
