"""Notices that the connection of a worker has broken, which says something about the worker only if nothing stands between
the two.

The kernel's table of connections shows that a process has ended, also if it has no call open. A worker that had polls
open polls again at once if it lives. One without, because all its slots are in use, is heard again with its next
heartbeat only.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from liveness.background import BackgroundTasks
from liveness.bridges.temporal.recorder import Recorder
from liveness.bridges.temporal.settings import DEFAULT_INTERVAL_MS, BridgeSettings
from liveness.bridges.temporal.worker_entry import WorkerEntry
from liveness.clock import Clock, stopwatch

LOOK_MS = 250
LOOK_REST = 10
"""How many times as long as a look the next one waits."""
ESTABLISHED = "01"
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
MAPPED_IPV4 = "0000000000000000FFFF0000"
"""How the table writes that an IPv6 socket speaks IPv4."""
PEERS_MAX = 8
YOUNG_MS = 2 * DEFAULT_INTERVAL_MS
"""A worker that has sent no heartbeat within this time sends none."""


class ConnectionHints:
    def __init__(self, settings: BridgeSettings, recorder: Recorder, clock: Clock) -> None:
        self._settings = settings
        self._recorder = recorder
        self._clock = clock
        self._tasks = BackgroundTasks("temporal bridge hints")
        self._polled: set[tuple[str, str]] = set()
        """Workers whose polls were open when their connection was seen last."""

    def start(self) -> None:
        if self._settings.hint_grace_ms and all(table.exists() for table in TABLES[:1]):
            self._tasks.start(self._look_forever())

    async def close(self) -> None:
        await self._tasks.close()

    def note(self, entry: WorkerEntry, peer: str) -> None:
        """Note the connection over which a worker has called."""
        if peer not in entry.open_calls:
            if len(entry.open_calls) >= PEERS_MAX:
                idle = [known for known, count in entry.open_calls.items() if not count]
                for known in idle or list(entry.open_calls)[:1]:
                    del entry.open_calls[known]
            entry.open_calls[peer] = 0

    @contextmanager
    def open_call(self, entry: WorkerEntry | None, peer: str) -> Iterator[None]:
        if entry is None:
            yield
            return
        self.note(entry, peer)
        entry.open_calls[peer] += 1
        self._polled.add((entry.namespace, entry.key))
        answered = False
        try:
            yield
            answered = True
        finally:
            if peer in entry.open_calls:
                entry.open_calls[peer] = max(entry.open_calls[peer] - 1, 0)
            if answered and not any(entry.open_calls.values()):
                self._polled.discard((entry.namespace, entry.key))

    async def _look_forever(self) -> None:
        rest_ms = LOOK_MS
        while True:
            await self._clock.sleep(rest_ms)
            # Connections that are opened from now on may be missing in what is read.
            watched = [
                (entry, tuple(entry.open_calls))
                for entry in self._recorder.workers()
                if entry.open_calls and not entry.suspected
            ]
            if watched:
                elapsed = stopwatch()
                # It takes milliseconds, for which no call should wait.
                connected = await asyncio.to_thread(connected_peers)
                rest_ms = max(LOOK_MS, int(elapsed() * 1_000) * LOOK_REST)
                for entry, peers in watched:
                    self._look(entry, peers, connected)

    def _look(self, entry: WorkerEntry, peers: Iterable[str], connected: set[str]) -> None:
        gone = [peer for peer in peers if is_tcp(peer) and in_table(peer) not in connected]
        for peer in gone:
            entry.open_calls.pop(peer, None)
        if gone and not entry.open_calls:
            had_polls = (entry.namespace, entry.key) in self._polled
            self._polled.discard((entry.namespace, entry.key))
            self._suspect(entry, had_polls=had_polls and not entry.is_stopping)

    def _suspect(self, entry: WorkerEntry, *, had_polls: bool) -> None:
        grace_ms = self._settings.hint_grace_ms if had_polls else self._busy_grace_ms(entry)
        if grace_ms and (not entry.has_heartbeats or grace_ms < entry.lease_ms(self._settings)):
            self._recorder.suspect(entry, "connection", grace_ms)

    def _busy_grace_ms(self, entry: WorkerEntry) -> int:
        """How long a worker without open polls may take to be heard again: until its next heartbeat should have come. 0: it
        sends none, so that its silence says nothing."""
        grace_ms = self._settings.hint_grace_ms
        if entry.interval_ms:
            return max(grace_ms, 3 * entry.interval_ms // 2)
        if not entry.has_heartbeats and self._clock.monotonic_ms() - entry.first_seen_ms > YOUNG_MS:
            return 0
        guess_ms = 3 * self._recorder.likely_interval_ms(entry) or 3 * DEFAULT_INTERVAL_MS // 2
        return max(grace_ms, min(guess_ms, 3 * DEFAULT_INTERVAL_MS // 2))


def connected_peers() -> set[str]:
    """The remote ends of all connections of this machine, as the kernel's table writes them."""
    peers = set()
    for table in TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split(None, 4)
            if columns[3] == ESTABLISHED:
                peers.add(columns[2].removeprefix(MAPPED_IPV4))
    return peers


def is_tcp(peer: str) -> bool:
    return peer.startswith(("ipv4:", "ipv6:"))


def in_table(peer: str) -> str:
    """A peer as gRPC names it, `ipv4:127.0.0.1:4711`, as the kernel's table writes it."""
    _, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    packed = ipaddress.ip_address(host.strip("[]").partition("%")[0]).packed
    words = [packed[start : start + 4][::-1].hex().upper() for start in range(0, len(packed), 4)]
    return f"{''.join(words)}:{int(port):04X}".removeprefix(MAPPED_IPV4)
