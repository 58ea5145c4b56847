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
from liveness.cluster.membership import Membership
from liveness.cluster.news import News
from liveness.cluster.peers import Peers
from liveness.cluster.quotas import Quotas
from liveness.frontend.channels import Channels
from liveness.frontend.gateway import Gateway
from liveness.frontend.routes import Routes
from liveness.logs import log_transitions
from liveness.machine import THIS_MACHINE, Machine
from liveness.server.activity_service import ActivityService
from liveness.server.admin_service import AdminService
from liveness.server.binding import bind
from liveness.server.cluster_service import ClusterService
from liveness.server.elsewhere import OtherNodes
from liveness.server.everywhere import Everywhere
from liveness.server.feed import Feed
from liveness.server.fleet import Fleet
from liveness.server.health import READINESS, Health
from liveness.server.liveness_service import LivenessService
from liveness.server.streams import Streams
from liveness.server.wire import event_json
from liveness.setting_rules import without_credentials
from liveness.settings import Settings, host_port
from liveness.shard.custody import Custody
from liveness.shard.homes import Homes
from liveness.shard.node import Node
from liveness.shard.vigil import Vigil
from liveness.store.errors import (
    CommitRejected,
    CommitUnknown,
    ReadFailed,
    StoreBroken,
    StoreError,
    StoreUnusable,
)
from liveness.store.nodes import SERVER, NodeRow, NodeState
from liveness.store.sql import SqlStore
from liveness.telemetry.exposition import Exposition
from liveness.telemetry.telemetry import Telemetry
from liveness.tracing import traces_of
from liveness.v1 import activity_pb2, admin_pb2, cluster_pb2, service_pb2
from tasks.activity_reschedule import ActivityReschedule
from tasks.broker import Broker, ClientMissing, Place
from tasks.maintenance import Maintenance
from tasks.matching import Matching
from tasks.queue_runner import QueueRunner
from tasks.relay import Relay
from tasks.sinks import Route, first_of, to_matching
from tasks.timer_runner import TimerRunner
from tasks.webhook import route as webhook_route

logger = structlog.get_logger("liveness.app")

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
ADVANCE_STEP_MS = 250
ROUNDS_MS = 1_000


class ListenFailed(StoreUnusable):
    """Cannot listen on {listen}: it is in use, or not an address of this machine; choose another with --listen."""


class RelayUnusable(StoreUnusable):
    """The server cannot relay: {detail}."""


