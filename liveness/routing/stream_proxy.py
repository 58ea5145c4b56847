"""The proxy of Attach streams. The workers of one client may belong to shards of many nodes, and shards move.

The proxy attaches each worker at the owner of its shard, over one Relay stream per owner that all clients share. It answers
pings itself. When a client's stream breaks, it tells every owner at which a worker of the client is attached. A broken Relay
stream, a moved shard and the end of this process are no disconnects of a worker: the proxy attaches the worker at its new
owner, and the client does not notice.
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
    Unauthenticated,
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
from liveness.security.principal import current_caller
from liveness.security.refused_request import RefusedRequest
from liveness.v1.cluster_pb2 import RelayRequest, RelayResponse
from liveness.v1.service_pb2 import AttachRequest, AttachResponse

WORKERS_PER_STREAM_MAX = 10_000
RETRY_DELAY_MS_MAX = 2_000
FLUSH_MS_MAX = 1_000
UNKNOWN_SHARD = -1
"""The group of all workers until the number of shards is known."""
WORKER_NOT_ACTIVE = "WORKER_NOT_ACTIVE"
"""A worker whose lease ended stays on its stream: its next heartbeat may make it active again."""


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
        """`open_local_stream`: serves Relay in this process, for the shards that this node owns."""
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
        """End all client streams. Owners do not count this as a disconnect of the workers."""
        self._is_closed = True
        self.end_client_streams()

    def end_client_streams(self) -> None:
        """Ask all clients to attach elsewhere, or here again. Owners do not count this as a disconnect of the workers."""
        for client in self._clients.values():
            client.is_sent_away = True
            client.reply(AttachResponse(closing=AttachResponse.Closing()))
            client.end()

    async def wait_closed(self) -> None:
        """Wait until the owners know about everything, and close the connections to them."""
        self._is_closed = True
        connections = [connection.task for connection in self._connections.values()]
        for connection in self._connections.values():
            connection.close_when_sent()
        if connections:
            ending = asyncio.gather(*connections, return_exceptions=True)
            await wait_or_timeout(ending, self._clock, FLUSH_MS_MAX)
        await self._tasks.close()

    def on_routes_changed(self) -> None:
        """Attach workers again whose shard has another owner now."""
        for group in list(self._groups.values()):
            owner = self._owner(group.shard_id)
            if owner is None or (group.connection is not None and group.connection.owner[:2] == owner[:2]):
                continue
            self._reset_group(group)
            self._advance_all(group)

    # -- a client's stream

    async def attach(
        self, requests: AsyncIterator[AttachRequest | MalformedRequest | RefusedRequest]
    ) -> AsyncIterator[AttachResponse]:
        caller = current_caller.get()
        client = ClientStream(
            next(self._stream_numbers), "" if caller is None else caller.principal.encoded().decode()
        )
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
        self, client: ClientStream, requests: AsyncIterator[AttachRequest | MalformedRequest | RefusedRequest]
    ) -> None:
        try:
            async for request in requests:
                if isinstance(request, MalformedRequest):
                    raise request
                if isinstance(request, RefusedRequest):
                    _reject(client, request)
                else:
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
        """Tell the owners that the client's stream broke.

        The notice follows all requests on the same connection, so that an owner attaches a worker before it learns of the
        break. No owner is told about a worker that is not attached at this moment; its lease just ends at its deadline.
        """
        del self._clients[client.number]
        attached_connections: set[OwnerConnection] = set()
        for attachment in client.attachments.values():
            connection = attachment.pending_connection or attachment.attached_connection
            if connection is not None:
                attached_connections.add(connection)
                for step in list(attachment.steps)[attachment.pending_connection is not None :]:
                    connection.send(_relayed(client, step.request))
            self._remove(attachment.group, attachment)
        client.attachments.clear()
        for connection in client.connections:
            if connection.is_lost:
                continue
            # The stream of a caller whose credential was revoked is ended here; that says nothing about the worker.
            is_cut = client.is_sent_away or isinstance(client.error, Unauthenticated)
            if connection in attached_connections and not is_cut:
                connection.send(RelayRequest(stream=client.number, broke=True))
            else:
                connection.send(RelayRequest(stream=client.number, over=True))

    # -- a worker's steps

    def _advance(self, attachment: Attachment) -> None:
        """Send the next steps of the worker, as far as an owner is known."""
        client = attachment.client
        while attachment.is_waiting and not attachment.is_backing_off:
            step = attachment.steps[0]
            if isinstance(step, DetachStep):
                attachment.steps.popleft()
                if attachment.attached_connection is not None:
                    attachment.attached_connection.send(_relayed(client, step.request))
                attachment.attached_connection = attachment.granted_request = None
                continue
            connection = self._connection_for(attachment.group)
            if connection is None:
                self._schedule_retry(attachment.group)
                return
            attachment.pending_connection = connection
            client.connections.add(connection)
            connection.send(_relayed(client, step.request))
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
            return  # a late answer from a connection that the worker has left
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
                attachment.granted_request = None  # the worker has another session by now, or none
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
        if connection.owner.node_id != self._own_node_id:  # this node knows which shards it owns
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
        """Detach the group from the connection, which stays open for other shards."""
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
        """Try again, with growing delays, until no worker of the shard waits."""
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
        """Tell clients that have waited too long for their first answer why there is none."""
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
        """Move the workers to the groups of their shards, now that the number of shards is known."""
        self._groups.pop(UNKNOWN_SHARD, None)
        for attachment in list(group.attachments):
            attachment.group = self._group_for(attachment.key)
            attachment.group.attachments[attachment] = None
            attachment.is_backing_off = False
            self._advance(attachment)


def _relayed(client: ClientStream, request: AttachRequest) -> RelayRequest:
    return RelayRequest(stream=client.number, request=request, principal=client.principal)


def _reject(client: ClientStream, refused: RefusedRequest) -> None:
    if refused.request.WhichOneof("request") == "attach":
        attach = refused.request.attach
        reject_attach(client, WorkerKey(attach.namespace, attach.worker_instance_key), refused.error)
