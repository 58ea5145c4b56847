"""A frontend as `liveness frontend` starts it, or one without coalescing; the difference is the gain by coalescing."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

from liveness.config.frontend_settings import FrontendSettings
from liveness.frontend.app import Frontend
from liveness.security.forwarded_callers import item_metadata
from liveness.telemetry.logs import configure_logging

UNARY_PATH = "/liveness.v1.LivenessService/RecordWorkerHeartbeat"


class WithoutCoalescing:
    """Replaces the coalescer, and forwards every heartbeat by itself."""

    def __init__(self, forwarder):
        self._forwarder = forwarder

    async def send(self, owner, namespace, request, timeout_s, principal=b""):
        return await self._forwarder.send(UNARY_PATH, request, owner, item_metadata([principal]), timeout_s)


async def main(listen, where, how):
    """`where`: the URL of the database, or nodes=HOST:PORT. `how`: coalescing or alone, with the listener in Python, or edge."""
    configure_logging("error", "json")
    listener = "edge" if how == "edge" else "python"
    if where.startswith("nodes="):
        nodes = (where.removeprefix("nodes="),)
        frontend = Frontend(FrontendSettings(nodes=nodes, listen=listen, listener=listener))
    else:
        frontend = Frontend(FrontendSettings(db=where, listen=listen, listener=listener))
    async with frontend:
        if how == "alone":
            gateway: Any = frontend.gateway
            gateway.coalescer = WithoutCoalescing(gateway.forwarder)
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        print(frontend.address.rpartition(":")[2], flush=True)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
