"""When a commit fails, nobody is told that it took place, and what did take place is found again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import grpc
import pytest

from liveness.v1 import admin_pb2, service_pb2
from tests.server.site import (
    ACTIVE,
    NAMESPACE,
    REGISTERED,
    RENEWED,
    REPEATED,
    SESSION_REPLACED,
    SHARDS,
    Site,
    config,
    heartbeat,
    refusal,
    unpack,
    unpack_status,
)
from tests.shard.engine import activity
from tests.shard.faulty_store import Fault, FaultyStore

KNOWN_FAULTS = [Fault.REJECTED, Fault.UNKNOWN_LOST, Fault.UNKNOWN_DONE]


@pytest.fixture
async def site(place: Site) -> Site:
    return await place.start(faulty=True)


@pytest.fixture
def store(site: Site) -> FaultyStore:
    assert site.store is not None
    return site.store


async def served(call: Any) -> Any:
    """The call's answer once shards that are being re-read serve again."""
    while True:
        try:
            return await call()
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE  # noqa: PT017  # anything else is a failure


async def while_time_passes(site: Site, call: Awaitable[Any]) -> Any:
    """Where nodes carry calls, they wait for a shard's owner on this clock."""
    waiting = asyncio.ensure_future(call)
    while not waiting.done():
        await asyncio.wait([waiting], timeout=0.01)
        site.clock.move(10)
    return await waiting


async def unavailable(call: Awaitable[Any]) -> None:
    refused = await refusal(call)
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "SHARD_UNAVAILABLE")
    assert refused.retry_ms, "with a hint when to try again"


@pytest.mark.parametrize("fault", KNOWN_FAULTS)
async def test_a_caller_whose_commit_failed_is_told_and_the_truth_is_read_back(
    site: Site, store: FaultyStore, fault: Fault
) -> None:
    await site.beat(session_id="s", sequence=1, bound_activities=[activity("a")])
    [before] = [s for s in site.server.node.shards() if s.workers]
    store.faults.append(fault)
    await unavailable(site.beat(session_id="s", sequence=2, bound_activities=[activity("b")]))
    worker = await served(site.describe)
    took_place = fault is Fault.UNKNOWN_DONE
    assert worker.sequence == (2 if took_place else 1)
    assert {bound.activity_id for bound in worker.bound_activities} == ({"a", "b"} if took_place else {"a"})
    [after] = [s for s in site.server.node.shards() if s.workers]
    assert after is not before
    assert after.epoch == before.epoch + 1, "it was given up and taken again"
    again = await site.beat(session_id="s", sequence=2, bound_activities=[activity("b")])
    assert again.outcome == (REPEATED if took_place else RENEWED), "the first call after it is served"
    assert {bound.activity_id for bound in (await site.describe()).bound_activities} == {"a", "b"}


@pytest.mark.parametrize("fault", KNOWN_FAULTS)
async def test_all_callers_of_a_failed_group_are_told(site: Site, store: FaultyStore, fault: Fault) -> None:
    store.close_gate()
    first = asyncio.create_task(site.beat("first"))
    await store.reached.wait()
    others = [asyncio.create_task(site.beat(f"w{number}")) for number in range(50)]
    while sum(len(shard.workers) for shard in site.server.node.shards()) < 51:
        await asyncio.sleep(0)
    store.faults.extend([Fault.NONE, fault])
    store.open_gate()
    assert (await first).outcome == REGISTERED
    results = await asyncio.gather(*others, return_exceptions=True)
    assert {r.code() for r in results if isinstance(r, grpc.aio.AioRpcError)} == {grpc.StatusCode.UNAVAILABLE}
    assert all(isinstance(r, grpc.aio.AioRpcError) for r in results)
    count = await served(site.count)
    assert count == {ACTIVE: 51 if fault is Fault.UNKNOWN_DONE else 1}


async def test_a_batch_with_a_failed_commit_fails_item_by_item(site: Site, store: FaultyStore) -> None:
    store.faults.append(Fault.REJECTED)
    items = await site.batch(*(heartbeat(f"w{number}") for number in range(10)))
    assert {unpack_status(item.status).reason for item in items} == {"SHARD_UNAVAILABLE"}
    assert await served(site.count) == {}


