"""A node gives up its shards while a commit hangs: callers get an answer, and nothing is taken for done or undone that is not
known to be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from liveness.clock import ManualClock
from liveness.domain.errors import Unavailable
from liveness.store.api import ShardCommit
from liveness.v1 import service_pb2, worker_pb2
from tests.databases import SHARD_COUNT, StoreDatabase
from tests.integration.engine.engine import NAMESPACE, Engine
from tests.integration.engine.test_shards_lost import ManualDirectory
from tests.integration.store.faulty_store import CommitObserver, Fault, FaultyStore

REPEATED, RENEWED = worker_pb2.HEARTBEAT_OUTCOME_REPEATED, worker_pb2.HEARTBEAT_OUTCOME_RENEWED


class EndObserver(CommitObserver):
    committed = False

    def on_committed(self, commits: Sequence[ShardCommit]) -> None:
        self.committed = True


@pytest.fixture
async def store(store_database: StoreDatabase) -> FaultyStore:
    store = FaultyStore(store_database.connect())
    await store.open(SHARD_COUNT, "tests")
    return store


@pytest.fixture
async def engine(store: FaultyStore) -> Engine:
    engine = await Engine(store, ManualClock(), directory=ManualDirectory()).start()
    await engine.beat("w", sequence=1, session_id="s")
    return engine


async def give_up_during_a_commit(engine: Engine, store: FaultyStore) -> None:
    """The heartbeat with sequence 2 waits for a commit that hangs, and another one for the commit after it."""
    store.close_gate()
    first = asyncio.ensure_future(engine.beat("w", sequence=2, session_id="s"))
    await store.reached.wait()
    second = asyncio.ensure_future(engine.beat("x", sequence=1, session_id="s"))
    await asyncio.sleep(0)
    assert engine.node.give_up_shards() == SHARD_COUNT
    assert engine.node.shards() == []
    for waiting in (first, second):
        with pytest.raises(Unavailable):
            await waiting


@pytest.mark.parametrize("fault", [Fault.NONE, Fault.UNKNOWN_DONE, Fault.UNKNOWN_LOST, Fault.REJECTED])
async def test_the_next_owner_finds_out_what_a_hanging_commit_did(
    engine: Engine, store: FaultyStore, fault: Fault
) -> None:
    store.faults.append(fault)
    await give_up_during_a_commit(engine, store)
    observer = store.observer = EndObserver()
    store.open_gate()
    while not (observer.committed or store.failed):
        await asyncio.sleep(0)
    for _ in range(10):  # the committer is told
        await asyncio.sleep(0)
    assert not engine.node.shards()
    assert not engine.node.shards_in_transition, "it does not read them again by itself"
    await engine.node.open()
    result = await engine.beat("w", sequence=2, session_id="s")
    assert result.outcome == (REPEATED if fault in (Fault.NONE, Fault.UNKNOWN_DONE) else RENEWED)
    await engine.stop()


async def test_a_hanging_commit_that_arrives_after_the_next_take_over_changes_nothing(
    engine: Engine, store: FaultyStore
) -> None:
    await give_up_during_a_commit(engine, store)
    taken = await engine.node.open()
    assert {shard.epoch for shard in taken} == {2}
    store.open_gate()
    # The new commits do not wait for the old one, and the old one does not end the new shards.
    assert (await engine.beat("w", sequence=2, session_id="s")).outcome == RENEWED
    request = service_pb2.DescribeWorkerRequest(namespace=NAMESPACE, worker_instance_key="w")
    assert (await engine.liveness.describe_worker(request)).worker.sequence == 2
    assert len(engine.node.shards()) == SHARD_COUNT
    await engine.stop()
