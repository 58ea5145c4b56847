"""ClusterService: serves calls of other nodes and of frontends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Protocol

from liveness.cluster.membership import Membership
from liveness.cluster.peers import Peers
from liveness.cluster.quotas import Quotas
from liveness.dispatch.ownership import ActivityOwnership
from liveness.dispatch.remote import RemoteOwnershipResponder
from liveness.domain.activity import Activity
from liveness.domain.activity_decider import AttemptHolder
from liveness.domain.errors import MalformedRequest, Unauthenticated
from liveness.domain.keys import ActivityKey, WorkerKey
from liveness.engine.node import Node
from liveness.expiry.death_rate import DeathCount
from liveness.routing.routing_table import Owner, RoutingTable
from liveness.security.authentication import Authenticator
from liveness.server import activity_wire, cluster_wire
from liveness.server.event_feed import EventFeed
from liveness.server.fleet import Fleet
from liveness.server.liveness_service import LivenessService
from liveness.v1 import cluster_pb2 as pb


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
    ) -> None:
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

    async def authenticate(self, request: pb.AuthenticateRequest) -> pb.AuthenticateResponse:
        if self._authenticator is None:
            raise Unauthenticated(why="this node asks nobody; set auth to on")
        principal = self._authenticator.authenticate_header(request.authorization).principal
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
        for shard_id in request.wake_shards:
            self._queue_waker.wake(shard_id)
        for route in request.owned:
            self._routes.update_owner(route.shard_id, Owner(route.node_id, request.address, route.epoch))
        for shard_id in request.released:
            self._routes.clear_owner(shard_id, request.node_id)
        if request.released or request.members_changed:
            self._membership.refresh_soon()
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
            death_count = DeathCount(struck.workers, struck.of)
            self._node.throttle.death_rate.record_report(request.node_id, struck.namespace, death_count)
        if request.watching:
            self._peers.watching_addresses.add(request.address)
        else:
            self._peers.watching_addresses.discard(request.address)
        self._feed.update_remote_heads({head.shard_id: head.sequence for head in request.heads})
        return answer

    def relay(
        self, requests: AsyncIterator[pb.RelayRequest | MalformedRequest]
    ) -> AsyncIterator[pb.RelayResponse]:
        return self._liveness_service.relay(requests)

    async def look_up_workers(self, request: pb.LookUpWorkersRequest) -> pb.LookUpWorkersResponse:
        found = await self._liveness_service.look_up_workers(request.namespace, request.worker_instance_keys)
        return pb.LookUpWorkersResponse(workers=found)

    async def look_at_holders(self, request: pb.LookAtHoldersRequest) -> pb.LookAtHoldersResponse:
        questions = [
            (WorkerKey(q.namespace, q.worker_instance_key), cluster_wire.activity_id(q.id))
            for q in request.questions
        ]
        found = await self._ownership_responder.look_up(questions)
        return pb.LookAtHoldersResponse(answers=map(cluster_wire.holder_view_message, found))

    async def bind_attempts(self, request: pb.BindAttemptsRequest) -> pb.BindAttemptsResponse:
        epoch, bound = await self._ownership_responder.bind(
            WorkerKey(request.namespace, request.worker_instance_key),
            request.session_id,
            [cluster_wire.bound_activity(ref) for ref in request.activities],
        )
        return pb.BindAttemptsResponse(lease_epoch=epoch, bound=bound)

    async def unbind_attempt(self, request: pb.UnbindAttemptRequest) -> pb.UnbindAttemptResponse:
        unbound = await self._ownership_responder.unbind(
            WorkerKey(request.namespace, request.worker_instance_key),
            cluster_wire.activity_id(request.id),
            request.attempt,
            taken=request.taken,
        )
        return pb.UnbindAttemptResponse(unbound=unbound)

    async def find_not_held(self, request: pb.FindNotHeldRequest) -> pb.FindNotHeldResponse:
        found = await self._ownership_responder.find_not_held(
            [cluster_wire.held_attempt(message) for message in request.attempts]
        )
        return pb.FindNotHeldResponse(not_held=map(cluster_wire.held_attempt_message, found))

    async def hand_out(self, request: pb.HandOutRequest) -> pb.HandOutResponse:
        found = await self._matching.hand_out_to_remote(
            WorkerKey(request.namespace, request.worker_instance_key),
            request.session_id,
            request.task_queue,
            request.max_activities,
            frozenset(request.activity_types) or None,
        )
        return pb.HandOutResponse(activities=map(activity_wire.task_message, found))

    async def take_back(self, request: pb.TakeBackRequest) -> pb.TakeBackResponse:
        for ref in request.activities:
            key = ActivityKey(request.namespace, ref.workflow_id, ref.run_id, ref.activity_id)
            holder = AttemptHolder(request.worker_instance_key, request.lease_epoch, ref.attempt)
            self._ownership.withdraw(key, holder, "the poll that it was handed to had ended")
        await self._node.wait_all_durable()
        return pb.TakeBackResponse()

    async def return_slots(self, request: pb.ReturnSlotsRequest) -> pb.ReturnSlotsResponse:
        return pb.ReturnSlotsResponse(returned=await self._quotas.return_unused(request.namespace))

    async def count_deaths(self, request: pb.CountDeathsRequest) -> pb.CountDeathsResponse:
        """Serves nodes of version 0.1.0, which add up what all nodes remember."""
        key = WorkerKey(request.namespace, request.worker_instance_key)
        found = self._node.recent_deaths.deaths_around(
            key, request.host_name, request.build_id, request.wall_ms
        )
        return pb.CountDeathsResponse(**found._asdict())

    async def get_fleet_share(self, request: pb.GetFleetShareRequest) -> pb.GetFleetShareResponse:
        return await self._fleet.share(request)
