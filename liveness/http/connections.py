"""Limits the connections to the HTTP listener: how many, how many for each client, and how long they may keep it waiting.

A connection *waits* from its start, which includes the TLS handshake, until the head of a request is complete, and again after
each response. It may wait for 10 s. When a client has used up its share, or all connections are in use, the connection that has
waited longest is closed to make room for a new one, so that clients which send their requests are served whatever others do.

`uvicorn` has a limit too, but it counts only what has a complete request, and answers everything beyond it with 503. The limit
here is applied where connections are accepted, so that handshakes count and descriptors stay free for the rest of the process.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
from typing import Any

import structlog

from liveness.background import RepeatedWarning
from liveness.clock import Clock
from liveness.http.client_shares import ClientShares, client_of

logger = structlog.get_logger("liveness.http")

CONNECTIONS_MAX = 2_000
WAITING_MS_MAX = 10_000
STALLED_MS_MAX = 60_000
"""How long a client may take nothing of what is ready for it."""
CLOSING_MAX = 64
"""How many closed connections may still have a descriptor before the next one is accepted."""
SWEEP_INTERVAL_MS = 1_000
QUIET_MS = 30_000
"""A problem counts as over when it has not occurred for this long."""

_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def connections_max() -> int:
    """Half of the process's descriptors at most: gRPC, the database and files need the others."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else max(1, min(CONNECTIONS_MAX, soft // 2))


class OpenConnection:
    """An accepted connection."""

    def __init__(self, sock: socket.socket, peer: Any) -> None:
        self.peer = peer
        self.client = client_of(peer)
        self.waiting_since_ms = 0
        self.is_closing = False
        self._socket = sock
        self._transport: asyncio.Transport | None = None

    def set_transport(self, transport: asyncio.Transport) -> None:
        """Called when the handshake is over."""
        self._transport = transport

    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def abort(self) -> None:
        self.is_closing = True
        if self._transport is not None:
            self._transport.abort()
            return
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # the handshake fails, and asyncio closes the socket
        except OSError:
            pass  # the peer was faster


class Connections:
    """All connections of a listener."""

    def __init__(self, clock: Clock, total: int) -> None:
        self._clock = clock
        self._shares = ClientShares(total)
        self._open: dict[Any, OpenConnection] = {}
        self._waiting: dict[OpenConnection, None] = {}
        """Those that have waited longest come first; so it is in the next one."""
        self._waiting_of_client: dict[str, dict[OpenConnection, None]] = {}
        self._stalled: dict[OpenConnection, tuple[int, int]] = {}
        """Connections whose clients do not read: since when, and how many bytes were left then."""
        self._closing = 0
        self._crowded = RepeatedWarning(logger, "HTTP connections are closed or refused to make room", clock)
        self._exhausted = RepeatedWarning(logger, "cannot accept an HTTP connection", clock)
        self._trouble_ms: int | None = None

    @property
    def count(self) -> int:
        return len(self._open)

    @property
    def is_closing_many(self) -> bool:
        return self._closing >= CLOSING_MAX

    def find(self, peer: Any) -> OpenConnection:
        return self._open[peer]

    # -- accepting and closing

    def admit(self, sock: socket.socket, peer: Any) -> bool:
        """Count an accepted connection. If there is no room for it, close one that waits, or return False."""
        connection = OpenConnection(sock, peer)
        if not self._shares.has_room(connection.client):
            self._note_crowd(connection.client)
            # A client that has its share pays with a connection of its own, not with one of others.
            has_some = self._shares.held(connection.client) > 0
            waiting = self._waiting_of_client.get(connection.client) if has_some else self._waiting
            if not waiting:
                return False
            self._close(next(iter(waiting)))
        self._shares.take(connection.client)
        self._open[peer] = connection
        self.set_waiting(connection)
        return True

    def close_oldest_waiting(self) -> None:
        """Free a descriptor."""
        if self._waiting:
            self._close(next(iter(self._waiting)))

    def forget(self, peer: Any) -> None:
        """Called when the socket is closed."""
        connection = self._open.pop(peer, None)
        if connection is None:
            return
        self._stop_waiting(connection)
        self._stalled.pop(connection, None)
        if connection.is_closing:
            self._closing -= 1
        else:
            self._shares.give_back(connection.client)

    def _close(self, connection: OpenConnection) -> None:
        self._stop_waiting(connection)
        self._stalled.pop(connection, None)
        if not connection.is_closing:
            self._closing += 1
            self._shares.give_back(connection.client)
            connection.abort()

    # -- what the protocol reports

    def set_waiting(self, connection: OpenConnection) -> None:
        """The connection waits for a request from now on."""
        self._stop_waiting(connection)
        if not connection.is_closing:
            connection.waiting_since_ms = self._clock.monotonic_ms()
            self._waiting[connection] = None
            self._waiting_of_client.setdefault(connection.client, {})[connection] = None

    def set_busy(self, connection: OpenConnection) -> None:
        """The head of a request is complete."""
        self._stop_waiting(connection)

    def set_stalled(self, connection: OpenConnection) -> None:
        """The client does not read what is ready for it."""
        self._stalled[connection] = (self._clock.monotonic_ms(), connection.unsent_bytes())

    def set_flowing(self, connection: OpenConnection) -> None:
        self._stalled.pop(connection, None)

    def _stop_waiting(self, connection: OpenConnection) -> None:
        if connection in self._waiting:
            del self._waiting[connection]
            of_client = self._waiting_of_client[connection.client]
            del of_client[connection]
            if not of_client:
                del self._waiting_of_client[connection.client]

    # -- time

    async def close_overdue(self) -> None:
        """Close connections that have waited or stalled for too long. Runs until it is cancelled."""
        while True:
            await self._clock.sleep(SWEEP_INTERVAL_MS)
            now_ms = self._clock.monotonic_ms()
            for connection in self._overdue(now_ms):
                self._close(connection)
            if self._trouble_ms is not None and now_ms - self._trouble_ms >= QUIET_MS:
                self._trouble_ms = None
                self._crowded.resolve()
                self._exhausted.resolve()

    def _overdue(self, now_ms: int) -> list[OpenConnection]:
        overdue = []
        for connection in self._waiting:
            if now_ms - connection.waiting_since_ms < WAITING_MS_MAX:
                break
            if connection not in self._stalled:  # such a connection has not been sent its last response yet
                overdue.append(connection)
        for connection, (since_ms, unsent_bytes) in tuple(self._stalled.items()):
            left_bytes = connection.unsent_bytes()
            if left_bytes < unsent_bytes:
                self._stalled[connection] = (now_ms, left_bytes)
            elif now_ms - since_ms >= STALLED_MS_MAX:
                overdue.append(connection)
        return overdue

    # -- warnings

    def _note_crowd(self, client: str) -> None:
        self._trouble_ms = self._clock.monotonic_ms()
        self._crowded.warn(open=self.count, limit=self._shares.total, client=client)

    def note_exhaustion(self, error: OSError) -> None:
        self._trouble_ms = self._clock.monotonic_ms()
        self._exhausted.warn(why=error.strerror, open=self.count)


