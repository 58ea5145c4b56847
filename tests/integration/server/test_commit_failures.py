"""When a commit fails, no caller is told that it succeeded, and the server reads the actual state again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import grpc
import pytest

from liveness.v1 import admin_pb2, service_pb2
from tests.integration.engine.engine import activity
from tests.integration.server.server_harness import (
    ACTIVE,
    NAMESPACE,
    REGISTERED,
    RENEWED,
    REPEATED,
    SESSION_REPLACED,
    SHARDS,
    ServerHarness,
    config,
    heartbeat,
    refusal,
    unpack,
    unpack_status,
)
from tests.integration.store.faulty_store import Fault, FaultyStore

KNOWN_FAULTS = [Fault.REJECTED, Fault.UNKNOWN_LOST, Fault.UNKNOWN_DONE]


@pytest.fixture
async def harness(stopped_harness: ServerHarness) -> ServerHarness:
    return await stopped_harness.start(faulty=True)


@pytest.fixture
def store(harness: ServerHarness) -> FaultyStore:
    assert harness.store is not None
    return harness.store


async def served(call: Any) -> Any:
    """Repeat the call until shards that are being re-read serve again."""
    while True:
        try:
            return await call()
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE  # noqa: PT017  # anything else is a failure


async def while_time_passes(harness: ServerHarness, call: Awaitable[Any]) -> Any:
    """Move the clock while the call runs: forwarding nodes wait on it for the owner of a shard."""
    waiting = asyncio.ensure_future(call)
    while not waiting.done():
        await asyncio.wait([waiting], timeout=0.01)
        harness.clock.move(10)
    return await waiting


async def unavailable(call: Awaitable[Any]) -> None:
    refused = await refusal(call)
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "SHARD_UNAVAILABLE")
    assert refused.retry_ms, "the refusal contains a retry delay"


@pytest.mark.parametrize("fault", KNOWN_FAULTS)
async def test_a_caller_of_a_failed_commit_is_told_and_the_stored_state_is_read_again(
    harness: ServerHarness, store: FaultyStore, fault: Fault
) -> None:
    await harness.beat(session_id="s", sequence=1, bound_activities=[activity("a")])
    [before] = [s for s in harness.server.node.shards() if s.workers]
    store.faults.append(fault)
    await unavailable(harness.beat(session_id="s", sequence=2, bound_activities=[activity("b")]))
    worker = await served(harness.describe)
    took_place = fault is Fault.UNKNOWN_DONE
    assert worker.sequence == (2 if took_place else 1)
    assert {bound.activity_id for bound in worker.bound_activities} == ({"a", "b"} if took_place else {"a"})
    [after] = [s for s in harness.server.node.shards() if s.workers]
    assert after is not before
    assert after.epoch == before.epoch + 1, "the shard was given up and taken again"
    again = await harness.beat(session_id="s", sequence=2, bound_activities=[activity("b")])
    assert again.outcome == (REPEATED if took_place else RENEWED), "the next call is served"
    assert {bound.activity_id for bound in (await harness.describe()).bound_activities} == {"a", "b"}


@pytest.mark.parametrize("fault", KNOWN_FAULTS)
async def test_all_callers_of_a_failed_group_commit_are_told(
    harness: ServerHarness, store: FaultyStore, fault: Fault
) -> None:
    store.close_gate()
    first = asyncio.create_task(harness.beat("first"))
    await store.reached.wait()
    others = [asyncio.create_task(harness.beat(f"w{number}")) for number in range(50)]
    while sum(len(shard.workers) for shard in harness.server.node.shards()) < 51:
        await asyncio.sleep(0)
    store.faults.extend([Fault.NONE, fault])
    store.open_gate()
    assert (await first).outcome == REGISTERED
    results = await asyncio.gather(*others, return_exceptions=True)
    assert {r.code() for r in results if isinstance(r, grpc.aio.AioRpcError)} == {grpc.StatusCode.UNAVAILABLE}
    assert all(isinstance(r, grpc.aio.AioRpcError) for r in results)
    count = await served(harness.count)
    assert count == {ACTIVE: 51 if fault is Fault.UNKNOWN_DONE else 1}


async def test_a_failed_commit_fails_each_item_of_a_batch(harness: ServerHarness, store: FaultyStore) -> None:
    store.faults.append(Fault.REJECTED)
    items = await harness.batch(*(heartbeat(f"w{number}") for number in range(10)))
    assert {unpack_status(item.status).reason for item in items} == {"SHARD_UNAVAILABLE"}
    assert await served(harness.count) == {}


async def test_no_refusal_is_based_on_state_that_never_became_durable(
    harness: ServerHarness, store: FaultyStore
) -> None:
    """The replacing session was never committed, so the old session must not be refused."""
    await harness.beat(session_id="s1", sequence=1)
    store.close_gate()
    replacing = asyncio.create_task(harness.beat(session_id="s2", sequence=1))
    await store.reached.wait()
    old_session_beat = asyncio.create_task(harness.beat(session_id="s1", sequence=2))
    old_session_shutdown = asyncio.create_task(harness.shut_down(session_id="s1"))
    unknown_session_shutdown = asyncio.create_task(harness.shut_down(session_id="s3"))
    described = asyncio.create_task(harness.describe())
    listed = asyncio.create_task(harness.listed())
    for _ in range(20):
        await harness.config()  # a round trip: the calls above have arrived
    assert not any(
        task.done() for task in (replacing, old_session_beat, old_session_shutdown, described, listed)
    )
    store.faults.append(Fault.REJECTED)
    store.open_gate()
    for task in (replacing, old_session_beat, old_session_shutdown, described):
        await unavailable(task)
    # The database may have answered late, and then its answer is correct.
    [shown] = await asyncio.gather(listed, return_exceptions=True)
    if not isinstance(shown, BaseException):
        assert [worker.session_id for worker in shown.workers] == ["s1"]
    await asyncio.gather(unknown_session_shutdown, return_exceptions=True)
    assert (await served(harness.describe)).session_id == "s1"
    assert (await harness.beat(session_id="s1", sequence=2)).outcome == RENEWED


async def test_no_quota_refusal_is_based_on_a_registration_that_never_became_durable(
    harness: ServerHarness, store: FaultyStore
) -> None:
    shared = harness.server.all_nodes is not None
    await harness.configure(max_workers=1)
    store.close_gate()
    first = asyncio.create_task(harness.beat("first"))
    await store.reached.wait()
    others = [asyncio.create_task(harness.beat(f"w{number}")) for number in range(SHARDS)]
    for _ in range(20):
        await harness.config()  # a round trip: the calls above have arrived
    store.faults.append(Fault.REJECTED)
    store.open_gate()
    await unavailable(first)
    refusals = []
    for other in others:
        try:
            assert (await other).outcome == REGISTERED
        except grpc.aio.AioRpcError as error:
            refusals.append(unpack(error).reason)
    while not all(s.serving for s in (await harness.admin.ListShards(admin_pb2.ListShardsRequest())).shards):
        pass
    if len(refusals) == len(others):
        harness.clock.move(1_000)  # a node caches for a moment that a shared quota is used up
        assert (await harness.beat("another")).outcome == REGISTERED
    if shared:
        # The reservation for the first worker stays until another node needs it, whatever happened to the
        # commit.
        assert set(refusals) <= {"SHARD_UNAVAILABLE", "WORKER_QUOTA_EXCEEDED"}
        assert len(others) - len(refusals) <= 1
    else:
        assert set(refusals) == {"SHARD_UNAVAILABLE"}
        assert len(refusals) == len(others)


@pytest.mark.parametrize("fault", KNOWN_FAULTS)
async def test_settings_after_a_failed_commit_are_those_in_the_database(
    harness: ServerHarness, store: FaultyStore, fault: Fault
) -> None:
    await harness.configure(max_workers=5)
    store.faults.append(fault)
    await unavailable(harness.configure(max_workers=7, cleanup_delay_ms=1_000))
    await served(lambda: harness.configure(tombstone_retention_ms=9_000))
    expected = config(max_workers=5, tombstone_retention_ms=9_000)
    if fault is Fault.UNKNOWN_DONE:
        expected = config(max_workers=7, cleanup_delay_ms=1_000, tombstone_retention_ms=9_000)
    assert (await harness.config()).overrides == expected
    await harness.restart()
    assert (await harness.config()).overrides == expected


@pytest.mark.parametrize("fault", KNOWN_FAULTS)
async def test_an_expiry_with_a_failed_commit_takes_effect_once(
    harness: ServerHarness, store: FaultyStore, fault: Fault
) -> None:
    await harness.advance(10_000)
    await harness.beat(lease_ms=2_000, bound_activities=[activity("a")])
    await harness.advance(1_999)
    store.faults.append(fault)
    await harness.advance(1)
    worker = await served(harness.describe)
    assert worker.state == (2 if fault is Fault.UNKNOWN_DONE else 1)
    await harness.advance(12_000)
    assert (await harness.describe()).state == 2
    tasks = await harness.tasks(admin_pb2.TASK_STATE_DONE)
    assert [task.activity.activity_id for task in tasks] == ["a"]


async def test_reading_a_shard_again_is_retried_until_it_succeeds(
    harness: ServerHarness, store: FaultyStore
) -> None:
    await harness.beat()
    store.take_over_faults = 3
    store.faults.append(Fault.REJECTED)
    await unavailable(harness.beat())
    waiting = asyncio.create_task(harness.beat())
    if harness.server.gateway is None:
        await unavailable(waiting)
    shards = (await harness.admin.ListShards(admin_pb2.ListShardsRequest())).shards
    assert sum(not shard.serving for shard in shards) == 1
    while store.take_over_faults:
        harness.clock.move(100)
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)  # the last failed attempt goes to sleep
    harness.clock.move(1_000)
    if harness.server.gateway is not None:
        assert (await waiting).outcome == RENEWED, "forwarding nodes wait for the owner"
    assert (await served(harness.beat)).outcome == RENEWED


async def test_a_quota_holds_while_a_shard_is_re_read(harness: ServerHarness, store: FaultyStore) -> None:
    await harness.configure(max_workers=2)
    await harness.beat("a")
    store.take_over_faults = 1
    store.faults.append(Fault.UNKNOWN_DONE)
    await unavailable(harness.beat("b"))
    names = [f"c{number}" for number in range(20)]
    calls = [asyncio.create_task(harness.beat(name)) for name in names]
    while not all(call.done() for call in calls):
        harness.clock.move(1)
        await asyncio.sleep(0)
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert not [r for r in results if not isinstance(r, grpc.aio.AioRpcError)]
    harness.clock.move(1_000)
    assert (await served(lambda: harness.beat("b"))).state == ACTIVE
    assert await harness.count() == {ACTIVE: 2}


async def test_a_watch_can_start_while_a_shard_is_re_read(harness: ServerHarness, store: FaultyStore) -> None:
    await harness.beat()
    store.take_over_faults = 1
    store.faults.append(Fault.REJECTED)
    await unavailable(harness.beat())
    stream = harness.liveness.WatchEvents(service_pb2.WatchEventsRequest())
    assert not (await stream.read()).events
    harness.clock.move(1_000)
    await served(harness.beat)
    await harness.beat(session_id="new")
    seen: list[str] = []
    while "SessionReplaced" not in seen:
        seen += [event.type for event in (await stream.read()).events]
    assert seen == ["ShardTaken", "SessionReplaced"]


@pytest.mark.parametrize("fault", [Fault.BROKEN, Fault.BUG])
async def test_after_a_broken_disk_or_an_unexpected_error_no_call_is_acknowledged(
    harness: ServerHarness, store: FaultyStore, fault: Fault
) -> None:
    await harness.beat("before")
    store.faults.append(fault)
    waiting = asyncio.create_task(harness.beat("w"))
    await asyncio.wait_for(asyncio.shield(harness.server.node.broken), 10)
    assert not waiting.done()
    refused = await refusal(harness.beat("later"))
    assert refused.code is grpc.StatusCode.UNAVAILABLE
    assert not waiting.done(), "the connection ends with the process"
    await harness.stop()
    with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
        await waiting
    await harness.start(faulty=True)
    assert await harness.count() == {ACTIVE: 1}


async def test_acknowledged_sessions_survive_repeated_commit_failures(
    harness: ServerHarness, store: FaultyStore
) -> None:
    """After repeated failures each acknowledged step is stored, under ever higher epochs."""
    epoch = 0
    for turn in range(12):
        store.faults.append(KNOWN_FAULTS[turn % 3])
        result = await while_time_passes(
            harness,
            served(
                lambda turn=turn: harness.beat(
                    session_id=f"s{turn}", sequence=1, bound_activities=[activity(f"a{turn}")]
                )
            ),
        )
        assert result.outcome in (REGISTERED, SESSION_REPLACED, REPEATED)
        assert result.lease_epoch == epoch + 1
        epoch = result.lease_epoch
    await harness.advance(1)
    moved = [task.activity.activity_id for task in await harness.tasks(admin_pb2.TASK_STATE_DONE)]
    assert sorted(moved) == sorted(f"a{turn}" for turn in range(11))
    assert (await harness.describe(namespace=NAMESPACE)).session_id == "s11"


@pytest.mark.parametrize("fault", KNOWN_FAULTS)
async def test_concurrent_equal_orders_share_the_outcome_of_one_commit(
    harness: ServerHarness, store: FaultyStore, fault: Fault
) -> None:
    await harness.beat()
    store.close_gate()
    store.faults.append(fault)
    request = admin_pb2.PauseWorkersRequest(namespace=NAMESPACE, worker_instance_key="w")
    calls = [asyncio.ensure_future(_awaited(harness.admin.PauseWorkers(request))) for _ in range(2)]
    await store.reached.wait()
    _, waiting = await asyncio.wait(calls, timeout=0.2)
    assert len(waiting) == 2, "no caller is answered before the commit"
    store.open_gate()
    for call in calls:
        await unavailable(call)


async def _awaited(call: Awaitable[Any]) -> Any:
    return await call
