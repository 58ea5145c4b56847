"""What a node tells its listeners, and in which order."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from liveness.clock import ManualClock
from liveness.diagnostics.stalls import STALL_MS
from liveness.domain.errors import ShuttingDown
from liveness.engine.listener import NodeListener
from liveness.engine.shard import PreparedCommit, Shard
from liveness.engine.shard_directory import SingleNodeDirectory
from liveness.store.errors import StoreBroken
from liveness.store.sql import SqlStore
from tests.databases import SHARD_COUNT, StoreDatabase
from tests.integration.engine.engine import Engine


class Recorder(NodeListener):
    def __init__(self, name: str, calls: list[tuple[str, str]]) -> None:
        self._name = name
        self._calls = calls

    def _record(self, what: str) -> None:
        self._calls.append((self._name, what))

    def shard_opened(self, shard: Shard) -> None:
        self._record(f"opened {shard.id}")

    def shard_closed(self, shard: Shard) -> None:
        self._record(f"closed {shard.id}")

    def shards_lost(self, shard_ids: Collection[int]) -> None:
        self._record(f"lost {sorted(shard_ids)}")

    def committed(self, commits: Sequence[PreparedCommit]) -> None:
        self._record("committed")

    def policy_changed(self) -> None:
        self._record("policy")

    def tick(self) -> None:
        self._record("tick")

    def stalled(self, ms: int) -> None:
        self._record(f"stalled {ms}")


async def test_listeners_are_called_in_the_order_of_their_registration(store: SqlStore) -> None:
    engine = Engine(store, ManualClock())
    calls: list[tuple[str, str]] = []
    for name in ("second", "first", "third"):  # neither by name nor by age
        engine.node.add_listener(Recorder(name, calls))
    await engine.start()
    await engine.beat()
    engine.node.policy_changed()
    await engine.step(STALL_MS + 1)
    await engine.advance(STALL_MS * 2)
    await engine.stop()
    kinds = {what.split(" ")[0] for _, what in calls}
    assert kinds == {"opened", "closed", "committed", "policy", "tick", "stalled"}
    for number in range(0, len(calls), 3):
        group = calls[number : number + 3]
        assert [name for name, _ in group] == ["second", "first", "third"]
        assert len({what for _, what in group}) == 1


async def test_a_node_of_a_cluster_reports_lost_shards_after_it_has_closed_them(
    store_database: StoreDatabase, store: SqlStore
) -> None:
    directory = SingleNodeDirectory()
    directory.reclaims_lost_shards = False
    clock = ManualClock()
    old = Engine(store, clock, directory=directory)
    calls: list[tuple[str, str]] = []
    old.node.add_listener(Recorder("", calls))
    await old.start()
    new = await Engine(await store_database.open(), clock).start()
    calls.clear()
    await old.advance(1_000)
    told = [what for _, what in calls if what != "tick"]
    *closed, lost = told
    assert sorted(closed) == [f"closed {id}" for id in range(SHARD_COUNT)]
    assert lost == f"lost {list(range(SHARD_COUNT))}"
    assert old.node.shards() == []
    await new.stop()
    await old.crash()


async def test_a_failed_task_of_the_node_ends_the_promise_of_durability(store: SqlStore) -> None:
    class Failing(NodeListener):
        def committed(self, commits: Sequence[PreparedCommit]) -> None:
            raise ValueError("a bug")

    engine = Engine(store, ManualClock())
    await engine.node.open()
    engine.node.add_listener(Failing())
    engine.node.start(tick=False)
    engine.node.committer.mark_dirty(engine.node.shard_by_id(0))
    broken = await engine.node.broken
    assert isinstance(broken, StoreBroken)
    assert "a bug" in str(broken)
    assert not engine.node.is_committing
    await engine.stop()


async def test_a_node_that_was_never_started_can_be_closed(store: SqlStore) -> None:
    engine = Engine(store, ManualClock())
    await engine.node.open()
    await engine.node.close()
    with pytest.raises(ShuttingDown):
        engine.shard_of("w")
