"""The events that a watcher sees while commits are in progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from liveness.clock import ManualClock
from liveness.domain.keys import shard_of
from liveness.engine.listener import NodeListener
from liveness.engine.shard import PreparedCommit
from liveness.server.event_feed import EventBatch, EventSelection
from tests.databases import SHARD_COUNT, StoreDatabase
from tests.integration.engine.engine import NAMESPACE, Engine
from tests.integration.store.faulty_store import FaultyStore

NAMES = [n for n in map(str, range(100)) if shard_of(NAMESPACE, n, SHARD_COUNT) == 0][:2]
"""Two workers of the same shard."""


@pytest.fixture
async def store(store_database: StoreDatabase) -> FaultyStore:
    store = FaultyStore(store_database.connect())
    await store.open(SHARD_COUNT, "tests")
    return store


async def seen(watching: AsyncIterator[EventBatch]) -> list[str | None]:
    async with asyncio.timeout(10):  # a missed event would block for ever
        batch = await anext(watching)
    return [entry.worker for entry in batch.entries]


class GateCloser(NodeListener):
    """Lets no commit begin after the one that has just ended."""

    def __init__(self, store: FaultyStore) -> None:
        self._store = store
        self.enabled = True

    def committed(self, commits: Sequence[PreparedCommit]) -> None:
        if self.enabled:
            self._store.close_gate()


async def test_events_decided_during_a_hanging_commit_are_delivered_once_durable(
    store: FaultyStore,
) -> None:
    engine = await Engine(store, ManualClock()).start()
    watching = engine.feed.watch(EventSelection(None, None), "", False)
    assert await seen(watching) == []
    store.close_gate()
    first = asyncio.create_task(engine.beat(NAMES[0]))
    await store.reached.wait()
    second = asyncio.create_task(engine.beat(NAMES[1]))
    await asyncio.sleep(0)  # decided; its commit follows the first
    gate_closer = GateCloser(store)
    engine.node.add_listener(gate_closer)
    store.open_gate()
    await first
    assert await seen(watching) == [NAMES[0]]
    await store.reached.wait()
    assert not second.done()
    gate_closer.enabled = False
    store.open_gate()
    assert await seen(watching) == [NAMES[1]]
    await second
    await watching.aclose()  # type: ignore[attr-defined]
    await engine.stop()
