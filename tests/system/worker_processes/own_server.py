"""A test's own server, which returns at the same address each time it was ended."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from signal import Signals

from tests.system.server.conftest import NO_TAKEOVER_GRACE
from tests.system.server.server_process import ServerProcess

SHARDS = 4
PORTS = (20_000, 32_000)
"""Below the range from which the system assigns ports."""


@asynccontextmanager
async def own_server(folder: Path) -> AsyncIterator[ServerProcess]:
    listen = f"127.0.0.1:{free_port()}"
    server = ServerProcess(
        f"sqlite:///{folder / 'liveness.db'}",
        shards=SHARDS,
        flags=("--listen", listen),
        environ=NO_TAKEOVER_GRACE,
    )
    await server.start()
    assert server.address == listen
    try:
        yield server
    finally:
        await server.close()


async def restart(server: ServerProcess, how: Signals) -> None:
    code = await server.end(how)
    assert code in (0, -how), server.log_text()
    await server.disconnect()
    await server.start()


def free_port() -> int:
    random = Random()
    while True:
        port = random.randrange(*PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
