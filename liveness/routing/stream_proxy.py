"""Attach, where the client is connected: its workers may live on many nodes, and move while it knows nothing of it.

Each worker is attached at its owner, over one Relay stream per owner for all clients. Pings are answered here. A client
whose stream breaks is told to every owner where a worker of it stands; that a Relay stream breaks, a shard moves or this
process ends counts for nothing. Then the worker is attached at its new owner, and the client sees no difference.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import count

from liveness.background import BackgroundTasks
from liveness.clock import Clock, wait_or_timeout
from liveness.domain.errors import (
    InvalidField,
    LivenessError,
    MalformedRequest,
    NoNodeReachable,
    ShardUnavailable,
)
from liveness.domain.keys import WorkerKey, shard_of
from liveness.routing import rpc_failures
from liveness.routing.attachments import (
    Attachment,
    AttachStep,
    ClientStream,
    DetachStep,
    ShardAttachments,
    reject_attach,
)
from liveness.routing.channels import ChannelPool
from liveness.routing.owner_connection import OpenStream, OwnerConnection, open_remote_stream
from liveness.routing.retry_budget import RETRY_DELAY_GROWTH, RETRY_DELAY_MS_MIN, RETRY_MS_MAX
from liveness.routing.routing_rules import RetrySafety
from liveness.routing.routing_table import Owner, RoutingTable
from liveness.v1.cluster_pb2 import RelayRequest, RelayResponse
from liveness.v1.service_pb2 import AttachRequest, AttachResponse

WORKERS_PER_STREAM_MAX = 10_000
RETRY_DELAY_MS_MAX = 2_000
FLUSH_MS_MAX = 1_000
UNKNOWN_SHARD = -1
"""The shard of everybody until it is known how many there are."""
WORKER_NOT_ACTIVE = "WORKER_NOT_ACTIVE"
"""A worker whose lease ended stands on its stream all the same: its next heartbeat may bring it back."""


class StreamProxy:
    def __init__(
        self,
        routes: RoutingTable,
        channels: ChannelPool,
        clock: Clock,
        *,
        own_node_id: str = "",
        open_local_stream: OpenStream | None = None,
        owns_shard: Callable[[int], bool] = lambda shard_id: False,
        on_node_unreachable: Callable[[], None] = lambda: None,
    ) -> None:
        """`open_local_stream`: this node's own side of Relay, for the shards that are its own."""
        self._routes = routes
        self._channels = channels
        self._clock = clock
        self._own_node_id = own_node_id
        self._open_local_stream = open_local_stream
        self._owns_shard = owns_shard
        self._on_node_unreachable = on_node_unreachable
        self._stream_numbers = count(1)
        self._clients: dict[int, ClientStream] = {}
        self._groups: dict[int, ShardAttachments] = {}
        self._connections: dict[tuple[str, str], OwnerConnection] = {}
        self._is_closed = False
        self._tasks = BackgroundTasks("stream proxy")

    def close(self) -> None:
        """We end the streams; that they break now counts for nothing."""
        self._is_closed = True
        for client in self._clients.values():
            client.reply(AttachResponse(closing=AttachResponse.Closing()))
            client.end()

    async def wait_closed(self) -> None:
        """Owners have been told."""
        self._is_closed = True
        connections = [connection.task for connection in self._connections.values()]
        for connection in self._connections.values():
            connection.close_when_sent()
        if connections:
            ending = asyncio.gather(*connections, return_exceptions=True)
            await wait_or_timeout(ending, self._clock, FLUSH_MS_MAX)
        await self._tasks.close()

    def on_routes_changed(self) -> None:
        """Somebody else may own what stands where it stood."""
        for group in list(self._groups.values()):
            owner = self._owner(group.shard_id)
            if owner is None or (group.connection is not None and group.connection.owner[:2] == owner[:2]):
                continue
            self._reset_group(group)
            self._advance_all(group)

    # -- a client's stream

    async def attach(
        self, requests: AsyncIterator[AttachRequest | MalformedRequest]
    ) -> AsyncIterator[AttachResponse]:
        client = ClientStream(next(self._stream_numbers))
        self._clients[client.number] = client
        if self._is_closed:
            self.close()
        reader = self._tasks.start(self._read(client, requests))
        try:
            while True:
                await client.wait_for_replies()
                while client.replies:
                    yield client.replies.popleft()
                if client.is_ended:
                    break
            if client.error is not None:
                raise client.error
        finally:
            reader.cancel()
            self._on_client_ended(client)

    async def _read(
        self, client: ClientStream, requests: AsyncIterator[AttachRequest | MalformedRequest]
    ) -> None:
        try:
            async for request in requests:
                if isinstance(request, MalformedRequest):
                    raise request
                self._handle_request(client, request)
            client.end()
        except LivenessError as error:
            client.end(error)

    def _handle_request(self, client: ClientStream, request: AttachRequest) -> None:
        kind = request.WhichOneof("request")
        if kind == "ping":
            client.reply(AttachResponse(pong=AttachResponse.Pong(number=request.ping.number)))
        elif kind == "attach":
            self._request_attach(client, request)
        elif kind == "detach":
            key = WorkerKey(request.detach.namespace, request.detach.worker_instance_key)
            if (attachment := client.attachments.get(key)) is not None:
                attachment.steps.append(DetachStep(request))
                self._advance(attachment)
        else:
            raise InvalidField(field="request", rule="must be attach, detach or ping")

    def _request_attach(self, client: ClientStream, request: AttachRequest) -> None:
        key = WorkerKey(request.attach.namespace, request.attach.worker_instance_key)
        attachment = client.attachments.get(key)
        if attachment is None:
            if len(client.attachments) >= WORKERS_PER_STREAM_MAX:
                rule = f"must be for at most {WORKERS_PER_STREAM_MAX} workers a stream"
                reject_attach(client, key, InvalidField(field="attach", rule=rule))
                return
            group = self._group_for(key)
            attachment = client.attachments[key] = Attachment(client, key, group)
            group.attachments[attachment] = None
        attachment.steps.append(AttachStep(request, False, self._clock.monotonic_ms() + RETRY_MS_MAX))
        self._advance(attachment)

    def _on_client_ended(self, client: ClientStream) -> None:
        """Told behind everything that was asked on the same link: an owner attaches first and hears of the break then.
        A worker that stands nowhere just now is told of to nobody; that costs time, its lease ends as it would."""
        del self._clients[client.number]
        attached_connections: set[OwnerConnection] = set()
        for attachment in client.attachments.values():
            connection = attachment.pending_connection or attachment.attached_connection
            if connection is not None:
                attached_connections.add(connection)
                for step in list(attachment.steps)[attachment.pending_connection is not None :]:
                    connection.send(RelayRequest(stream=client.number, request=step.request))
            self._remove(attachment.group, attachment)
        client.attachments.clear()
        for connection in client.connections:
            if connection.is_lost:
                continue
            if connection in attached_connections and not self._is_closed:
                connection.send(RelayRequest(stream=client.number, broke=True))
            else:
                connection.send(RelayRequest(stream=client.number, over=True))

    # -- a worker's steps

    def _advance(self, attachment: Attachment) -> None:
        """Take the next step, if it can be taken."""
        client = attachment.client
        while attachment.is_waiting and not attachment.is_backing_off:
            step = attachment.steps[0]
            if isinstance(step, DetachStep):
                attachment.steps.popleft()
                if attachment.attached_connection is not None:
                    attachment.attached_connection.send(
                        RelayRequest(stream=client.number, request=step.request)
                    )
                attachment.attached_connection = attachment.granted_request = None
                continue
            connection = self._connection_for(attachment.group)
            if connection is None:
                self._schedule_retry(attachment.group)
                return
            attachment.pending_connection = connection
            client.connections.add(connection)
            connection.send(RelayRequest(stream=client.number, request=step.request))
        if attachment.is_backing_off:
            self._schedule_retry(attachment.group)
        elif attachment.is_done:
            client.attachments.pop(attachment.key, None)
            self._remove(attachment.group, attachment)

    def _advance_all(self, group: ShardAttachments) -> None:
        for attachment in list(group.attachments):
            self._advance(attachment)

    def _on_response(self, connection: OwnerConnection, response: RelayResponse) -> None:
        client = self._clients.get(response.stream)
        if client is None:
            return
        kind = response.WhichOneof("what")
        if kind == "response":
            response_kind = response.response.WhichOneof("response")
            if response_kind == "attached":
                self._on_attached(client, connection, response.response)
            elif response_kind == "orders":
                self._on_orders(client, connection, response.response)
        elif kind == "moved":
            self._on_moved(
                client, connection, WorkerKey(response.moved.namespace, response.moved.worker_instance_key)
            )
        elif kind == "replaced":
            key = WorkerKey(response.replaced.namespace, response.replaced.worker_instance_key)
            attachment = client.attachments.get(key)
            if attachment is not None and attachment.attached_connection is connection:
                attachment.attached_connection = attachment.granted_request = None
                self._advance(attachment)

    def _on_attached(
        self, client: ClientStream, connection: OwnerConnection, response: AttachResponse
    ) -> None:
        attached = response.attached
        attachment = client.attachments.get(WorkerKey(attached.namespace, attached.worker_instance_key))
        if attachment is None or attachment.pending_connection is not connection:
            return  # an answer from where it no longer stands
        step = attachment.steps[0]
        assert isinstance(step, AttachStep)
        if attached.HasField("status"):
            self._on_refused(attachment, step, connection, response)
            return
        attachment.steps.popleft()
        attachment.pending_connection, attachment.attached_connection = None, connection
        attachment.granted_request = step.request
        attachment.group.retry_delay_ms = 0
        if not step.is_reattach:
            attachment.last_orders = b""
            client.reply(response)
        self._advance(attachment)

    def _on_refused(
        self, attachment: Attachment, step: AttachStep, connection: OwnerConnection, response: AttachResponse
    ) -> None:
        failure = rpc_failures.from_status(response.attached.status)
        attachment.pending_connection = None
        has_time = step.is_reattach or self._clock.monotonic_ms() < step.retry_until_ms
        if failure.can_retry(RetrySafety.ALWAYS) and has_time:
            attachment.is_backing_off = True
            if (new_owner := failure.new_owner) is not None:
                self._routes.update_owner(*new_owner)
                self._disconnect(attachment.group, connection)
        elif step.is_reattach and failure.reason == WORKER_NOT_ACTIVE:
            attachment.is_backing_off = True
        else:
            attachment.steps.popleft()
            if step.is_reattach:
                attachment.granted_request = None  # another session's, or nobody's by now
            else:
                attachment.client.reply(response)
        self._advance(attachment)

    def _on_orders(self, client: ClientStream, connection: OwnerConnection, response: AttachResponse) -> None:
        orders = response.orders
        attachment = client.attachments.get(WorkerKey(orders.namespace, orders.worker_instance_key))
        if attachment is None or attachment.attached_connection is not connection:
            return
        serialized = orders.SerializeToString()
        if serialized != attachment.last_orders:
            attachment.last_orders = serialized
            client.reply(response)

    def _on_moved(self, client: ClientStream, connection: OwnerConnection, key: WorkerKey) -> None:
        attachment = client.attachments.get(key)
        if attachment is None or connection not in (
            attachment.pending_connection,
            attachment.attached_connection,
        ):
            return
        attachment.reset_connection()
        attachment.is_backing_off = True
        if connection.owner.node_id != self._own_node_id:  # of its own shards, this node knows better
            self._routes.clear_owner(attachment.group.shard_id, connection.owner.node_id)
        self._disconnect(attachment.group, connection)
        self._advance(attachment)

    # -- shards and their owners

    def _group_for(self, key: WorkerKey) -> ShardAttachments:
        shard_id = shard_of(*key, self._routes.shard_count) if self._routes.shard_count else UNKNOWN_SHARD
        group = self._groups.get(shard_id)
        if group is None:
            group = self._groups[shard_id] = ShardAttachments(shard_id)
        return group

    def _remove(self, group: ShardAttachments, attachment: Attachment) -> None:
        group.attachments.pop(attachment, None)
        if not group.attachments and self._groups.get(group.shard_id) is group:
            del self._groups[group.shard_id]
            self._disconnect(group, group.connection)
            if group.retry_task is not None:
                group.retry_task.cancel()

    def _owner(self, shard_id: int) -> Owner | None:
        if shard_id == UNKNOWN_SHARD:
            return None
        if self._open_local_stream is not None and self._owns_shard(shard_id):
            return Owner(self._own_node_id, "", 0)
        owner = self._routes.owner(shard_id)
        return None if owner is None or owner.node_id == self._own_node_id else owner

    def _connection_for(self, group: ShardAttachments) -> OwnerConnection | None:
        if self._is_closed:
            return None
        if group.connection is None and (owner := self._owner(group.shard_id)) is not None:
            key = owner.node_id, owner.address
            connection = self._connections.get(key)
            if connection is None:
                is_own = owner.node_id == self._own_node_id and self._open_local_stream is not None
                open_stream = self._open_local_stream if is_own else open_remote_stream(owner, self._channels)
                assert open_stream is not None
                connection = self._connections[key] = OwnerConnection(
                    owner, open_stream, self._on_response, self._on_lost, self._tasks
                )
            group.connection = connection
            connection.groups.add(group)
        return group.connection

    def _disconnect(self, group: ShardAttachments, connection: OwnerConnection | None) -> None:
        """The link stays open for others; the shard's owner is sought anew."""
        if connection is not None and group.connection is connection:
            group.connection = None
            connection.groups.discard(group)

    def _reset_group(self, group: ShardAttachments) -> None:
        self._disconnect(group, group.connection)
        for attachment in group.attachments:
            attachment.reset_connection()

    def _on_lost(self, connection: OwnerConnection) -> None:
        if self._connections.get((connection.owner.node_id, connection.owner.address)) is connection:
            del self._connections[connection.owner.node_id, connection.owner.address]
        groups = list(connection.groups)
        for group in groups:
            self._reset_group(group)
        if self._is_closed:
            return
        for group in groups:
            for attachment in group.attachments:
                attachment.is_backing_off = attachment.is_waiting
            self._schedule_retry(group)
        if groups:
            self._on_node_unreachable()

    def _schedule_retry(self, group: ShardAttachments) -> None:
        if group.retry_task is None and not self._is_closed and group.attachments:
            group.retry_task = self._tasks.start(self._retry(group))

    async def _retry(self, group: ShardAttachments) -> None:
        """Until everybody on it has taken the steps that they wait for."""
        while any(attachment.is_waiting for attachment in group.attachments):
            group.retry_delay_ms = min(
                max(group.retry_delay_ms * RETRY_DELAY_GROWTH, RETRY_DELAY_MS_MIN), RETRY_DELAY_MS_MAX
            )
            await self._routes.wait_for_change(self._clock, group.retry_delay_ms)
            if group.shard_id == UNKNOWN_SHARD and self._routes.shard_count:
                self._assign_shards(group)
                return
            self._reject_overdue(group.attachments)
            for attachment in list(group.attachments):
                attachment.is_backing_off = False
                self._advance(attachment)
        group.retry_task = None

    def _reject_overdue(self, attachments: Iterable[Attachment]) -> None:
        """A client that waits for its first answer is told why there is none."""
        now_ms = self._clock.monotonic_ms()
        for attachment in list(attachments):
            step = attachment.steps[0] if attachment.is_waiting else None
            if isinstance(step, AttachStep) and not step.is_reattach and now_ms >= step.retry_until_ms:
                attachment.steps.popleft()
                shard_id = attachment.group.shard_id
                error = (
                    NoNodeReachable() if shard_id == UNKNOWN_SHARD else ShardUnavailable(shard_id=shard_id)
                )
                reject_attach(attachment.client, attachment.key, error)

    def _assign_shards(self, group: ShardAttachments) -> None:
        """Now it is known how many shards there are, and who stands on which."""
        self._groups.pop(UNKNOWN_SHARD, None)
        for attachment in list(group.attachments):
            attachment.group = self._group_for(attachment.key)
            attachment.group.attachments[attachment] = None
            attachment.is_backing_off = False
            self._advance(attachment)
