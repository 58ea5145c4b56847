"""What only the store knows is looked at now and then; a store that cannot be read is looked at again."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

from tests.server.site import Site
from tests.shard.engine import activity

LATER_MS = 60_000
"""Longer than anybody rests, even where a look takes a second or two."""


class Refuses:
    """A receiver of reschedules."""

    async def offer(self, key: Any, activity: Any, task: Any) -> None:
        raise RuntimeError("no")


async def rested(site: Site) -> None:
    """Until whoever looks waits for the next time."""
    while not site.clock._sleepers:
        await asyncio.sleep(0.001)


async def test_queues_and_verdicts_are_looked_at_again_and_again_even_after_a_failure(site: Site) -> None:
    await site.restart(sink=Refuses())
    telemetry = site.server.telemetry
    looking = asyncio.create_task(telemetry.run())
    try:
        await rested(site)
        assert telemetry.queues.depth == 0
        await site.beat("dies", lease_ms=1_000, bound_activities=[activity("a")])
        await site.advance(1_250)
        assert telemetry.queues.depth == 0, "not yet looked at"
        site.clock.move(LATER_MS)
        await rested(site)
        assert telemetry.queues.depth == 1
        assert telemetry.verdicts["orders"].deaths == 1
        assert next(iter(telemetry.queues.depths("orders").values())).retrying == 1
        assert not telemetry.queues.depths("other")
        with closing(sqlite3.connect(site.url.removeprefix("sqlite:///"))) as connection:
            connection.execute("ALTER TABLE tasks RENAME TO hidden")
            site.clock.move(LATER_MS)
            await rested(site)
            assert telemetry.queues.depth == 1, "what was seen last stands"
            connection.execute("UPDATE hidden SET state = 3")
            connection.execute("ALTER TABLE hidden RENAME TO tasks")
            connection.commit()
        site.clock.move(LATER_MS)
        await rested(site)
        assert telemetry.queues.depth == 0
        assert telemetry.queues.dead_lettered() == {"orders": 1}
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
