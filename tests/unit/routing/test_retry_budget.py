"""The time budget of a call's retries, on a manual clock."""

from __future__ import annotations

import asyncio

from liveness.clock import ManualClock
from liveness.routing.retry_budget import RetryBudget
from liveness.routing.routing_table import Member, Owner, RoutingTable


async def timeouts_of_tries(remaining_s: float, *, is_batch: bool = False) -> list[float]:
    """Return the time-out of each try, if every try is refused at once."""
    clock, routes = ManualClock(), RoutingTable(1)
    routes.replace([Member("a", "127.0.0.1:1")], {0: ("a", 1)})
    retry_budget = RetryBudget(clock, routes, remaining_s, is_batch=is_batch)
    timeouts_s = []
    while True:
        timeouts_s.append(retry_budget.part_timeout_s())
        waiting = asyncio.ensure_future(retry_budget.wait())
        while not waiting.done():
            await asyncio.sleep(0)
            clock.move(1)
        if not await waiting:
            return timeouts_s


async def test_no_try_starts_without_enough_time_for_an_answer() -> None:
    timeouts_s = await timeouts_of_tries(1.0)
    assert len(timeouts_s) > 3
    assert min(timeouts_s) >= 0.1
    assert min(await timeouts_of_tries(60.0)) >= 0.25


async def test_every_try_ends_before_the_deadline() -> None:
    assert max(await timeouts_of_tries(1.0)) <= 0.9


async def test_a_batch_is_answered_while_a_third_of_its_time_is_left() -> None:
    """A lease of 2 s allows its heartbeat 0.67 s. Workers whose shards are served must not miss their answers because
    those of others are not."""
    timeouts_s = await timeouts_of_tries(0.66, is_batch=True)
    assert len(timeouts_s) > 1
    assert max(timeouts_s) <= 0.44
    assert min(timeouts_s) >= 0.22
    assert max(await timeouts_of_tries(60.0, is_batch=True)) == 58.5


async def test_routes_that_changed_during_a_try_are_tried_at_once() -> None:
    clock, routes = ManualClock(), RoutingTable(1)
    routes.replace([Member("a", "127.0.0.1:1")], {0: ("a", 1)})
    retry_budget = RetryBudget(clock, routes, 10.0)
    routes.clear_owner(0, "a")
    async with asyncio.timeout(60):
        assert await retry_budget.wait(), "the clock stands still"


async def test_routes_that_change_with_every_try_are_not_tried_without_pause() -> None:
    clock, routes = ManualClock(), RoutingTable(1)
    routes.replace([Member("a", "127.0.0.1:1")], {0: ("a", 1)})
    retry_budget = RetryBudget(clock, routes, 10.0)
    routes.update_owner(0, Owner("a", "127.0.0.1:1", 2))
    assert await retry_budget.wait()
    routes.update_owner(0, Owner("a", "127.0.0.1:1", 3))
    waiting = asyncio.ensure_future(retry_budget.wait())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    clock.move(20)
    assert await waiting