class LimitedListener(socket.socket):
    """A listening socket that accepts what `Connections` admits.

    asyncio accepts connections by calling `accept` until it raises BlockingIOError or ConnectionAbortedError, which end its turn.
    Without a free descriptor it would log an error for each of up to 2,048 tries, every second.
    """

    def __init__(self, bound: socket.socket, connections: Connections) -> None:
        super().__init__(bound.family, bound.type, bound.proto, fileno=bound.detach())
        self.setblocking(False)
        self._connections = connections
        self._reserve = _open_reserve()
        """A descriptor to spare: without it a connection could not even be refused."""
        self._must_pause = False

    def accept(self) -> tuple[socket.socket, Any]:
        if self._must_pause or self._connections.is_closing_many:
            self._must_pause = False
            raise BlockingIOError
        try:
            accepted, peer = super().accept()
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                self._refuse_one(error)
            raise
        counted = _CountedSocket(accepted, peer, self._connections)
        if not self._connections.admit(counted, peer):
            counted.close()
            raise ConnectionAbortedError
        return counted, peer

    def close(self) -> None:
        self._close_reserve()
        super().close()

    def _refuse_one(self, error: OSError) -> None:
        """Close the connection that has waited longest, and the new one, for which there was no descriptor."""
        self._connections.note_exhaustion(error)
        self._connections.close_oldest_waiting()
        had_reserve = self._reserve is not None
        if had_reserve:
            self._close_reserve()
            try:
                refused, _ = super().accept()
                refused.close()
            except OSError:
                pass  # another thread took the descriptor, or the client gave up
        self._reserve = _open_reserve()
        if had_reserve:
            raise ConnectionAbortedError from error
        self._must_pause = (
            True  # asyncio gets the error, goes on with its tries, and then pauses for a second
        )

    def _close_reserve(self) -> None:
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None


class _CountedSocket(socket.socket):
    def __init__(self, accepted: socket.socket, peer: Any, connections: Connections) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        self._peer = peer
        self._connections = connections

    def close(self) -> None:
        super().close()
        self._connections.forget(self._peer)


def _open_reserve() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return None
