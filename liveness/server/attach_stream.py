"""One Attach stream of a client: the workers that it attaches, and the messages to send."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from liveness.domain.errors import LivenessError
from liveness.domain.keys import WorkerKey
from liveness.v1.service_pb2 import AttachResponse

REPLIES_MAX = 20_000
"""The server ends the stream of a client that sends requests and reads no replies."""


class Attached(NamedTuple):
    """A worker on a stream, as its attach request named it."""

    session_id: str
    number: int
    """Its place among the attach requests of the session; 0 if the client does not say."""


class AttachStream:
    __slots__ = ("_output_ready", "ended", "error", "orders", "replies", "workers")

    is_forwarded = False
    """Whether the client is connected to another node or a frontend, which forwards its stream."""

    def __init__(self) -> None:
        self.workers: dict[WorkerKey, Attached] = {}
        """Workers attached by this stream."""
        self.replies: deque[AttachResponse] = deque()
        self.orders: dict[WorkerKey, None] = {}
        """Workers whose current orders must be sent."""
        self.ended = False
        self.error: LivenessError | None = None
        self._output_ready = asyncio.Event()

    def reply(self, message: AttachResponse) -> None:
        if len(self.replies) >= REPLIES_MAX:
            self.end()
        self.replies.append(message)
        self.wake()

    def queue_orders(self, key: WorkerKey) -> None:
        self.orders[key] = None
        self.wake()

    def end(self, error: LivenessError | None = None) -> None:
        self.ended, self.error = True, error
        self.wake()

    def on_worker_moved(self, key: WorkerKey) -> None:
        """This node does not serve the worker's shard any more."""

    def on_worker_replaced(self, key: WorkerKey) -> None:
        """Another stream has attached the worker."""

    def wake(self) -> None:
        self._output_ready.set()

    async def wait_for_output(self) -> None:
        await self._output_ready.wait()
        self._output_ready.clear()
