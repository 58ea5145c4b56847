"""Metrics that are read from the store at intervals, and retried after a failed read."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

from tests.integration.engine.engine import activity
from tests.integration.server.server_harness import ServerHarness

LATER_MS = 60_000
"""Longer than any pause between two reads, even if a read takes a second or two."""


class RefusingSink:
    """A sink that refuses every reschedule."""

    async def deliver(self, key: Any, activity: Any, task: Any) -> None:
        raise RuntimeError("no")


async def wait_idle(harness: ServerHarness) -> None:
    """Wait until the reader sleeps until its next read."""
    while not harness.clock._sleepers:
        await asyncio.sleep(0.001)


async def test_queues_and_verdicts_are_read_periodically_even_after_a_failure(
    harness: ServerHarness,
) -> None:
    await harness.restart(sink=RefusingSink())
    telemetry = harness.server.telemetry
    reading = asyncio.create_task(telemetry.run())
    try:
        await wait_idle(harness)
        assert telemetry.queue_depths.total == 0
        await harness.beat("dies", lease_ms=1_000, bound_activities=[activity("a")])
        await harness.advance(1_250)
        assert telemetry.queue_depths.total == 0, "not yet read"
        harness.clock.move(LATER_MS)
        await wait_idle(harness)
        assert telemetry.queue_depths.total == 1
        assert telemetry.verdicts["orders"].deaths == 1
        assert next(iter(telemetry.queue_depths.by_shard("orders").values())).retrying == 1
        assert not telemetry.queue_depths.by_shard("other")
        with closing(sqlite3.connect(harness.url.removeprefix("sqlite:///"))) as connection:
            connection.execute("ALTER TABLE tasks RENAME TO hidden")
            harness.clock.move(LATER_MS)
            await wait_idle(harness)
            assert telemetry.queue_depths.total == 1, "the last value stays"
            connection.execute("UPDATE hidden SET state = 3")
            connection.execute("ALTER TABLE hidden RENAME TO tasks")
            connection.commit()
        harness.clock.move(LATER_MS)
        await wait_idle(harness)
        assert telemetry.queue_depths.total == 0
        assert telemetry.queue_depths.dead_lettered() == {"orders": 1}
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
