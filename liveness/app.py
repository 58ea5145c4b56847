"""The composition root: builds a server's components, connects them, starts them and ends them."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from random import Random
from types import TracebackType
from typing import Any, TypeVar

import grpc
import structlog
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH_SERVICE_NAME
from grpc_reflection.v1alpha import reflection

from liveness.background import BackgroundTasks
from liveness.clock import Clock, ManualClock, SystemClock
from liveness.cluster.cluster_directory import ClusterDirectory
from liveness.cluster.hint_check import READ_GAP_MS_MIN
from liveness.cluster.hints import HintSender
from liveness.cluster.membership import Membership
from liveness.cluster.peers import Peers
from liveness.cluster.quotas import Quotas
from liveness.config.formats import without_credentials
from liveness.config.settings import Settings, host_port
from liveness.dispatch.matching import Matching
from liveness.dispatch.ownership import ActivityOwnership
from liveness.dispatch.reconciler import BindingReconciler
from liveness.dispatch.remote import RemoteOwnershipResponder
from liveness.engine.listener import NodeListener
from liveness.engine.node import Node
from liveness.integrations.otlp_metrics import OtlpMetricsForwarder, OtlpNotInstalled
from liveness.integrations.relay.broker import Broker, BrokerConfig, NatsClientMissing, no_publishes
from liveness.integrations.relay.relay import Relay
from liveness.integrations.webhook.sink import sink_selector as webhook_sink_selector
from liveness.network_addresses import split_address
from liveness.routing.channels import ChannelPool
from liveness.routing.forwarded_calls import ForwardedCalls
from liveness.routing.gateway import Gateway
from liveness.routing.own_calls import OwnCalls
from liveness.routing.routing_table import RoutingTable
from liveness.rpc.tracing import create_tracer
from liveness.security.audit import AuditLog
from liveness.security.authentication import Authenticator, CallerRegistry
from liveness.security.forwarded_callers import ForwardedCallers
from liveness.security.http_callers import HttpCallers
from liveness.security.node_authentication import NodeAuthentication
from liveness.security.posture import exposed_settings, is_loopback, require_protection
from liveness.security.principal_limits import principal_limits
from liveness.security.private_listener import PrivateListener
from liveness.security.suspicion import SuspicionCounters
from liveness.security.tls_settings import make_cluster_tls, make_listener_tls
from liveness.server.activity_service import ActivityService
from liveness.server.admin_service import AdminService
from liveness.server.all_nodes import AllNodes
from liveness.server.attach_streams import AttachStreams
from liveness.server.cluster_service import ClusterService
from liveness.server.component_metrics_service import ComponentMetricsService
from liveness.server.component_orders import SupervisorMail
from liveness.server.component_service import ComponentService
from liveness.server.concurrency_limits import ConcurrencyLimits
from liveness.server.event_feed import EventFeed
from liveness.server.fleet import Fleet
from liveness.server.grpc_registration import register_service
from liveness.server.health import READINESS, Health
from liveness.server.incidents import Incidents
from liveness.server.listener_choice import add_port, choose_listener
from liveness.server.listener_options import peer_options, server_options
from liveness.server.liveness_service import LivenessService
from liveness.server.metrics_writer import TRANSACTION_INTERVAL_MS, MetricsWriter
from liveness.server.oversight import Oversight
from liveness.server.own_metrics import OwnMetrics
from liveness.server.peer_kinds import PeerGuard
from liveness.server.platform import THIS_PLATFORM, Platform
from liveness.server.progress_service import ProgressService
from liveness.server.receive_probe import Listener, ReceiveProbe, register_receive_probe
from liveness.server.registry_service import RegistryService
from liveness.server.remote_nodes import RemoteNodes
from liveness.server.schedule_service import ScheduleService
from liveness.server.self_registration import SelfRegistration, own_component
from liveness.server.shutdown_gate import ShutdownGate
from liveness.server.task_queues import QueueRates, TaskQueues
from liveness.server.wire import event_json, event_json_without_sessions
from liveness.store.codec import LogEntry
from liveness.store.errors import (
    CannotOpenStore,
    CommitRejected,
    CommitUnknown,
    ReadFailed,
    StoreBroken,
    StoreError,
    StoreUnusable,
)
from liveness.store.node_registry import SERVER_KIND, NodeRow, NodeState
from liveness.store.sql import SqlStore
from liveness.tasks.activity_limits import ActivityLimits
from liveness.tasks.activity_reschedule import ActivityReschedule
from liveness.tasks.declared_bindings import DeclaredBindings
from liveness.tasks.maintenance import Maintenance
from liveness.tasks.queue_runner import QueueRunner
from liveness.tasks.schedules import ScheduleRunner
from liveness.tasks.sinks import SinkSelector, first_match, no_sink
from liveness.tasks.timer_heap import TimerHeaps
from liveness.tasks.timer_runner import TimerRunner
from liveness.telemetry.logs import TransitionLog
from liveness.telemetry.metric_types import Metric
from liveness.telemetry.metrics import METRICS
from liveness.telemetry.prometheus import PrometheusExporter
from liveness.telemetry.telemetry import ClusterStatus, NamespaceNumbers, Telemetry
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
from liveness.version import VERSION

logger = structlog.get_logger("liveness.app")
T = TypeVar("T")

ADVANCE_STEP_MS = 250
POLL_INTERVAL_MS = 1_000
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
CLUSTER_SERVICE = cluster_pb2.DESCRIPTOR.services_by_name["ClusterService"]


class ListenFailed(StoreUnusable):
    template = "Cannot listen on {listen}: it is in use, or not an address of this machine; choose another with {flag}."

    listen: str
    flag: str = "--listen"


class RelayUnusable(StoreUnusable):
    template = "The server cannot relay: {detail}."

    detail: str


class ForwardingUnusable(StoreUnusable):
    template = "The server cannot forward metrics of components: {detail}."

    detail: str


class Server:
    """A complete liveness server in this process. Tests drive it with a clock of their own."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        select_sink: SinkSelector | None = None,
        random: Random | None = None,
        self_driven: bool = True,
        platform: Platform = THIS_PLATFORM,
    ) -> None:
        """`select_sink`: chooses the sink that receives the reschedules of a task queue, instead of the settings.
        `self_driven=False`: the server commits and answers, but time, queues and maintenance move only when driven.

        Raises `ExposedListeners` and `TlsFilesUnusable` for settings with which no server may start."""
        require_protection(settings)
        self._settings = settings
        self._clock = clock or SystemClock()
        self._random = random or Random()
        self._self_driven = self_driven
        self._platform = platform
        self._node_id = f"{platform.host}:{platform.process_id}:{self._random.randbytes(4).hex()}"
        self._tracer = create_tracer(settings.traces, service="liveness-server", instance=self._node_id)
        self._broker = make_broker(settings, self._clock, self._random)
        self._metrics_forwarder = make_metrics_forwarder(settings, self._clock)
        self._given_sink_selector = select_sink
        self.tls = make_listener_tls(settings, self._clock)
        """None if the listeners use plain text."""
        self.private_listener: PrivateListener | None = None
        """How HTTP in this process reaches gRPC; None: by the public listener."""
        self.http_callers = HttpCallers()
        """How HTTP in this process tells gRPC who its callers are."""
        self._running = AsyncExitStack()
        """Ends everything that `start` has started, in the reverse order."""
        self.address = ""
        """host:port, with the port that the operating system assigned."""
        self.listener = ""
        """What takes calls in there: edge or python; empty if the platform decides."""
        self.cluster_address = ""
        """The same of the cluster's listener; empty if there is none."""
        self._cluster_tls = make_cluster_tls(settings, self._clock)
        self._connect_peer = platform.connect if self._cluster_tls is None else self._cluster_tls.connect

    async def __aenter__(self) -> Server:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # -- start and stop

    async def start(self) -> None:
        """Return when the server serves. A start that fails releases everything that it has taken until then."""
        try:
            async with AsyncExitStack() as stack:
                await self._start(stack)
                self._running = stack.pop_all()
        except (StoreBroken, CommitRejected, CommitUnknown, ReadFailed) as error:
            # No commit was acknowledged yet, so no data was lost: the database cannot be used.
            raise CannotOpenStore(detail=f"{self._settings.db_without_password}: {error.detail}") from error

    async def stop(self) -> None:
        """Stop accepting; commit and answer what was received; checkpoint; release the database."""
        running, self._running = self._running, AsyncExitStack()
        await running.aclose()

    async def _start(self, stack: AsyncExitStack) -> None:
        settings = self._settings
        if self._tracer is not None:
            stack.push_async_callback(self._tracer.close)
        if self._metrics_forwarder is not None:
            stack.push_async_callback(self._metrics_forwarder.close)
        self.store = await open_store(settings, self._node_id, self._platform)
        stack.push_async_callback(self.store.close)
        stack.push_async_callback(self._unbind)
        self._bind()
        if self.private_listener is not None:
            stack.callback(self.private_listener.close)
        self._build()
        self._register_listeners()
        if self._authentication is not None:
            await self._authentication.load()
        self._register_services()
        self._push_release(stack)
        self._is_listening = True
        for listener in self._listeners:
            await listener.start()
        with _gc_paused():
            await self.membership.join()
        self.node.start(tick=self._self_driven)
        self._push_shutdown(stack)
        if self.tls is not None:
            self._tasks.start(self.tls.run())
        if self._self_driven:
            self._start_background_work()
        self._health.serve()

    def _start_background_work(self) -> None:
        settings = self._settings
        self._tasks.start(ReceiveProbe(self._probed_listeners(), self.node).run())
        if self._cluster_tls is not None:
            self._tasks.start(self._cluster_tls.run())
        if self._authentication is not None:
            self._authentication.start(self._tasks)
        self._tasks.start(self.audit.run())
        self._tasks.start(self.membership.run())
        if not self._is_single_node:
            self._tasks.start(self.membership.watch_lease())
        self._tasks.start(self.queue.run())
        self._tasks.start(self.telemetry.run())
        if not self._is_single_node:
            self._tasks.start(self._poll_for_missed_hints())
        if self._relay is not None:
            self._tasks.start(self._relay.run())
        if self._platform.runs_maintenance:
            self.maintenance.schedule(
                checkpoint_interval_s=settings.checkpoint_interval_s,
                retention_interval_s=settings.retention_interval_s,
            )

    def _push_shutdown(self, stack: AsyncExitStack) -> None:
        """Register the first part of an orderly stop, for a server that has begun to serve."""
        _push_in_order(
            stack,
            self._health.enter_graceful_shutdown,
            self.feed.close,
            # Before polls end: a client that a poll tells of the shutdown leaves, and would take the end of its stream
            # for a failure.
            self.streams.close if self.gateway is None else self.gateway.close_streams,
            self.matching.end_polls,
            self.supervisor_mail.close,
            self._leave_cluster,
        )

    def _push_release(self, stack: AsyncExitStack) -> None:
        """Register the second part of a stop, which also follows a failed start: release everything that was taken."""
        if self.gateway is not None:
            # Streams that other nodes forward go on until their shards have been handed over.
            handed_over = [self.streams.close]
            close_gateway = [self.gateway.close]
        else:
            handed_over, close_gateway = [], []
        _push_in_order(
            stack,
            *handed_over,
            self.node.stop_listening,
            # Calls in flight get their answers first: the engine still runs.
            self._stop_grpc,
            self.maintenance.stop,
            self._tasks.close,
            self.audit.close,
            self.metrics_writer.close,
            # Background work that decides or asks other nodes ends before the node's last commit.
            self.membership.close,
            *([self.cluster_service.close] if self.cluster_address else []),
            self.matching.close,
            self.reconciler.close,
            self.declared_bindings.close,
            self.schedules.close,
            self._timers.close,
            self.ownership.close,
            self.node.close,
            # Only now: the registry must show this node for as long as it owns shards.
            self._deregister,
            *close_gateway,
            self.peers.close,
        )

    async def _leave_cluster(self) -> None:
        if self.node.is_committing:
            await self.membership.leave()

    async def _stop_grpc(self) -> None:
        if self.node.is_committing:
            clock = self._clock if self._self_driven else None
            await self._gate.stop(self._grpc, self.address, self._settings.shutdown_timeout_s, clock)
            # Until other nodes and frontends know that this node is gone, they get refusals here that send them elsewhere.
            for listener in self._listeners[1:]:
                await listener.stop(self._settings.shutdown_timeout_s)
        else:
            for listener in self._listeners:
                await listener.stop(None)  # calls in flight would wait for their commits in vain

    async def _deregister(self) -> None:
        if not self.node.committer.broken:
            await self.membership.deregister()

    # -- composition

    @property
    def _is_single_node(self) -> bool:
        """A SQLite database belongs to one process."""
        return self._settings.sqlite_path is not None

    def _bind(self) -> None:
        """Take the ports, so that the addresses are known to everything that is built next. Nothing is accepted yet."""
        self._is_listening = False
        self._listeners: list[Any] = []
        make_cluster_listener = make_listener = self._platform.listener
        if make_listener is None:
            self.listener, make_listener = choose_listener(self._settings.listener)
        self._grpc, self.address = self._listen(
            make_listener(options=server_options()),
            self._settings.listen,
            "--listen",
            lambda server, listen: add_port(server, listen, self.tls),
        )
        if self.tls is not None:
            self.private_listener = PrivateListener.add_to(self._grpc)
        if listen := self._settings.cluster_listen_address:
            # A few connections carry everything there, in batches.
            self._cluster_grpc, self.cluster_address = self._listen(
                (make_cluster_listener or grpc.aio.server)(options=peer_options()),
                listen,
                "--cluster-listen",
                self._add_cluster_port,
            )

    def _add_cluster_port(self, server: Any, listen: str) -> int:
        if self._cluster_tls is None:
            return int(server.add_insecure_port(listen))
        return int(server.add_secure_port(listen, self._cluster_tls.server_credentials()))

    def _listen(
        self, server: Any, listen: str, flag: str, add_port: Callable[[Any, str], int]
    ) -> tuple[Any, str]:
        self._listeners.append(server)
        try:
            port = add_port(server, listen)
        except RuntimeError as error:
            raise ListenFailed(listen=listen, flag=flag) from error
        return server, f"{listen.rpartition(':')[0]}:{port}"

    async def _unbind(self) -> None:
        """Release the port after a start that failed before anything was accepted."""
        if not self._is_listening:
            for listener in self._listeners:
                await listener.start()  # gRPC releases the port of a server only if it was started
                await listener.stop(None)

    def _build(self) -> None:
        """Build the components, each after those that it needs."""
        settings, is_single_node = self._settings, self._is_single_node
        self.routes = RoutingTable(settings.shards)
        directory = ClusterDirectory(self._node_id, self.routes)
        timer_heaps = TimerHeaps()
        self.node = node = Node(
            self.store,
            self._clock,
            shard_count=settings.shards,
            owner=self._node_id,
            grace_ms=settings.takeover_grace_ms,
            # A test that moves the clock by hand need not move it for a commit.
            commit_interval_ms=settings.commit_interval_ms if self._self_driven else 0,
            timers=timer_heaps.new_heap,
            namespaces=settings.namespaces,
            directory=directory,
            observe_commit=None if self._tracer is None else self._tracer.start_commit_span,
        )
        self._tasks = BackgroundTasks("server", on_failure=node.fail)
        own_row = self._own_row()
        self.peers = Peers(node.owner, own_row.address, self._connect_peer)
        self.hints = HintSender(self.routes, self.peers)
        self.ownership_responder = RemoteOwnershipResponder(node)
        remote_nodes = (
            None
            if is_single_node
            else RemoteNodes(node.owner, self.routes, self.peers, self.ownership_responder)
        )
        self.all_nodes = None if is_single_node else AllNodes(node.owner, self.routes, self.peers)
        self._authentication = (
            NodeAuthentication(settings, self.store, self._clock, self.http_callers)
            if settings.auth == "on"
            else None
        )
        self._suspicion = SuspicionCounters(self._clock)
        self._limits = principal_limits(settings, self._clock)
        self.audit = AuditLog(self.store, self._clock)
        forwarder = self._metrics_forwarder
        self.metrics_writer = MetricsWriter(
            self.store,
            self._clock,
            interval_ms=TRANSACTION_INTERVAL_MS if self._self_driven else 0,
            on_stored=(lambda reports: None) if forwarder is None else forwarder.forward,
        )
        self._oversight = Oversight(
            self._suspicion,
            self._limits,
            self.audit,
            limits_anonymous=not is_loopback(settings.listen),
            http_callers=self.http_callers,
        )
        self.quotas = Quotas(node, None if is_single_node else self.peers)
        self.ownership = ActivityOwnership(node, remote_nodes, self.quotas)
        self.reconciler = BindingReconciler(node, self.ownership, remote_nodes)
        self.declared_bindings = DeclaredBindings(node)
        self._timers = timers = TimerRunner(
            node,
            timer_heaps,
            self.reconciler,
            ActivityLimits(node, self.ownership),
            self.declared_bindings,
        )
        self.matching = Matching(node, self.ownership, remote_nodes, self.hints.notify_activities_available)
        self.queue_rates = QueueRates(node)
        self.peers.on_attended = self.matching.note_attended
        self.supervisor_mail = SupervisorMail(self._clock)
        self.feed = EventFeed(node, self.hints.notify_watching)
        own_addresses = self._platform.own_addresses(self.address) if is_single_node else None
        self.streams = AttachStreams(node, own_addresses, asks_callers=settings.auth == "on")
        self._relay = (
            None
            if self._broker is None
            else Relay(
                node,
                self._broker,
                settings.relay_queues,
                self._relayed_event if settings.relay_events else None,
            )
        )
        broker, relay = self._broker, self._relay
        self.telemetry = Telemetry(
            node,
            streams=self.streams.open_count,
            attached=self.streams.attached_count,
            waiting_polls=self.matching.waiting_poll_count,
            unattended_ms=self.matching.unattended_ms,
            relay_trouble=(lambda: "") if broker is None else broker.down_reason,
            relay_missed=lambda: (
                relay.events.deleted_unpublished if relay is not None and relay.events is not None else 0
            ),
            component_samples=lambda: {
                **self.metrics_writer.outcomes,
                **({} if forwarder is None else forwarder.outcomes()),
            },
            relay_publishes=no_publishes if broker is None else lambda: broker.publishes,
            cluster=self._cluster_status,
            suspicion=self._suspicion,
            audit=self.audit,
            limits=self._limits,
            insecure="; ".join(each.text for each in exposed_settings(settings)),
        )
        self.schedules = ScheduleRunner(
            node, self.ownership, self.telemetry.record_schedule, self.telemetry.record_refused_activity
        )
        self._prometheus = PrometheusExporter(self.telemetry, METRICS)
        self.queue = QueueRunner(
            node,
            self.ownership,
            ActivityReschedule(self._given_sink_selector or self._configured_sink_selector()),
            attempts_max=settings.task_attempts_max,
            random=self._random,
            has_pending_expiries=lambda: timers.is_behind,
            is_sink_down=lambda: broker is not None and broker.is_down,
            notify_remote=self.hints.notify_tasks_added,
            on_attempt=self.telemetry.record_task_attempt,
        )
        if broker is not None:
            broker.on_connected.append(self.queue.wake_all)
        self.maintenance = Maintenance(
            node,
            task_retention_ms=int(settings.task_retention_s * 1_000),
            relay_name=self._relay.relay_name if self._relay is not None else None,
            database_bytes_max=settings.database_bytes_max,
            audit_retention_ms=int(settings.audit_retention_s * 1_000),
            component_metrics_retention_ms=int(settings.component_metrics_retention_s * 1_000),
        )
        self._health = Health(
            [descriptor.full_name for descriptor in SERVICES], {READINESS: lambda: self.membership.is_ready}
        )
        self.membership = Membership(
            node,
            self.routes,
            self.peers,
            directory,
            own_row,
            is_single_node=is_single_node,
            renews_lease=self._self_driven,
            on_serving_changed=self._health.recheck,
            on_cut_off=self._on_cut_off,
        )
        self.gateway = None if is_single_node else self._make_gateway()
        self.own_calls = OwnCalls(self.gateway, self._clock)
        self.incidents = Incidents(node)
        self.fleet = Fleet(
            node,
            self.telemetry,
            self.all_nodes,
            lambda: len(self.routes.members()),
            incidents=self.incidents,
            relays=self._relay is not None,
        )

    def _register_listeners(self) -> None:
        """Register everything that follows the node. The node calls it in this order, which is stated here only."""
        listeners: list[NodeListener] = [
            # Other nodes are notified first: they read and count in parallel to what this node does next.
            self.hints,
            # Leases that are over end before a sample is taken and before queues run in the same tick.
            self._timers,
            # What happened is counted and logged before anything acts on it.
            self.telemetry,
            self.schedules,
            self.queue_rates,
            TransitionLog(),
            # Work goes to polls, events to watchers, orders to workers.
            self.matching,
            self.feed,
            self.streams,
            self.supervisor_mail,
            self.declared_bindings,
            # Deliveries of reschedules, and then of events, come after the answers to clients.
            self.queue,
            *([self._relay.events] if self._relay is not None and self._relay.events is not None else []),
            # Last: it lets the calls go on that wait for a shard, so every component must know the shard by then.
            self.membership,
        ]
        for listener in listeners:
            self.node.add_listener(listener)

    @property
    def authenticator(self) -> Authenticator | None:
        """None if nobody is asked who calls."""
        return None if self._authentication is None else self._authentication.authenticator

    def self_registration(
        self, http_url: str, others: Iterable[registry_service_pb2.RegisterRequest] = ()
    ) -> SelfRegistration:
        """The registration of this process, of its relay and of `others` in it as components."""
        settings, platform = self._settings, self._platform
        where = (self.address, platform.host, platform.process_id)
        uri = f"grpc://{_advertised_address(self.address, platform.host)}"
        node = own_component(
            "server_api", "node", *where, uri, http=http_url, cluster=self.cluster_address, node=self._node_id
        )
        relay = own_component("broker", "relay", *where, ",".join(map(without_credentials, settings.relay)))
        return SelfRegistration(
            self._clock,
            self.own_calls,
            [node, *([] if self._relay is None else [relay]), *others],
            service=self.registry,
            admit=self.node.policies.admit,
            asks_callers=settings.auth == "on",
        )

    def report_own_metrics(
        self,
        namespace: str,
        component: str,
        interval_ms: int,
        read: Callable[[NamespaceNumbers], Iterable[component_metrics_service_pb2.MetricSample]],
    ) -> None:
        """Report numbers of a namespace on this node, as metrics of the component `component`, until the server stops."""
        metrics = OwnMetrics(
            self._clock,
            self.own_calls,
            namespace,
            component,
            interval_ms,
            lambda: read(self.telemetry.numbers_of(namespace)),
            serve=self.component_metrics.report_metrics,
            admit=self.node.policies.admit,
        )
        metrics.start()
        self._running.push_async_callback(metrics.stop)

    def _register_services(self) -> None:
        node = self.node
        workers = LivenessService(
            node, self.feed, self.streams, self._random, self.telemetry, self.quotas, self.all_nodes,
            listener=self.listener,
        )  # fmt: skip
        self.registry = RegistryService(
            node, self.telemetry, workers.rate_limits, self.quotas, self.all_nodes, self.own_calls
        )
        self.component_metrics = ComponentMetricsService(node, self.store, self.metrics_writer)
        services = (
            workers,
            ActivityService(
                node,
                self.ownership,
                self.matching,
                self.telemetry,
                TaskQueues(node, self.matching, self.queue_rates, self.all_nodes),
                self.own_calls,
                ConcurrencyLimits(node, self.quotas, self.all_nodes),
            ),
            ComponentService(node, workers, self.supervisor_mail),
            self.component_metrics,
            self.registry,
            ProgressService(
                node, self.telemetry, self.quotas, self.all_nodes, self.ownership.check_key_owner
            ),
            ScheduleService(node, self.quotas, self.schedules.trigger),
            AdminService(
                node, self.fleet, self.all_nodes, self.membership, self.peers, self._relay,
                None if self._authentication is None else self._authentication.tokens, self.incidents,
            ),
        )  # fmt: skip
        self._gate = ShutdownGate()
        for descriptor, service in zip(SERVICES, services, strict=True):
            self._register_service(
                self._grpc, descriptor, service, self.gateway, self.authenticator, self._oversight
            )
        if self.cluster_address:
            listener: Any = (
                self._cluster_grpc
                if self._cluster_tls is None
                else PeerGuard(self._cluster_grpc, self._clock, self._oversight.note_refused_peer)
            )
            forwarded = None if self.authenticator is None else ForwardedCallers(self._clock)
            cluster_oversight = self._oversight.for_cluster_port()
            for descriptor, service in zip(SERVICES, services, strict=True):
                self._register_service(
                    listener, descriptor, service, ForwardedCalls(node.owner), forwarded, cluster_oversight
                )
            self.cluster_service = ClusterService(
                node, self.routes, self.peers, self.membership, self.ownership, self.ownership_responder,
                self.matching, self.queue, self.feed, self.quotas, workers, self.fleet, self.authenticator,
                READ_GAP_MS_MIN if self._self_driven else 0,
            )  # fmt: skip
            self._register_service(listener, CLUSTER_SERVICE, self.cluster_service, None)
            register_receive_probe(listener)
        server = self._grpc
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        register_receive_probe(server)
        if self._settings.reflection:
            names = [descriptor.full_name for descriptor in SERVICES]
            reflection.enable_server_reflection(
                [*names, HEALTH_SERVICE_NAME, reflection.SERVICE_NAME], server
            )

    def _register_service(
        self,
        listener: Any,
        descriptor: ServiceDescriptor,
        service: object,
        gateway: Gateway | ForwardedCalls | None,
        authentication: CallerRegistry | None = None,
        oversight: Oversight | None = None,
    ) -> None:
        node = self.node
        admit = node.policies.admit if self._settings.namespaces else None
        register_service(
            listener, descriptor, service, node.wait_all_durable, admit, gateway, self._tracer,
            self.telemetry.calls, self._gate, authentication, oversight,
        )  # fmt: skip

    def _probed_listeners(self) -> list[Listener]:
        tls = self.tls
        public = (
            Listener(self.address, self._platform.connect)
            if tls is None
            else Listener(self.address, tls.connect, certificate=lambda: tls.certificate)
        )
        listeners = [public]
        if self.cluster_address:
            # The certificate is one of the advertised host; the probe comes over loopback or by the listening address.
            host, _ = split_address(self._own_row().address)
            options = () if self._cluster_tls is None else (("grpc.ssl_target_name_override", host),)
            listeners.append(Listener(self.cluster_address, self._connect_peer, options))
        return listeners

    def _configured_sink_selector(self) -> SinkSelector:
        settings = self._settings
        return first_match(
            webhook_sink_selector(
                settings.webhook_url,
                settings.webhook_secret,
                settings.webhook_timeout_s,
                settings.webhook_queues,
                self._clock,
            ),
            self._relay.select_sink if self._relay is not None else no_sink,
        )

    def _make_gateway(self) -> Gateway:
        node = self.node
        return Gateway(
            self.routes,
            ChannelPool(self._connect_peer),
            self._clock,
            own_node_id=node.owner,
            owns_shard=node.serves,
            owns_all_shards=lambda: len(node.shards()) == node.shard_count,
            is_cut_off=lambda: self.membership.is_cut_off,
            open_local_stream=self.streams.relay,
            on_node_unreachable=self.membership.refresh_soon,
            tracer=self._tracer,
            record_try=self.telemetry.forwarded.record,
        )

    @property
    def _relayed_event(self) -> Callable[[int, LogEntry], bytes]:
        return event_json if self._settings.auth == "off" else event_json_without_sessions

    def _cluster_status(self) -> ClusterStatus:
        membership = self.membership
        return ClusterStatus(
            nodes=membership.node_counts,
            lease_s=membership.lease_ms / 1_000,
            renewal_age_s=(self._clock.monotonic_ms() - membership.renewed_ms) / 1_000,
            renewal_failures=membership.renewal_failures,
            renewal_error=membership.renewal_error,
        )

    def _own_row(self) -> NodeRow:
        settings, platform = self._settings, self._platform
        return NodeRow(
            node_id=self._node_id,
            kind=SERVER_KIND,
            address=settings.advertise
            or _advertised_address(self.cluster_address or self.address, platform.host),
            host=platform.host,
            process_id=platform.process_id,
            version=VERSION,
            state=NodeState.SERVING,
            lease_ms=settings.node_lease_ms,
            beat=0,
            started_wall_ms=self._clock.wall_ms(),
            renewed_wall_ms=self._clock.wall_ms(),
            machine=platform.machine,
        )

    # -- while it runs

    def _on_cut_off(self) -> None:
        assert self.gateway is not None, "a single node has no lease that could end"
        self.gateway.send_streams_away()

    async def _poll_for_missed_hints(self) -> None:
        """Read at regular intervals what other nodes' hints report, because a hint may be lost."""
        while True:
            await self._clock.sleep(POLL_INTERVAL_MS)
            self.matching.forget_remote_offers_except(self.peers.addresses())
            self.matching.announce_all()
            try:
                await self.queue.wake_new_tasks()
                await self.feed.refresh()
                if self.node.apply_stored_config(await self.store.load_config()):
                    self.node.policy_changed()
            except StoreError as error:
                logger.info("poll for missed hints interrupted", why=str(error))

    async def advance(self, ms: int) -> None:
        """For a server that is not self-driven: let time pass and execute everything that falls due."""
        clock = self._clock
        assert isinstance(clock, ManualClock), "only a manual clock can be moved"
        while ms > 0:
            step_ms = min(ms, ADVANCE_STEP_MS)
            ms -= step_ms
            clock.move(step_ms)
            self.node.tick()
            await self._timers.wait()
            await self.node.barrier().wait()
            await self.schedules.wait()
        await self.declared_bindings.wait()
        await self.queue.run_until_idle()

    def metrics(self, accept: str = "") -> tuple[bytes, str]:
        """The metrics as Prometheus reads them, and their content type. `accept`: the formats that the reader takes."""
        return self._prometheus.render(accept)

    def export_metrics_of(self, telemetry: T, metrics: Sequence[Metric[T]]) -> None:
        """Let `metrics` include those of something that this process runs beside the server."""
        self._prometheus.add(telemetry, metrics)

    async def take_sample(self) -> None:
        """For a server that is not self-driven: read the store and record a sample of the current state."""
        await self.telemetry.refresh()
        self.telemetry.take_sample()


