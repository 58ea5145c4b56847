"""The composition root: the one place where things are wired together."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from random import Random
from types import TracebackType
from typing import Any

import structlog
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH_SERVICE_NAME
from grpc_reflection.v1alpha import reflection

from liveness.clock import Clock, ManualClock, SystemClock
from liveness.cluster.hints import HintSender
from liveness.cluster.membership import Membership
from liveness.cluster.peers import Peers
from liveness.cluster.quotas import Quotas
from liveness.config.setting_types import without_credentials
from liveness.config.settings import Settings, host_port
from liveness.dispatch.matching import Matching
from liveness.dispatch.ownership import ActivityOwnership
from liveness.dispatch.reconciler import BindingReconciler
from liveness.dispatch.remote import RemoteOwnershipResponder
from liveness.engine.node import Node
from liveness.integrations.relay.broker import Broker, BrokerConfig, NatsClientMissing
from liveness.integrations.relay.relay import Relay
from liveness.integrations.webhook.sink import sink_selector as webhook_sink_selector
from liveness.routing.channels import ChannelPool
from liveness.routing.gateway import Gateway
from liveness.routing.routing_table import RoutingTable
from liveness.rpc.tracing import create_tracer
from liveness.server.activity_service import ActivityService
from liveness.server.admin_service import AdminService
from liveness.server.all_nodes import AllNodes
from liveness.server.attach_streams import AttachStreams
from liveness.server.cluster_service import ClusterService
from liveness.server.event_feed import EventFeed
from liveness.server.fleet import Fleet
from liveness.server.grpc_registration import register_service
from liveness.server.health import READINESS, Health
from liveness.server.liveness_service import LivenessService
from liveness.server.platform import THIS_PLATFORM, Platform
from liveness.server.remote_nodes import RemoteNodes
from liveness.server.wire import event_json
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
from liveness.tasks.activity_reschedule import ActivityReschedule
from liveness.tasks.maintenance import Maintenance
from liveness.tasks.queue_runner import QueueRunner
from liveness.tasks.sinks import SinkSelector, first_match, no_sink
from liveness.tasks.timer_runner import TimerRunner
from liveness.telemetry.logs import log_transitions
from liveness.telemetry.prometheus import PrometheusExporter
from liveness.telemetry.telemetry import Telemetry
from liveness.v1 import activity_pb2, admin_pb2, cluster_pb2, service_pb2

logger = structlog.get_logger("liveness.app")

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
ADVANCE_STEP_MS = 250
POLL_INTERVAL_MS = 1_000


class ListenFailed(StoreUnusable):
    template = "Cannot listen on {listen}: it is in use, or not an address of this machine; choose another with --listen."

    listen: str


class RelayUnusable(StoreUnusable):
    template = "The server cannot relay: {detail}."

    detail: str


class Server:
    """A whole liveness server in this process. Tests drive it with a clock of their own."""

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
        """`route`: instead of the settings, which sink receives the reschedules of a task queue. `self_driven=False`: it commits and answers, but time, queues and maintenance move only when driven."""
        self._settings = settings
        self._clock = clock or SystemClock()
        self._random = random or Random()
        self._self_driven = self_driven
        self._platform = platform
        self._node_id = f"{platform.host}:{platform.process_id}:{self._random.randbytes(4).hex()}"
        self._background_tasks: list[asyncio.Task[None]] = []
        self._tracer = create_tracer(settings.traces, service="liveness-server", instance=self._node_id)
        self._relay = make_relay(settings, self._clock, self._random)
        self._select_sink = select_sink or first_match(
            webhook_sink_selector(
                settings.webhook_url,
                settings.webhook_secret,
                settings.webhook_timeout_s,
                settings.webhook_queues,
                self._clock,
            ),
            self._relay.select_sink if self._relay is not None else no_sink,
        )
        self.address = ""
        """host:port, with the port that was really taken."""

    async def __aenter__(self) -> Server:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        settings = self._settings
        try:
            self.store = await open_store(settings, self._node_id, self._platform)
            try:
                await self._start(settings)
            except BaseException:
                await self.store.close()
                raise
        except (StoreBroken, CommitRejected, CommitUnknown, ReadFailed) as error:
            # Nothing was promised yet: it is not the disk that broke its word, the file is not what it should be.
            raise CannotOpenStore(detail=f"{settings.db_without_password}: {error.detail}") from error

    async def _start(self, settings: Settings) -> None:
        timers = TimerRunner()
        self.routes = RoutingTable(settings.shards)
        self.node = node = Node(
            self.store,
            self._clock,
            shard_count=settings.shards,
            owner=self._node_id,
            grace_ms=settings.takeover_grace_ms,
            # Whoever drives the clock by hand need not move it for a commit.
            commit_interval_ms=settings.commit_interval_ms if self._self_driven else 0,
            timers=timers.new_heap,
            namespaces=settings.namespaces,
            observe_commit=None if self._tracer is None else self._tracer.start_commit_span,
        )
        # SQLite belongs to one process.
        is_single_node = settings.sqlite_path is not None
        self.peers = Peers(node.owner, self._platform.connect)
        self.hints = HintSender(node, self.routes, self.peers)
        self.ownership_responder = RemoteOwnershipResponder(node)
        remote_nodes = (
            None
            if is_single_node
            else RemoteNodes(node.owner, self.routes, self.peers, self.ownership_responder)
        )
        self.all_nodes = None if is_single_node else AllNodes(node.owner, self.routes, self.peers)
        self.quotas = Quotas(node, None if is_single_node else self.peers)
        self.ownership = ActivityOwnership(node, remote_nodes)
        self.reconciler = BindingReconciler(node, self.ownership, remote_nodes)
        timers.attach(node, self.reconciler)
        self.telemetry = telemetry = Telemetry(node)
        self._prometheus = PrometheusExporter(telemetry)
        node.on_committed.append(log_transitions)
        self.matching = Matching(node, self.ownership, remote_nodes, self.hints.notify_activities_available)
        self.feed = EventFeed(node)
        self.feed.on_watching_changed = self.hints.notify_watching
        self.streams = AttachStreams(node)
        self.queue = QueueRunner(
            node,
            self.ownership,
            ActivityReschedule(self._select_sink),
            attempts_max=settings.task_attempts_max,
            random=self._random,
            has_pending_expiries=lambda: timers.is_behind,
            is_sink_down=lambda: self._relay is not None and self._relay.broker.is_down,
        )
        if self._relay is not None:
            self._relay.attach(node, event_json)
            self._relay.broker.on_connected.append(self.queue.wake_all)
        self.maintenance = Maintenance(
            node,
            task_retention_ms=int(settings.task_retention_s * 1_000),
            relay_name=self._relay.relay_name if self._relay is not None else None,
        )
        self.queue.wake_remote = self.hints.notify_tasks_added
        self.queue.on_attempt = telemetry.record_task_attempt
        telemetry.streams, telemetry.attached = self.streams.open_count, self.streams.attached_count
        telemetry.waiting_polls = self.matching.waiting_poll_count
        if self._relay is not None:
            telemetry.relay_trouble = self._relay.broker.down_reason
        await self._listen(settings)
        try:
            with _gc_paused():
                await self.membership.join()
        except BaseException:
            await self._grpc.stop(None)
            raise
        self._scheduler = None
        node.start(tick=self._self_driven)
        if self._self_driven:
            self._run_in_background(self.membership.run())
            self._run_in_background(self.queue.run())
            self._run_in_background(telemetry.run())
            if not is_single_node:
                self._run_in_background(self._poll_for_missed_hints())
            if self._relay is not None:
                self._run_in_background(self._relay.run())
            if self._platform.runs_maintenance:
                self._scheduler = self.maintenance.schedule(
                    checkpoint_interval_s=settings.checkpoint_interval_s,
                    retention_interval_s=settings.retention_interval_s,
                )
        self._health.serve()

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.node.supervise(task)
        self._background_tasks.append(task)

    async def _listen(self, settings: Settings) -> None:
        self._grpc = server = self._platform.listener(
            options=[
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
                ("grpc.so_reuseport", 0),
            ]
        )
        try:
            port = server.add_insecure_port(settings.listen)
        except RuntimeError as error:
            raise ListenFailed(listen=settings.listen) from error
        self.address = f"{settings.listen.rpartition(':')[0]}:{port}"
        self.membership = self._make_membership(settings)
        workers = LivenessService(
            self.node, self.feed, self.streams, self._random, self.quotas, self.all_nodes, self.telemetry
        )
        self.fleet = fleet = Fleet(
            self.node, self.telemetry, self.all_nodes, lambda: len(self.routes.members())
        )
        services = {
            service_pb2.DESCRIPTOR.services_by_name["LivenessService"]: workers,
            activity_pb2.DESCRIPTOR.services_by_name["ActivityService"]: ActivityService(
                self.node, self.ownership, self.matching
            ),
            admin_pb2.DESCRIPTOR.services_by_name["AdminService"]: AdminService(
                self.node, self.all_nodes, self.membership, self.peers, self._relay, fleet
            ),
            cluster_pb2.DESCRIPTOR.services_by_name["ClusterService"]: ClusterService(
                self.node, self.routes, self.peers, self.membership, self.ownership, self.ownership_responder,
                self.matching, self.queue, self.feed, self.quotas, workers, fleet,
            ),
        }  # fmt: skip
        names = [descriptor.full_name for descriptor in services]
        admit = self.node.policies.admit if settings.namespaces else None
        self.gateway = None if self.all_nodes is None else self._make_gateway()
        for descriptor, service in services.items():
            gateway = None if isinstance(service, ClusterService) else self.gateway
            register_service(
                server, descriptor, service, self.node.wait_all_durable, admit, gateway, self._tracer
            )
        membership = self.membership
        self._health = Health(names, {READINESS: lambda: membership.is_ready})
        membership.on_serving_changed = self._health.recheck
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        if settings.reflection:
            reflection.enable_server_reflection(
                [*names, HEALTH_SERVICE_NAME, reflection.SERVICE_NAME], server
            )
        await server.start()

    def _make_gateway(self) -> Gateway:
        node = self.node
        return Gateway(
            self.routes,
            ChannelPool(self._platform.connect),
            self._clock,
            own_node_id=node.owner,
            owns_shard=node.serves,
            owns_all_shards=lambda: len(node.shards()) == node.shard_count,
            open_local_stream=self.streams.relay,
            on_node_unreachable=self.membership.refresh_soon,
            tracer=self._tracer,
        )

    def _make_membership(self, settings: Settings) -> Membership:
        node = self.node
        own_row = NodeRow(
            node_id=node.owner,
            kind=SERVER_KIND,
            address=settings.advertise or _advertised_address(self.address, self._platform.host),
            host=self._platform.host,
            process_id=self._platform.process_id,
            version=version("liveness"),
            state=NodeState.SERVING,
            lease_ms=settings.node_lease_ms,
            beat=0,
            started_wall_ms=self._clock.wall_ms(),
            renewed_wall_ms=self._clock.wall_ms(),
        )
        self.peers.address = own_row.address
        return Membership(
            node,
            self.routes,
            self.peers,
            own_row,
            is_single_node=settings.sqlite_path is not None,
            renews_lease=self._self_driven,
        )

    async def _poll_for_missed_hints(self) -> None:
        """Find by ourselves what other nodes may have told us and we did not hear."""
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
                logger.info("rounds interrupted", why=str(error))

    async def advance(self, ms: int) -> None:
        """For a server that is not self-driven: let time pass and everything that is due happen."""
        clock = self._clock
        assert isinstance(clock, ManualClock), "only a manual clock can be moved"
        while ms > 0:
            step_ms = min(ms, ADVANCE_STEP_MS)
            ms -= step_ms
            clock.move(step_ms)
            self.node.tick()
            await self.node.barrier().wait()
        await self.queue.run_until_idle()

    def metrics(self, accept: str = "") -> tuple[bytes, str]:
        """For Prometheus: the text, and its content type. `accept`: what the reader would like."""
        return self._prometheus.render(accept)

    async def take_sample(self) -> None:
        """For a server that is not self-driven: look at the store, and keep how everything is now."""
        await self.telemetry.refresh()
        self.telemetry.take_sample()

    async def stop(self) -> None:
        """Stop accepting; commit and answer what was received; checkpoint; let go of the database."""
        await self._health.enter_graceful_shutdown()
        self.feed.close()
        # Before polls end: a client that is told so by a poll leaves, and would take the end of its stream for a failure.
        if self.gateway is not None:
            self.gateway.close_streams()
        else:
            self.streams.close()
        self.matching.close()
        if not self.node.committer.broken:
            await self.membership.leave()
        if self.gateway is not None:
            self.streams.close()
        self.node.stop_listening()
        stopped = asyncio.create_task(self._grpc.stop(self._settings.shutdown_timeout_s))
        if not self.node.committer.broken:
            await stopped  # calls in flight get their answers first: the engine still runs
        else:
            await self._grpc.stop(None)
        if self._scheduler is not None:
            self._scheduler.shutdown(wait=False)
        for task in self._background_tasks:
            task.cancel()
        await asyncio.gather(*self._background_tasks, return_exceptions=True)
        await self.membership.close()
        await self.reconciler.close()
        await self.ownership.close()
        await self.node.close()
        if not self.node.committer.broken:
            await self.membership.deregister()
        if self.gateway is not None:
            await self.gateway.close()
        await self.peers.close()
        await self.store.close()
        if self._tracer is not None:
            await self._tracer.close()


def _advertised_address(address: str, host: str) -> str:
    """A node that listens everywhere is reached by its machine's name."""
    place = host_port(address)
    assert place is not None, address
    everywhere = place.host in ("0.0.0.0", "::")
    return f"{host}:{place.port}" if everywhere else address


@contextmanager
def _gc_paused() -> Iterator[None]:
    """Reading a million workers makes millions of objects that live on; looking for garbage among them, now or in
    every full collection later, would only cost time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def make_relay(settings: Settings, clock: Clock, random: Random) -> Relay | None:
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
        broker = Broker(config, clock, random)
    except NatsClientMissing as error:
        raise RelayUnusable(detail=str(error)) from error
    return Relay(broker, settings.relay_queues, settings.shards, events=settings.relay_events)


async def open_store(settings: Settings, owner: str = "", platform: Platform = THIS_PLATFORM) -> SqlStore:
    store = SqlStore(platform.database(settings, owner))
    try:
        await store.open(settings.shards, f"liveness {version('liveness')}")
    except BaseException:
        await store.close()
        raise
    return store
