"""The composition root of the frontend, a process without shards and state that forwards every call to the owner."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH_SERVICE_NAME
from grpc_reflection.v1alpha import reflection

from liveness.background import BackgroundTasks
from liveness.clock import Clock, SystemClock
from liveness.cluster.failure_detector import FailureDetector
from liveness.config.frontend_settings import FrontendSettings
from liveness.domain.errors import NoNodeReachable, Unauthenticated
from liveness.routing.channels import ChannelPool
from liveness.routing.discovery import NodeRouteSource, RouteRefresher
from liveness.routing.forwarding import RpcResponse
from liveness.routing.gateway import Gateway
from liveness.routing.own_calls import OwnCalls
from liveness.routing.retry_budget import RetryBudget
from liveness.routing.routing_rules import RetrySafety
from liveness.routing.routing_table import Member, RoutingTable
from liveness.routing.unknown_methods import UnknownMethodHandler
from liveness.rpc.tracing import create_tracer
from liveness.security.http_callers import HttpCallers
from liveness.security.posture import is_loopback, require_protection
from liveness.security.principal import INVALID_TOKEN
from liveness.security.principal_limits import principal_limits
from liveness.security.private_listener import PrivateListener
from liveness.security.remote_authentication import RemoteAuthenticator
from liveness.security.suspicion import SuspicionCounters
from liveness.security.tls_settings import make_cluster_tls, make_listener_tls
from liveness.server.grpc_registration import register_service
from liveness.server.health import READINESS, Health
from liveness.server.listener_choice import add_port, choose_listener
from liveness.server.listener_options import server_options
from liveness.server.oversight import Oversight
from liveness.server.self_registration import SelfRegistration, own_component
from liveness.server.shutdown_gate import ShutdownGate
from liveness.store.database import ConnectionCounts
from liveness.store.errors import StoreError, StoreUnusable
from liveness.store.node_registry import NodeState
from liveness.store.postgres import PostgresDatabase
from liveness.store.sql import SqlStore
from liveness.telemetry.process_metrics import FRONTEND_METRICS, FrontendTelemetry
from liveness.telemetry.prometheus import PrometheusExporter
from liveness.v1 import (
    activity_pb2,
    admin_pb2,
    cluster_pb2,
    component_metrics_service_pb2,
    component_service_pb2,
    progress_service_pb2,
    registry_service_pb2,
    schedule_service_pb2,
    service_pb2,
)

logger = structlog.get_logger("liveness.frontend")

CONNECTIONS_MAX = 2
"""It reads the registry, one read after the other; the second connection replaces one that hangs."""
AUTHENTICATE_PATH = "/liveness.v1.ClusterService/Authenticate"
AUTHENTICATE_TIMEOUT_S = 5.0
SERVICES = (
    service_pb2.DESCRIPTOR.services_by_name["LivenessService"],
    activity_pb2.DESCRIPTOR.services_by_name["ActivityService"],
    component_service_pb2.DESCRIPTOR.services_by_name["ComponentService"],
    component_metrics_service_pb2.DESCRIPTOR.services_by_name["ComponentMetricsService"],
    registry_service_pb2.DESCRIPTOR.services_by_name["RegistryService"],
    progress_service_pb2.DESCRIPTOR.services_by_name["ProgressService"],
    schedule_service_pb2.DESCRIPTOR.services_by_name["ScheduleService"],
    admin_pb2.DESCRIPTOR.services_by_name["AdminService"],
)


class ListenFailed(StoreUnusable):
    template = "Cannot listen on {listen}: it is in use, or not an address of this machine; choose another with --listen."

    listen: str


class DatabaseRouteSource:
    """Reads the routes from the nodes' database, and writes nothing to it."""

    def __init__(self, url: str, routes: RoutingTable, clock: Clock, instance: str) -> None:
        """`instance`: names this process in the list of database sessions."""
        self._store = SqlStore(PostgresDatabase(url, CONNECTIONS_MAX, owner=f"frontend {instance}"))
        self._routes = routes
        self._clock = clock
        self._failure_detector = FailureDetector()
        self._last_error = ""

    @property
    def is_reachable(self) -> bool:
        """Whether the last read succeeded."""
        return not self._last_error

    def connection_counts(self) -> ConnectionCounts:
        return self._store.connection_counts()

    async def refresh(self) -> bool:
        started_ms, report_count = self._clock.monotonic_ms(), self._routes.report_count
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
            report_count,
        )
        return True

    def mark_stale(self) -> None:
        """Nothing to do: there is only one database."""

    async def close(self) -> None:
        await self._store.close()


