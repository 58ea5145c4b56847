"""Owners of shards, each a real server on its own database, and a frontend without shards.

The test sets the ownership: it fills the `RoutingTable` itself, and each owner refuses calls for shards it
does not own, as the nodes of a cluster do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import grpc

from liveness.clock import SystemClock
from liveness.domain.errors import LivenessError, ShardMoved, ShardUnavailable
from liveness.domain.keys import shard_of
from liveness.frontend.app import SERVICES
from liveness.routing.channels import ChannelPool
from liveness.routing.forwarded_calls import ForwardedCalls
from liveness.routing.forwarding import target_node
from liveness.routing.gateway import Gateway
from liveness.routing.own_calls import OwnCalls
from liveness.routing.routing_table import Member, RoutingTable
from liveness.routing.routing_table import Owner as Route
from liveness.server.activity_service import ActivityService
from liveness.server.admin_service import AdminService
from liveness.server.component_metrics_service import ComponentMetricsService
from liveness.server.component_service import ComponentService
from liveness.server.grpc_registration import register_service
from liveness.server.liveness_service import LivenessService
from liveness.server.progress_service import ProgressService
from liveness.server.registry_service import RegistryService
from liveness.server.schedule_service import ScheduleService
from liveness.v1 import cluster_pb2
from liveness.v1.activity_pb2_grpc import ActivityServiceStub
from liveness.v1.admin_pb2_grpc import AdminServiceStub
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from tests.integration.server.server_harness import NAMESPACE, SHARDS, ServerHarness

CLUSTER_SERVICE = cluster_pb2.DESCRIPTOR.services_by_name["ClusterService"]


class RecordedCall(NamedTuple):
    """A call as it arrived at an owner."""

    method: str
    metadata: tuple[tuple[str, str | bytes], ...]
    remaining_s: float | None

    @property
    def to(self) -> str | None:
        return target_node(self.metadata)


class CallRecorder(grpc.aio.ServerInterceptor):
    """Records the received calls, and can delay them or add metadata."""

    def __init__(self) -> None:
        self.received: list[RecordedCall] = []
        self.ended: list[str] = []
        """Methods of finished calls, with any outcome."""
        self.gate: asyncio.Event | None = None
        self.arrived = asyncio.Event()
        self.metadata_to_add: tuple[tuple[str, str], ...] = ()

    def methods(self) -> list[str]:
        return [received.method for received in self.received]

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        name = handler_call_details.method.rpartition("/")[2]
        if handler is None or handler.unary_unary is None:
            if handler is not None:
                self.received.append(
                    RecordedCall(name, tuple(handler_call_details.invocation_metadata), None)
                )
            return handler

        async def recorded(request: Any, context: Any) -> Any:
            self.received.append(
                RecordedCall(name, tuple(context.invocation_metadata()), context.time_remaining())
            )
            self.arrived.set()
            try:
                if self.gate is not None:
                    await self.gate.wait()
                if self.metadata_to_add:
                    await context.send_initial_metadata(self.metadata_to_add)
                    context.set_trailing_metadata(self.metadata_to_add)
                return await handler.unary_unary(request, context)
            finally:
                self.ended.append(name)

        return grpc.unary_unary_rpc_method_handler(
            recorded, handler.request_deserializer, handler.response_serializer
        )


class Owner:
    def __init__(self, cluster: Cluster, name: str, folder: Path) -> None:
        self.name = name
        self.owned: set[int] = set()
        self.hints: dict[int, Route] = {}
        """The owners it names when it refuses a call for another's shard."""
        self.recorder = CallRecorder()
        self.address = "127.0.0.1:0"
        self.cluster_address = "127.0.0.1:0"
        self._cluster = cluster
        self.harness = ServerHarness(f"sqlite:///{folder}/{name}.db")
        self._servers: list[Any] = []

    async def start(self) -> Owner:
        await self.harness.start(takeover_grace_ms=0)
        node = self.harness.server.node
        find = node.shard_by_id

        def shard_by_id(shard_id: int) -> Any:
            self.refuse_others(shard_id)
            return find(shard_id)

        setattr(node, "shard_by_id", shard_by_id)  # noqa: B010 - refuses shards of others
        self.streams = self.harness.server.streams
        self.gateway = Gateway(
            self._cluster.routes,
            ChannelPool(),
            SystemClock(),
            own_node_id=self.name,
            owns_shard=self.owned.__contains__,
            open_local_stream=self.streams.relay,
        )
        await self.listen()
        return self

    def refuse_others(self, shard_id: int) -> None:
        if shard_id in self.owned:
            return
        if (hint := self.hints.get(shard_id)) is not None:
            raise ShardMoved(shard_id=shard_id, **hint._asdict())
        raise ShardUnavailable(shard_id=shard_id)

    async def listen(self) -> None:
        server = self.harness.server
        workers = OwnedShardsOnly(
            self, server.node, server.feed, self.streams, Random(1), server.telemetry, server.quotas
        )
        services = (
            workers,
            ActivityService(server.node, server.ownership, server.matching),
            ComponentService(server.node, workers, server.supervisor_mail),
            ComponentMetricsService(server.node, server.store, server.metrics_writer),
            RegistryService(
                server.node,
                server.telemetry,
                workers.rate_limits,
                server.quotas,
                None,
                OwnCalls(self.gateway, SystemClock()),
            ),
            ProgressService(server.node, server.telemetry, server.quotas),
            ScheduleService(server.node, server.quotas, server.schedules.trigger),
            AdminService(server.node, server.fleet, None, server.membership, server.peers),
        )
        wait = server.node.wait_all_durable
        public, cluster = self._servers = [
            grpc.aio.server(
                interceptors=[self.recorder], options=[("grpc.max_receive_message_length", 16 << 20)]
            )
            for _ in range(2)
        ]
        for descriptor, service in zip(SERVICES, services, strict=True):
            register_service(public, descriptor, service, wait, gateway=self.gateway)
            register_service(cluster, descriptor, service, wait, gateway=ForwardedCalls(self.name))
        register_service(cluster, CLUSTER_SERVICE, ClusterServiceStub(self), wait)
        self.address = f"127.0.0.1:{public.add_insecure_port(self.address)}"
        self.cluster_address = f"127.0.0.1:{cluster.add_insecure_port(self.cluster_address)}"
        for each in self._servers:
            await each.start()

    async def kill(self) -> None:
        """Close the connections without notice, as when the process is killed."""
        servers, self._servers = self._servers, []
        for server in servers:
            await server.stop(None)

    async def stop(self) -> None:
        self.recorder.gate = None
        await self.gateway.close()
        await self.kill()
        await self.harness.stop()

    def route(self, epoch: int) -> Route:
        return Route(self.name, self.cluster_address, epoch)


