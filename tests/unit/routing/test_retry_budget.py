"""How long a call goes on being tried, by a clock that the test moves."""

from __future__ import annotations

import asyncio

from liveness.clock import ManualClock
from liveness.routing.retry_budget import RetryBudget
from liveness.routing.routing_table import Member, RoutingTable


async def tries(remaining_s: float) -> list[float]:
    """How much time each try has left to be answered, if every one is refused at once."""
    clock, routes = ManualClock(), RoutingTable(1)
    routes.replace([Member("a", "127.0.0.1:1")], {0: ("a", 1)})
    retry_budget = RetryBudget(clock, remaining_s)
    left_s = []
    while True:
        left_s.append(retry_budget.part_timeout_s())
        pausing = asyncio.ensure_future(retry_budget.wait(routes))
        while not pausing.done():
            await asyncio.sleep(0)
            clock.move(1)
        if not await pausing:
            return left_s


async def test_no_try_begins_that_has_no_time_to_be_answered() -> None:
    left_s = await tries(1.0)
    assert len(left_s) > 3
    assert min(left_s) >= 0.1
    assert min(await tries(60.0)) >= 0.25


async def test_answers_come_before_the_deadline() -> None:
    assert max(await tries(1.0)) <= 0.9