class Frontend:
    def __init__(
        self,
        settings: FrontendSettings,
        *,
        clock: Clock | None = None,
        listener: Callable[..., Any] | None = None,
    ) -> None:
        """`listener`: makes the gRPC server, as in `Platform`."""
        require_protection(settings)
        self._listener = listener
        self._settings = settings
        self._clock = clock or SystemClock()
        # Without fresh routes, other frontends serve better.
        self._tasks = BackgroundTasks("frontend", on_failure=lambda error: self._health.stop_serving())
        self._instance = f"{socket.gethostname()}:{os.getpid()}"
        self._tracer = create_tracer(settings.traces, service="liveness-frontend", instance=self._instance)
        self._tls = make_cluster_tls(settings, self._clock)
        self.address = ""
        """host:port, with the actual port if port 0 was set."""
        self.listener = ""
        """What takes calls in there: edge or python; empty if the caller decided."""
        self.tls = make_listener_tls(settings, self._clock)
        """None if the listeners use plain text."""
        self.private_listener: PrivateListener | None = None
        """How HTTP in this process reaches gRPC; None: by the public listener."""
        self.http_callers = HttpCallers()
        """How HTTP in this process tells gRPC who its callers are."""

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
        connect = grpc.aio.insecure_channel if self._tls is None else self._tls.connect
        self._source = (
            DatabaseRouteSource(settings.db, routes, clock, self._instance)
            if settings.db
            else NodeRouteSource(settings.nodes, routes, clock, connect)
        )
        self._refresher = RouteRefresher(self._source.refresh, clock, self._on_refreshed)
        make_listener = self._listener
        if make_listener is None:
            self.listener, make_listener = choose_listener(settings.listener)
        channels = ChannelPool(connect)
        source = self._source
        self._suspicion = SuspicionCounters(clock)
        limits = principal_limits(settings, clock)
        self._oversight = Oversight(
            self._suspicion,
            limits,
            limits_anonymous=not is_loopback(settings.listen),
            http_callers=self.http_callers,
        )
        self.telemetry = FrontendTelemetry(
            lambda: len(routes.members()),
            source.connection_counts if isinstance(source, DatabaseRouteSource) else ConnectionCounts,
            (lambda: source.is_reachable) if isinstance(source, DatabaseRouteSource) else lambda: True,
            self._suspicion,
            limits,
        )
        self._prometheus = PrometheusExporter(self.telemetry, FRONTEND_METRICS)
        self.gateway = Gateway(
            routes,
            channels,
            clock,
            on_node_unreachable=self._on_node_unreachable,
            tracer=self._tracer,
            record_try=self.telemetry.forwarded.record,
            listener=self.listener,
        )
        self._gate = ShutdownGate()
        self._health = Health(
            [descriptor.full_name for descriptor in SERVICES], {READINESS: lambda: bool(routes.members())}
        )
        self._authenticator = (
            RemoteAuthenticator(clock, self._ask_node_about, self.http_callers)
            if settings.auth == "on"
            else None
        )
        if self._authenticator is not None:
            self._tasks.start(self._authenticator.run())
        unknown_methods = UnknownMethodHandler(
            self.gateway.forwarder, channels, self._gate.calls, self._authenticator
        )
        await self._listen(make_listener(options=server_options()), settings, unknown_methods)
        self._tasks.start(self._refresher.run())
        if self._tls is not None:
            self._tasks.start(self._tls.run())

    async def _listen(
        self, server: Any, settings: FrontendSettings, unknown_methods: UnknownMethodHandler
    ) -> None:
        self._grpc = server
        for descriptor in SERVICES:
            register_service(
                server,
                descriptor,
                None,
                _no_commit_to_await,
                gateway=self.gateway,
                tracer=self._tracer,
                calls=self.telemetry.calls,
                gate=self._gate,
                authentication=self._authenticator,
                oversight=self._oversight,
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
            port = add_port(server, settings.listen, self.tls)
        except RuntimeError as error:
            raise ListenFailed(listen=settings.listen) from error
        if self.tls is not None:
            self.private_listener = PrivateListener.add_to(server)
            self._tasks.start(self.tls.run())
        await server.start()
        self.address = f"{host}:{port}"

    def self_registration(self, http_url: str) -> SelfRegistration:
        """The registration of this process as a component."""
        host, uri = socket.gethostname(), f"grpc://{self.address}"
        component = own_component(
            "server_api", "frontend", self.address, host, os.getpid(), uri, http=http_url
        )
        calls = OwnCalls(self.gateway, self._clock)
        return SelfRegistration(self._clock, calls, [component], asks_callers=self._settings.auth == "on")

    async def _ask_node_about(
        self, request: cluster_pb2.AuthenticateRequest
    ) -> cluster_pb2.AuthenticateResponse:
        forwarder = self.gateway.forwarder
        body = request.SerializeToString()
        outcome = await forwarder.send_until_served(
            None,
            RetrySafety.ALWAYS,
            RetryBudget(self._clock, self.gateway.routes, AUTHENTICATE_TIMEOUT_S),
            lambda owner: forwarder.send(AUTHENTICATE_PATH, body, owner, (), AUTHENTICATE_TIMEOUT_S),
            lambda shard_id: False,
        )
        if isinstance(outcome, RpcResponse):
            return cluster_pb2.AuthenticateResponse.FromString(outcome.body)
        if outcome is not None and outcome.code is grpc.StatusCode.UNAUTHENTICATED:
            raise Unauthenticated(why=outcome.fields.get("why", INVALID_TOKEN))
        raise NoNodeReachable

    def _on_refreshed(self) -> None:
        if bool(self.routes.members()) != self._health.is_serving:
            if self._health.is_serving:
                self._health.stop_serving()
            else:
                self._health.serve()
            logger.info("nodes", reachable=self._health.is_serving, known=len(self.routes.members()))

    def metrics(self, accept: str = "") -> tuple[bytes, str]:
        """The metrics as Prometheus reads them, and their content type. `accept`: the formats that the reader takes."""
        return self._prometheus.render(accept)

    def _on_node_unreachable(self) -> None:
        self._source.mark_stale()
        self._refresher.refresh_now()

    async def stop(self) -> None:
        await self._health.enter_graceful_shutdown()
        self.gateway.close_streams()
        await self._gate.stop(self._grpc, self.address, self._settings.shutdown_timeout_s, self._clock)
        await self._tasks.close()
        await self.gateway.close()
        await self._source.close()
        if self.private_listener is not None:
            self.private_listener.close()
        if self._tracer is not None:
            await self._tracer.close()


async def _no_commit_to_await() -> None:
    """A frontend has nothing to commit: a node answers only after its own commit."""
