"""A node's own lease ends by its own clock, and not because the process stood still."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest

from liveness.clock import ManualClock
from liveness.cluster.own_lease import OwnLease

LEASE_MS, INTERVAL_MS = 4_000, 500


class Watched(NamedTuple):
    clock: ManualClock
    lease: OwnLease
    over: asyncio.Task[None]
    requested: list[int]

    async def move(self, ms: int) -> None:
        self.clock.move(ms)
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
async def watched() -> Watched:
    clock, requested = ManualClock(), list[int]()
    lease = OwnLease(clock, LEASE_MS, INTERVAL_MS)
    lease.renew(clock.monotonic_ms())
    over = asyncio.ensure_future(lease.wait_until_over(lambda: requested.append(clock.monotonic_ms())))
    watched = Watched(clock, lease, over, requested)
    await watched.move(0)
    return watched


async def test_it_is_over_before_other_nodes_may_take_the_shards(watched: Watched) -> None:
    await watched.move(3_599)
    assert not watched.over.done()
    await watched.move(1)
    assert watched.over.done()
    assert watched.lease.is_over


async def test_a_renewal_counts_from_its_beginning(watched: Watched) -> None:
    await watched.move(3_000)
    watched.lease.renew(watched.clock.monotonic_ms() - 1_000)
    await watched.move(600)
    await watched.move(1_999)
    assert not watched.over.done()
    await watched.move(1)
    assert watched.over.done()


async def test_a_process_that_stood_still_tries_to_renew_first(watched: Watched) -> None:
    await watched.move(60_000)
    assert not watched.over.done()
    assert len(watched.requested) == 1
    watched.lease.renew(watched.clock.monotonic_ms())
    await watched.move(1_000)
    assert not watched.over.done()
    await watched.move(2_600)
    assert watched.over.done()


async def test_a_process_that_stood_still_and_cannot_renew_gives_up_soon(watched: Watched) -> None:
    await watched.move(60_000)
    await watched.move(2 * INTERVAL_MS)
    assert watched.over.done()


async def test_a_renewal_that_took_longer_than_the_lease_does_not_revive_it(watched: Watched) -> None:
    await watched.move(3_600)
    watched.lease.renew(watched.clock.monotonic_ms() - LEASE_MS)
    assert watched.lease.is_over
    revived = asyncio.ensure_future(watched.lease.wait_until_renewed())
    await watched.move(0)
    assert not revived.done()
    watched.lease.renew(watched.clock.monotonic_ms())
    await revived
    assert not watched.lease.is_over