async def test_a_refusal_that_rests_on_what_was_never_durable_is_not_given(
    site: Site, store: FaultyStore
) -> None:
    """The session that would have replaced it never came to be, so the old one must not be sent away."""
    await site.beat(session_id="s1", sequence=1)
    store.close_gate()
    replacing = asyncio.create_task(site.beat(session_id="s2", sequence=1))
    await store.reached.wait()
    zombie = asyncio.create_task(site.beat(session_id="s1", sequence=2))
    goodbye = asyncio.create_task(site.shut_down(session_id="s1"))
    stranger = asyncio.create_task(site.shut_down(session_id="s3"))
    described = asyncio.create_task(site.describe())
    listed = asyncio.create_task(site.listed())
    for _ in range(20):
        await site.config()  # a round trip: the calls above have arrived
    assert not any(task.done() for task in (replacing, zombie, goodbye, described, listed))
    store.faults.append(Fault.REJECTED)
    store.open_gate()
    for task in (replacing, zombie, goodbye, described):
        await unavailable(task)
    # The database may have answered late, and then what it said is the truth.
    [shown] = await asyncio.gather(listed, return_exceptions=True)
    if not isinstance(shown, BaseException):
        assert [worker.session_id for worker in shown.workers] == ["s1"]
    await asyncio.gather(stranger, return_exceptions=True)
    assert (await served(site.describe)).session_id == "s1"
    assert (await site.beat(session_id="s1", sequence=2)).outcome == RENEWED


async def test_a_quota_refusal_that_rests_on_what_was_never_durable_is_not_given(
    site: Site, store: FaultyStore
) -> None:
    shared = site.server.everywhere is not None
    await site.configure(max_workers=1)
    store.close_gate()
    first = asyncio.create_task(site.beat("first"))
    await store.reached.wait()
    others = [asyncio.create_task(site.beat(f"w{number}")) for number in range(SHARDS)]
    for _ in range(20):
        await site.config()  # a round trip: the calls above have arrived
    store.faults.append(Fault.REJECTED)
    store.open_gate()
    await unavailable(first)
    refusals = []
    for other in others:
        try:
            assert (await other).outcome == REGISTERED
        except grpc.aio.AioRpcError as error:
            refusals.append(unpack(error).reason)
    while not all(s.serving for s in (await site.admin.ListShards(admin_pb2.ListShardsRequest())).shards):
        pass
    if len(refusals) == len(others):
        site.clock.move(1_000)  # that a shared quota is used up is believed for a moment
        assert (await site.beat("another")).outcome == REGISTERED
    if shared:
        # What was set aside for the first is set aside whatever became of it, until somebody else needs it.
        assert set(refusals) <= {"SHARD_UNAVAILABLE", "WORKER_QUOTA_EXCEEDED"}
        assert len(others) - len(refusals) <= 1
    else:
        assert set(refusals) == {"SHARD_UNAVAILABLE"}
        assert len(refusals) == len(others)


@pytest.mark.parametrize("fault", KNOWN_FAULTS)
async def test_settings_whose_commit_failed_are_what_the_database_says(
    site: Site, store: FaultyStore, fault: Fault
) -> None:
    await site.configure(max_workers=5)
    store.faults.append(fault)
    await unavailable(site.configure(max_workers=7, cleanup_delay_ms=1_000))
    await served(lambda: site.configure(tombstone_retention_ms=9_000))
    expected = config(max_workers=5, tombstone_retention_ms=9_000)
    if fault is Fault.UNKNOWN_DONE:
        expected = config(max_workers=7, cleanup_delay_ms=1_000, tombstone_retention_ms=9_000)
    assert (await site.config()).overrides == expected
    await site.restart()
    assert (await site.config()).overrides == expected


@pytest.mark.parametrize("fault", KNOWN_FAULTS)
async def test_an_expiry_whose_commit_failed_happens_once(
    site: Site, store: FaultyStore, fault: Fault
) -> None:
    await site.advance(10_000)
    await site.beat(lease_ms=2_000, bound_activities=[activity("a")])
    await site.advance(1_999)
    store.faults.append(fault)
    await site.advance(1)
    worker = await served(site.describe)
    assert worker.state == (2 if fault is Fault.UNKNOWN_DONE else 1)
    await site.advance(12_000)
    assert (await site.describe()).state == 2
    tasks = await site.tasks(admin_pb2.TASK_STATE_DONE)
    assert [task.activity.activity_id for task in tasks] == ["a"]


