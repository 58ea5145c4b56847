"""A test's own server, which returns at the same address each time it was ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from signal import Signals

from tests.free_ports import free_port
from tests.system.server.conftest import NO_TAKEOVER_GRACE
from tests.system.server.server_process import ServerProcess

SHARDS = 4


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
