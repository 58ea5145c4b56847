"""Remembers the recent deaths on this node, because a death among many has another cause than a single one.

In memory only. Each worker counts once, with its last death. Nothing crosses namespaces: two tenants' workers on one
host do not count for each other.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Hashable
from typing import NamedTuple, TypeVar

from liveness.clock import Clock
from liveness.domain.death_certificate import CONCURRENT_DEATHS_WINDOW_MS, NO_OTHER_DEATHS, ConcurrentDeaths
from liveness.domain.keys import WorkerKey

KEPT = 10_000

NameT = TypeVar("NameT", bound=Hashable)


class RecentDeath(NamedTuple):
    wall_ms: int
    at_ms: int
    """On the monotonic clock."""
    host_name: str
    build_id: str


class RecentDeaths:
    __slots__ = ("_by_build", "_by_host", "_by_namespace", "_clock", "_deaths", "_window")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._deaths: OrderedDict[WorkerKey, RecentDeath] = OrderedDict()
        self._window: OrderedDict[WorkerKey, RecentDeath] = OrderedDict()
        """The deaths of the last minute. The counters below follow it, so that a death among ten thousand costs no more
        than a single one."""
        self._by_namespace: defaultdict[str, int] = defaultdict(int)
        self._by_host: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._by_build: defaultdict[tuple[str, str], int] = defaultdict(int)

    def record_death(self, key: WorkerKey, host_name: str, build_id: str) -> None:
        """Record a death. A second call for the same worker only moves the time."""
        now_ms = self._prune()
        if (earlier := self._window.pop(key, None)) is not None:
            self._uncount(key, earlier)
        self._deaths.pop(key, None)
        death = RecentDeath(self._clock.wall_ms(), now_ms, host_name, build_id)
        self._deaths[key] = self._window[key] = death
        namespace = key.namespace
        self._by_namespace[namespace] += 1
        self._by_host[namespace, host_name] += 1
        self._by_build[namespace, build_id] += 1
        if len(self._deaths) > KEPT:
            self._deaths.popitem(last=False)
        if len(self._window) > KEPT:
            self._uncount(*self._window.popitem(last=False))

    def withdraw_death(self, key: WorkerKey) -> None:
        """Forget the last recorded death of a worker, which did not take place."""
        self._deaths.pop(key, None)
        if (death := self._window.pop(key, None)) is not None:
            self._uncount(key, death)

    def deaths_with(self, key: WorkerKey) -> ConcurrentDeaths:
        """Return how many others died in the last minute. `key`: a worker whose death was just recorded."""
        death = self._window.get(key)
        if death is None:
            return NO_OTHER_DEATHS
        namespace, host_name, build_id = key.namespace, death.host_name, death.build_id
        return ConcurrentDeaths(
            self._by_host[namespace, host_name] - 1 if host_name else 0,
            self._by_build[namespace, build_id] - 1 if build_id else 0,
            self._by_namespace[namespace] - 1,
        )

    def deaths_around(self, key: WorkerKey, host_name: str, build_id: str, wall_ms: int) -> ConcurrentDeaths:
        """Return how many others died within a minute before or after a worker that died at `wall_ms`."""
        others = [
            death
            for other, death in self._deaths.items()
            if other.namespace == key.namespace
            and other != key
            and abs(death.wall_ms - wall_ms) <= CONCURRENT_DEATHS_WINDOW_MS
        ]
        return ConcurrentDeaths(
            sum(death.host_name == host_name for death in others) if host_name else 0,
            sum(death.build_id == build_id for death in others) if build_id else 0,
            len(others),
        )

    def count_last_minute(self, namespace: str) -> int:
        self._prune()
        return self._by_namespace.get(namespace, 0)

    def _prune(self) -> int:
        now_ms = self._clock.monotonic_ms()
        window, oldest_ms = self._window, now_ms - CONCURRENT_DEATHS_WINDOW_MS
        while window and next(iter(window.values())).at_ms < oldest_ms:
            self._uncount(*window.popitem(last=False))
        return now_ms

    def _uncount(self, key: WorkerKey, death: RecentDeath) -> None:
        namespace = key.namespace
        _decrement(self._by_namespace, namespace)
        _decrement(self._by_host, (namespace, death.host_name))
        _decrement(self._by_build, (namespace, death.build_id))


def _decrement(counts: defaultdict[NameT, int], name: NameT) -> None:
    """Decrement a count, and drop the name when the count reaches zero."""
    if counts[name] == 1:
        del counts[name]
    else:
        counts[name] -= 1
