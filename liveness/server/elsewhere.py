"""Other nodes, asked about workers and activities that are at home there: the client's side of ClusterService."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

import grpc

from liveness.cluster.peers import Peers, node_given_up
from liveness.domain.activity import Activity
from liveness.domain.activity_decider import Holder
from liveness.domain.errors import ShardMoved, ShardUnavailable, Unavailable
from liveness.domain.keys import ActivityId, ActivityKey, WorkerKey, shard_of
from liveness.domain.worker import BoundActivity
from liveness.frontend.routes import Owner, Routes
from liveness.server.cluster_wire import glance, held, held_activity, held_message, id_message
from liveness.server.wire import activity_ref
from liveness.shard.homes import Glance, Held, Homes
from liveness.statuses import refusal_of
from liveness.v1 import cluster_pb2, worker_pb2

ANSWER_SECONDS_MAX = 3.0
OWNERS_TRIED_MAX = 3

T = TypeVar("T")
Ask = Callable[[str], Awaitable[T]]
"""By address."""


class OtherNodes:
    """Serves `shard.homes.Elsewhere`. A shard that turns out to be this node's own by now is asked here."""

    def __init__(self, node_id: str, routes: Routes, peers: Peers, homes: Homes) -> None:
        self._node_id = node_id
        self._routes = routes
        self._peers = peers
        self._homes = homes

    # -- workers that are at home there

    async def look(self, worker_key: WorkerKey, id: ActivityId) -> Glance | None:
        [answer] = await self._look(worker_key.namespace, worker_key.instance_key, [(worker_key, id)])
        return answer

    async def look_at_many(
        self, questions: Sequence[tuple[WorkerKey, ActivityId]]
    ) -> list[tuple[bool, Glance | None]]:
        found: dict[int, Glance | None] = {}

        async def look(places: list[int]) -> None:
            worker_key, _ = questions[places[0]]
            some = [questions[place] for place in places]
            try:
                answers = await self._look(worker_key.namespace, worker_key.instance_key, some)
            except Unavailable:
                return
            found.update(zip(places, answers, strict=True))

        names = [tuple(worker_key) for worker_key, _ in questions]
        await asyncio.gather(*(look(places) for places in self._by_owner(names)))
        return [(place in found, found.get(place)) for place in range(len(questions))]

    async def _look(
        self, namespace: str, name: str, questions: Sequence[tuple[WorkerKey, ActivityId]]
    ) -> list[Glance | None]:
        request = cluster_pb2.LookAtHoldersRequest(
            questions=[
                cluster_pb2.LookAtHoldersRequest.Question(
                    namespace=worker_key.namespace,
                    worker_instance_key=worker_key.instance_key,
                    id=id_message(id),
                )
                for worker_key, id in questions
            ]
        )

        async def ask(address: str) -> list[Glance | None]:
            response = await _answer(
                self._peers.stub(address).LookAtHolders(request, timeout=ANSWER_SECONDS_MAX)
            )
            return [glance(answer) for answer in response.answers]

        return await self._ask(namespace, name, ask, lambda: self._homes.look(questions))

    async def bind(
        self, worker_key: WorkerKey, session_id: str, activities: Sequence[BoundActivity]
    ) -> tuple[int, int]:
        request = cluster_pb2.BindAttemptsRequest(
            namespace=worker_key.namespace,
            worker_instance_key=worker_key.instance_key,
            session_id=session_id,
            activities=[activity_ref(activity) for activity in activities],
        )

        async def ask(address: str) -> tuple[int, int]:
            response = await _answer(
                self._peers.stub(address).BindAttempts(request, timeout=ANSWER_SECONDS_MAX)
            )
            return response.lease_epoch, response.bound

        return await self._ask(*worker_key, ask, lambda: self._homes.bind(worker_key, session_id, activities))

    async def unbind(self, worker_key: WorkerKey, id: ActivityId, attempt: int, *, taken: bool) -> bool:
        request = cluster_pb2.UnbindAttemptRequest(
            namespace=worker_key.namespace,
            worker_instance_key=worker_key.instance_key,
            id=id_message(id),
            attempt=attempt,
            taken=taken,
        )

        async def ask(address: str) -> bool:
            response = await _answer(
                self._peers.stub(address).UnbindAttempt(request, timeout=ANSWER_SECONDS_MAX)
            )
            return response.unbound

        return await self._ask(
            *worker_key, ask, lambda: self._homes.unbind(worker_key, id, attempt, taken=taken)
        )

    # -- activities that are at home there

    async def not_held(self, attempts: Sequence[Held]) -> list[Held]:
        found: list[Held] = []

        async def find(places: list[int]) -> None:
            some = [attempts[place] for place in places]
            request = cluster_pb2.FindNotHeldRequest(attempts=[held_message(held) for held in some])

            async def ask(address: str) -> list[Held]:
                response = await _answer(
                    self._peers.stub(address).FindNotHeld(request, timeout=ANSWER_SECONDS_MAX)
                )
                return [held(message) for message in response.not_held]

            try:
                found.extend(
                    await self._ask(
                        some[0].worker.namespace,
                        some[0].id.workflow_id,
                        ask,
                        lambda: self._homes.not_held(some),
                    )
                )
            except Unavailable:
                return

        names = [(held.worker.namespace, held.id.workflow_id) for held in attempts]
        await asyncio.gather(*(find(places) for places in self._by_owner(names)))
        return found

    async def hand_out(
        self, address: str, worker_key: WorkerKey, session_id: str, task_queue: str, limit: int
    ) -> list[Activity]:
        request = cluster_pb2.HandOutRequest(
            namespace=worker_key.namespace,
            worker_instance_key=worker_key.instance_key,
            session_id=session_id,
            task_queue=task_queue,
            max_activities=limit,
        )
        try:
            response = await _answer(self._peers.stub(address).HandOut(request, timeout=ANSWER_SECONDS_MAX))
        except grpc.aio.AioRpcError as error:
            raise refusal_of(error) from error
        return [held_activity(task, worker_key.instance_key) for task in response.activities]

    async def take_back(self, key: ActivityKey, holder: Holder) -> None:
        request = cluster_pb2.TakeBackRequest(
            namespace=key.namespace,
            worker_instance_key=holder.worker,
            lease_epoch=holder.epoch,
            activities=[worker_pb2.ActivityRef(**key.id._asdict(), attempt=holder.attempt)],
        )
        owner = self._owner(key.namespace, key.workflow_id)
        if owner.node_id == self._node_id:
            raise ShardUnavailable(
                shard_id=shard_of(key.namespace, key.workflow_id, self._routes.shard_count)
            )
        try:
            await _answer(self._peers.stub(owner.address).TakeBack(request, timeout=ANSWER_SECONDS_MAX))
        except grpc.aio.AioRpcError as error:
            raise refusal_of(error) from error

    # -- inside

    def _owner(self, namespace: str, name: str) -> Owner:
        shard_id = shard_of(namespace, name, self._routes.shard_count)
        owner = self._routes.owner(shard_id)
        if owner is None:
            raise ShardUnavailable(shard_id=shard_id)
        return owner

    def _by_owner(self, names: Iterable[tuple[str, ...]]) -> list[list[int]]:
        """Places of names that belong to one owner; those without an owner are left out."""
        groups: defaultdict[Hashable, list[int]] = defaultdict(list)
        for place, (namespace, name) in enumerate(names):
            owner = self._routes.owner(shard_of(namespace, name, self._routes.shard_count))
            if owner is not None:
                groups[owner.node_id].append(place)
        return list(groups.values())

    async def _ask(self, namespace: str, name: str, there: Ask[T], here: Callable[[], Awaitable[T]]) -> T:
        """Ask the owner, wherever it moved."""
        for _ in range(OWNERS_TRIED_MAX):
            owner = self._owner(namespace, name)
            if owner.node_id == self._node_id:
                return await here()
            try:
                return await there(owner.address)
            except grpc.aio.AioRpcError as error:
                refusal = refusal_of(error)
                if not isinstance(refusal, ShardMoved) or not self._learn(refusal.fields):
                    raise refusal from error
        raise Unavailable

    def _learn(self, fields: dict[str, Any]) -> bool:
        owner = Owner(str(fields["node_id"]), str(fields["address"]), int(fields.get("epoch", 0)))
        return self._routes.learn(int(fields["shard_id"]), owner)


async def _answer(call: Awaitable[T]) -> T:
    try:
        return await call
    except asyncio.CancelledError:
        if not node_given_up():
            raise
        raise Unavailable from None
