"""Two servers in one process, of which one asks who calls, and a frontend before each of them.

Two processes of the same program differ in speed by as much as 4 %, for as long as they run, because their memory is laid out
differently. In one process both sides have the same code in the same place, and what remains is the work for authentication.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import msgspec

from bench.liveness_server import HEARTBEAT_RATE
from bench.messages import NAMESPACE
from liveness.app import Server
from liveness.cli.server_process import GC_THRESHOLDS, SWITCH_INTERVAL_S
from liveness.clock import SystemClock
from liveness.config.frontend_settings import FrontendSettings
from liveness.config.settings import Settings
from liveness.frontend.app import Frontend
from liveness.security.first_token import create_first_token
from liveness.telemetry.logs import configure_logging
from liveness.v1.admin_pb2 import NamespaceConfig, UpdateConfigRequest
from liveness.v1.admin_pb2_grpc import AdminServiceStub
from liveness.v1.token_pb2 import CreateTokenRequest

LIMITS: dict[str, Any] = {"principal_calls_per_s": 1e9, "principal_calls_burst": 10**9}
"""What the limits of a principal cost is measured, and nothing is refused."""
LOOPBACK = "127.0.0.1:0"


class Side(msgspec.Struct):
    node: str
    """Its address."""
    frontend: str
    token: str = ""


class Sides(msgspec.Struct):
    """What the process prints when everything is served."""

    plain: Side
    asking: Side


async def main(asking_first: bool) -> None:
    """`asking_first`: start the server that asks before the other. In one process, too, the place of a server's memory matters."""
    configure_logging("error", "json")
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*GC_THRESHOLDS)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            started = {
                auth: await _start(stack, Path(folder), auth)
                for auth in (("on", "off") if asking_first else ("off", "on"))
            }
            print(msgspec.json.encode(Sides(started["off"], started["on"])).decode(), flush=True)
            await stop.wait()


async def _start(stack: AsyncExitStack, folder: Path, auth: str) -> Side:
    settings = Settings(
        db=f"sqlite:///{folder / auth}.db",
        listen=LOOPBACK,
        cluster_listen=LOOPBACK,
        auth=auth,
        http="off",
        **LIMITS,
    )
    server = await stack.enter_async_context(Server(settings))
    nodes = (server.cluster_address,)
    frontend = await stack.enter_async_context(
        Frontend(FrontendSettings(nodes=nodes, listen=LOOPBACK, auth=auth, **LIMITS))
    )
    side = Side(server.address, frontend.address)
    metadata: tuple[tuple[str, str], ...] = ()
    config: Any = NamespaceConfig(worker_heartbeat_rate=HEARTBEAT_RATE)
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub: Any = AdminServiceStub(channel)
        if server.authenticator is not None:
            admin = await create_first_token(server.store, SystemClock())
            await server.authenticator.tokens.refresh()
            metadata = (("authorization", f"Bearer {admin.text}"),)
            request = CreateTokenRequest(principal="bench", grants=[f"worker:{NAMESPACE}"])
            side.token = (await stub.CreateToken(request, metadata=metadata)).secret
        await stub.UpdateConfig(UpdateConfigRequest(set=config), metadata=metadata)
    return side


if __name__ == "__main__":
    asyncio.run(main(asking_first="--asking-first" in sys.argv))
