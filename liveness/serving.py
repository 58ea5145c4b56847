"""A server as a process: logs, signals, exit code."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog

from liveness.app import Server
from liveness.clock import Clock, SystemClock
from liveness.http.places import Place, loopback, take
from liveness.logs import configure_logs
from liveness.settings import HTTP_OFF, Settings, host_port
from liveness.store.errors import StoreUnusable

if TYPE_CHECKING:
    from liveness.http.face import Face

logger = structlog.get_logger("liveness.app")

EXIT_DISK_BROKEN = 74
# The store's thread needs the interpreter lock in short bursts. Snatching it from a busy event loop in mid-stride costs
# both of them time: with 0.5 ms, batches of heartbeats were a quarter slower. An idle loop gives it up at once anyway.
SWITCH_INTERVAL_S = 0.01
# Calls under way make garbage that is best collected while it is young, as Python does by itself. What survives, workers
# just renewed included, soon counts as old, and then every full collection looks at all workers there are and finds nothing:
# with 200,000 of them, heartbeats cost half as much again. So those are rare.
COLLECTOR_THRESHOLDS = (700, 10, 1_000)


class HttpListenFailed(StoreUnusable):
    """Cannot listen for HTTP on {http}: {why}; choose another place with --http, or --http off."""


def _take(settings: Settings) -> Place | None:
    if settings.http == HTTP_OFF:
        return None
    where = host_port(settings.http)
    assert where is not None, settings.http
    try:
        return take(*where)
    except OSError as error:
        raise HttpListenFailed(http=settings.http, why=_why(error)) from error


async def _show_face(server: Server, place: Place, settings: Settings, clock: Clock) -> Face:
    from liveness.http.face import Face

    face = Face(loopback(server.address), place, clock, hosts=settings.http_hosts, metrics=server.metrics)
    try:
        await face.start()
    except OSError as error:
        await server.stop()
        raise HttpListenFailed(http=settings.http, why=_why(error)) from error
    return face


def _why(error: OSError) -> str:
    return "it is in use" if error.errno == errno.EADDRINUSE else (error.strerror or str(error)).lower()


async def serve(
    settings: Settings, on_ready: Callable[[str, str], None] | None = None, *, clock: Clock | None = None
) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code. `on_ready`: is told the addresses of gRPC and of HTTP."""
    configure_logs(settings.log_level, settings.log_format)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
    gc.disable()  # what is read back is no garbage, and there may be a million of it
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    # Before anything is opened: nobody takes up shards only to find that another one sits in this place.
    place = _take(settings)
    if place is not None:
        # Who turns it off need not wait for it, and nobody should wait for it once there are shards to look after.
        import liveness.http.face  # noqa: F401

    server = Server(settings, clock=clock)
    try:
        await server.start()
    except BaseException:
        if place is not None:
            place.socket.close()
        raise
    finally:
        gc.enable()
    face = None if place is None else await _show_face(server, place, settings, clock or SystemClock())
    url = "" if face is None else face.url
    logger.info("serving", address=server.address, http=url, shards=settings.shards)
    if on_ready is not None:
        on_ready(server.address, url)
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
    if face is not None:
        face.close_doors()
    await server.stop()
    if face is not None:
        await face.stop()
    logger.info("stopped")
    return 0
