"""A server in a thread of this process, for tests that have an event loop and for tests that have none."""

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
    """Real gRPC on `address`, a real SQLite file in `folder`. A context manager; may be entered once."""

    def __init__(self, folder: Path, *, manual_clock: bool = True, **settings: Any) -> None:
        """`manual_clock=False`: time passes by itself. `settings`: those of `liveness serve`."""
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
        """Let time pass on the server and everything happen that falls due; returns when it has."""
        if not self._manual_clock:
            raise RuntimeError("this server's time passes by itself: it was made with manual_clock=False")
        self._run_on_loop(self.server.advance(max(1, round(seconds * 1_000))))

    def expire(self, worker_instance_key: str, namespace: str = "default") -> None:
        """End a worker's lease now, as if it had been silent for too long."""
        self._run_on_loop(self._expire(WorkerKey(namespace, worker_instance_key)))

    # -- in the server's thread

    async def _start(self) -> None:
        self.server = Server(self._settings, clock=self._clock, self_driven=not self._manual_clock)
        await self.server.start()
        self.address = self.server.address
        if self._manual_clock:
            # Only time is moved by hand; what need not wait for it happens by itself.
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

    # -- between the threads

    def _run_on_loop(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)

    def _stop_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT_S)
        self._loop.close()