async def test_shards_that_cannot_be_re_read_are_tried_again_until_they_can(
    site: Site, store: FaultyStore
) -> None:
    await site.beat()
    store.take_over_faults = 3
    store.faults.append(Fault.REJECTED)
    await unavailable(site.beat())
    waiting = asyncio.create_task(site.beat())
    if site.server.gateway is None:
        await unavailable(waiting)
    shards = (await site.admin.ListShards(admin_pb2.ListShardsRequest())).shards
    assert sum(not shard.serving for shard in shards) == 1
    while store.take_over_faults:
        site.clock.move(100)
        await asyncio.sleep(0)
    site.clock.move(1_000)
    if site.server.gateway is not None:
        assert (await waiting).outcome == RENEWED, "where nodes carry calls, they wait for the owner"
    assert (await served(site.beat)).outcome == RENEWED


async def test_a_quota_holds_while_a_shard_is_re_read(site: Site, store: FaultyStore) -> None:
    await site.configure(max_workers=2)
    await site.beat("a")
    store.take_over_faults = 1
    store.faults.append(Fault.UNKNOWN_DONE)
    await unavailable(site.beat("b"))
    names = [f"c{number}" for number in range(20)]
    calls = [asyncio.create_task(site.beat(name)) for name in names]
    while not all(call.done() for call in calls):
        site.clock.move(1)
        await asyncio.sleep(0)
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert not [r for r in results if not isinstance(r, grpc.aio.AioRpcError)]
    site.clock.move(1_000)
    assert (await served(lambda: site.beat("b"))).state == ACTIVE
    assert await site.count() == {ACTIVE: 2}


async def test_a_watcher_may_begin_while_a_shard_is_re_read(site: Site, store: FaultyStore) -> None:
    await site.beat()
    store.take_over_faults = 1
    store.faults.append(Fault.REJECTED)
    await unavailable(site.beat())
    stream = site.liveness.WatchEvents(service_pb2.WatchEventsRequest())
    assert not (await stream.read()).events
    site.clock.move(1_000)
    await served(site.beat)
    await site.beat(session_id="new")
    seen: list[str] = []
    while "SessionReplaced" not in seen:
        seen += [event.type for event in (await stream.read()).events]
    assert seen == ["ShardTaken", "SessionReplaced"]


@pytest.mark.parametrize("fault", [Fault.BROKEN, Fault.BUG])
async def test_after_a_broken_disk_or_an_unforeseen_error_nobody_is_acknowledged_any_more(
    site: Site, store: FaultyStore, fault: Fault
) -> None:
    await site.beat("before")
    store.faults.append(fault)
    waiting = asyncio.create_task(site.beat("w"))
    await asyncio.wait_for(asyncio.shield(site.server.node.broken), 10)
    assert not waiting.done()
    refused = await refusal(site.beat("later"))
    assert refused.code is grpc.StatusCode.UNAVAILABLE
    assert not waiting.done(), "its connection ends with the process"
    await site.stop()
    with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
        await waiting
    await site.start(faulty=True)
    assert await site.count() == {ACTIVE: 1}


async def test_a_later_session_survives_failed_commits_without_two_owners(
    site: Site, store: FaultyStore
) -> None:
    """Trouble after trouble: each acknowledged step is there in the end, under ever higher epochs."""
    epoch = 0
    for turn in range(12):
        store.faults.append(KNOWN_FAULTS[turn % 3])
        result = await while_time_passes(
            site,
            served(
                lambda turn=turn: site.beat(
                    session_id=f"s{turn}", sequence=1, bound_activities=[activity(f"a{turn}")]
                )
            ),
        )
        assert result.outcome in (REGISTERED, SESSION_REPLACED, REPEATED)
        assert result.lease_epoch == epoch + 1
        epoch = result.lease_epoch
    await site.advance(1)
    moved = [task.activity.activity_id for task in await site.tasks(admin_pb2.TASK_STATE_DONE)]
    assert sorted(moved) == sorted(f"a{turn}" for turn in range(11))
    assert (await site.describe(namespace=NAMESPACE)).session_id == "s11"


@pytest.mark.parametrize("fault", KNOWN_FAULTS)
async def test_who_orders_what_another_has_just_ordered_is_told_the_same(
    site: Site, store: FaultyStore, fault: Fault
) -> None:
    await site.beat()
    store.close_gate()
    store.faults.append(fault)
    request = admin_pb2.PauseWorkersRequest(namespace=NAMESPACE, worker_instance_key="w")
    calls = [asyncio.ensure_future(_awaited(site.admin.PauseWorkers(request))) for _ in range(2)]
    await store.reached.wait()
    _, waiting = await asyncio.wait(calls, timeout=0.2)
    assert len(waiting) == 2, "nobody is told before it is durable"
    store.open_gate()
    for call in calls:
        await unavailable(call)


async def _awaited(call: Awaitable[Any]) -> Any:
    return await call