class OwnedShardsOnly(LivenessService):
    """Refuses heartbeats of workers on shards of other owners, one by one."""

    def __init__(self, owner: Owner, *parts: Any) -> None:
        super().__init__(*parts)
        self._owner = owner

    async def _record(self, namespace: str, beats: Iterable[Any], reply_builders: Any, *rest: Any) -> Any:
        beats = list(beats)
        answers: list[Any] = [None] * len(beats)
        own = []
        for at, beat in enumerate(beats):
            try:
                self._owner.refuse_others(shard_of(namespace, beat.worker_instance_key, SHARDS))
                own.append(at)
            except LivenessError as error:
                answers[at] = error
        served = await super()._record(namespace, [beats[at] for at in own], reply_builders, *rest)
        for at, answer in zip(own, served, strict=True):
            answers[at] = answer
        return answers


class ClusterServiceStub:
    """ClusterService, as far as the way to the owner needs it."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.relay = owner.streams.relay

    async def get_routes(self, request: Any) -> cluster_pb2.GetRoutesResponse:
        routes = self._owner._cluster.routes
        return cluster_pb2.GetRoutesResponse(
            shard_count=SHARDS,
            nodes=[cluster_pb2.Member(**member._asdict()) for member in routes.members()],
            shards=[
                cluster_pb2.ShardRoute(shard_id=shard_id, node_id=owner.node_id, epoch=owner.epoch)
                for shard_id, owner in routes.owners().items()
            ],
            revision=routes.revision,
        )

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def absent(request: Any) -> Any:
            raise NotImplementedError(name)

        return absent


class RoutingFrontend:
    """A frontend whose routing table the test fills."""

    def __init__(self, routes: RoutingTable) -> None:
        self.routes = routes
        self.failures = 0
        self.recorder = CallRecorder()

    async def start(self) -> RoutingFrontend:
        self.gateway = Gateway(
            self.routes, ChannelPool(), SystemClock(), on_node_unreachable=self._count_failure
        )
        self._server = grpc.aio.server(interceptors=[self.recorder])
        for descriptor in SERVICES:
            register_service(self._server, descriptor, None, _at_once, gateway=self.gateway)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    def _count_failure(self) -> None:
        self.failures += 1

    async def stop(self) -> None:
        self.gateway.close_streams()
        await self._server.stop(1)
        await self.gateway.close()


async def _at_once() -> None:
    return None


class Cluster:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.routes = RoutingTable(SHARDS)
        self.owners: dict[str, Owner] = {}
        self._epoch = 0
        self._clients: list[Any] = []

    async def start(self, *names: str) -> Cluster:
        for name in names:
            self.owners[name] = await Owner(self, name, self._folder).start()
        for shard_id in range(SHARDS):
            self.owners[names[shard_id % len(names)]].owned.add(shard_id)
        self.publish()
        self.frontend = await RoutingFrontend(self.routes).start()
        self.client = self.connect(self.frontend.address)
        return self

    def connect(self, address: str) -> Client:
        client = Client(address)
        self._clients.append(client)
        return client

    async def stop(self) -> None:
        for client in self._clients:
            await client.channel.close()
        await self.frontend.stop()
        for owner in self.owners.values():
            await owner.stop()

    def publish(self) -> None:
        """Publish the members and the owner of each shard."""
        self._epoch += 1
        self.routes.replace(
            [Member(owner.name, owner.cluster_address) for owner in self.owners.values()],
            {
                shard_id: (owner.name, self._epoch)
                for owner in self.owners.values()
                for shard_id in owner.owned
            },
        )

    def move(self, shard_id: int, to: str, *, hint: bool = True) -> None:
        """Move the shard to another owner; only the former owner may give a hint."""
        self._epoch += 1
        for owner in self.owners.values():
            owner.owned.discard(shard_id)
            if hint:
                owner.hints[shard_id] = self.owners[to].route(self._epoch)
        self.owners[to].owned.add(shard_id)

    def owner_of(self, worker: str, namespace: str = NAMESPACE) -> Owner:
        shard_id = shard_of(namespace, worker, SHARDS)
        (owner,) = (owner for owner in self.owners.values() if shard_id in owner.owned)
        return owner

    def worker_owned_by(self, name: str, at: int = 0) -> str:
        """Return the name of a worker whose shard this owner has; `at` selects one of them."""
        found = (f"w{number}" for number in range(10_000))
        return [worker for _, worker in zip(range(10_000), found, strict=False) if self.owner_of(worker).name == name][at]  # fmt: skip


class Client:
    def __init__(self, address: str) -> None:
        # Untyped, because tests send invalid values and raw bytes. It has its own connection, which tests
        # cut.
        self.channel: Any = grpc.aio.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self.liveness: Any = LivenessServiceStub(self.channel)
        self.admin: Any = AdminServiceStub(self.channel)
        self.activities: Any = ActivityServiceStub(self.channel)
