"""Run a bridge as a process: logs, signals, metrics, exit code."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import structlog

from liveness.bridges.temporal.bridge import TemporalBridge
from liveness.bridges.temporal.metrics_listener import start_metrics
from liveness.bridges.temporal.settings import BridgeSettings
from liveness.cli.descriptor_limit import raise_descriptor_limit
from liveness.telemetry.logs import configure_logging

logger = structlog.get_logger("liveness.bridge")


async def run_bridge(
    settings: BridgeSettings,
    on_ready: Callable[[str], None],
    metrics: str,
    log_level: str,
    log_format: str,
) -> int:
    """Run until SIGTERM or SIGINT, and return the exit code. `on_ready` is called with the bridge's address."""
    configure_logging(log_level, log_format)
    raise_descriptor_limit()
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    bridge = TemporalBridge(settings)
    await bridge.start()
    listener = await start_metrics(metrics, bridge.metrics) if metrics else None
    logger.info("serving", address=bridge.address, upstream=settings.upstream, liveness=settings.liveness)
    on_ready(bridge.address)
    await stop.wait()
    logger.info("stopping")
    if listener is not None:
        listener.close()
    await bridge.stop()
    logger.info("stopped")
    return 0
