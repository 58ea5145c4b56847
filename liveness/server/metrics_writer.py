"""Stores what components report, many reports in one transaction, and leaves most of the database's time to heartbeats."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from liveness.background import BackgroundTasks
from liveness.clock import Clock
from liveness.domain.errors import SeriesQuotaExceeded, TooManySamplesWaiting
from liveness.engine.counts import add_count
from liveness.store.api import Store
from liveness.store.component_metrics import SampleReport
from liveness.store.errors import StoreError

TRANSACTION_INTERVAL_MS = 50
SAMPLES_PER_TRANSACTION = 500
"""A transaction takes no further report when it has so many samples. SQLite has one connection that writes, and a heartbeat's
commit waits for a transaction that has begun."""
WAITING_SAMPLES_MAX = 100_000
STORED, REFUSED = "stored", "refused"


class _Waiting(NamedTuple):
    report: SampleReport
    done: asyncio.Future[SeriesQuotaExceeded | None]


class MetricsWriter:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        interval_ms: int = TRANSACTION_INTERVAL_MS,
        on_stored: Callable[[Sequence[SampleReport]], None] = lambda reports: None,
    ) -> None:
        """`interval_ms`: from the begin of one transaction to that of the next, so that reports gather meanwhile. `on_stored`:
        called with reports that are durable; it must not block."""
        self._store = store
        self._clock = clock
        self._interval_ms = interval_ms
        self._on_stored = on_stored
        self._tasks = BackgroundTasks("component metrics")
        self._waiting: list[_Waiting] = []
        self._writer: asyncio.Task[None] | None = None
        self._next_start_ms = 0
        self.waiting_samples = 0
        self._waiting_of: Counter[str] = Counter()
        """The same by namespace."""
        self.outcomes = Counter({STORED: 0, REFUSED: 0})
        """Samples by outcome."""
        self.transactions = 0

    async def store(self, report: SampleReport) -> None:
        """Return when the report is durable. Raises `SeriesQuotaExceeded`, `TooManySamplesWaiting` or `StoreError`."""
        namespace, count = report.key.namespace, len(report.samples)
        # A namespace may have as many as it leaves room for: one alone gets half, and every newcomer gets some.
        if self._waiting_of[namespace] + count > WAITING_SAMPLES_MAX - self.waiting_samples:
            raise TooManySamplesWaiting
        done = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(report, done))
        self.waiting_samples += count
        self._waiting_of[namespace] += count
        if self._writer is None:
            self._writer = self._tasks.start(self._write())
        if (refusal := await done) is not None:
            raise refusal

    async def close(self) -> None:
        """Store what waits, and end."""
        while self._writer is not None:
            await asyncio.wait({self._writer})
        await self._tasks.close()

    async def _write(self) -> None:
        try:
            while self._waiting:
                await self._wait_for_turn()
                began_ms = self._clock.monotonic_ms()
                batch = self._take_batch()
                await self._store_batch(batch)
                took_ms = self._clock.monotonic_ms() - began_ms
                # A slow database gets at least as long for other transactions as this one took.
                self._next_start_ms = began_ms + max(
                    self._interval_ms, 2 * took_ms if self._interval_ms else 0
                )
        finally:
            self._writer = None

    async def _wait_for_turn(self) -> None:
        wait_ms = self._next_start_ms - self._clock.monotonic_ms()
        if self._interval_ms and wait_ms > 0:
            await self._clock.sleep(wait_ms)

    def _take_batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        samples = 0
        for waiting in self._waiting:
            batch.append(waiting)
            samples += len(waiting.report.samples)
            add_count(self._waiting_of, waiting.report.key.namespace, -len(waiting.report.samples))
            if samples >= SAMPLES_PER_TRANSACTION:
                break
        del self._waiting[: len(batch)]
        self.waiting_samples -= samples
        # Whoever does not wait any more gets no answer; what it reported need not be stored.
        return [waiting for waiting in batch if not waiting.done.done()]

    async def _store_batch(self, batch: Sequence[_Waiting]) -> None:
        if not batch:
            return
        reports = [waiting.report for waiting in batch]
        try:
            self.transactions += 1
            refusals = await self._store.insert_samples(reports)
        except Exception as error:
            for waiting in batch:
                if not waiting.done.done():
                    waiting.done.set_exception(error)
            if isinstance(error, StoreError):
                return
            raise
        stored = [report for report, refusal in zip(reports, refusals, strict=True) if refusal is None]
        self.outcomes[STORED] += sum(len(report.samples) for report in stored)
        for waiting, refusal in zip(batch, refusals, strict=True):
            if not waiting.done.done():
                waiting.done.set_result(refusal)
        if stored:
            self._on_stored(stored)
