"""Remembers which client registered what, because NoETL's clients heartbeat with a name alone.

A heartbeat belongs to the process that registered this name from this address. Several processes on one host may have one name; then
it belongs to the one of which a heartbeat is due. So each of them is heard, and one that dies is not.

This is kept in memory only. After a restart of the server, a heartbeat speaks for whoever has the name, and if the name has
replicas, for the one of them of which a heartbeat is due.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from liveness.clock import Clock

REMEMBERED_MAX = 100_000
"""Names."""
FRESH = 0.5
"""Who was heard less than this share of an interval ago is not due."""
ANY_ADDRESS = ""


@dataclass(slots=True)
class Registered:
    key: str
    """The worker key under which it was registered. If replicas are numbered, it ends with the number."""
    session_id: str
    address: str
    """Of the client; empty if another server process took the registration."""
    heard_ms: int = 0
    is_replica: bool = False
    is_new: bool = False
    """It registered, and sends its first heartbeat at once."""


class PoolSessions:
    def __init__(self, clock: Clock, interval_ms: int, lease_ms: int) -> None:
        """`interval_ms`: how often each process is expected to be heard."""
        self._clock = clock
        self._interval_ms = interval_ms
        self._lease_ms = lease_ms
        self._by_key: OrderedDict[str, list[Registered]] = OrderedDict()
        """By the worker key of the name that clients use, in the order of their registrations."""

    def remember(
        self, address: str, named_key: str, key: str, session_id: str, *, is_replica: bool, is_new: bool
    ) -> None:
        """Remember a registration. `is_new`: a heartbeat follows at once."""
        now_ms = self._clock.monotonic_ms()
        known = self._by_key.setdefault(named_key, [])
        known[:] = [
            each
            for each in known
            if each.session_id != session_id and now_ms - each.heard_ms < self._lease_ms
        ]
        known.append(Registered(key, session_id, address, now_ms, is_replica, is_new))
        self._by_key.move_to_end(named_key)
        while len(self._by_key) > REMEMBERED_MAX:
            self._by_key.popitem(last=False)

    def adopt(self, named_key: str, key: str, sessions: Iterable[tuple[str, int, bool]]) -> None:
        """Remember the processes of a name that has replicas, of which nobody here knows the address. `sessions`: the id, how long
        ago it was heard, and whether it is a replica."""
        now_ms = self._clock.monotonic_ms()
        known = self._by_key.setdefault(named_key, [])
        ids = {each.session_id for each in known}
        known += (
            Registered(key, session_id, ANY_ADDRESS, now_ms - ago_ms, is_replica)
            for session_id, ago_ms, is_replica in sessions
            if session_id not in ids
        )

    def find(self, address: str, named_key: str) -> Registered | None:
        """The process of which a heartbeat with this name comes from this address; None if nobody here knows."""
        known = self._candidates(address, named_key)
        if len(known) < 2:
            return known[0] if known else None
        if first := next((each for each in known if each.is_new), None):
            return first
        now_ms = self._clock.monotonic_ms()
        due = [each for each in known if now_ms - each.heard_ms >= FRESH * self._interval_ms]
        if not due:
            return min(known, key=lambda each: each.heard_ms)
        # Of those that are equally due, the one that registered last: the other one may be its predecessor, which was killed.
        return min(reversed(due), key=lambda each: abs(now_ms - each.heard_ms - self._interval_ms))

    def key_of(self, named_key: str, session_id: str) -> str:
        """The worker key of a process that registered this name; the name's own if it is not remembered."""
        known = self._by_key.get(named_key, [])
        return next((each.key for each in known if each.session_id == session_id), named_key)

    def hear(self, registered: Registered, *, is_replica: bool) -> None:
        """Note a heartbeat that was recorded."""
        registered.heard_ms = self._clock.monotonic_ms()
        registered.is_replica, registered.is_new = is_replica, False

    def leaving(self, address: str, named_key: str) -> Registered | None:
        """The process that a goodbye with this name ends. Of several it is a replica, so that those that stay keep the lease."""
        known = self._candidates(address, named_key)
        return next((each for each in reversed(known) if each.is_replica), known[-1] if known else None)

    def forget(self, named_key: str, registered: Registered) -> None:
        known = self._by_key.get(named_key, [])
        if registered in known:
            known.remove(registered)
        if not known:
            self._by_key.pop(named_key, None)

    def _candidates(self, address: str, named_key: str) -> list[Registered]:
        known = self._by_key.get(named_key, [])
        own = [each for each in known if each.address == address]
        return own or [each for each in known if each.address == ANY_ADDRESS]
