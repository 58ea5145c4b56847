"""The native edge alone, without a liveness server behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

liveness_edge = pytest.importorskip("liveness_edge", reason="the native edge is not built: make edge")

MESSAGE_BYTES_MAX = 1_000_000
UNARY = ["/t.T/Echo", "/t.T/Hold"]
"""Echo is answered at once; whoever called Hold waits until the test answers."""
STREAMING = ["/t.T/Chat", "/t.T/Pour"]
"""Chat sends each message back; of Pour, the test does everything."""
ECHO, HOLD = range(2)
CHAT, POUR = range(2)


class EdgeServer:
    def __init__(self, **limits: int) -> None:
        self.edge = liveness_edge.Edge(**limits)
        self.port = 0
        self.events: list[tuple[Any, ...]] = []
        """All of them, but those of Echo and Chat."""
        self.calls = 0
        self._chats: set[int] = set()
        self._arrived = asyncio.Event()

    def start(self, *, tls: tuple[Any, ...] | None = None) -> None:
        self.port = self.edge.bind("127.0.0.1", 0)
        if tls is not None:
            self.edge.set_tls(*tls)
        self.edge.start(
            unary=[(path, MESSAGE_BYTES_MAX) for path in UNARY],
            streaming=[(path, MESSAGE_BYTES_MAX) for path in STREAMING],
            prefixes=[("/later.", 100)],
        )
        asyncio.get_running_loop().add_reader(self.edge.fileno(), self.take)

    def stop(self) -> None:
        asyncio.get_running_loop().remove_reader(self.edge.fileno())
        self.edge.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def channel(self, **options: int) -> Any:
        return grpc.aio.insecure_channel(self.address, options=list(_options(options)))

    def count(self, name: str) -> int:
        return int(self.edge.stats()[name])

    def take(self) -> None:
        echoes = []
        for event in self.edge.take():
            kind, call = event[:2]
            if kind == liveness_edge.CALL:
                self.calls += 1
            if kind == liveness_edge.CALL and event[2] == ECHO:
                echoes.append((call, event[5]))
                continue
            if kind == liveness_edge.OPEN and event[2] == CHAT:
                self._chats.add(call)
            if call in self._chats:
                self._chat(event)
            else:
                self.events.append(event)
        if echoes:
            self.edge.answer(echoes)
        self._arrived.set()

    def _chat(self, event: tuple[Any, ...]) -> None:
        kind, call = event[:2]
        if kind == liveness_edge.MESSAGE:
            self.edge.send(call, event[2])
            self.edge.release(call, len(event[2]))
        elif kind in (liveness_edge.HALF_CLOSE, liveness_edge.CANCEL):
            self._chats.discard(call)
        if kind == liveness_edge.HALF_CLOSE:
            self.edge.finish(call, 0, "", [("answered", "yes")])

    async def event(
        self, kind: int, fits: Callable[[tuple[Any, ...]], bool] = lambda _event: True
    ) -> tuple[Any, ...]:
        """The first of its kind that has not been asked for."""
        while True:
            for event in self.events:
                if event[0] == kind and fits(event):
                    self.events.remove(event)
                    return event
            self._arrived.clear()
            await asyncio.wait_for(self._arrived.wait(), 20)

    async def until(self, condition: Callable[[], bool]) -> None:
        """For what the edge counts and does not tell."""
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.01)


def _options(options: dict[str, int]) -> list[tuple[str, int]]:
    # Channels with equal options share connections otherwise.
    return [
        ("grpc.use_local_subchannel_pool", 1),
        *((f"grpc.{name}", value) for name, value in options.items()),
    ]


@asynccontextmanager
async def running_edge(**limits: int) -> AsyncIterator[EdgeServer]:
    server = EdgeServer(**limits)
    server.start()
    try:
        yield server
    finally:
        server.stop()