def _push_in_order(stack: AsyncExitStack, *steps: Callable[[], Awaitable[None] | None]) -> None:
    """Let the stack run `steps` in the order in which they are listed, and before everything that it holds already."""
    for step in reversed(steps):
        stack.push_async_callback(_run_step, step)


async def _run_step(step: Callable[[], Awaitable[None] | None]) -> None:
    if (work := step()) is not None:
        await work


def _advertised_address(address: str, host: str) -> str:
    """A node that listens on all interfaces is reached by the name of its machine."""
    parsed = host_port(address)
    assert parsed is not None, address
    return f"{host}:{parsed.port}" if parsed.host in ("0.0.0.0", "::") else address


@contextmanager
def _gc_paused() -> Iterator[None]:
    """Keep the garbage collector away from what is read at the start. A million workers are millions of objects that
    stay; searching them for garbage, now or in every full collection later, would only cost time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def make_broker(settings: Settings, clock: Clock, random: Random) -> Broker | None:
    if not settings.relay:
        return None
    config = BrokerConfig(
        settings.relay,
        tuple(map(without_credentials, settings.relay)),
        settings.relay_creds_file,
        settings.relay_stream,
        settings.relay_replicas,
    )
    try:
        return Broker(config, clock, random)
    except NatsClientMissing as error:
        raise RelayUnusable(detail=str(error)) from error


def make_metrics_forwarder(settings: Settings, clock: Clock) -> OtlpMetricsForwarder | None:
    if not settings.component_metrics_otlp:
        return None
    try:
        return OtlpMetricsForwarder(settings.component_metrics_otlp, clock)
    except OtlpNotInstalled as error:
        raise ForwardingUnusable(detail=str(error)) from error


def make_store(settings: Settings, owner: str = "", platform: Platform = THIS_PLATFORM) -> SqlStore:
    """A store that is not open yet."""
    return SqlStore(platform.database(settings, owner))


async def open_store(settings: Settings, owner: str = "", platform: Platform = THIS_PLATFORM) -> SqlStore:
    store = make_store(settings, owner, platform)
    try:
        await store.open(settings.shards, f"liveness {VERSION}")
    except BaseException:
        await store.close()
        raise
    return store