class Server:
    """A whole liveness server in this process. Tests drive it with a clock of their own."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        route: Route | None = None,
        random: Random | None = None,
        self_driven: bool = True,
        machine: Machine = THIS_MACHINE,
    ) -> None:
        """`route`: instead of the settings, which sink receives the reschedules of a task queue. `self_driven=False`: it commits and answers, but time, queues and maintenance move only when driven."""
        self._settings = settings
        self._clock = clock or SystemClock()
        self._random = random or Random()
        self._self_driven = self_driven
        self._machine = machine
        self._node_id = f"{machine.host}:{machine.process_id}:{self._random.randbytes(4).hex()}"
        self._running: list[asyncio.Task[None]] = []
        self._traces = traces_of(settings.traces, service="liveness-server", instance=self._node_id)
        self._relay = relay_of(settings, self._clock, self._random)
        self._route = route or first_of(
            webhook_route(
                settings.webhook_url,
                settings.webhook_secret,
                settings.webhook_timeout_s,
                settings.webhook_queues,
                self._clock,
            ),
            self._relay.route if self._relay is not None else to_matching,
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
            self.store = await open_store(settings, self._node_id, self._machine)
            try:
                await self._start(settings)
            except BaseException:
                await self.store.close()
                raise
        except (StoreBroken, CommitRejected, CommitUnknown, ReadFailed) as error:
            # Nothing was promised yet: it is not the disk that broke its word, the file is not what it should be.
            raise StoreUnusable(detail=f"{settings.db_for_people}: {error.fields['detail']}") from error

    async def _start(self, settings: Settings) -> None:
        timers = TimerRunner()
        self.routes = Routes(settings.shards)
        self.node = node = Node(
            self.store,
            self._clock,
            shard_count=settings.shards,
            owner=self._node_id,
            grace_ms=settings.takeover_grace_ms,
            # Whoever drives the clock by hand need not move it for a commit.
            commit_interval_ms=settings.commit_interval_ms if self._self_driven else 0,
            deadlines=timers.fresh_heap,
            namespaces=settings.namespaces,
            follow=None if self._traces is None else self._traces.commit,
        )
        # SQLite belongs to one process.
        alone = settings.sqlite_path is not None
        self.peers = Peers(node.owner, self._machine.connect)
        self.news = News(node, self.routes, self.peers)
        self.homes = Homes(node)
        elsewhere = None if alone else OtherNodes(node.owner, self.routes, self.peers, self.homes)
        self.everywhere = None if alone else Everywhere(node.owner, self.routes, self.peers)
        self.quotas = Quotas(node, None if alone else self.peers)
        self.custody = Custody(node, elsewhere)
        self.vigil = Vigil(node, self.custody, elsewhere)
        timers.attach(node, self.vigil)
        self.telemetry = telemetry = Telemetry(node)
        self._exposition = Exposition(telemetry)
        node.on_committed.append(log_transitions)
        self.matching = Matching(node, self.custody, elsewhere, self.news.activities_wait)
        self.feed = Feed(node)
        self.feed.on_watching = self.news.watched
        self.streams = Streams(node)
        self.queue = QueueRunner(
            node,
            self.custody,
            ActivityReschedule(self._route),
            attempts_max=settings.task_attempts_max,
            random=self._random,
            deaths_wait=lambda: timers.is_behind,
            sink_is_away=lambda: self._relay is not None and self._relay.broker.is_away,
        )
        if self._relay is not None:
            self._relay.attach(node, event_json)
            self._relay.broker.on_back.append(self.queue.look_everywhere)
        self.maintenance = Maintenance(
            node,
            task_retention_ms=int(settings.task_retention_s * 1_000),
            published_as=self._relay.published_as if self._relay is not None else None,
        )
        self.queue.wake_elsewhere = self.news.tasks_left
        self.queue.on_tried = telemetry.task_tried
        telemetry.streams, telemetry.attached = self.streams.open_count, self.streams.attached_count
        telemetry.polls = self.matching.waiting_count
        if self._relay is not None:
            telemetry.relay_trouble = self._relay.broker.trouble
        await self._listen(settings)
        try:
            with _collector_at_rest():
                await self.membership.join()
        except BaseException:
            await self._grpc.stop(None)
            raise
        self._scheduler = None
        node.start(pulse=self._self_driven)
        if self._self_driven:
            self._keep_running(self.membership.run())
            self._keep_running(self.queue.run())
            self._keep_running(telemetry.run())
            if not alone:
                self._keep_running(self._make_rounds())
            if self._relay is not None:
                self._keep_running(self._relay.run())
            if self._machine.keeps_house:
                self._scheduler = self.maintenance.schedule(
                    checkpoint_interval_s=settings.checkpoint_interval_s,
                    retention_interval_s=settings.retention_interval_s,
                )
        self._health.serve()

    def _keep_running(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.node.supervise(task)
        self._running.append(task)

    async def _listen(self, settings: Settings) -> None:
        self._grpc = server = self._machine.listener(
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
        self.membership = self._member(settings)
        workers = LivenessService(
            self.node, self.feed, self.streams, self._random, self.quotas, self.everywhere, self.telemetry
        )
        self.fleet = fleet = Fleet(
            self.node, self.telemetry, self.everywhere, lambda: len(self.routes.members())
        )
        services = {
            service_pb2.DESCRIPTOR.services_by_name["LivenessService"]: workers,
            activity_pb2.DESCRIPTOR.services_by_name["ActivityService"]: ActivityService(
                self.node, self.custody, self.matching
            ),
            admin_pb2.DESCRIPTOR.services_by_name["AdminService"]: AdminService(
                self.node, self.everywhere, self.membership, self.peers, self._relay, fleet
            ),
            cluster_pb2.DESCRIPTOR.services_by_name["ClusterService"]: ClusterService(
                self.node, self.routes, self.peers, self.membership, self.custody, self.homes,
                self.matching, self.queue, self.feed, self.quotas, workers, fleet,
            ),
        }  # fmt: skip
        names = [descriptor.full_name for descriptor in services]
        admit = self.node.policies.admit if settings.namespaces else None
        self.gateway = None if self.everywhere is None else self._way_to_others()
        for descriptor, service in services.items():
            gateway = None if isinstance(service, ClusterService) else self.gateway
            bind(server, descriptor, service, self.node.settle, admit, gateway, self._traces)
        membership = self.membership
        self._health = Health(names, {READINESS: lambda: membership.ready})
        membership.on_settled = self._health.look_again
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        if settings.reflection:
            reflection.enable_server_reflection(
                [*names, HEALTH_SERVICE_NAME, reflection.SERVICE_NAME], server
            )
        await server.start()

    def _way_to_others(self) -> Gateway:
        node = self.node
        return Gateway(
            self.routes,
            Channels(self._machine.connect),
            self._clock,
            me=node.owner,
            is_mine=node.serves,
            all_mine=lambda: len(node.shards()) == node.shard_count,
            local=self.streams.relay,
            on_trouble=self.membership.look_soon,
            traces=self._traces,
        )

    def _member(self, settings: Settings) -> Membership:
        node = self.node
        mine = NodeRow(
            node_id=node.owner,
            kind=SERVER,
            address=settings.advertise or _reached_at(self.address, self._machine.host),
            host=self._machine.host,
            process_id=self._machine.process_id,
            version=version("liveness"),
            state=NodeState.SERVING,
            lease_ms=settings.node_lease_ms,
            beat=0,
            started_wall_ms=self._clock.wall_ms(),
            renewed_wall_ms=self._clock.wall_ms(),
        )
        self.peers.address = mine.address
        return Membership(
            node,
            self.routes,
            self.peers,
            mine,
            alone=settings.sqlite_path is not None,
            leased=self._self_driven,
        )

    async def _make_rounds(self) -> None:
        """Find by ourselves what other nodes may have told us and we did not hear."""
        while True:
            await self._clock.sleep(ROUNDS_MS)
            self.matching.forget_offers_but_at(self.peers.addresses())
            self.matching.announce_all()
            try:
                await self.queue.look_for_new()
                await self.feed.look()
                if self.node.adopt_config(await self.store.load_config()):
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
            self.node.pulse()
            await self.node.barrier().wait()
        await self.queue.work_off()

    def metrics(self, accept: str = "") -> tuple[bytes, str]:
        """For Prometheus: the text, and its content type. `accept`: what the reader would like."""
        return self._exposition.show(accept)

    async def take_sample(self) -> None:
        """For a server that is not self-driven: look at the store, and keep how everything is now."""
        await self.telemetry.look()
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
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self.membership.close()
        await self.vigil.close()
        await self.custody.close()
        await self.node.close()
        if not self.node.committer.broken:
            await self.membership.sign_off()
        if self.gateway is not None:
            await self.gateway.close()
        await self.peers.close()
        await self.store.close()
        if self._traces is not None:
            await self._traces.close()


def _reached_at(address: str, host: str) -> str:
    """A node that listens everywhere is reached by its machine's name."""
    place = host_port(address)
    assert place is not None, address
    everywhere = place.host in ("0.0.0.0", "::")
    return f"{host}:{place.port}" if everywhere else address


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Reading a million workers makes millions of objects that live on; looking for garbage among them, now or in
    every full collection later, would only cost time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def relay_of(settings: Settings, clock: Clock, random: Random) -> Relay | None:
    if not settings.relay:
        return None
    place = Place(
        settings.relay,
        tuple(map(without_credentials, settings.relay)),
        settings.relay_creds_file,
        settings.relay_stream,
        settings.relay_replicas,
    )
    try:
        broker = Broker(place, clock, random)
    except ClientMissing as error:
        raise RelayUnusable(detail=error) from error
    return Relay(broker, settings.relay_queues, settings.shards, events=settings.relay_events)


async def open_store(settings: Settings, owner: str = "", machine: Machine = THIS_MACHINE) -> SqlStore:
    store = SqlStore(machine.database(settings, owner))
    try:
        await store.open(settings.shards, f"liveness {version('liveness')}")
    except BaseException:
        await store.close()
        raise
    return store
