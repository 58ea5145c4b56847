"""Attach: the streams that workers keep open, what they are told through them, and what their breaking means.

A worker is attached by the stream that attached it last; the end of any other stream means nothing to it. When its
stream ends without a goodbye and the worker had asked for a disconnect grace, its shard takes it for suspect. A stream
that we end ourselves, because the server stops, makes nobody suspect.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence

from liveness.domain import orders
from liveness.domain.errors import InvalidField, LivenessError, MalformedRequest, Unavailable
from liveness.domain.keys import WorkerKey
from liveness.server import wire
from liveness.server.errors import status_of
from liveness.server.validation import duration_ms, identifier
from liveness.shard.node import Node
from liveness.shard.shard import HandedOver, Shard
from liveness.v1.service_pb2 import AttachRequest, AttachResponse

WORKERS_PER_STREAM_MAX = 10_000
REPLIES_MAX = 20_000
"""A client that asks and does not read is cut off."""


class Stream:
    __slots__ = ("_news", "ended", "error", "orders", "replies", "sessions")

    def __init__(self) -> None:
        self.sessions: dict[WorkerKey, str] = {}
        """Workers attached by this stream, and in which session."""
        self.replies: deque[AttachResponse] = deque()
        self.orders: dict[WorkerKey, None] = {}
        """Workers that are to be told what they are ordered to do now."""
        self.ended = False
        self.error: LivenessError | None = None
        self._news = asyncio.Event()

    def reply(self, message: AttachResponse) -> None:
        if len(self.replies) >= REPLIES_MAX:
            self.end()
        self.replies.append(message)
        self._news.set()

    def tell(self, key: WorkerKey) -> None:
        self.orders[key] = None
        self._news.set()

    def end(self, error: LivenessError | None = None) -> None:
        self.ended, self.error = True, error
        self._news.set()

    async def news(self) -> None:
        await self._news.wait()
        self._news.clear()


class Streams:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._by_worker: dict[WorkerKey, Stream] = {}
        self._open: set[Stream] = set()
        self._closed = False
        node.on_committed.append(self._on_committed)
        node.on_opened.append(self._on_opened)
        node.on_policy.append(self.tell_all)

    def is_attached(self, key: WorkerKey, session_id: str) -> bool:
        stream = self._by_worker.get(key)
        return stream is not None and stream.sessions.get(key) == session_id

    def close(self) -> None:
        """We end the streams; that they break now counts for nothing."""
        self._closed = True
        for stream in self._open:
            stream.reply(AttachResponse(closing=AttachResponse.Closing()))
            stream.end()

    def tell_all(self) -> None:
        """What every worker is ordered to do may have changed: a namespace was paused or resumed."""
        self._tell(self._by_worker)

    def _on_committed(self, handed: Sequence[HandedOver]) -> None:
        for part in handed:
            self._tell(part.orders)

    def _on_opened(self, shard: Shard) -> None:
        self._tell([key for key in self._by_worker if key in shard.workers])

    def _tell(self, keys: Iterable[WorkerKey]) -> None:
        for key in keys:
            if (stream := self._by_worker.get(key)) is not None:
                stream.tell(key)

    # -- one stream

    async def attach(
        self, requests: AsyncIterator[AttachRequest | MalformedRequest]
    ) -> AsyncIterator[AttachResponse]:
        stream = Stream()
        self._open.add(stream)
        if self._closed:
            self.close()
        reader = asyncio.create_task(self._read(stream, requests))
        try:
            while True:
                await stream.news()
                while stream.replies:
                    yield stream.replies.popleft()
                if stream.ended:
                    break
                while stream.orders:
                    key = next(iter(stream.orders))
                    del stream.orders[key]
                    if (message := await self._orders(key)) is not None:
                        yield message
            if stream.error is not None:
                raise stream.error
        finally:
            reader.cancel()
            self._open.discard(stream)
            self._over(stream)

    async def _read(self, stream: Stream, requests: AsyncIterator[AttachRequest | MalformedRequest]) -> None:
        try:
            async for request in requests:
                if isinstance(request, MalformedRequest):
                    raise request
                await self._serve(stream, request)
            stream.end()
        except LivenessError as error:
            stream.end(error)

    async def _serve(self, stream: Stream, request: AttachRequest) -> None:
        kind = request.WhichOneof("request")
        if kind == "ping":
            stream.reply(AttachResponse(pong=AttachResponse.Pong(number=request.ping.number)))
        elif kind == "attach":
            await self._attach(stream, request.attach)
        elif kind == "detach":
            key = WorkerKey(request.detach.namespace, request.detach.worker_instance_key)
            if stream.sessions.pop(key, None) is not None and self._by_worker.get(key) is stream:
                del self._by_worker[key]
        else:
            raise InvalidField(field="request", rule="must be attach, detach or ping")

    async def _attach(self, stream: Stream, request: AttachRequest.Attach) -> None:
        answer = AttachResponse.Attached(
            namespace=request.namespace, worker_instance_key=request.worker_instance_key
        )
        try:
            grace_ms = await self._admit(stream, request)
            if grace_ms:
                answer.disconnect_grace.CopyFrom(wire.duration(grace_ms))
        except LivenessError as error:
            answer.status.CopyFrom(status_of(error))
        stream.reply(AttachResponse(attached=answer))
        if not answer.HasField("status"):
            stream.tell(WorkerKey(request.namespace, request.worker_instance_key))

    async def _admit(self, stream: Stream, request: AttachRequest.Attach) -> int:
        node = self._node
        key = wire.worker_key(request.namespace, request.worker_instance_key)
        node.policies.admit(key.namespace)
        session_id = identifier("session_id", request.session_id)
        grace_ms = 0
        if request.HasField("disconnect_grace"):
            grace_ms = duration_ms("disconnect_grace", request.disconnect_grace)
        if len(stream.sessions) >= WORKERS_PER_STREAM_MAX:
            raise InvalidField(
                field="attach", rule=f"must be for at most {WORKERS_PER_STREAM_MAX} workers a stream"
            )
        shard = node.shard(*key)
        shard.change_worker(key, orders.attach(key, shard.describe(key), session_id, grace_ms))
        await node.durable(shard)
        # Only now: until the terms are durable, the breaking of this stream has no meaning.
        stream.sessions[key] = session_id
        self._by_worker[key] = stream
        shard.suspects.pop(key, None)
        return shard.describe(key).standing.grace_ms

    async def _orders(self, key: WorkerKey) -> AttachResponse | None:
        """What the worker is to do, as far as that is durable."""
        node = self._node
        try:
            shard = node.shard(*key)
            worker = shard.workers.get(key)
            await node.durable(shard)
        except Unavailable:
            return None  # told when the shard serves again
        if worker is None:
            return None
        standing = worker.standing
        message = AttachResponse.Orders(
            namespace=key.namespace,
            worker_instance_key=key.instance_key,
            state=worker.state,  # type: ignore[arg-type]
            lease_epoch=worker.epoch,
            pause=standing.paused or bool(node.policies.of(key.namespace).paused),
            drain=standing.draining,
            cancel_activities=[wire.activity_ref(activity) for activity in worker.lost.values()],
        )
        if standing.drain_deadline_ms:
            left_ms = max(0, standing.drain_deadline_ms - shard.now_ms())
            message.drain_remaining.CopyFrom(wire.duration(left_ms))
        return AttachResponse(orders=message)

    def _over(self, stream: Stream) -> None:
        for key, session_id in stream.sessions.items():
            if self._by_worker.get(key) is not stream:
                continue  # attached anew since
            del self._by_worker[key]
            if self._closed:
                continue
            try:
                shard = self._node.shard(*key)
            except Unavailable:
                continue  # moved or re-read: it counts for nothing
            worker = shard.workers.get(key)
            if worker is not None and worker.session_id == session_id:
                shard.suspect(key)
