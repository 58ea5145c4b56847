"""Attach: streams that workers keep open. The server sends orders on them and notices when they break.

The stream that attached a worker last counts, in the order in which the client sent its requests if it numbers them; the
end of any other stream does not affect the worker. If that stream ends without a detach and the worker asked for a
disconnect grace, the shard marks the worker as disconnected. A stream that the server ends itself, because it stops,
marks no worker.

A client is connected to this node (`attach`), or to another node or a frontend that forwards its stream (`relay`, see
`server/forwarded_streams.py`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from itertools import islice
from typing import TypeVar

from liveness.background import BackgroundTasks
from liveness.domain import worker_control
from liveness.domain.errors import (
    AttachmentReplaced,
    InvalidField,
    LivenessError,
    MalformedRequest,
    Unauthenticated,
    Unavailable,
)
from liveness.domain.keys import WorkerKey
from liveness.domain.worker import Worker
from liveness.engine.listener import NodeListener
from liveness.engine.node import Node
from liveness.engine.shard import PreparedCommit, Shard
from liveness.rpc.status import status_of
from liveness.security.principal import caller_name
from liveness.security.redaction import redact_error
from liveness.security.refused_request import RefusedRequest
from liveness.server import wire
from liveness.server.attach_stream import Attached, AttachStream
from liveness.server.direct_connections import OwnAddresses
from liveness.server.forwarded_streams import ForwardingCall
from liveness.server.validation import duration_ms, require_identifier
from liveness.v1.cluster_pb2 import RelayRequest, RelayResponse
from liveness.v1.service_pb2 import AttachRequest, AttachResponse

WORKERS_PER_STREAM_MAX = 10_000
ORDERS_PER_TURN = 500
"""How many orders one stream sends before other streams get their turn."""

StreamT = TypeVar("StreamT", bound=AttachStream)


class AttachStreams(NodeListener):
    def __init__(
        self, node: Node, own_addresses: OwnAddresses | None = None, *, asks_callers: bool = False
    ) -> None:
        """`own_addresses`: the addresses of this process, if no other process ever serves the same database beside it.
        `asks_callers`: refuse forwarded requests that do not say who sent them."""
        self.asks_callers = asks_callers
        self._node = node
        self._own_addresses = own_addresses
        self._by_worker: dict[WorkerKey, AttachStream] = {}
        self._open: set[AttachStream] = set()
        self._forwarding_calls: set[ForwardingCall] = set()
        self._closed = False
        self._readers = BackgroundTasks("attach streams")

    def is_attached(self, key: WorkerKey, session_id: str) -> bool:
        stream = self._by_worker.get(key)
        attached = None if stream is None else stream.workers.get(key)
        return attached is not None and attached.session_id == session_id

    def attached_count(self) -> int:
        return len(self._by_worker)

    def open_count(self) -> int:
        """Counts streams of connected clients, and calls of nodes and frontends that forward streams."""
        return len(self._open) + len(self._forwarding_calls)

    def close(self) -> None:
        """End all streams. Workers are not marked as disconnected for it."""
        self._closed = True
        for stream in self._open:
            stream.reply(AttachResponse(closing=AttachResponse.Closing()))
            stream.end()
        for call in self._forwarding_calls:
            call.end()

    def shard_closed(self, shard: Shard) -> None:
        """Tell forwarding nodes that the shard's workers moved, so that they attach them at the next owner. The stream
        of a client that is connected to this node stays, and goes on if this node opens the shard again."""
        for key in self._attached_workers(shard):
            stream = self._by_worker[key]
            if not stream.is_forwarded:
                continue
            del self._by_worker[key]
            stream.workers.pop(key, None)
            stream.orders.pop(key, None)
            stream.on_worker_moved(key)

    def policy_changed(self) -> None:
        """Send all workers their orders again: a namespace may have been paused or resumed."""
        self._queue_orders(self._by_worker)

    def committed(self, commits: Sequence[PreparedCommit]) -> None:
        for commit in commits:
            self._queue_orders(commit.changed_orders)

    def shard_opened(self, shard: Shard) -> None:
        self._queue_orders(self._attached_workers(shard))

    def _attached_workers(self, shard: Shard) -> list[WorkerKey]:
        attached_keys, shard_workers = self._by_worker, shard.workers
        if len(shard.workers) < len(self._by_worker):
            return [key for key in shard.workers if key in self._by_worker]
        return [key for key in attached_keys if key in shard_workers]

    def _queue_orders(self, keys: Iterable[WorkerKey]) -> None:
        for key in keys:
            if (stream := self._by_worker.get(key)) is not None:
                stream.queue_orders(key)

    # -- one stream

    async def attach(
        self, requests: AsyncIterator[AttachRequest | MalformedRequest | RefusedRequest]
    ) -> AsyncIterator[AttachResponse]:
        stream = AttachStream()
        self._open.add(stream)
        if self._closed:
            self.close()
        reader = self._readers.start(self._read(stream, requests))
        try:
            while True:
                await stream.wait_for_output()
                while stream.replies:
                    yield stream.replies.popleft()
                if stream.ended:
                    break
                while stream.orders:
                    for _, message in await self.pop_orders([stream]):
                        yield message
            if stream.error is not None:
                raise stream.error
        finally:
            reader.cancel()
            self._open.discard(stream)
            # The server ends the stream of a caller whose credential was revoked; that says nothing about the worker.
            self.close_stream(stream, is_broken=not isinstance(stream.error, Unauthenticated))

    async def _read(
        self, stream: AttachStream, requests: AsyncIterator[AttachRequest | MalformedRequest | RefusedRequest]
    ) -> None:
        try:
            async for request in requests:
                if isinstance(request, MalformedRequest):
                    raise request
                if isinstance(request, RefusedRequest):
                    self._refuse(stream, request)
                else:
                    await self.serve(stream, request)
            stream.end()
        except LivenessError as error:
            stream.end(error)

    def _refuse(self, stream: AttachStream, refused: RefusedRequest) -> None:
        if refused.request.WhichOneof("request") == "attach":
            attach = refused.request.attach
            answer = AttachResponse.Attached(
                namespace=attach.namespace, worker_instance_key=attach.worker_instance_key
            )
            answer.status.CopyFrom(status_of(refused.error))
            stream.reply(AttachResponse(attached=answer))

    async def relay(
        self, requests: AsyncIterator[RelayRequest | MalformedRequest]
    ) -> AsyncGenerator[RelayResponse, None]:
        """Serve forwarded streams of clients. The end of this call does not mean that a client's stream broke."""
        call = ForwardingCall(self)
        self._forwarding_calls.add(call)
        if self._closed:
            call.end()
        try:
            async with aclosing(call.run(requests)) as responses:
                async for response in responses:
                    yield response
        finally:
            self._forwarding_calls.discard(call)

    async def serve(self, stream: AttachStream, request: AttachRequest) -> None:
        kind = request.WhichOneof("request")
        if kind == "ping":
            pong = AttachResponse.Pong(
                number=request.ping.number, direct=self._is_direct(stream, request.ping)
            )
            stream.reply(AttachResponse(pong=pong))
        elif kind == "attach":
            await self._attach(stream, request.attach)
        elif kind == "detach":
            key = WorkerKey(request.detach.namespace, request.detach.worker_instance_key)
            if stream.workers.pop(key, None) is not None and self._by_worker.get(key) is stream:
                del self._by_worker[key]
        else:
            raise InvalidField(field="request", rule="must be attach, detach or ping")

    def _is_direct(self, stream: AttachStream, ping: AttachRequest.Ping) -> bool:
        return (
            bool(ping.server_addresses)
            and self._own_addresses is not None
            and not stream.is_forwarded
            and self._own_addresses.contain(ping.server_addresses, ping.network)
        )

    async def _attach(self, stream: AttachStream, request: AttachRequest.Attach) -> None:
        answer = AttachResponse.Attached(
            namespace=request.namespace, worker_instance_key=request.worker_instance_key
        )
        try:
            grace_ms = await self._admit(stream, request)
            if grace_ms:
                answer.disconnect_grace.CopyFrom(wire.duration(grace_ms))
        except LivenessError as error:
            answer.status.CopyFrom(status_of(redact_error(error)))
        stream.reply(AttachResponse(attached=answer))
        if not answer.HasField("status"):
            stream.queue_orders(WorkerKey(request.namespace, request.worker_instance_key))

    async def _admit(self, stream: AttachStream, request: AttachRequest.Attach) -> int:
        node = self._node
        key = wire.worker_key(request.namespace, request.worker_instance_key)
        node.policies.admit(key.namespace)
        session_id = require_identifier("session_id", request.session_id)
        grace_ms = 0
        if request.HasField("disconnect_grace"):
            grace_ms = duration_ms("disconnect_grace", request.disconnect_grace)
        if len(stream.workers) >= WORKERS_PER_STREAM_MAX:
            raise InvalidField(
                field="attach", rule=f"must be for at most {WORKERS_PER_STREAM_MAX} workers a stream"
            )
        attached = Attached(session_id, request.attach_number)
        self._check_is_newest(key, stream, attached)
        shard = node.shard(*key)
        shard.change_worker(
            key, worker_control.attach(key, shard.describe(key), session_id, grace_ms, caller_name())
        )
        await node.wait_durable(shard)
        if node.shard_table()[shard.id] is not shard:
            raise node.unavailable_reason(shard.id)  # handed over meanwhile, with the terms
        self._check_is_newest(key, stream, attached)
        # The lease may have ended while the terms were committed. A worker that is told "attached" relies on it.
        worker_control.check_lease_is_live(key, shard.describe(key), session_id)
        # Only now: before the terms are durable, a broken stream must not mark the worker.
        before = self._by_worker.get(key)
        if before is not None and before is not stream:
            before.workers.pop(key, None)
            before.on_worker_replaced(key)
        stream.workers[key] = attached
        self._by_worker[key] = stream
        shard.mark_connected(key)
        return shard.describe(key).standing.grace_ms

    def _check_is_newest(self, key: WorkerKey, stream: AttachStream, attached: Attached) -> None:
        """Refuse a stream that its client left for the one that has attached the worker.

        A node that forwards streams attaches workers again at a shard's new owner, and may do so for a stream of which
        it does not know yet that its client has left it. The end of such a stream must not mark the worker.
        """
        newest = self._by_worker.get(key)
        if newest is None or newest is stream:
            return
        present = newest.workers[key]
        if present.session_id == attached.session_id and 0 < attached.number < present.number:
            raise AttachmentReplaced(worker=key.instance_key, newest=present.number)

    async def pop_orders(self, streams: Sequence[StreamT]) -> list[tuple[StreamT, AttachResponse]]:
        """Returns the durable orders of workers that wait on these streams."""
        node, found = self._node, []
        for stream in streams:
            for key in list(islice(stream.orders, ORDERS_PER_TURN)):
                del stream.orders[key]
                try:
                    shard = node.shard(*key)
                except Unavailable:
                    continue  # sent when the shard opens again
                if (worker := shard.workers.get(key)) is not None:
                    found.append((stream, key, shard, worker))
        group = node.barrier()
        await group.wait()
        serving = {shard.id: shard for shard in node.shards()}
        return [
            (stream, self._orders_message(key, shard, worker))
            for stream, key, shard, worker in found
            if not group.failed(shard) and serving.get(shard.id) is shard
        ]

    def _orders_message(self, key: WorkerKey, shard: Shard, worker: Worker) -> AttachResponse:
        standing = worker.standing
        message = AttachResponse.Orders(
            namespace=key.namespace,
            worker_instance_key=key.instance_key,
            state=worker.state,  # type: ignore[arg-type]
            lease_epoch=worker.epoch,
            pause=standing.paused or bool(self._node.policies.of(key.namespace).paused),
            drain=standing.draining,
            cancel_activities=[wire.activity_ref(activity) for activity in worker.lost.values()],
        )
        if standing.drain_deadline_ms:
            left_ms = max(0, standing.drain_deadline_ms - shard.now_ms())
            message.drain_remaining.CopyFrom(wire.duration(left_ms))
        return AttachResponse(orders=message)

    def close_stream(self, stream: AttachStream, *, is_broken: bool) -> None:
        """`is_broken`: the client's stream ended without detaching its workers."""
        for key, attached in stream.workers.items():
            if self._by_worker.get(key) is not stream:
                continue  # another stream has attached it since
            del self._by_worker[key]
            if self._closed or not is_broken:
                continue
            try:
                shard = self._node.shard(*key)
            except Unavailable:
                continue  # the shard moved or is read again: the break does not count
            worker = shard.workers.get(key)
            if worker is not None and worker.session_id == attached.session_id:
                shard.mark_disconnected(key)
        stream.workers.clear()
