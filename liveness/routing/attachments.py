"""The state of the workers on a client's Attach stream: what the client requested, what was granted, and by which owner."""

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
"""The stream of a client that sends requests and does not read the replies is ended."""


class AttachStep(NamedTuple):
    """The worker is to be attached."""

    request: AttachRequest
    is_reattach: bool
    """The proxy itself attaches the worker at a new owner; the client gets no reply."""
    retry_until_ms: int
    """The client waits until then at most while the shard moves."""


class DetachStep(NamedTuple):
    request: AttachRequest


class ShardAttachments:
    """The attachments of all workers of one shard."""

    __slots__ = ("attachments", "connection", "retry_delay_ms", "retry_task", "shard_id")

    def __init__(self, shard_id: int) -> None:
        self.shard_id = shard_id
        self.connection: OwnerConnection | None = None
        """The connection to the shard's owner; None while no owner is known."""
        self.attachments: dict[Attachment, None] = {}
        self.retry_task: asyncio.Task[None] | None = None
        self.retry_delay_ms: float = 0


class Attachment:
    """One worker on one client stream. Its steps run one by one: the next starts after the last was answered, so that no
    step overtakes another."""

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
        """The connection on which the first step is in flight."""
        self.attached_connection: OwnerConnection | None = None
        """The connection on which the worker is attached."""
        self.granted_request: AttachRequest | None = None
        """The last granted request, sent again to a new owner."""
        self.is_backing_off = False
        """The first step failed for now and waits for its next try."""
        self.last_orders = b""
        """The orders that the client has already got. A new owner, and an owner that recovers the shard, repeats them."""

    @property
    def is_waiting(self) -> bool:
        return bool(self.steps) and self.pending_connection is None

    @property
    def is_done(self) -> bool:
        return not self.steps and self.granted_request is None

    def reset_connection(self) -> None:
        """Forget the connection: unanswered steps are sent again, and the last grant is requested again."""
        self.pending_connection = self.attached_connection = None
        self.is_backing_off = False
        first = self.steps[0] if self.steps else None
        if self.granted_request is not None and not (isinstance(first, AttachStep) and first.is_reattach):
            self.steps.appendleft(AttachStep(self.granted_request, True, 0))


class ClientStream:
    __slots__ = (
        "_wakeup",
        "attachments",
        "connections",
        "error",
        "is_ended",
        "is_sent_away",
        "number",
        "principal",
        "replies",
    )

    def __init__(self, number: int, principal: str = "") -> None:
        """`principal`: who opened the stream, encoded for the owners; empty if callers are not asked."""
        self.number = number
        self.principal = principal
        self.attachments: dict[WorkerKey, Attachment] = {}
        self.connections: set[OwnerConnection] = set()
        """The connections to the owners that know this stream."""
        self.replies: deque[AttachResponse] = deque()
        self.is_ended = False
        self.is_sent_away = False
        """Whether this process has asked the client to leave: the end of the stream is not the client's."""
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
