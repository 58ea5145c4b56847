"""A worker on a client's stream, as the gateway sees it: what was asked, what was granted, and where it stands."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from liveness.domain.errors import LivenessError
from liveness.domain.keys import WorkerKey
from liveness.routing.owner_connection import OwnerConnection
from liveness.rpc.status import status_of
from liveness.v1.service_pb2 import AttachRequest, AttachResponse

REPLIES_MAX = 20_000
"""A client that asks and does not read is cut off."""


class AttachStep(NamedTuple):
    """To be attached. Silent: by the gateway itself, at a new owner, of which the client need not know."""

    request: AttachRequest
    is_reattach: bool
    retry_until_ms: int
    """How long the client is kept waiting while the shard is on the move."""


class DetachStep(NamedTuple):
    request: AttachRequest


class ShardAttachments:
    """All that stands on one shard."""

    __slots__ = ("attachments", "connection", "retry_delay_ms", "retry_task", "shard_id")

    def __init__(self, shard_id: int) -> None:
        self.shard_id = shard_id
        self.connection: OwnerConnection | None = None
        """Where the shard's workers are attached; None while its owner is sought."""
        self.attachments: dict[Attachment, None] = {}
        self.retry_task: asyncio.Task[None] | None = None
        self.retry_delay_ms: float = 0


class Attachment:
    """Its steps are taken one by one: the next only when the last was answered, so that nothing is overtaken."""

    __slots__ = (
        "attached_connection",
        "client",
        "granted_request",
        "group",
        "is_backing_off",
        "key",
        "last_orders",
        "pending_connection",
        "steps",
    )

    def __init__(self, client: ClientStream, key: WorkerKey, group: ShardAttachments) -> None:
        self.client = client
        self.key = key
        self.group = group
        self.steps: deque[AttachStep | DetachStep] = deque()
        self.pending_connection: OwnerConnection | None = None
        """Where the first step is under way."""
        self.attached_connection: OwnerConnection | None = None
        """Where it was granted."""
        self.granted_request: AttachRequest | None = None
        """What was granted last, to be asked for again at a new owner."""
        self.is_backing_off = False
        """The first step was refused for now; it waits for its next turn."""
        self.last_orders = b""
        """What the client was told since it asked: a new owner, and one that re-reads the shard, tells it again."""

    @property
    def is_waiting(self) -> bool:
        return bool(self.steps) and self.pending_connection is None

    @property
    def is_done(self) -> bool:
        return not self.steps and self.granted_request is None

    def reset_connection(self) -> None:
        """It stands nowhere any more; what was not answered is asked again, and what was granted, anew."""
        self.pending_connection = self.attached_connection = None
        self.is_backing_off = False
        first = self.steps[0] if self.steps else None
        if self.granted_request is not None and not (isinstance(first, AttachStep) and first.is_reattach):
            self.steps.appendleft(AttachStep(self.granted_request, True, 0))


class ClientStream:
    """One client's stream."""

    __slots__ = ("_wakeup", "attachments", "connections", "error", "is_ended", "number", "replies")

    def __init__(self, number: int) -> None:
        self.number = number
        self.attachments: dict[WorkerKey, Attachment] = {}
        self.connections: set[OwnerConnection] = set()
        """Owners that have heard of this stream."""
        self.replies: deque[AttachResponse] = deque()
        self.is_ended = False
        self.error: LivenessError | None = None
        self._wakeup = asyncio.Event()

    def reply(self, message: AttachResponse) -> None:
        if len(self.replies) >= REPLIES_MAX:
            self.end()
            return
        self.replies.append(message)
        self._wakeup.set()

    def end(self, error: LivenessError | None = None) -> None:
        self.is_ended, self.error = True, error
        self._wakeup.set()

    async def wait_for_replies(self) -> None:
        await self._wakeup.wait()
        self._wakeup.clear()


def reject_attach(client: ClientStream, key: WorkerKey, error: LivenessError) -> None:
    attached = AttachResponse.Attached(namespace=key.namespace, worker_instance_key=key.instance_key)
    attached.status.CopyFrom(status_of(error))
    client.reply(AttachResponse(attached=attached))
