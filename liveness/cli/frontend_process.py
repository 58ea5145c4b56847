"""Run a frontend as a process: logs, signals, exit code."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import structlog

from liveness.cli.descriptor_limit import raise_descriptor_limit
from liveness.cli.http_listener import HttpListenFailed, bind_http, start_http
from liveness.cli.missing_edge import log_missing_edge
from liveness.clock import SystemClock
from liveness.config.frontend_settings import FrontendSettings
from liveness.frontend.app import Frontend
from liveness.telemetry.logs import configure_logging

logger = structlog.get_logger("liveness.frontend")


async def serve(settings: FrontendSettings, on_ready: Callable[[str, str], None] | None = None) -> int:
    """Run until SIGTERM or SIGINT, and return the exit code. `on_ready` is called with the addresses of gRPC and of HTTP."""
    configure_logging(settings.log_level, settings.log_format)
    raise_descriptor_limit()
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    frontend = Frontend(settings)
    listen_address = bind_http(settings.http)
    try:
        await frontend.start()
    except BaseException:
        if listen_address is not None:
            listen_address.socket.close()
        raise
    http_server = None
    if listen_address is not None:
        try:
            http_server = await start_http(
                frontend,
                listen_address,
                SystemClock(),
                http=settings.http,
                hosts=settings.http_hosts,
                metrics=frontend.metrics,
                asks_callers=settings.auth == "on",
            )
        except HttpListenFailed:
            await frontend.stop()
            raise
    url = "" if http_server is None else http_server.url
    registration = frontend.self_registration(url) if settings.register_self == "on" else None
    if registration is not None:
        registration.start()
    logger.info("serving", address=frontend.address, http=url)
    log_missing_edge(settings.listener, frontend.listener)
    if on_ready is not None:
        on_ready(frontend.address, url)
    await stop.wait()
    logger.info("stopping")
    if http_server is not None:
        http_server.stop_accepting()
    if registration is not None:
        await registration.stop()
    await frontend.stop()
    if http_server is not None:
        await http_server.stop()
    logger.info("stopped")
    return 0
