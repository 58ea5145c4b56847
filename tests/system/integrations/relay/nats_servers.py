"""Real NATS servers from the wheel: one, or a cluster, that tests kill, wipe and restart."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import DeliverPolicy

from tests.free_ports import free_port

PROGRAM = Path(sys.executable).parent / "nats-server"
READY_SECONDS_MAX = 30
START_ATTEMPTS = 10
STREAM = "LIVENESS"


class NatsFailed(Exception):
    pass


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class NatsServer:
    def __init__(self, folder: Path, name: str, config: str = "") -> None:
        self.name = name
        self.port = free_port()
        self.route_port = free_port()
        self.config = config
        self.routes: list[int] = []
        """The ports of the cluster, if there is one."""
        self._folder = folder / name
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start the server, and return when it accepts connections."""
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder.with_suffix(".conf")
        cluster = ""
        if self.routes:
            routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in self.routes)
            cluster = f'cluster {{ name: test, listen: "127.0.0.1:{self.route_port}", routes: [{routes}] }}'
        config.write_text(
            f'server_name: {self.name}\nlisten: "127.0.0.1:{self.port}"\n'
            f'jetstream {{ store_dir: "{self._folder}" }}\n{cluster}\n{self.config}\n'
        )
        log = self._folder.with_suffix(".log")
        self._process = await asyncio.create_subprocess_exec(
            PROGRAM, "-c", config, "-l", log, preexec_fn=_die_with_parent, stderr=asyncio.subprocess.DEVNULL
        )
        async with asyncio.timeout(READY_SECONDS_MAX):
            while not await self._accepts():
                if self._process.returncode is not None:
                    self._process = None
                    raise NatsFailed(log.read_text())
                await asyncio.sleep(0.02)

    async def _accepts(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        await writer.wait_closed()
        return True

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        await self._end(signal.SIGTERM)

    async def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.send_signal(how)
        if process is not None:
            await process.wait()

    def wipe(self) -> None:
        """Delete its data."""
        assert self._process is None, "it runs"
        shutil.rmtree(self._folder)

    def freeze(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)


@asynccontextmanager
async def one_server(folder: Path, config: str = "") -> AsyncIterator[NatsServer]:
    server = await _started(lambda: [NatsServer(folder, "alone", config)])
    try:
        yield server[0]
    finally:
        await server[0].kill()


@asynccontextmanager
async def three_servers(folder: Path) -> AsyncIterator[list[NatsServer]]:
    def make() -> list[NatsServer]:
        servers = [NatsServer(folder, f"nats-{letter}") for letter in "abc"]
        for server in servers:
            server.routes = [other.route_port for other in servers]
        return servers

    servers = await _started(make)
    try:
        yield servers
    finally:
        await asyncio.gather(*(server.kill() for server in servers))


async def _started(make: Any) -> list[NatsServer]:
    """Start a server, and try another port if the chosen one was taken meanwhile."""
    for attempt in range(START_ATTEMPTS):
        servers: list[NatsServer] = make()
        try:
            await asyncio.gather(*(server.start() for server in servers))
        except NatsFailed:
            await asyncio.gather(*(server.kill() for server in servers))
            if attempt == START_ATTEMPTS - 1:
                raise
        else:
            return servers
    raise AssertionError


# -- reading the stream


@asynccontextmanager
async def client_of(servers: Sequence[NatsServer]) -> AsyncIterator[Client]:
    async def ignore(error: Exception) -> None:
        pass

    client = await nats.connect(
        [server.url for server in servers], error_cb=ignore, max_reconnect_attempts=-1
    )
    try:
        yield client
    finally:
        await client.close()


async def messages(servers: Sequence[NatsServer], subject: str = "liveness.>") -> list[Any]:
    """Return all messages of the stream, in order."""
    async with client_of(servers) as client:
        streams = client.jetstream(timeout=10)
        while not (info := await streams.stream_info(STREAM, subjects_filter=subject)).state.subjects:
            # In a cluster, a broker that has just become the leader may not know its messages yet. Whoever wants to read an
            # empty stream runs one broker.
            if len(servers) == 1:
                return []
            print("an empty stream:", info.state, info.cluster)
            await asyncio.sleep(0.2)
        subscription = await streams.subscribe(
            subject, ordered_consumer=True, deliver_policy=DeliverPolicy.ALL
        )
        found: list[Any] = []
        while not found or found[-1].metadata.num_pending:
            found.append(await subscription.next_msg(timeout=10))
        return found


async def count(servers: Sequence[NatsServer]) -> int:
    """Return the number of messages in the stream; -1 while no server answers."""
    try:
        async with asyncio.timeout(5), client_of(servers) as client:
            return (await client.jetstream(timeout=2).stream_info(STREAM)).state.messages
    except (NatsError, OSError, TimeoutError):
        return -1


async def leader(servers: Sequence[NatsServer]) -> NatsServer:
    async with asyncio.timeout(READY_SECONDS_MAX):
        while True:
            try:
                async with client_of(servers) as client:
                    info = await client.jetstream(timeout=2).stream_info(STREAM)
            except NatsError:
                await asyncio.sleep(0.05)
                continue
            name = info.cluster.leader if info.cluster is not None else None
            for server in servers:
                if server.name == name:
                    return server


async def all_current(servers: Sequence[NatsServer]) -> bool:
    """Return whether every server has a current copy of the stream."""
    try:
        async with client_of(servers) as client:
            cluster = (await client.jetstream(timeout=2).stream_info(STREAM)).cluster
    except NatsError:
        return False
    replicas = (cluster.replicas or []) if cluster is not None else []
    return len(replicas) == len(servers) - 1 and all(
        peer.current and not peer.offline and not peer.lag for peer in replicas
    )


def body(message: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(message.data)
    return decoded


def id_of(message: Any) -> str:
    identifier: str = message.headers["Nats-Msg-Id"]
    return identifier
