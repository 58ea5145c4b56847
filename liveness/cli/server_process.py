"""Run a server as a process: logs, signals, exit code."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import structlog

from liveness.app import Server
from liveness.cli.bridge_process import (
    BridgeRegistration,
    BridgeUnusable,
    own_bridge_settings,
    start_own_bridge,
)
from liveness.cli.descriptor_limit import raise_descriptor_limit
from liveness.cli.door_process import (
    DoorUnusable,
    http_doors,
    noetl_settings,
    own_entries,
    own_follower_settings,
    report_own_metrics,
    start_own_followers,
)
from liveness.cli.http_listener import HttpListenFailed, bind_http, start_http
from liveness.cli.missing_edge import log_missing_edge
from liveness.clock import Clock, SystemClock
from liveness.config.settings import Settings
from liveness.http.listen_address import loopback_address
from liveness.telemetry.logs import configure_logging

logger = structlog.get_logger("liveness.app")

EXIT_DISK_BROKEN = 74
# The store's thread needs the interpreter lock in short bursts. Taking it from a busy event loop costs both of them time:
# with 0.5 ms, batches of heartbeats were a quarter slower. An idle loop releases it at once anyway.
SWITCH_INTERVAL_S = 0.01
# Pending calls produce garbage that is best collected while it is young, with Python's own thresholds. Objects that
# survive, such as renewed workers, soon count as old, and every full collection visits all workers and finds nothing: with
# 200,000 workers, heartbeats cost half as much again. So full collections are rare.
GC_THRESHOLDS = (700, 10, 1_000)


async def serve(
    settings: Settings, on_ready: Callable[[str, str], None] | None = None, *, clock: Clock | None = None
) -> int:
    """Run until SIGTERM or SIGINT, and return the exit code. `on_ready` is called with the addresses of gRPC and of HTTP."""
    configure_logging(settings.log_level, settings.log_format)
    raise_descriptor_limit()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*GC_THRESHOLDS)
    gc.disable()  # recovery creates up to a million objects, and none of them is garbage
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    bridge_settings = own_bridge_settings(settings)
    follower_settings = own_follower_settings(settings)
    noetl = noetl_settings(settings)
    server = Server(settings, clock=clock)
    # Bind before the database is opened: a server must not take shards and then find its port in use.
    listen_address = bind_http(settings.http)
    if listen_address is not None:
        # Imported here: a server without HTTP does not need it, and the slow import must not delay a server that holds shards.
        import liveness.http.server  # noqa: F401

    try:
        await server.start()
    except BaseException:
        if listen_address is not None:
            listen_address.socket.close()
        raise
    finally:
        gc.enable()
    http_server = None
    if listen_address is not None:
        try:
            http_server = await start_http(
                server,
                listen_address,
                clock or SystemClock(),
                http=settings.http,
                hosts=settings.http_hosts,
                metrics=server.metrics,
                asks_callers=settings.auth == "on",
                doors=http_doors(noetl, clock or SystemClock()),
            )
        except HttpListenFailed:
            await server.stop()
            raise
    bridge, bridge_registration = None, None
    try:
        if bridge_settings is not None:
            bridge = await start_own_bridge(bridge_settings, server)
        followers = start_own_followers(follower_settings, server.address)
    except (BridgeUnusable, DoorUnusable):
        await server.stop()
        raise
    url = "" if http_server is None else http_server.url
    registration = (
        server.self_registration(url, own_entries(noetl, url)) if settings.register_self == "on" else None
    )
    if registration is not None:
        registration.start()
        report_own_metrics(noetl, server)
    if registration is not None and bridge is not None and bridge_settings is not None:
        own = replace(bridge_settings, liveness=(loopback_address(server.address),))
        bridge_registration = BridgeRegistration(own, bridge.address)
    logger.info(
        "serving",
        address=server.address,
        cluster=server.cluster_address,
        http=url,
        shards=settings.shards,
    )
    log_missing_edge(settings.listener, server.listener)
    if on_ready is not None:
        on_ready(server.address, url)
    stopping = asyncio.create_task(stop.wait())
    address_taken = server.membership.address_taken
    ends: set[asyncio.Future[Any]] = {stopping, server.node.broken, address_taken}
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if server.node.broken.done():
        # The server cannot commit or answer any more, so an orderly stop is impossible.
        logger.critical(
            "stopping at once: durability can no longer be promised", why=str(server.node.broken.result())
        )
        sys.stderr.flush()
        os._exit(EXIT_DISK_BROKEN)
    if address_taken.done():
        logger.error("stopping", why=str(address_taken.result()))
    else:
        logger.info("stopping")
    if http_server is not None:
        http_server.stop_accepting()
    for follower in followers:
        await follower.stop()
    if bridge_registration is not None:
        await bridge_registration.stop()
    if bridge is not None:
        await bridge.stop()
    if registration is not None:
        await registration.stop()
    await server.stop()
    if http_server is not None:
        await http_server.stop()
    logger.info("stopped")
    if address_taken.done():
        raise address_taken.result()
    return 0
