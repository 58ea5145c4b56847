"""One stream of a client: who is attached by it, and what is to be said on it."""

from __future__ import annotations

import asyncio
from collections import deque

from liveness.domain.errors import LivenessError
from liveness.domain.keys import WorkerKey
from liveness.v1.service_pb2 import AttachResponse

REPLIES_MAX = 20_000
"""A client that asks and does not read is cut off."""


class AttachStream:
    """A client's own."""

    __slots__ = ("_output_ready", "ended", "error", "orders", "replies", "sessions")

    is_forwarded = False
    """Whether it stands for a client's stream elsewhere."""

    def __init__(self) -> None:
        self.sessions: dict[WorkerKey, str] = {}
        """Workers attached by this stream, and in which session."""
        self.replies: deque[AttachResponse] = deque()
        self.orders: dict[WorkerKey, None] = {}
        """Workers that are to be told what they are ordered to do now."""
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
        """The worker's shard is not served here any more."""

    def on_worker_replaced(self, key: WorkerKey) -> None:
        """Another stream has attached the worker."""

    def wake(self) -> None:
        self._output_ready.set()

    async def wait_for_output(self) -> None:
        await self._output_ready.wait()
        self._output_ready.clear()
