"""A server as a process: logs, signals, exit code."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import structlog

from liveness.app import Server
from liveness.clock import Clock
from liveness.logs import configure_logs
from liveness.settings import Settings

logger = structlog.get_logger("liveness.app")

EXIT_DISK_BROKEN = 74
# The store's thread needs the interpreter lock in short bursts. Snatching it from a busy event loop in mid-stride costs
# both of them time: with 0.5 ms, batches of heartbeats were a quarter slower. An idle loop gives it up at once anyway.
SWITCH_INTERVAL_S = 0.01


async def serve(
    settings: Settings, on_ready: Callable[[str], None] | None = None, *, clock: Clock | None = None
) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code."""
    configure_logs(settings.log_level, settings.log_format)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    server = Server(settings, clock=clock)
    await server.start()
    logger.info("serving", address=server.address, shards=settings.shards)
    if on_ready is not None:
        on_ready(server.address)
    stopping = asyncio.create_task(stop.wait())
    ends: set[asyncio.Future[Any]] = {stopping, server.node.broken}
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if server.node.broken.done():
        # Nothing can be committed or answered any more; an orderly end would only pretend.
        logger.critical(
            "stopping at once: nothing can be promised any more", why=str(server.node.broken.result())
        )
        sys.stderr.flush()
        os._exit(EXIT_DISK_BROKEN)
    logger.info("stopping")
    await server.stop()
    logger.info("stopped")
    return 0
