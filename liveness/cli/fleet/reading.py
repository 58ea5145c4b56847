"""Reading the fleet again and again, no more of it than is shown, for as long as there is a server or will be again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Condition, Thread
from typing import TypeVar

from liveness.cli.client import Away, Client
from liveness.cli.durations import from_ms
from liveness.cli.failure import Failure
from liveness.clock import Clock
from liveness.v1.fleet_pb2 import GetFleetRequest, GetFleetResponse, NamespaceFleet
from liveness.v1.service_pb2 import CountWorkersRequest, ListWorkersRequest, WorkerFilter
from liveness.v1.worker_pb2 import WORKER_STATE_ACTIVE, WORKER_STATE_CLEANED_UP, WORKER_STATE_INACTIVE, Worker

T = TypeVar("T")

RANGE_MS = 10 * 60_000
PAGE = 500
"""A page keeps the server from heartbeats for some milliseconds; a larger one would for longer."""
CALLS_MAX = 40
"""For workers, in one refresh: each namespace takes one at least."""
WORKERS_MAX = 5_000
"""So many are looked at, and sorted, at most. Who looks for others narrows the filter."""
REST = 4
"""After reading, rest at least so many times as long as it took."""
COUNTS = {
    WORKER_STATE_ACTIVE: "active",
    WORKER_STATE_INACTIVE: "inactive",
    WORKER_STATE_CLEANED_UP: "cleaned_up",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    namespace: str
    """Empty: all of them."""
    where: WorkerFilter
    workers: int
    """So many of them, in the order of their keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    fleet: GetFleetResponse
    workers: tuple[Worker, ...]
    total: int | None
    """How many there are of which `workers` are the first, if that is known."""
    address: str
    at_ms: int
    """On the monotonic clock."""
    took_ms: int

    def server_ms(self, now_ms: int) -> int:
        """What the server's clock says at a time of ours, which may be set otherwise."""
        return self.fleet.time.ToMilliseconds() + now_ms - self.at_ms


def read(client: Client, query: Query, clock: Clock) -> Snapshot:
    began_ms = clock.monotonic_ms()
    request = GetFleetRequest(namespace=query.namespace, range=from_ms(RANGE_MS))
    fleet = client.call(client.admin.GetFleet, request)
    at_ms = clock.monotonic_ms()
    workers = _Workers(client, query.where, min(query.workers, WORKERS_MAX))
    for counted in fleet.namespaces:
        if _count(counted, query.where):
            workers.read_on(counted.namespace)
    return Snapshot(
        fleet=fleet,
        workers=tuple(workers.found),
        total=_total(client, query, fleet, workers),
        address=client.address,
        at_ms=at_ms,
        took_ms=clock.monotonic_ms() - began_ms,
    )


class _Workers:
    """As many as are wanted, in as few calls as one refresh may make."""

    def __init__(self, client: Client, where: WorkerFilter, wanted: int) -> None:
        self.found: list[Worker] = []
        self.whole = True
        """There are no others."""
        self._client = client
        self._where = where
        self._wanted = wanted
        self._calls_left = CALLS_MAX

    def read_on(self, namespace: str) -> None:
        request = ListWorkersRequest(namespace=namespace, filter=self._where)
        while self._calls_left and len(self.found) < self._wanted:
            self._calls_left -= 1
            request.page_size = min(PAGE, self._wanted - len(self.found))
            answer = self._client.call(self._client.liveness.ListWorkers, request)
            self.found += answer.workers
            request.page_token = answer.next_page_token
            if not request.page_token:
                return
        self.whole = False


def _count(counted: NamespaceFleet, where: WorkerFilter) -> int:
    """Those in its states."""
    return sum(getattr(counted, COUNTS[state]) for state in set(where.states) & COUNTS.keys())


def _total(client: Client, query: Query, fleet: GetFleetResponse, workers: _Workers) -> int | None:
    if workers.whole:
        return len(workers.found)
    if query.where == WorkerFilter(states=query.where.states):
        return sum(_count(counted, query.where) for counted in fleet.namespaces)
    if query.namespace:
        request = CountWorkersRequest(namespace=query.namespace, filter=query.where)
        return client.call(client.liveness.CountWorkers, request).total
    return None  # it would take a call for every namespace


class Reader:
    """Reads in a thread of its own, so that the picture stays alive while a server does not answer."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        interval_s: float,
        query: Query,
        on_read: Callable[[Snapshot], None],
        on_trouble: Callable[[str], None],
    ) -> None:
        self._client = client
        self._clock = clock
        self._interval_s = interval_s
        self._query = query
        self._on_read = on_read
        self._on_trouble = on_trouble
        self._paused = False
        self._at_once = False
        self._closed = False
        self._changed = Condition()
        self._connection = ExitStack()
        self._thread = Thread(target=self._run, name="reader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask(self, query: Query, *, paused: bool) -> None:
        """From now on this; at once, if it is something else than before."""
        with self._changed:
            if query != self._query or paused != self._paused:
                self._query, self._paused, self._at_once = query, paused, not paused
                self._changed.notify()

    def close(self) -> None:
        """Not waited for: it may be waiting for a server that does not answer."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        client = self._client
        with self._connection:
            while True:
                took_s = 0.0
                try:
                    snapshot = read(client, self._query, self._clock)
                    took_s = snapshot.took_ms / 1_000
                    self._tell(self._on_read, snapshot)
                except Away as error:
                    self._tell(self._on_trouble, error.message)
                    client = self._anew()
                except Failure as error:
                    self._tell(self._on_trouble, error.message)
                if not self._rest(max(self._interval_s, REST * took_s)):
                    return

    def _anew(self) -> Client:
        self._connection.close()
        try:
            return self._connection.enter_context(self._client.anew())
        except Away:
            return self._client

    def _tell(self, listener: Callable[[T], None], news: T) -> None:
        with self._changed:
            if not self._closed:
                listener(news)

    def _rest(self, seconds: float) -> bool:
        """False: for ever."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._at_once, seconds)
            self._changed.wait_for(lambda: self._closed or not self._paused)
            self._at_once = False
            return not self._closed
