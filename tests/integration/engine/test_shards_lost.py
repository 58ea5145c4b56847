"""An owner that may have lost its shards without noticing, for example after a pause."""

from __future__ import annotations

import pytest

from liveness.clock import ManualClock
from liveness.domain.errors import Unavailable
from liveness.engine.shard_directory import SingleNodeDirectory
from liveness.store.sql import SqlStore
from liveness.v1 import service_pb2
from tests.databases import SHARD_COUNT, StoreDatabase
from tests.integration.engine.engine import NAMESPACE, Engine

REQUEST = service_pb2.DescribeWorkerRequest(namespace=NAMESPACE, worker_instance_key="w")


class ManualDirectory(SingleNodeDirectory):
    """A cluster whose node may have lost its shards at a time that a test chooses."""

    reclaims_lost_shards = False


async def test_an_owner_with_uncertain_ownership_commits_before_it_answers_a_read(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    clock = ManualClock()
    directory = ManualDirectory()
    old = await Engine(store, clock, directory=directory).start()
    await old.beat("w", sequence=1, session_id="s")
    new = await Engine(await store_database.open(), clock).start()
    await new.beat("w", sequence=2, session_id="s")
    directory.owned_until_ms = clock.monotonic_ms()
    with pytest.raises(Unavailable):
        await old.liveness.describe_worker(REQUEST)
    assert old.node.shards() == []
    assert (await new.liveness.describe_worker(REQUEST)).worker.sequence == 2
    await new.stop()
    await old.crash()


async def test_an_owner_with_certain_ownership_answers_reads_from_memory(store: SqlStore) -> None:
    clock = ManualClock()
    directory = ManualDirectory()
    engine = await Engine(store, clock, directory=directory).start()
    await engine.beat("w", sequence=1, session_id="s")
    before = engine.shard_of("w").clock_age_ms()
    clock.move(100)
    directory.owned_until_ms = clock.monotonic_ms() + 1
    assert (await engine.liveness.describe_worker(REQUEST)).worker.sequence == 1
    assert engine.shard_of("w").clock_age_ms() == before + 100, "without a commit"
    assert len(engine.node.shards()) == SHARD_COUNT
    await engine.stop()
