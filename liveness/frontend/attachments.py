"""A worker on a client's stream, as the gateway sees it: what was asked, what was granted, and where it stands."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from liveness.domain.errors import LivenessError
from liveness.domain.keys import WorkerKey
from liveness.frontend.links import Link
from liveness.statuses import status_of
from liveness.v1.service_pb2 import AttachRequest, AttachResponse

REPLIES_MAX = 20_000
"""A client that asks and does not read is cut off."""


class Ask(NamedTuple):
    """To be attached. Silent: by the gateway itself, at a new owner, of which the client need not know."""

    request: AttachRequest
    silent: bool
    until_ms: int
    """How long the client is kept waiting while the shard is on the move."""


class Goodbye(NamedTuple):
    request: AttachRequest


class Shelf:
    """All that stands on one shard."""

    __slots__ = ("attachments", "link", "pause_ms", "retrying", "shard_id")

    def __init__(self, shard_id: int) -> None:
        self.shard_id = shard_id
        self.link: Link | None = None
        """Where the shard's workers are attached; None while its owner is sought."""
        self.attachments: dict[Attachment, None] = {}
        self.retrying: asyncio.Task[None] | None = None
        self.pause_ms: float = 0


class Attachment:
    """Its steps are taken one by one: the next only when the last was answered, so that nothing is overtaken."""

    __slots__ = (
        "asked",
        "client",
        "key",
        "lagging",
        "last_orders",
        "shelf",
        "stands",
        "steps",
        "terms",
    )

    def __init__(self, client: ClientStream, key: WorkerKey, shelf: Shelf) -> None:
        self.client = client
        self.key = key
        self.shelf = shelf
        self.steps: deque[Ask | Goodbye] = deque()
        self.asked: Link | None = None
        """Where the first step is under way."""
        self.stands: Link | None = None
        """Where it was granted."""
        self.terms: AttachRequest | None = None
        """What was granted last, to be asked for again at a new owner."""
        self.lagging = False
        """The first step was refused for now; it waits for its next turn."""
        self.last_orders = b""
        """What the client was told since it asked: a new owner, and one that re-reads the shard, tells it again."""

    @property
    def is_waiting(self) -> bool:
        return bool(self.steps) and self.asked is None

    @property
    def is_done(self) -> bool:
        return not self.steps and self.terms is None

    def uproot(self) -> None:
        """It stands nowhere any more; what was not answered is asked again, and what was granted, anew."""
        self.asked = self.stands = None
        self.lagging = False
        first = self.steps[0] if self.steps else None
        if self.terms is not None and not (isinstance(first, Ask) and first.silent):
            self.steps.appendleft(Ask(self.terms, True, 0))


class ClientStream:
    """One client's stream."""

    __slots__ = ("_news", "attachments", "ended", "error", "links", "number", "replies")

    def __init__(self, number: int) -> None:
        self.number = number
        self.attachments: dict[WorkerKey, Attachment] = {}
        self.links: set[Link] = set()
        """Owners that have heard of this stream."""
        self.replies: deque[AttachResponse] = deque()
        self.ended = False
        self.error: LivenessError | None = None
        self._news = asyncio.Event()

    def reply(self, message: AttachResponse) -> None:
        if len(self.replies) >= REPLIES_MAX:
            self.end()
            return
        self.replies.append(message)
        self._news.set()

    def end(self, error: LivenessError | None = None) -> None:
        self.ended, self.error = True, error
        self._news.set()

    async def news(self) -> None:
        await self._news.wait()
        self._news.clear()


def refuse(client: ClientStream, key: WorkerKey, error: LivenessError) -> None:
    attached = AttachResponse.Attached(namespace=key.namespace, worker_instance_key=key.instance_key)
    attached.status.CopyFrom(status_of(error))
    client.reply(AttachResponse(attached=attached))
