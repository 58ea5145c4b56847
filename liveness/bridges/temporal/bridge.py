"""The bridge, put together: a listener for workers, the connections to Temporal, and the client of liveness."""

from __future__ import annotations

from typing import Any

import grpc
import structlog

from liveness.background import BackgroundTasks
from liveness.bridges.temporal.hints import ConnectionHints
from liveness.bridges.temporal.interceptors import Interceptors
from liveness.bridges.temporal.proxy import TemporalProxy
from liveness.bridges.temporal.recorder import Recorder
from liveness.bridges.temporal.rescuer import Rescuer
from liveness.bridges.temporal.settings import BridgeSettings
from liveness.bridges.temporal.statistics import METRICS, BridgeStatistics
from liveness.bridges.temporal.upstream import Upstream
from liveness.bridges.temporal.worker_api import WorkerApi
from liveness.clock import Clock, SystemClock
from liveness.sdk.loop_client import LivenessClient
from liveness.telemetry.prometheus import PrometheusExporter

logger = structlog.get_logger("liveness.bridge")

LISTENER_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 1024 * 1024),
    ("grpc.absolute_max_metadata_size", 4 * 1024 * 1024),
    ("grpc.so_reuseport", 0),
    # Workers ping more often than gRPC's servers like by default; Temporal's allow it.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
)
SWEEP_MS = 10_000
STOP_GRACE_S = 1.0


class ListenFailed(Exception):
    """The message says on which address."""


class TemporalBridge:
    def __init__(self, settings: BridgeSettings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self.statistics = BridgeStatistics()
        self.address = ""
        self._client = LivenessClient(settings.liveness, settings.credentials)
        self._upstream = Upstream(settings, self._clock)
        self.recorder = Recorder(settings, self._client, self._clock, self.statistics)
        self._rescuer = Rescuer(
            settings, self._upstream, self._client, self.recorder, self._clock, self.statistics
        )
        self._hints = ConnectionHints(settings, self.recorder, self._clock)
        self._interceptors = Interceptors(
            self.recorder, self._rescuer, self._upstream, self._hints, self.statistics, self._clock
        )
        self._exporter = PrometheusExporter(self.statistics, METRICS)
        self._server: grpc.aio.Server | None = None
        self._tasks = BackgroundTasks("temporal bridge")

    async def start(self) -> None:
        """Listen. Neither Temporal nor liveness need be there."""
        proxy = TemporalProxy(
            self._upstream, self.statistics, self._interceptors.table() | WorkerApi(self._client).table()
        )
        server = self._server = grpc.aio.server(options=LISTENER_OPTIONS)
        server.add_generic_rpc_handlers((proxy,))
        listen, tls = self._settings.listen, self._settings.listen_tls
        try:
            if tls is None:
                port = server.add_insecure_port(listen)
            else:
                credentials = grpc.ssl_server_credentials(
                    [(tls.key, tls.certificate)], tls.client_ca, tls.client_ca is not None
                )
                port = server.add_secure_port(listen, credentials)
        except RuntimeError:
            raise ListenFailed(
                f"cannot listen on {listen}: it is in use, or not an address of this machine"
            ) from None
        self.address = f"{listen.rpartition(':')[0]}:{port}"
        await server.start()
        self.recorder.start()
        self._hints.start()
        self._tasks.start(self._sweep())

    def metrics(self) -> tuple[bytes, str]:
        return self._exporter.render()

    async def stop(self) -> None:
        # Hints first: the connections that break now say nothing about workers.
        await self._hints.close()
        await self._tasks.close()
        await self._rescuer.close()
        if self._server is not None:
            await self._server.stop(STOP_GRACE_S)
        await self._interceptors.close()
        await self.recorder.close()
        await self._upstream.close()
        self._client.close()

    async def _sweep(self) -> None:
        while True:
            await self._clock.sleep(SWEEP_MS)
            await self._upstream.close_idle()
