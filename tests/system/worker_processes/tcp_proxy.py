"""The network between workers and their server: a TCP proxy that can inject faults."""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from types import TracebackType
from typing import Self

CHUNK_BYTES = 64 * 1024


class ForwardMode(Enum):
    """What happens to bytes in one direction."""

    PASS = auto()
    DROP = auto()
    """Bytes are dropped. The connection is useless afterwards; `heal` cuts it."""
    HOLD = auto()
    """Bytes wait and arrive late: `heal` passes them on."""


class Proxy:
    """Listens at `address` and forwards to `target`, subject to the faults."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.to_server = ForwardMode.PASS
        self.to_client = ForwardMode.PASS
        self.delay_seconds = 0.0
        """For every chunk of data, in each direction."""
        self.accepted = 0
        """Connections so far."""
        self.passes = asyncio.Event()
        """Set while nothing is held."""
        self.passes.set()
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self.address = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = "127.0.0.1:{1}".format(*self._server.sockets[0].getsockname())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.heal()
        while self._connections:
            self.cut()  # also the connections that were accepted earlier and are only complete now
            await asyncio.sleep(0)
        await self._server.wait_closed()

    # -- faults

    def black_hole(self, way: ForwardMode = ForwardMode.DROP) -> None:
        """Accept connections and forward nothing, like a machine that vanished."""
        self._set(to_server=way, to_client=way)

    def lose_answers(self) -> None:
        """Drop the server's answers; the clients' requests arrive."""
        self._set(to_server=ForwardMode.PASS, to_client=ForwardMode.DROP)

    def heal(self) -> None:
        """Cut the connections that lost data; let the others continue."""
        self._set(to_server=ForwardMode.PASS, to_client=ForwardMode.PASS)
        self.delay_seconds = 0.0
        for connection in list(self._connections):
            if connection.damaged:
                connection.cut()

    def cut(self) -> None:
        """Reset all connections, and accept new ones."""
        for connection in list(self._connections):
            connection.cut()

    def vanish(self) -> None:
        """Reset all connections and stop listening, like a killed process."""
        assert self._server is not None
        self._server.close()
        self.cut()

    async def come_back(self) -> None:
        """Listen again at the same address, after `vanish`."""
        host, port = self.address.split(":")
        self._server = await asyncio.start_server(self._serve, host, int(port))

    def half_close(self, *, towards_server: bool) -> None:
        """Close one direction of all connections gracefully, and leave the other open."""
        for connection in list(self._connections):
            connection.half_close(towards_server=towards_server)

    @property
    def connections(self) -> frozenset[Connection]:
        return frozenset(self._connections)

    def _set(self, *, to_server: ForwardMode, to_client: ForwardMode) -> None:
        self.to_server, self.to_client = to_server, to_client
        if ForwardMode.HOLD in (to_server, to_client):
            self.passes.clear()
        else:
            self.passes.set()

    # -- forwarding

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        host, port = self.target.split(":")
        try:
            beyond = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        connection = Connection(self, (reader, writer), beyond)
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)


class _Reset:
    """One side has reset the connection."""


class Connection:
    """A connection between a client and the server, as the proxy holds it."""

    def __init__(
        self,
        proxy: Proxy,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._proxy = proxy
        self._client_reader, self._client_writer = client
        self._server_reader, self._server_writer = server
        self._closed: set[asyncio.StreamWriter] = set()
        """Directions that were closed gracefully; data for them is dropped."""
        self.damaged = False
        """Whether data on it was lost."""

    async def run(self) -> None:
        """Forward until either side resets the connection, or both have closed it."""
        directions = (
            asyncio.create_task(self._pass_on(self._client_reader, self._server_writer, to_server=True)),
            asyncio.create_task(self._pass_on(self._server_reader, self._client_writer, to_server=False)),
        )
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_EXCEPTION)
            if not any(direction.done() and direction.exception() for direction in directions):
                self._client_writer.close()
                self._server_writer.close()
        finally:
            await _stop(*directions)
            self.cut()

    def cut(self) -> None:
        self._client_writer.transport.abort()
        self._server_writer.transport.abort()

    def half_close(self, *, towards_server: bool) -> None:
        self._close(self._server_writer if towards_server else self._client_writer)

    def _close(self, writer: asyncio.StreamWriter) -> None:
        if writer not in self._closed and not writer.is_closing():
            self._closed.add(writer)
            writer.write_eof()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_server: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[float, bytes | type[_Reset]]] = asyncio.Queue()
        delivery = asyncio.create_task(self._deliver(queue, writer, to_server=to_server))
        try:
            data: bytes | type[_Reset] = _Reset
            while data:
                try:
                    data = await reader.read(CHUNK_BYTES)
                except ConnectionError:
                    data = _Reset
                queue.put_nowait((loop.time() + self._proxy.delay_seconds, data))
                if data is _Reset:
                    break
            await delivery
        finally:
            await _stop(delivery)

    async def _deliver(
        self,
        queue: asyncio.Queue[tuple[float, bytes | type[_Reset]]],
        writer: asyncio.StreamWriter,
        *,
        to_server: bool,
    ) -> None:
        loop = asyncio.get_running_loop()
        data: bytes | type[_Reset] = b"-"
        while data and data is not _Reset:
            due, data = await queue.get()
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            while self._mode(to_server=to_server) is ForwardMode.HOLD:
                await self._proxy.passes.wait()
            if self._mode(to_server=to_server) is ForwardMode.DROP:
                self.damaged = True
            elif data is _Reset:
                raise ConnectionResetError
            elif writer not in self._closed:
                assert isinstance(data, bytes)
                if data:
                    writer.write(data)
                    await writer.drain()
                else:
                    self._close(writer)

    def _mode(self, *, to_server: bool) -> ForwardMode:
        return self._proxy.to_server if to_server else self._proxy.to_client


async def _stop(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
