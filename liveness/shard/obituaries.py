"""Who died lately on this node: a death among many has another cause than a single one.

In memory only. Each worker counts once, with its last death. Nothing crosses namespaces: two tenants' workers on one
host are strangers to each other.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Hashable
from typing import NamedTuple, TypeVar

from liveness.clock import Clock
from liveness.domain.death import ALONE, COMPANY_MS, Company
from liveness.domain.keys import WorkerKey

KEPT = 10_000

NameT = TypeVar("NameT", bound=Hashable)


class Obituary(NamedTuple):
    wall_ms: int
    at_ms: int
    """On the monotonic clock."""
    host_name: str
    build_id: str


class Obituaries:
    __slots__ = ("_by_build", "_by_host", "_by_namespace", "_clock", "_kept", "_window")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: OrderedDict[WorkerKey, Obituary] = OrderedDict()
        self._window: OrderedDict[WorkerKey, Obituary] = OrderedDict()
        """Of the last minute, in step with the counters, so that a death costs the same among ten thousand."""
        self._by_namespace: defaultdict[str, int] = defaultdict(int)
        self._by_host: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._by_build: defaultdict[tuple[str, str], int] = defaultdict(int)

    def enter(self, key: WorkerKey, host_name: str, build_id: str) -> None:
        """A worker dies. The same again changes nothing but the time."""
        now_ms = self._forget_old()
        if (earlier := self._window.pop(key, None)) is not None:
            self._uncount(key, earlier)
        self._kept.pop(key, None)
        entry = Obituary(self._clock.wall_ms(), now_ms, host_name, build_id)
        self._kept[key] = self._window[key] = entry
        namespace = key.namespace
        self._by_namespace[namespace] += 1
        self._by_host[namespace, host_name] += 1
        self._by_build[namespace, build_id] += 1
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        if len(self._window) > KEPT:
            self._uncount(*self._window.popitem(last=False))

    def company(self, key: WorkerKey) -> Company:
        """Of one who was just entered: how many others died in the last minute."""
        mine = self._window.get(key)
        if mine is None:
            return ALONE
        namespace, host_name, build_id = key.namespace, mine.host_name, mine.build_id
        return Company(
            self._by_host[namespace, host_name] - 1 if host_name else 0,
            self._by_build[namespace, build_id] - 1 if build_id else 0,
            self._by_namespace[namespace] - 1,
        )

    def around(self, key: WorkerKey, host_name: str, build_id: str, wall_ms: int) -> Company:
        """How many others died within a minute before or after a worker did."""
        others = [
            entry
            for other, entry in self._kept.items()
            if other.namespace == key.namespace
            and other != key
            and abs(entry.wall_ms - wall_ms) <= COMPANY_MS
        ]
        return Company(
            sum(entry.host_name == host_name for entry in others) if host_name else 0,
            sum(entry.build_id == build_id for entry in others) if build_id else 0,
            len(others),
        )

    def last_minute(self, namespace: str) -> int:
        self._forget_old()
        return self._by_namespace.get(namespace, 0)

    def _forget_old(self) -> int:
        now_ms = self._clock.monotonic_ms()
        window, oldest_ms = self._window, now_ms - COMPANY_MS
        while window and next(iter(window.values())).at_ms < oldest_ms:
            self._uncount(*window.popitem(last=False))
        return now_ms

    def _uncount(self, key: WorkerKey, entry: Obituary) -> None:
        namespace = key.namespace
        _take_one(self._by_namespace, namespace)
        _take_one(self._by_host, (namespace, entry.host_name))
        _take_one(self._by_build, (namespace, entry.build_id))


def _take_one(counts: defaultdict[NameT, int], name: NameT) -> None:
    """Names that count nothing are forgotten."""
    if counts[name] == 1:
        del counts[name]
    else:
        counts[name] -= 1
