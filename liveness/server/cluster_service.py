"""ClusterService: what other nodes, and frontends, ask of this one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from liveness.cluster.membership import Membership
from liveness.cluster.peers import Peers
from liveness.cluster.quotas import Quotas
from liveness.domain.activity import Activity
from liveness.domain.activity_decider import Holder
from liveness.domain.errors import MalformedRequest
from liveness.domain.keys import ActivityKey, WorkerKey
from liveness.frontend.routes import Owner, Routes
from liveness.server import activity_wire, cluster_wire
from liveness.server.feed import Feed
from liveness.server.fleet import Fleet
from liveness.server.liveness_service import LivenessService
from liveness.shard.custody import Custody
from liveness.shard.homes import Homes
from liveness.shard.node import Node
from liveness.shard.strikes import Counted
from liveness.v1 import cluster_pb2 as pb


class Offers(Protocol):
    """Matching, as far as other nodes are concerned."""

    def offered_at(self, address: str, namespace: str, task_queue: str) -> None: ...

    async def hand_out_to(
        self, worker_key: WorkerKey, session_id: str, task_queue: str, limit: int
    ) -> list[Activity]: ...


class Queues(Protocol):
    def wake(self, shard_id: int) -> None: ...


class ClusterService:
    def __init__(
        self,
        node: Node,
        routes: Routes,
        peers: Peers,
        membership: Membership,
        custody: Custody,
        homes: Homes,
        offers: Offers,
        queues: Queues,
        feed: Feed,
        quotas: Quotas,
        workers: LivenessService,
        fleet: Fleet,
    ) -> None:
        self._node = node
        self._routes = routes
        self._peers = peers
        self._membership = membership
        self._custody = custody
        self._homes = homes
        self._offers = offers
        self._queues = queues
        self._feed = feed
        self._quotas = quotas
        self._workers = workers
        self._fleet = fleet

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
            self._queues.wake(shard_id)
        for route in request.owned:
            self._routes.learn(route.shard_id, Owner(route.node_id, request.address, route.epoch))
        for shard_id in request.released:
            self._routes.forget(shard_id, request.node_id)
        if request.released or request.members_changed:
            self._membership.look_soon()
        if request.config_changed and self._node.adopt_config(await self._node.store.load_config()):
            self._node.policy_changed()
        for offer in request.offers:
            self._offers.offered_at(request.address, offer.namespace, offer.task_queue)
        for struck in request.struck:
            counted = Counted(struck.workers, struck.of)
            self._node.brake.strikes.hear(request.node_id, struck.namespace, counted)
        if request.watching:
            self._peers.watchful.add(request.address)
        else:
            self._peers.watchful.discard(request.address)
        self._feed.heard({head.shard_id: head.sequence for head in request.heads})
        return pb.HintResponse()

    def relay(
        self, requests: AsyncIterator[pb.RelayRequest | MalformedRequest]
    ) -> AsyncIterator[pb.RelayResponse]:
        return self._workers.relay(requests)

    async def look_up_workers(self, request: pb.LookUpWorkersRequest) -> pb.LookUpWorkersResponse:
        found = await self._workers.look_up(request.namespace, request.worker_instance_keys)
        return pb.LookUpWorkersResponse(workers=found)

    async def look_at_holders(self, request: pb.LookAtHoldersRequest) -> pb.LookAtHoldersResponse:
        questions = [
            (WorkerKey(q.namespace, q.worker_instance_key), cluster_wire.activity_id(q.id))
            for q in request.questions
        ]
        found = await self._homes.look(questions)
        return pb.LookAtHoldersResponse(answers=map(cluster_wire.glance_message, found))

    async def bind_attempts(self, request: pb.BindAttemptsRequest) -> pb.BindAttemptsResponse:
        epoch, bound = await self._homes.bind(
            WorkerKey(request.namespace, request.worker_instance_key),
            request.session_id,
            [cluster_wire.bound_activity(ref) for ref in request.activities],
        )
        return pb.BindAttemptsResponse(lease_epoch=epoch, bound=bound)

    async def unbind_attempt(self, request: pb.UnbindAttemptRequest) -> pb.UnbindAttemptResponse:
        unbound = await self._homes.unbind(
            WorkerKey(request.namespace, request.worker_instance_key),
            cluster_wire.activity_id(request.id),
            request.attempt,
            taken=request.taken,
        )
        return pb.UnbindAttemptResponse(unbound=unbound)

    async def find_not_held(self, request: pb.FindNotHeldRequest) -> pb.FindNotHeldResponse:
        found = await self._homes.not_held([cluster_wire.held(message) for message in request.attempts])
        return pb.FindNotHeldResponse(not_held=map(cluster_wire.held_message, found))

    async def hand_out(self, request: pb.HandOutRequest) -> pb.HandOutResponse:
        found = await self._offers.hand_out_to(
            WorkerKey(request.namespace, request.worker_instance_key),
            request.session_id,
            request.task_queue,
            request.max_activities,
        )
        return pb.HandOutResponse(activities=map(activity_wire.task_message, found))

    async def take_back(self, request: pb.TakeBackRequest) -> pb.TakeBackResponse:
        for ref in request.activities:
            key = ActivityKey(request.namespace, ref.workflow_id, ref.run_id, ref.activity_id)
            holder = Holder(request.worker_instance_key, request.lease_epoch, ref.attempt)
            self._custody.withdraw(key, holder, "the poll that it was handed to had ended")
        await self._node.settle()
        return pb.TakeBackResponse()

    async def return_slots(self, request: pb.ReturnSlotsRequest) -> pb.ReturnSlotsResponse:
        return pb.ReturnSlotsResponse(returned=await self._quotas.give_back(request.namespace))

    async def count_deaths(self, request: pb.CountDeathsRequest) -> pb.CountDeathsResponse:
        key = WorkerKey(request.namespace, request.worker_instance_key)
        found = self._node.obituaries.around(key, request.host_name, request.build_id, request.wall_ms)
        return pb.CountDeathsResponse(**found._asdict())

    async def get_fleet_share(self, request: pb.GetFleetShareRequest) -> pb.GetFleetShareResponse:
        return await self._fleet.share(request)
