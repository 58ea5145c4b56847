"""Run a bridge as a process: logs, signals, metrics, exit code."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from liveness.cli.bridge_options import SERVER_PREFIX, make_bridge_settings, server_values
from liveness.cli.client import credentials_of
from liveness.cli.descriptor_limit import raise_descriptor_limit
from liveness.cli.errors import UsageError
from liveness.config.settings import Settings, load_client_settings
from liveness.http.listen_address import loopback_address
from liveness.telemetry.logs import configure_logging
from liveness.version import VERSION

if TYPE_CHECKING:
    from liveness.app import Server
    from liveness.bridges.temporal.bridge import TemporalBridge
    from liveness.bridges.temporal.settings import BridgeSettings

logger = structlog.get_logger("liveness.bridge")

REGISTRY_NAMESPACE = "liveness"
GOODBYE_S = 1.0


class BridgeUnusable(Exception):
    """The message says why a server cannot run its bridge."""


def own_bridge_settings(settings: Settings) -> BridgeSettings | None:
    """The settings of the bridge that a server runs itself; None if it runs none. The address of
    liveness is added when the server knows it. Raises BridgeUnusable."""
    if not settings.bridge_temporal:
        return None
    client = load_client_settings({}, os.environ)
    if settings.auth == "on" and not client.token_file:
        raise BridgeUnusable(
            "the bridge needs a token where every call needs a credential; set LIVENESS_TOKEN_FILE, or run `liveness bridge temporal`"
        )
    if settings.tls_cert_file and not client.uses_tls:
        raise BridgeUnusable(
            "the bridge must check the certificate of its server; set LIVENESS_TLS_CA_FILE, or run `liveness bridge temporal`"
        )
    try:
        return make_bridge_settings(
            server_values(settings),
            upstream=settings.bridge_temporal,
            liveness=(),
            credentials=credentials_of(client),
            insecure=settings.insecure,
            prefix=SERVER_PREFIX,
        )
    except UsageError as error:
        raise BridgeUnusable(error.message) from error


async def start_own_bridge(settings: BridgeSettings, server: Server) -> TemporalBridge:
    """Start the bridge of a server: a client of its own server, which publishes the bridge's metrics with its own."""
    # Imported here: a server without a bridge does not need it.
    from liveness.bridges.temporal.bridge import ListenFailed, TemporalBridge
    from liveness.bridges.temporal.statistics import METRICS
    from liveness.sdk.errors import InvalidCredentials

    try:
        bridge = TemporalBridge(replace(settings, liveness=(loopback_address(server.address),)))
        await bridge.start()
    except (ListenFailed, InvalidCredentials) as error:
        raise BridgeUnusable(f"the bridge cannot start: {error}") from error
    server.export_metrics_of(bridge.statistics, METRICS)
    logger.info("bridge to Temporal", address=bridge.address, upstream=settings.upstream)
    return bridge


class BridgeRegistration:
    """A bridge as a component in the registry, for people. It can neither delay nor fail the bridge."""

    def __init__(self, settings: BridgeSettings, address: str) -> None:
        # Imported here: a server without a bridge does not need it.
        from liveness.sdk.errors import LivenessSdkError
        from liveness.sdk.registration import Registration

        name = f"{socket.gethostname()}:{address.rpartition(':')[2]}"
        self._registration: Registration | None = None
        try:
            self._registration = Registration(
                settings.liveness,
                f"broker:{name}",
                namespace=REGISTRY_NAMESPACE,
                uri=f"grpc://{address}",
                labels={"component": "bridge"},
                runtime={"version": VERSION, "upstream": ",".join(settings.upstream)},
                # Only one process listens there, so the next one goes on as the same.
                session=name,
                tls=settings.credentials.tls,
                token=settings.credentials.token,
            ).start_soon()
        except LivenessSdkError as error:
            logger.warning("this bridge is missing in the registry", why=str(error))

    async def stop(self) -> None:
        if self._registration is not None:
            await asyncio.to_thread(self._registration.stop, "it stops", GOODBYE_S)


async def run_bridge(
    settings: BridgeSettings,
    on_ready: Callable[[str], None],
    metrics: str,
    log_level: str,
    log_format: str,
    *,
    registers: bool = True,
) -> int:
    """Run until SIGTERM or SIGINT, and return the exit code. `on_ready` is called with the bridge's address."""
    from liveness.bridges.temporal.bridge import TemporalBridge
    from liveness.bridges.temporal.metrics_listener import start_metrics

    configure_logging(log_level, log_format)
    raise_descriptor_limit()
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    bridge = TemporalBridge(settings)
    listener = await start_metrics(metrics, bridge.metrics) if metrics else None
    await bridge.start()
    logger.info("serving", address=bridge.address, upstream=settings.upstream, liveness=settings.liveness)
    on_ready(bridge.address)
    registration = BridgeRegistration(settings, bridge.address) if registers else None
    await stop.wait()
    logger.info("stopping")
    if registration is not None:
        await registration.stop()
    if listener is not None:
        listener.close()
    await bridge.stop()
    logger.info("stopped")
    return 0
