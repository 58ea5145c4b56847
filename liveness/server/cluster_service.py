"""ClusterService: serves calls of other nodes and of frontends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Protocol

import structlog

from liveness.cluster.hint_check import READ_GAP_MS_MIN, HintCheck
from liveness.cluster.membership import Membership
from liveness.cluster.peers import Peers
from liveness.cluster.quotas import Quotas
from liveness.dispatch.ownership import ActivityOwnership
from liveness.dispatch.remote import RemoteOwnershipResponder
from liveness.domain.activity import Activity
from liveness.domain.errors import MalformedRequest, Unauthenticated
from liveness.domain.keys import WorkerKey
from liveness.engine.node import Node
from liveness.expiry.death_rate import DeathCount
from liveness.routing.routing_table import RoutingTable
from liveness.security.authentication import Authenticator, ClientCertificate
from liveness.server import activity_wire, cluster_wire
from liveness.server.event_feed import EventFeed
from liveness.server.fleet import Fleet
from liveness.server.liveness_service import LivenessService
from liveness.server.validation import optional_identifier, require_identifier
from liveness.server.wire import worker_key
from liveness.store.errors import StoreError
from liveness.v1 import cluster_pb2 as pb

logger = structlog.get_logger("liveness.cluster")

WORKERS_MAX = 100_000_000
"""More than any node has. A count of deaths beyond it is not believed."""


class MatchingForPeers(Protocol):
    """The part of matching that other nodes use."""

    def note_remote_offer(
        self, address: str, namespace: str, task_queue: str, activity_types: Collection[str]
    ) -> None: ...

    def attended_types(
        self, namespace: str, task_queue: str, activity_types: Collection[str]
    ) -> Collection[str] | None: ...

    async def hand_out_to_remote(
        self,
        worker_key: WorkerKey,
        session_id: str,
        task_queue: str,
        limit: int,
        types: frozenset[str] | None,
    ) -> list[Activity]: ...


class QueueWaker(Protocol):
    def wake(self, shard_id: int) -> None: ...


class ClusterService:
    def __init__(
        self,
        node: Node,
        routes: RoutingTable,
        peers: Peers,
        membership: Membership,
        ownership: ActivityOwnership,
        ownership_responder: RemoteOwnershipResponder,
        matching: MatchingForPeers,
        queue_waker: QueueWaker,
        feed: EventFeed,
        quotas: Quotas,
        liveness_service: LivenessService,
        fleet: Fleet,
        authenticator: Authenticator | None = None,
        hint_gap_ms: int = READ_GAP_MS_MIN,
    ) -> None:
        """`hint_gap_ms`: the minimum time between two reads of the registry because of hints."""
        self._node = node
        self._routes = routes
        self._peers = peers
        self._membership = membership
        self._ownership = ownership
        self._ownership_responder = ownership_responder
        self._matching = matching
        self._queue_waker = queue_waker
        self._feed = feed
        self._quotas = quotas
        self._liveness_service = liveness_service
        self._fleet = fleet
        self._authenticator = authenticator
        self.hint_check = HintCheck(self._read_registry, node.clock, hint_gap_ms)

    async def close(self) -> None:
        await self.hint_check.close()

    async def authenticate(self, request: pb.AuthenticateRequest) -> pb.AuthenticateResponse:
        if self._authenticator is None:
            raise Unauthenticated(why="this node asks nobody; set auth to on")
        principal = (
            self._authenticator.authenticate_certificate(ClientCertificate(request.certificate))
            if request.certificate and not request.authorization
            else self._authenticator.identify_header(request.authorization)
        ).principal
        return pb.AuthenticateResponse(
            principal=principal.name,
            grants=map(str, principal.grants),
            credential=principal.credential_kind,
            credential_id=principal.credential_id,
            expires_wall_ms=principal.expires_wall_ms,
        )

    async def get_routes(self, request: pb.GetRoutesRequest) -> pb.GetRoutesResponse:
        routes = self._routes
        return pb.GetRoutesResponse(
            shard_count=routes.shard_count,
            nodes=[pb.Member(**member._asdict()) for member in routes.members()],
            shards=[
                pb.ShardRoute(shard_id=shard_id, node_id=owner.node_id, epoch=owner.epoch)
                for shard_id, owner in routes.owners().items()
            ],
            revision=routes.revision,
        )

    async def hint(self, request: pb.HintRequest) -> pb.HintResponse:
        """Look where a hint points to. What it says about owners, logs and nodes is read from the database."""
        cluster_wire.check_hint(request, self._node.shard_count)
        if not self._membership.is_registered(request.node_id, request.address):
            self._membership.refresh_soon()  # it may have joined since the registry was read
            return pb.HintResponse()
        for shard_id in request.wake_shards:
            if 0 <= shard_id < self._node.shard_count:
                self._queue_waker.wake(shard_id)
        if request.released or request.members_changed:
            self._membership.refresh_soon()
        if request.released or self._says_news(request):
            self.hint_check.request()
        if request.config_changed and self._node.apply_stored_config(await self._node.store.load_config()):
            self._node.policy_changed()
        answer = pb.HintResponse()
        for offer in request.offers:
            attended = self._matching.attended_types(offer.namespace, offer.task_queue, offer.activity_types)
            if attended is not None:
                answer.attended.add(
                    namespace=offer.namespace, task_queue=offer.task_queue, activity_types=attended
                )
            self._matching.note_remote_offer(
                request.address, offer.namespace, offer.task_queue, offer.activity_types
            )
        for struck in request.struck:
            if 0 <= struck.workers <= struck.of <= WORKERS_MAX:
                death_count = DeathCount(struck.workers, struck.of)
                self._node.throttle.death_rate.record_report(request.node_id, struck.namespace, death_count)
        if request.watching:
            self._peers.watching_addresses.add(request.address)
        else:
            self._peers.watching_addresses.discard(request.address)
        return answer

    def _says_news(self, request: pb.HintRequest) -> bool:
        """Whether owners or logs would be other ones than this node knows."""
        for route in request.owned:
            if 0 <= route.shard_id < self._node.shard_count:
                owner = self._routes.owner(route.shard_id)
                if owner is None or (owner.node_id, owner.epoch) != (route.node_id, route.epoch):
                    return True
        return self._feed.is_behind({head.shard_id: head.sequence for head in request.heads})

    async def _read_registry(self) -> None:
        report_count = self._routes.report_count
        try:
            view = await self._node.store.read_cluster()
        except StoreError as error:
            logger.info("hint not followed", why=str(error))
            return
        self._membership.apply_owners(view, report_count)
        self._feed.update_remote_heads(
            {head.shard_id: head.last_seq for head in view.shards if not self._node.serves(head.shard_id)}
        )

    def relay(
        self, requests: AsyncIterator[pb.RelayRequest | MalformedRequest]
    ) -> AsyncIterator[pb.RelayResponse]:
        return self._liveness_service.relay(requests)

    async def look_up_workers(self, request: pb.LookUpWorkersRequest) -> pb.LookUpWorkersResponse:
        found = await self._liveness_service.look_up_workers(cluster_wire.worker_keys(request))
        return pb.LookUpWorkersResponse(workers=found)

    async def look_at_holders(self, request: pb.LookAtHoldersRequest) -> pb.LookAtHoldersResponse:
        found = await self._ownership_responder.look_up(cluster_wire.questions(request))
        return pb.LookAtHoldersResponse(answers=map(cluster_wire.holder_view_message, found))

    async def bind_attempts(self, request: pb.BindAttemptsRequest) -> pb.BindAttemptsResponse:
        epoch, bound = await self._ownership_responder.bind(
            worker_key(request.namespace, request.worker_instance_key),
            optional_identifier("session_id", request.session_id),
            cluster_wire.bound_activities(request.activities),
        )
        return pb.BindAttemptsResponse(lease_epoch=epoch, bound=bound)

    async def unbind_attempt(self, request: pb.UnbindAttemptRequest) -> pb.UnbindAttemptResponse:
        unbound = await self._ownership_responder.unbind(
            worker_key(request.namespace, request.worker_instance_key),
            cluster_wire.activity_id(request.id),
            cluster_wire.attempt(request.attempt),
            taken=request.taken,
        )
        return pb.UnbindAttemptResponse(unbound=unbound)

    async def find_not_held(self, request: pb.FindNotHeldRequest) -> pb.FindNotHeldResponse:
        found = await self._ownership_responder.find_not_held(cluster_wire.held_attempts(request))
        return pb.FindNotHeldResponse(not_held=map(cluster_wire.held_attempt_message, found))

    async def hand_out(self, request: pb.HandOutRequest) -> pb.HandOutResponse:
        found = await self._matching.hand_out_to_remote(
            worker_key(request.namespace, request.worker_instance_key),
            optional_identifier("session_id", request.session_id),
            optional_identifier("task_queue", request.task_queue),
            cluster_wire.hand_out_limit(request.max_activities),
            activity_wire.activity_types(request.activity_types),
        )
        return pb.HandOutResponse(activities=map(activity_wire.task_message, found))

    async def take_back(self, request: pb.TakeBackRequest) -> pb.TakeBackResponse:
        for key, holder in cluster_wire.taken_back(request):
            self._ownership.withdraw(key, holder, "the poll that it was handed to had ended")
        await self._node.wait_all_durable()
        return pb.TakeBackResponse()

    async def return_slots(self, request: pb.ReturnSlotsRequest) -> pb.ReturnSlotsResponse:
        namespace = require_identifier("namespace", request.namespace)
        return pb.ReturnSlotsResponse(returned=await self._quotas.return_unused(namespace))

    async def count_deaths(self, request: pb.CountDeathsRequest) -> pb.CountDeathsResponse:
        """Serves nodes of version 0.1.0, which add up what all nodes remember."""
        found = self._node.recent_deaths.deaths_around(
            worker_key(request.namespace, request.worker_instance_key),
            optional_identifier("host_name", request.host_name),
            optional_identifier("build_id", request.build_id),
            cluster_wire.wall_ms(request.wall_ms),
        )
        return pb.CountDeathsResponse(**found._asdict())

    async def get_fleet_share(self, request: pb.GetFleetShareRequest) -> pb.GetFleetShareResponse:
        optional_identifier("namespace", request.namespace)
        cluster_wire.range_ms(request.range_ms)
        return await self._fleet.share(request)
