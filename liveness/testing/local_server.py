"""A server in a thread of this process, for tests with and without an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from liveness.app import Server
from liveness.clock import Clock, ManualClock, SystemClock
from liveness.config.settings import Settings
from liveness.domain.commands import Deactivate
from liveness.domain.keys import WorkerKey
from liveness.domain.worker import InactiveReason

ResultT = TypeVar("ResultT")

CALL_TIMEOUT_S = 60
SHARDS = 4


class LocalServer:
    """A server with real gRPC on `address` and a real SQLite file in `folder`. Use it as a context manager, once."""

    def __init__(self, folder: Path, *, manual_clock: bool = True, **settings: Any) -> None:
        """`manual_clock=False`: the server uses the real clock. `settings`: the settings of `liveness serve`."""
        values = {"shards": SHARDS, "takeover_grace_ms": 0, "commit_interval_ms": 0.0, **settings}
        self._settings = Settings(db=f"sqlite:///{folder / 'liveness.db'}", listen="127.0.0.1:0", **values)
        self._manual_clock = manual_clock
        self._clock: Clock = ManualClock() if manual_clock else SystemClock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="liveness-server", daemon=True)
        self._queue_task: asyncio.Task[None] | None = None
        self.address = ""

    def __enter__(self) -> LocalServer:
        self._thread.start()
        try:
            self._run_on_loop(self._start())
        except BaseException:
            self._stop_thread()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._run_on_loop(self._stop())
        finally:
            self._stop_thread()

    def advance(self, seconds: float) -> None:
        """Move the server's clock forward, and return when all due timers have run."""
        if not self._manual_clock:
            raise RuntimeError("this server uses the real clock: it was created with manual_clock=False")
        self._run_on_loop(self.server.advance(max(1, round(seconds * 1_000))))

    def expire(self, worker_instance_key: str, namespace: str = "default") -> None:
        """End a worker's lease now, as if its heartbeats had stopped."""
        self._run_on_loop(self._expire(WorkerKey(namespace, worker_instance_key)))

    # -- run on the server's thread

    async def _start(self) -> None:
        self.server = Server(self._settings, clock=self._clock, self_driven=not self._manual_clock)
        await self.server.start()
        self.address = self.server.address
        if self._manual_clock:
            # The test moves only the clock; queued tasks that do not wait for it run by themselves.
            self._queue_task = asyncio.create_task(self.server.queue.run())

    async def _stop(self) -> None:
        if self._queue_task is not None:
            self._queue_task.cancel()
            await asyncio.wait([self._queue_task])
        await self.server.stop()

    async def _expire(self, key: WorkerKey) -> None:
        node = self.server.node
        shard = node.shard(*key)
        policy = node.policies.of(key.namespace)
        shard.deactivate(key, Deactivate(InactiveReason.LEASE_EXPIRED, "expired by a test", policy))
        await node.wait_durable(shard)

    # -- between threads

    def _run_on_loop(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)

    def _stop_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT_S)
        self._loop.close()
