"""Attach, where the client is connected: its workers may live on many nodes, and move while it knows nothing of it.

Each worker is attached at its owner, over one Relay stream per owner for all clients. Pings are answered here. A client
whose stream breaks is told to every owner where a worker of it stands; that a Relay stream breaks, a shard moves or this
process ends counts for nothing. Then the worker is attached at its new owner, and the client sees no difference.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import count

from liveness.clock import Clock
from liveness.domain.errors import (
    InvalidField,
    LivenessError,
    MalformedRequest,
    NoNodeReachable,
    ShardUnavailable,
)
from liveness.domain.keys import WorkerKey, shard_of
from liveness.frontend import refusals
from liveness.frontend.attachments import Ask, Attachment, ClientStream, Goodbye, Shelf, refuse
from liveness.frontend.channels import Channels
from liveness.frontend.links import Link, Relay, remote
from liveness.frontend.patience import PAUSE_GROWTH, PAUSE_MS_MIN, TRYING_MS_MAX
from liveness.frontend.routes import Owner, Routes
from liveness.frontend.rules import Repeat
from liveness.v1.cluster_pb2 import RelayRequest, RelayResponse
from liveness.v1.service_pb2 import AttachRequest, AttachResponse

WORKERS_PER_STREAM_MAX = 10_000
PAUSE_MS_MAX = 2_000
FLUSH_MS_MAX = 1_000
UNCOUNTED = -1
"""The shard of everybody until it is known how many there are."""
MAY_COME_BACK = "WORKER_NOT_ACTIVE"
"""A worker whose lease ended stands on its stream all the same: its next heartbeat may bring it back."""


class StreamGateway:
    def __init__(
        self,
        routes: Routes,
        channels: Channels,
        clock: Clock,
        *,
        me: str = "",
        local: Relay | None = None,
        is_mine: Callable[[int], bool] = lambda shard_id: False,
        on_trouble: Callable[[], None] = lambda: None,
    ) -> None:
        """`local`: this node's own side of Relay, for the shards that are its own."""
        self._routes = routes
        self._channels = channels
        self._clock = clock
        self._me = me
        self._local = local
        self._is_mine = is_mine
        self._on_trouble = on_trouble
        self._numbers = count(1)
        self._clients: dict[int, ClientStream] = {}
        self._shelves: dict[int, Shelf] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._closed = False

    def close(self) -> None:
        """We end the streams; that they break now counts for nothing."""
        self._closed = True
        for client in self._clients.values():
            client.reply(AttachResponse(closing=AttachResponse.Closing()))
            client.end()

    async def wait_closed(self) -> None:
        """Owners have been told."""
        self._closed = True
        links = [link.task for link in self._links.values()]
        for link in self._links.values():
            link.end()
        if links:
            timer = asyncio.ensure_future(self._clock.sleep(FLUSH_MS_MAX))
            ending = asyncio.gather(*links, return_exceptions=True)
            await asyncio.wait((timer, ending), return_when=asyncio.FIRST_COMPLETED)
            timer.cancel()
            for task in links:
                task.cancel()
        for shelf in self._shelves.values():
            if shelf.retrying is not None:
                shelf.retrying.cancel()

    def follow_routes(self) -> None:
        """Somebody else may own what stands where it stood."""
        for shelf in list(self._shelves.values()):
            owner = self._owner(shelf.shard_id)
            if owner is None or (shelf.link is not None and shelf.link.owner[:2] == owner[:2]):
                continue
            self._uproot(shelf)
            self._pump_all(shelf)

    # -- a client's stream

    async def attach(
        self, requests: AsyncIterator[AttachRequest | MalformedRequest]
    ) -> AsyncIterator[AttachResponse]:
        client = ClientStream(next(self._numbers))
        self._clients[client.number] = client
        if self._closed:
            self.close()
        reader = asyncio.create_task(self._read(client, requests))
        try:
            while True:
                await client.news()
                while client.replies:
                    yield client.replies.popleft()
                if client.ended:
                    break
            if client.error is not None:
                raise client.error
        finally:
            reader.cancel()
            self._over(client)

    async def _read(
        self, client: ClientStream, requests: AsyncIterator[AttachRequest | MalformedRequest]
    ) -> None:
        try:
            async for request in requests:
                if isinstance(request, MalformedRequest):
                    raise request
                self._take(client, request)
            client.end()
        except LivenessError as error:
            client.end(error)

    def _take(self, client: ClientStream, request: AttachRequest) -> None:
        kind = request.WhichOneof("request")
        if kind == "ping":
            client.reply(AttachResponse(pong=AttachResponse.Pong(number=request.ping.number)))
        elif kind == "attach":
            self._ask(client, request)
        elif kind == "detach":
            key = WorkerKey(request.detach.namespace, request.detach.worker_instance_key)
            if (attachment := client.attachments.get(key)) is not None:
                attachment.steps.append(Goodbye(request))
                self._pump(attachment)
        else:
            raise InvalidField(field="request", rule="must be attach, detach or ping")

    def _ask(self, client: ClientStream, request: AttachRequest) -> None:
        key = WorkerKey(request.attach.namespace, request.attach.worker_instance_key)
        attachment = client.attachments.get(key)
        if attachment is None:
            if len(client.attachments) >= WORKERS_PER_STREAM_MAX:
                rule = f"must be for at most {WORKERS_PER_STREAM_MAX} workers a stream"
                refuse(client, key, InvalidField(field="attach", rule=rule))
                return
            shelf = self._shelf(key)
            attachment = client.attachments[key] = Attachment(client, key, shelf)
            shelf.attachments[attachment] = None
        attachment.steps.append(Ask(request, False, self._clock.monotonic_ms() + TRYING_MS_MAX))
        self._pump(attachment)

    def _over(self, client: ClientStream) -> None:
        """Told behind everything that was asked on the same link: an owner attaches first and hears of the break then.
        A worker that stands nowhere just now is told of to nobody; that costs time, its lease ends as it would."""
        del self._clients[client.number]
        stood: set[Link] = set()
        for attachment in client.attachments.values():
            link = attachment.asked or attachment.stands
            if link is not None:
                stood.add(link)
                for step in list(attachment.steps)[attachment.asked is not None :]:
                    link.send(RelayRequest(stream=client.number, request=step.request))
            self._remove(attachment.shelf, attachment)
        client.attachments.clear()
        for link in client.links:
            if link.lost:
                continue
            if link in stood and not self._closed:
                link.send(RelayRequest(stream=client.number, broke=True))
            else:
                link.send(RelayRequest(stream=client.number, over=True))

    # -- a worker's steps

    def _pump(self, attachment: Attachment) -> None:
        """Take the next step, if it can be taken."""
        client = attachment.client
        while attachment.is_waiting and not attachment.lagging:
            step = attachment.steps[0]
            if isinstance(step, Goodbye):
                attachment.steps.popleft()
                if attachment.stands is not None:
                    attachment.stands.send(RelayRequest(stream=client.number, request=step.request))
                attachment.stands = attachment.terms = None
                continue
            link = self._link(attachment.shelf)
            if link is None:
                self._retry_later(attachment.shelf)
                return
            attachment.asked = link
            client.links.add(link)
            link.send(RelayRequest(stream=client.number, request=step.request))
        if attachment.lagging:
            self._retry_later(attachment.shelf)
        elif attachment.is_done:
            client.attachments.pop(attachment.key, None)
            self._remove(attachment.shelf, attachment)

    def _pump_all(self, shelf: Shelf) -> None:
        for attachment in list(shelf.attachments):
            self._pump(attachment)

    def _on_response(self, link: Link, response: RelayResponse) -> None:
        client = self._clients.get(response.stream)
        if client is None:
            return
        kind = response.WhichOneof("what")
        if kind == "response":
            what = response.response.WhichOneof("response")
            if what == "attached":
                self._on_attached(client, link, response.response)
            elif what == "orders":
                self._on_orders(client, link, response.response)
        elif kind == "moved":
            self._on_moved(
                client, link, WorkerKey(response.moved.namespace, response.moved.worker_instance_key)
            )
        elif kind == "replaced":
            key = WorkerKey(response.replaced.namespace, response.replaced.worker_instance_key)
            attachment = client.attachments.get(key)
            if attachment is not None and attachment.stands is link:
                attachment.stands = attachment.terms = None
                self._pump(attachment)

    def _on_attached(self, client: ClientStream, link: Link, response: AttachResponse) -> None:
        attached = response.attached
        attachment = client.attachments.get(WorkerKey(attached.namespace, attached.worker_instance_key))
        if attachment is None or attachment.asked is not link:
            return  # an answer from where it no longer stands
        ask = attachment.steps[0]
        assert isinstance(ask, Ask)
        if attached.HasField("status"):
            self._on_refused(attachment, ask, link, response)
            return
        attachment.steps.popleft()
        attachment.asked, attachment.stands = None, link
        attachment.terms = ask.request
        attachment.shelf.pause_ms = 0
        if not ask.silent:
            attachment.last_orders = b""
            client.reply(response)
        self._pump(attachment)

    def _on_refused(self, attachment: Attachment, ask: Ask, link: Link, response: AttachResponse) -> None:
        refusal = refusals.from_status(response.attached.status)
        attachment.asked = None
        in_time = ask.silent or self._clock.monotonic_ms() < ask.until_ms
        if refusal.may_repeat(Repeat.BLINDLY) and in_time:
            attachment.lagging = True
            if (told := refusal.owner) is not None:
                self._routes.learn(*told)
                self._leave(attachment.shelf, link)
        elif ask.silent and refusal.reason == MAY_COME_BACK:
            attachment.lagging = True
        else:
            attachment.steps.popleft()
            if ask.silent:
                attachment.terms = None  # another session's, or nobody's by now
            else:
                attachment.client.reply(response)
        self._pump(attachment)

    def _on_orders(self, client: ClientStream, link: Link, response: AttachResponse) -> None:
        orders = response.orders
        attachment = client.attachments.get(WorkerKey(orders.namespace, orders.worker_instance_key))
        if attachment is None or attachment.stands is not link:
            return
        written = orders.SerializeToString()
        if written != attachment.last_orders:
            attachment.last_orders = written
            client.reply(response)

    def _on_moved(self, client: ClientStream, link: Link, key: WorkerKey) -> None:
        attachment = client.attachments.get(key)
        if attachment is None or link not in (attachment.asked, attachment.stands):
            return
        attachment.uproot()
        attachment.lagging = True
        if link.owner.node_id != self._me:  # of its own shards, this node knows better
            self._routes.forget(attachment.shelf.shard_id, link.owner.node_id)
        self._leave(attachment.shelf, link)
        self._pump(attachment)

    # -- shards and their owners

    def _shelf(self, key: WorkerKey) -> Shelf:
        shard_id = shard_of(*key, self._routes.shard_count) if self._routes.shard_count else UNCOUNTED
        shelf = self._shelves.get(shard_id)
        if shelf is None:
            shelf = self._shelves[shard_id] = Shelf(shard_id)
        return shelf

    def _remove(self, shelf: Shelf, attachment: Attachment) -> None:
        shelf.attachments.pop(attachment, None)
        if not shelf.attachments and self._shelves.get(shelf.shard_id) is shelf:
            del self._shelves[shelf.shard_id]
            self._leave(shelf, shelf.link)
            if shelf.retrying is not None:
                shelf.retrying.cancel()

    def _owner(self, shard_id: int) -> Owner | None:
        if shard_id == UNCOUNTED:
            return None
        if self._local is not None and self._is_mine(shard_id):
            return Owner(self._me, "", 0)
        owner = self._routes.owner(shard_id)
        return None if owner is None or owner.node_id == self._me else owner

    def _link(self, shelf: Shelf) -> Link | None:
        if self._closed:
            return None
        if shelf.link is None and (owner := self._owner(shelf.shard_id)) is not None:
            key = owner.node_id, owner.address
            link = self._links.get(key)
            if link is None:
                mine = owner.node_id == self._me and self._local is not None
                opener = self._local if mine else remote(owner, self._channels)
                assert opener is not None
                link = self._links[key] = Link(owner, opener, self._on_response, self._on_lost)
            shelf.link = link
            link.shelves.add(shelf)
        return shelf.link

    def _leave(self, shelf: Shelf, link: Link | None) -> None:
        """The link stays open for others; the shard's owner is sought anew."""
        if link is not None and shelf.link is link:
            shelf.link = None
            link.shelves.discard(shelf)

    def _uproot(self, shelf: Shelf) -> None:
        self._leave(shelf, shelf.link)
        for attachment in shelf.attachments:
            attachment.uproot()

    def _on_lost(self, link: Link) -> None:
        if self._links.get((link.owner.node_id, link.owner.address)) is link:
            del self._links[link.owner.node_id, link.owner.address]
        shelves = list(link.shelves)
        for shelf in shelves:
            self._uproot(shelf)
        if self._closed:
            return
        for shelf in shelves:
            for attachment in shelf.attachments:
                attachment.lagging = attachment.is_waiting
            self._retry_later(shelf)
        if shelves:
            self._on_trouble()

    def _retry_later(self, shelf: Shelf) -> None:
        if shelf.retrying is None and not self._closed and shelf.attachments:
            shelf.retrying = asyncio.get_running_loop().create_task(self._retry(shelf))

    async def _retry(self, shelf: Shelf) -> None:
        """Until everybody on it has taken the steps that they wait for."""
        while any(attachment.is_waiting for attachment in shelf.attachments):
            shelf.pause_ms = min(max(shelf.pause_ms * PAUSE_GROWTH, PAUSE_MS_MIN), PAUSE_MS_MAX)
            await self._routes.changed(self._clock, shelf.pause_ms)
            if shelf.shard_id == UNCOUNTED and self._routes.shard_count:
                self._recount(shelf)
                return
            self._give_up_late(shelf.attachments)
            for attachment in list(shelf.attachments):
                attachment.lagging = False
                self._pump(attachment)
        shelf.retrying = None

    def _give_up_late(self, attachments: Iterable[Attachment]) -> None:
        """A client that waits for its first answer is told why there is none."""
        now_ms = self._clock.monotonic_ms()
        for attachment in list(attachments):
            step = attachment.steps[0] if attachment.is_waiting else None
            if isinstance(step, Ask) and not step.silent and now_ms >= step.until_ms:
                attachment.steps.popleft()
                shard_id = attachment.shelf.shard_id
                error = NoNodeReachable() if shard_id == UNCOUNTED else ShardUnavailable(shard_id=shard_id)
                refuse(attachment.client, attachment.key, error)

    def _recount(self, shelf: Shelf) -> None:
        """Now it is known how many shards there are, and who stands on which."""
        self._shelves.pop(UNCOUNTED, None)
        for attachment in list(shelf.attachments):
            attachment.shelf = self._shelf(attachment.key)
            attachment.shelf.attachments[attachment] = None
            attachment.lagging = False
            self._pump(attachment)
