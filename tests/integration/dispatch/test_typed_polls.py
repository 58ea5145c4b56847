"""A poll that names activity types is handed those only, oldest first, and holds up no other."""

from __future__ import annotations

import asyncio

import pytest

from liveness.clock import ManualClock
from liveness.dispatch.queue_index import Offer
from liveness.domain.activity import Activity, ActivityState
from liveness.domain.activity_decider import ActivitySpec, current_holder
from liveness.domain.events import Retry
from liveness.domain.keys import WorkerKey
from tests.databases import StoreDatabase
from tests.integration.dispatch.test_matching import held, key, poll_waiting, waiting
from tests.integration.engine.engine import NAMESPACE, Engine
from tests.integration.store.faulty_store import FaultyStore

WORKER = WorkerKey(NAMESPACE, "w")


@pytest.fixture
async def engine(store_database: StoreDatabase) -> Engine:
    store = FaultyStore(store_database.connect())
    await store.open(4, "tests")
    engine = await Engine(store, ManualClock(), grace_ms=0).start()
    await engine.beat("w", lease_ms=60_000)
    return engine


async def schedule(engine: Engine, name: str, activity_type: str) -> None:
    await engine.ownership.schedule(key(name), ActivitySpec(activity_type, "queue", b"", Retry()))


def poll(engine: Engine, *types: str, limit: int = 1, wait_ms: int = 60_000) -> asyncio.Task[list[Activity]]:
    wanted = frozenset(types) or None
    return asyncio.ensure_future(engine.matching.poll(WORKER, "", "queue", limit, wait_ms, wanted))


def names(activities: list[Activity]) -> list[str]:
    return [activity.id.activity_id for activity in activities]


async def test_a_poll_is_handed_its_types_only(engine: Engine) -> None:
    await schedule(engine, "mail", "mail")
    await schedule(engine, "resize", "resize")
    assert names(await poll(engine, "resize", limit=10)) == ["resize"]
    assert await poll(engine, "resize", limit=10, wait_ms=0) == []
    assert (held(engine, "mail").state, held(engine, "mail").attempt) == (ActivityState.AVAILABLE, 1)
    assert names(await poll(engine, limit=10)) == ["mail"]


async def test_a_waiting_poll_is_not_woken_by_other_types(engine: Engine) -> None:
    polled = poll(engine, "resize")
    await poll_waiting(engine)
    await schedule(engine, "mail", "mail")
    await poll_waiting(engine)
    assert not polled.done()
    await schedule(engine, "resize", "resize")
    assert names(await polled) == ["resize"]


async def test_the_oldest_of_all_asked_types_comes_first(engine: Engine) -> None:
    for name, activity_type in [("1", "a"), ("2", "c"), ("3", "b"), ("4", "a"), ("5", "b")]:
        await schedule(engine, name, activity_type)
    assert names(await poll(engine, "a", "b", limit=3)) == ["1", "3", "4"]
    assert names(await poll(engine, limit=10)) == ["2", "5"]


async def test_an_activity_without_a_type_is_asked_for_by_the_empty_name(engine: Engine) -> None:
    await schedule(engine, "untyped", "")
    assert await poll(engine, "resize", wait_ms=0) == []
    assert names(await poll(engine, "resize", "")) == ["untyped"]


async def test_the_poll_that_waited_longest_is_served_first_whatever_it_names(engine: Engine) -> None:
    polls = []
    for number, types in enumerate([("other",), ("a", "b"), (), ("a",)]):
        polls.append(poll(engine, *types))
        await waiting(engine, number + 1)
    for name in ("1", "2", "3"):
        await schedule(engine, name, "a")
    assert [names(await one) for one in polls[1:]] == [["1"], ["2"], ["3"]]
    assert not polls[0].done()
    await schedule(engine, "4", "other")
    assert names(await polls[0]) == ["4"]


async def test_polls_that_compete_share_the_activities_of_their_types(engine: Engine) -> None:
    other = poll(engine, "c", limit=10)
    await poll_waiting(engine)
    for number in range(6):
        await schedule(engine, str(number), "a")
    both, first = poll(engine, "a", "b", limit=10), poll(engine, "a", limit=10)
    assert sorted((len(await both), len(await first))) == [3, 3]
    assert not other.done()
    other.cancel()


async def test_an_outdated_activity_of_one_type_does_not_hold_up_another_type(engine: Engine) -> None:
    """The first poll finds only an activity that a worker has claimed meanwhile, not durably yet."""
    first, second = poll(engine, "a"), poll(engine, "b")
    await waiting(engine, 2)
    engine.matching._queue((NAMESPACE, "queue")).available.add(key("gone"), "a")
    await schedule(engine, "b", "b")
    assert names(await second) == ["b"]
    assert not first.done()
    first.cancel()


@pytest.mark.parametrize("end", ["claimed", "cancelled"])
async def test_an_activity_that_nobody_polls_for_leaves_the_queue_when_it_is_taken_otherwise(
    engine: Engine, end: str
) -> None:
    await schedule(engine, "a", "rare")
    if end == "claimed":
        await engine.ownership.claim(key("a"), ActivitySpec("rare", "queue", b"", Retry()), WORKER, "")
    else:
        await engine.ownership.cancel(key("a"), "")
    assert engine.matching._queues == {}


async def test_an_activity_that_a_type_was_changed_for_is_found_under_its_new_type(engine: Engine) -> None:
    """Retention deletes a finished activity, and its key may be used again."""
    await schedule(engine, "a", "new")
    queue = engine.matching._queue((NAMESPACE, "queue"))
    queue.available.discard(key("a"))
    queue.available.add(key("a"), "old")
    await engine.ownership.claim(key("a"), ActivitySpec("new", "queue", b"", Retry()), WORKER, "")
    await engine.ownership.give_back(key("a"), current_holder(held(engine, "a")))
    assert await poll(engine, "old", wait_ms=0) == []
    assert names(await poll(engine, "new")) == ["a"]


async def test_other_nodes_are_told_of_each_type_that_no_poll_here_waits_for(engine: Engine) -> None:
    told: list[Offer] = []
    engine.matching._announce = told.extend
    polled = poll(engine, "here")
    await poll_waiting(engine)
    for name, activity_type in [("1", "a"), ("2", "a"), ("3", "b"), ("4", "here")]:
        await schedule(engine, name, activity_type)
    assert told == [Offer(NAMESPACE, "queue", "a"), Offer(NAMESPACE, "queue", "b")]
    assert names(await polled) == ["4"]


async def test_more_offers_than_one_message_holds_are_announced_in_turn(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("liveness.dispatch.matching.ANNOUNCED_OFFERS_MAX", 2)
    for number in range(5):
        await schedule(engine, str(number), f"type-{number}")
    told: list[list[str]] = []
    engine.matching._announce = lambda offers: told.append([offer.activity_type for offer in offers])
    for _ in range(3):
        engine.matching.announce_all()
    assert told == [["type-0", "type-1"], ["type-2", "type-3"], ["type-4", "type-0"]]
