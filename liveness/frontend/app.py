"""The composition root of the frontend, a process without shards and state that forwards every call to the owner."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from types import TracebackType

import grpc
import structlog
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH_SERVICE_NAME
from grpc_reflection.v1alpha import reflection

from liveness.background import BackgroundTasks
from liveness.clock import Clock, SystemClock
from liveness.cluster.failure_detector import FailureDetector
from liveness.config.frontend_settings import FrontendSettings
from liveness.routing.channels import ChannelPool
from liveness.routing.discovery import NodeRouteSource, RouteRefresher
from liveness.routing.gateway import Gateway
from liveness.routing.routing_table import Member, RoutingTable
from liveness.routing.unknown_methods import UnknownMethodHandler
from liveness.rpc.tracing import create_tracer
from liveness.server.grpc_registration import register_service
from liveness.server.health import Health
from liveness.store.errors import StoreError, StoreUnusable
from liveness.store.node_registry import NodeState
from liveness.store.postgres import PostgresDatabase
from liveness.store.sql import SqlStore
from liveness.telemetry.logs import configure_logging
from liveness.v1 import activity_pb2, admin_pb2, service_pb2

logger = structlog.get_logger("liveness.frontend")

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
SERVICES = (
    service_pb2.DESCRIPTOR.services_by_name["LivenessService"],
    activity_pb2.DESCRIPTOR.services_by_name["ActivityService"],
    admin_pb2.DESCRIPTOR.services_by_name["AdminService"],
)


class ListenFailed(StoreUnusable):
    template = "Cannot listen on {listen}: it is in use, or not an address of this machine; choose another with --listen."

    listen: str


class DatabaseRouteSource:
    """Reads the routes from the nodes' database, and writes nothing to it."""

    def __init__(self, url: str, routes: RoutingTable, clock: Clock) -> None:
        self._store = SqlStore(PostgresDatabase(url))
        self._routes = routes
        self._clock = clock
        self._failure_detector = FailureDetector()
        self._last_error = ""

    async def refresh(self) -> bool:
        started_ms = self._clock.monotonic_ms()
        try:
            view = await self._store.read_cluster()
        except StoreError as error:
            if self._last_error != str(error):
                logger.warning("cannot read the database; using the routes read last", why=str(error))
            self._last_error = str(error)
            return False
        self._last_error = ""
        self._routes.set_shard_count(len(view.shards))
        lost = self._failure_detector.refresh(view.nodes, started_ms, self._clock.monotonic_ms())
        self._routes.replace(
            [
                Member(node.node_id, node.address, node.state is NodeState.LEAVING)
                for node in view.nodes
                if node.node_id not in lost
            ],
            {head.shard_id: (head.owner, head.epoch) for head in view.shards},
        )
        return True

    def mark_stale(self) -> None:
        """Nothing to do: there is only one database."""

    async def close(self) -> None:
        await self._store.close()


class Frontend:
    def __init__(self, settings: FrontendSettings, *, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        # Without fresh routes, other frontends serve better.
        self._tasks = BackgroundTasks("frontend", on_failure=lambda error: self._health.stop_serving())
        instance = f"{socket.gethostname()}:{os.getpid()}"
        self._tracer = create_tracer(settings.traces, service="liveness-frontend", instance=instance)
        self.address = ""
        """host:port, with the actual port if port 0 was set."""

    async def __aenter__(self) -> Frontend:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Return as soon as the frontend listens. Its health service says whether any node can be reached."""
        settings, clock = self._settings, self._clock
        self.routes = routes = RoutingTable(0)
        self._source = (
            DatabaseRouteSource(settings.db, routes, clock)
            if settings.db
            else NodeRouteSource(settings.nodes, routes, clock)
        )
        self._refresher = RouteRefresher(self._source.refresh, clock, self._on_refreshed)
        channels = ChannelPool()
        self.gateway = Gateway(
            routes, channels, clock, on_node_unreachable=self._on_node_unreachable, tracer=self._tracer
        )
        self._health = Health([descriptor.full_name for descriptor in SERVICES])
        await self._listen(settings, UnknownMethodHandler(self.gateway.forwarder, channels))
        self._tasks.start(self._refresher.run())

    async def _listen(self, settings: FrontendSettings, unknown_methods: UnknownMethodHandler) -> None:
        self._grpc = server = grpc.aio.server(
            options=[("grpc.max_receive_message_length", MESSAGE_BYTES_MAX), ("grpc.so_reuseport", 0)]
        )
        for descriptor in SERVICES:
            register_service(
                server, descriptor, None, _no_commit_to_await, gateway=self.gateway, tracer=self._tracer
            )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        if settings.reflection:
            names = [descriptor.full_name for descriptor in SERVICES]
            reflection.enable_server_reflection(
                [*names, HEALTH_SERVICE_NAME, reflection.SERVICE_NAME], server
            )
        server.add_generic_rpc_handlers((unknown_methods,))
        host, _, _ = settings.listen.rpartition(":")
        try:
            port = server.add_insecure_port(settings.listen)
        except RuntimeError as error:
            raise ListenFailed(listen=settings.listen) from error
        await server.start()
        self.address = f"{host}:{port}"

    def _on_refreshed(self) -> None:
        if bool(self.routes.members()) != self._health.is_serving:
            if self._health.is_serving:
                self._health.stop_serving()
            else:
                self._health.serve()
            logger.info("nodes", reachable=self._health.is_serving, known=len(self.routes.members()))

    def _on_node_unreachable(self) -> None:
        self._source.mark_stale()
        self._refresher.refresh_now()

    async def stop(self) -> None:
        await self._health.enter_graceful_shutdown()
        self.gateway.close_streams()
        await self._grpc.stop(self._settings.shutdown_timeout_s)
        await self._tasks.close()
        await self.gateway.close()
        await self._source.close()
        if self._tracer is not None:
            await self._tracer.close()


async def _no_commit_to_await() -> None:
    """A frontend has nothing to commit: a node answers only after its own commit."""


async def serve(settings: FrontendSettings, on_ready: Callable[[str], None] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code."""
    configure_logging(settings.log_level, settings.log_format)
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    frontend = Frontend(settings)
    await frontend.start()
    logger.info("serving", address=frontend.address)
    if on_ready is not None:
        on_ready(frontend.address)
    await stop.wait()
    logger.info("stopping")
    await frontend.stop()
    logger.info("stopped")
    return 0
