"""The composition of a frontend: a process that has no shards and no state, and carries every call to who serves it."""

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

from liveness.clock import Clock, SystemClock
from liveness.cluster.lookout import Lookout
from liveness.frontend.channels import Channels
from liveness.frontend.gateway import Gateway
from liveness.frontend.looking import AskNodes, Watch
from liveness.frontend.routes import Member, Routes
from liveness.frontend.unknown import Unknown
from liveness.frontend_settings import FrontendSettings
from liveness.logs import configure_logs
from liveness.server.binding import bind
from liveness.server.health import Health
from liveness.store.errors import StoreError, StoreUnusable
from liveness.store.nodes import NodeState
from liveness.store.postgres import PostgresDatabase
from liveness.store.sql import SqlStore
from liveness.tracing import traces_of
from liveness.v1 import activity_pb2, admin_pb2, service_pb2

logger = structlog.get_logger("liveness.frontend")

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
SERVICES = (
    service_pb2.DESCRIPTOR.services_by_name["LivenessService"],
    activity_pb2.DESCRIPTOR.services_by_name["ActivityService"],
    admin_pb2.DESCRIPTOR.services_by_name["AdminService"],
)


class ListenFailed(StoreUnusable):
    """Cannot listen on {listen}: it is in use, or not an address of this machine; choose another with --listen."""


class LookAtDatabase:
    """Nodes register themselves where they keep everything else. It is only read here."""

    def __init__(self, url: str, routes: Routes, clock: Clock) -> None:
        self._store = SqlStore(PostgresDatabase(url))
        self._routes = routes
        self._clock = clock
        self._lookout = Lookout()
        self._trouble = ""

    async def look(self) -> bool:
        began_ms = self._clock.monotonic_ms()
        try:
            view = await self._store.look_at_cluster()
        except StoreError as error:
            if self._trouble != str(error):
                logger.warning(
                    "cannot look at the database; the nodes last seen are still used", why=str(error)
                )
            self._trouble = str(error)
            return False
        self._trouble = ""
        self._routes.settle_count(len(view.shards))
        lost = self._lookout.look(view.nodes, began_ms, self._clock.monotonic_ms())
        self._routes.replace(
            [
                Member(node.node_id, node.address, node.state is NodeState.LEAVING)
                for node in view.nodes
                if node.node_id not in lost
            ],
            {head.shard_id: (head.owner, head.epoch) for head in view.shards},
        )
        return True

    def distrust(self) -> None:
        """There is only one database."""

    async def close(self) -> None:
        await self._store.close()


class Frontend:
    def __init__(self, settings: FrontendSettings, *, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._running: asyncio.Task[None] | None = None
        instance = f"{socket.gethostname()}:{os.getpid()}"
        self._traces = traces_of(settings.traces, service="liveness-frontend", instance=instance)
        self.address = ""
        """host:port, with the port that was really taken."""

    async def __aenter__(self) -> Frontend:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Returns when it listens; whether any node can be reached is told by its health."""
        settings, clock = self._settings, self._clock
        self.routes = routes = Routes(0)
        self._source = (
            LookAtDatabase(settings.db, routes, clock)
            if settings.db
            else AskNodes(settings.nodes, routes, clock)
        )
        self._watch = Watch(self._source.look, clock, self._on_looked)
        channels = Channels()
        self.gateway = Gateway(routes, channels, clock, on_trouble=self._on_trouble, traces=self._traces)
        self._health = Health([descriptor.full_name for descriptor in SERVICES])
        await self._listen(settings, Unknown(self.gateway.forwarder, channels))
        self._running = asyncio.create_task(self._watch.run())

    async def _listen(self, settings: FrontendSettings, unknown: Unknown) -> None:
        self._grpc = server = grpc.aio.server(
            options=[("grpc.max_receive_message_length", MESSAGE_BYTES_MAX), ("grpc.so_reuseport", 0)]
        )
        for descriptor in SERVICES:
            bind(server, descriptor, None, _nothing_to_settle, gateway=self.gateway, traces=self._traces)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        if settings.reflection:
            names = [descriptor.full_name for descriptor in SERVICES]
            reflection.enable_server_reflection(
                [*names, HEALTH_SERVICE_NAME, reflection.SERVICE_NAME], server
            )
        server.add_generic_rpc_handlers((unknown,))
        host, _, _ = settings.listen.rpartition(":")
        try:
            port = server.add_insecure_port(settings.listen)
        except RuntimeError as error:
            raise ListenFailed(listen=settings.listen) from error
        await server.start()
        self.address = f"{host}:{port}"

    def _on_looked(self) -> None:
        if bool(self.routes.members()) != self._health.is_serving:
            if self._health.is_serving:
                self._health.cease()
            else:
                self._health.serve()
            logger.info("nodes", reachable=self._health.is_serving, known=len(self.routes.members()))

    def _on_trouble(self) -> None:
        self._source.distrust()
        self._watch.look_now()

    async def stop(self) -> None:
        await self._health.enter_graceful_shutdown()
        self.gateway.close_streams()
        await self._grpc.stop(self._settings.shutdown_timeout_s)
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        await self.gateway.close()
        await self._source.close()
        if self._traces is not None:
            await self._traces.close()


async def _nothing_to_settle() -> None:
    """Refusals of nodes rest on what is durable there."""


async def serve(settings: FrontendSettings, on_ready: Callable[[str], None] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code."""
    configure_logs(settings.log_level, settings.log_format)
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
