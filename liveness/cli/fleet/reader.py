"""Read the fleet at intervals, only the part that is shown, and reconnect after failures."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Condition, Thread
from typing import TypeVar

from liveness.cli.client import Client, ServerUnavailable
from liveness.cli.durations import from_ms
from liveness.cli.errors import CommandError
from liveness.clock import Clock
from liveness.v1.fleet_pb2 import GetFleetRequest, GetFleetResponse, NamespaceFleet
from liveness.v1.service_pb2 import CountWorkersRequest, ListWorkersRequest, WorkerFilter
from liveness.v1.worker_pb2 import WORKER_STATE_ACTIVE, WORKER_STATE_CLEANED_UP, WORKER_STATE_INACTIVE, Worker

T = TypeVar("T")

RANGE_MS = 10 * 60_000
PAGE_SIZE = 500
"""A page delays heartbeats on the server by some milliseconds; a larger page would delay them longer."""
CALLS_MAX = 40
"""The limit of ListWorkers calls in one refresh; each namespace needs at least one."""
WORKERS_MAX = 5_000
"""The limit of workers that are read and sorted. A filter finds the others."""
REST_FACTOR = 4
"""The pause after a read is at least this many times as long as the read."""
STATE_FIELDS = {
    WORKER_STATE_ACTIVE: "active",
    WORKER_STATE_INACTIVE: "inactive",
    WORKER_STATE_CLEANED_UP: "cleaned_up",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetQuery:
    namespace: str
    """Empty: all namespaces."""
    where: WorkerFilter
    workers: int
    """How many workers to read, in the order of their keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSnapshot:
    fleet: GetFleetResponse
    workers: tuple[Worker, ...]
    total: int | None
    """The number of workers that match; None if it is not known."""
    address: str
    at_ms: int
    """On the monotonic clock."""
    took_ms: int

    def server_ms(self, now_ms: int) -> int:
        """The server's wall clock at a time of the local monotonic clock; the local wall clock may differ."""
        return self.fleet.time.ToMilliseconds() + now_ms - self.at_ms


def read(client: Client, query: FleetQuery, clock: Clock) -> FleetSnapshot:
    began_ms = clock.monotonic_ms()
    request = GetFleetRequest(namespace=query.namespace, range=from_ms(RANGE_MS))
    fleet = client.call(client.admin.GetFleet, request)
    at_ms = clock.monotonic_ms()
    workers = _WorkerPages(client, query.where, min(query.workers, WORKERS_MAX))
    for namespace_fleet in fleet.namespaces:
        if _count(namespace_fleet, query.where):
            workers.read_namespace(namespace_fleet.namespace)
    return FleetSnapshot(
        fleet=fleet,
        workers=tuple(workers.found),
        total=_total_workers(client, query, fleet, workers),
        address=client.address,
        at_ms=at_ms,
        took_ms=clock.monotonic_ms() - began_ms,
    )


class _WorkerPages:
    """Reads the wanted number of workers, within the limit of calls for one refresh."""

    def __init__(self, client: Client, where: WorkerFilter, wanted: int) -> None:
        self.found: list[Worker] = []
        self.is_complete = True
        """Whether all matching workers were read."""
        self._client = client
        self._where = where
        self._wanted = wanted
        self._calls_left = CALLS_MAX

    def read_namespace(self, namespace: str) -> None:
        request = ListWorkersRequest(namespace=namespace, filter=self._where)
        while self._calls_left and len(self.found) < self._wanted:
            self._calls_left -= 1
            request.page_size = min(PAGE_SIZE, self._wanted - len(self.found))
            answer = self._client.call(self._client.liveness.ListWorkers, request)
            self.found += answer.workers
            request.page_token = answer.next_page_token
            if not request.page_token:
                return
        self.is_complete = False


def _count(namespace_fleet: NamespaceFleet, where: WorkerFilter) -> int:
    """The number of workers of a namespace in the states of the filter."""
    return sum(
        getattr(namespace_fleet, STATE_FIELDS[state]) for state in set(where.states) & STATE_FIELDS.keys()
    )


def _total_workers(
    client: Client, query: FleetQuery, fleet: GetFleetResponse, workers: _WorkerPages
) -> int | None:
    if workers.is_complete:
        return len(workers.found)
    if query.where == WorkerFilter(states=query.where.states):
        return sum(_count(namespace_fleet, query.where) for namespace_fleet in fleet.namespaces)
    if query.namespace:
        request = CountWorkersRequest(namespace=query.namespace, filter=query.where)
        return client.call(client.liveness.CountWorkers, request).total
    return None  # it would take a call for every namespace


class FleetReader:
    """Reads in its own thread, so that the view stays responsive while a server does not answer."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        interval_s: float,
        query: FleetQuery,
        on_read: Callable[[FleetSnapshot], None],
        on_error: Callable[[str], None],
    ) -> None:
        self._client = client
        self._clock = clock
        self._interval_s = interval_s
        self._query = query
        self._on_read = on_read
        self._on_error = on_error
        self._paused = False
        self._refresh_now = False
        self._closed = False
        self._changed = Condition()
        self._connection = ExitStack()
        self._thread = Thread(target=self._run, name="reader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def set_query(self, query: FleetQuery, *, paused: bool) -> None:
        """Change the query; a different query is read at once."""
        with self._changed:
            if query != self._query or paused != self._paused:
                self._query, self._paused, self._refresh_now = query, paused, not paused
                self._changed.notify()

    def close(self) -> None:
        """Stop the thread without waiting for it: it may be waiting for a server that does not answer."""
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
                    self._notify(self._on_read, snapshot)
                except ServerUnavailable as error:
                    self._notify(self._on_error, error.message)
                    client = self._reconnect()
                except CommandError as error:
                    self._notify(self._on_error, error.message)
                if not self._wait_for_refresh(max(self._interval_s, REST_FACTOR * took_s)):
                    return

    def _reconnect(self) -> Client:
        self._connection.close()
        try:
            return self._connection.enter_context(self._client.reconnect())
        except ServerUnavailable:
            return self._client

    def _notify(self, listener: Callable[[T], None], value: T) -> None:
        with self._changed:
            if not self._closed:
                listener(value)

    def _wait_for_refresh(self, seconds: float) -> bool:
        """Wait until the next read is due. Returns False after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._refresh_now, seconds)
            self._changed.wait_for(lambda: self._closed or not self._paused)
            self._refresh_now = False
            return not self._closed
