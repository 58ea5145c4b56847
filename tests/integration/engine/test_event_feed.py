"""The events that a watcher sees while commits are in progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from liveness.clock import ManualClock
from liveness.domain.errors import ResumeTokenInvalid, TooManyWatchers
from liveness.domain.keys import shard_of
from liveness.engine.listener import NodeListener
from liveness.engine.shard import PreparedCommit
from liveness.server import event_feed
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


EVERYTHING = EventSelection(NAMESPACE, None)


async def delete_all_events(engine: Engine) -> None:
    await engine.maintenance.checkpoint()
    engine.clock.jump_wall(31 * 86_400_000)
    await engine.maintenance.apply_retention()


async def test_a_stream_whose_events_are_deleted_before_it_reads_them_ends_with_an_error(
    store: FaultyStore,
) -> None:
    engine = await Engine(store, ManualClock()).start()
    slow = engine.feed.watch(EVERYTHING, "", False)
    assert await seen(slow) == []
    for number in range(3):
        await engine.beat(NAMES[0], session_id=str(number))
    await delete_all_events(engine)
    await engine.beat(NAMES[1])
    with pytest.raises(ResumeTokenInvalid) as refused:
        await seen(slow)
    assert (refused.value.shards, refused.value.missing_events) == ("0", 3)
    await engine.stop()


async def test_a_watch_from_the_beginning_resumes_in_the_middle_of_what_is_left(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a part of the events is deleted, and the newest deleted one comes after some that are left."""
    monkeypatch.setattr(event_feed, "EVENTS_PER_RESPONSE_MAX", 1)
    engine = await Engine(store, ManualClock()).start()
    for name in NAMES:
        for number in range(2):
            await engine.beat(name, session_id=str(number))
    await engine.maintenance.checkpoint()
    owned = {0: engine.node.shard_by_id(0).epoch}
    assert await store.prune_events(owned, {}, 2**62, kinds=("SessionReplaced",)) == 2
    from_beginning = engine.feed.watch(EVERYTHING, "", True)
    assert await seen(from_beginning) == []
    first = await anext(from_beginning)
    assert [entry.worker for entry in first.entries] == [NAMES[0]]
    await from_beginning.aclose()  # type: ignore[attr-defined]
    resumed = engine.feed.watch(EVERYTHING, first.resume_token, False)
    assert await seen(resumed) == []
    assert await seen(resumed) == [NAMES[1]]
    await resumed.aclose()  # type: ignore[attr-defined]
    await delete_all_events(engine)
    with pytest.raises(ResumeTokenInvalid):
        await seen(engine.feed.watch(EVERYTHING, first.resume_token, False))
    await engine.stop()


async def test_a_commit_wakes_only_watchers_that_selected_one_of_its_events(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await Engine(store, ManualClock()).start()
    reads: list[object] = []
    read_feed = store.read_feed

    async def counted(*args: object, **selected: object) -> object:
        reads.append((selected["namespace"], selected["worker"]))
        return await read_feed(*args, **selected)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "read_feed", counted)
    others = [engine.feed.watch(EventSelection("empty", None), "", False) for _ in range(50)]
    others += [engine.feed.watch(EventSelection(NAMESPACE, NAMES[1]), "", False) for _ in range(50)]
    concerned = [
        engine.feed.watch(selection, "", False)
        for selection in (
            EventSelection(None, None),
            EventSelection(NAMESPACE, None),
            EventSelection(NAMESPACE, NAMES[0]),
        )
    ]
    for watching in (*others, *concerned):
        assert await seen(watching) == []
    waiting = [asyncio.create_task(seen(watching)) for watching in others]
    awaited = [asyncio.create_task(seen(watching)) for watching in concerned]
    await asyncio.sleep(0)
    await engine.beat(NAMES[0])
    assert [await task for task in awaited] == [[NAMES[0]]] * 3
    assert len(reads) == 3, "one read for each watcher of this event, none for the others"
    await engine.beat(NAMES[1])
    assert [await task for task in waiting[50:]] == [[NAMES[1]]] * 50
    assert ("empty", None) not in reads
    for task in waiting:
        task.cancel()
    await engine.stop()


async def test_the_token_of_a_watcher_follows_events_that_it_did_not_select(store: FaultyStore) -> None:
    engine = await Engine(store, ManualClock()).start()
    watching = engine.feed.watch(EventSelection("empty", None), "", False)
    first = await anext(watching)
    following: asyncio.Task[EventBatch] = asyncio.create_task(anext(watching))  # type: ignore[arg-type]
    await engine.beat(NAMES[0])
    engine.clock.move(event_feed.BOOKMARK_INTERVAL_MS)
    second = await following
    assert second.entries == []
    assert second.resume_token != first.resume_token
    await engine.stop()


async def test_the_number_of_watchers_is_limited(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "WATCHERS_MAX", 2)
    engine = await Engine(store, ManualClock()).start()
    watching = [engine.feed.watch(EVERYTHING, "", False) for _ in range(3)]
    assert await seen(watching[0]) == await seen(watching[1]) == []
    with pytest.raises(TooManyWatchers, match="This server has its 2 event streams; close some, or watch at"):
        await seen(watching[2])
    await watching[0].aclose()  # type: ignore[attr-defined]
    assert await seen(engine.feed.watch(EVERYTHING, "", False)) == []
    await engine.stop()
