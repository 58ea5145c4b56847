"""Both sides of an attempt are decided together where one node serves the activity's and the worker's shard."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from liveness.dispatch.ownership import ActivityOwnership
from liveness.dispatch.worker_bindings import Binding, HolderView, holder_view
from liveness.domain.activity import Activity, ActivityState
from liveness.domain.activity_decider import ActivitySpec, AttemptHolder, current_holder
from liveness.domain.errors import ActivityFinished
from liveness.domain.events import Retry
from liveness.domain.keys import ActivityId, ActivityKey, WorkerKey
from liveness.domain.worker import BoundActivity
from liveness.store.api import ShardCommit
from tests.integration.dispatch.test_matching import WORKER, engine, held, key, store
from tests.integration.engine.engine import NAMESPACE, Engine
from tests.integration.store.faulty_store import CommitObserver, FaultyStore

__all__ = ["engine", "store"]

SPEC = ActivitySpec("", "queue", b"", Retry())


class RecordedCommits(CommitObserver):
    def __init__(self) -> None:
        self.shards_with_entries: list[set[int]] = []

    def on_committed(self, commits: Sequence[ShardCommit]) -> None:
        self.shards_with_entries.append({commit.shard_id for commit in commits if commit.entries})


async def in_one_turn(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Let the call run until it waits for the first time."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    assert not task.done()
    return task


def sides(engine: Engine, name: str) -> tuple[ActivityState, bool]:
    """The activity's state, and whether the worker is bound to it."""
    return held(engine, name).state, key(name).id in engine.worker("w").bindings


def name_on_another_shard(engine: Engine) -> str:
    return next(str(n) for n in range(100) if engine.ownership.shard(key(str(n))) is not engine.shard_of("w"))


async def start(engine: Engine) -> tuple[str, ActivityKey]:
    await engine.beat("w", lease_ms=60_000)
    name = name_on_another_shard(engine)
    await engine.ownership.schedule(key(name), SPEC)
    return name, key(name)


async def test_a_claim_decides_both_sides_in_one_turn(engine: Engine) -> None:
    name, activity_key = await start(engine)
    claim = await in_one_turn(engine.ownership.claim(activity_key, SPEC, WORKER, ""))
    assert sides(engine, name) == (ActivityState.STARTED, True)
    await claim


@pytest.mark.parametrize("way", ["complete", "give back", "fail", "cancel"])
async def test_the_end_of_an_attempt_is_decided_on_both_sides_in_one_turn(engine: Engine, way: str) -> None:
    name, activity_key = await start(engine)
    holder = current_holder(await engine.ownership.claim(activity_key, SPEC, WORKER, ""))
    ownership = engine.ownership
    calls: dict[str, Coroutine[Any, Any, Activity | bool]] = {
        "complete": ownership.complete(activity_key, holder, b""),
        "give back": ownership.give_back(activity_key, holder),
        "fail": ownership.fail(activity_key, holder, "", retryable=True, after_ms=1_000),
        "cancel": ownership.cancel(activity_key, ""),
    }
    call = calls.pop(way)
    for other in calls.values():
        other.close()
    ending = await in_one_turn(call)
    state, is_bound = sides(engine, name)
    assert state is not ActivityState.STARTED
    assert not is_bound
    await ending


async def test_both_sides_join_one_commit(engine: Engine, store: FaultyStore) -> None:
    _, activity_key = await start(engine)
    recorded = RecordedCommits()
    store.observer = recorded
    await engine.ownership.claim(activity_key, SPEC, WORKER, "")
    both = {engine.ownership.shard(activity_key).id, engine.shard_of("w").id}
    assert recorded.shards_with_entries == [both]


async def test_a_cancellation_does_not_wait_for_a_worker_whose_shard_is_read_again(engine: Engine) -> None:
    name, activity_key = await start(engine)
    await engine.ownership.claim(activity_key, SPEC, WORKER, "")
    worker_shard = engine.shard_of("w")
    engine.node._shards[worker_shard.id] = None
    assert not await engine.ownership.cancel(activity_key, "")
    engine.node._shards[worker_shard.id] = worker_shard
    assert sides(engine, name) == (ActivityState.CANCELLED, True)
    for _ in range(3):
        await engine.advance(10_000)
        await engine.beat("w", lease_ms=20_000)
    assert not engine.worker("w").bindings, "the reconciler ends the binding"


class WorkerThatMovesHere:
    """The node of the worker's shard. While it binds the worker, the activity changes hands. While it ends the binding, the
    activity is completed and leaves memory, and the worker's shard comes to this node."""

    def __init__(self, engine: Engine, name: str, other_worker: str) -> None:
        self._engine = engine
        self._name = name
        self._other = WorkerKey(NAMESPACE, other_worker)
        self._worker_shard = engine.shard_of("w")
        engine.node._shards[self._worker_shard.id] = None

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} is not expected")

    async def look_up(self, worker_key: WorkerKey, id: ActivityId) -> HolderView | None:
        return holder_view(self._worker_shard, worker_key, id)

    async def bind(
        self, worker_key: WorkerKey, session_id: str, activities: Sequence[BoundActivity]
    ) -> Binding:
        if activities:
            await self._engine.ownership.give_back(key(self._name), await self._claim())
        return Binding(self._worker_shard.workers[worker_key].epoch, len(activities))

    async def unbind(self, worker_key: WorkerKey, id: ActivityId, attempt: int, *, taken: bool) -> bool:
        await self._engine.ownership.complete(key(self._name), await self._claim(), b"")
        shard = self._engine.ownership.shard(key(self._name))
        assert shard.activities.evict(shard.durable_seq) == 1
        self._engine.node._shards[self._worker_shard.id] = self._worker_shard
        return True

    async def _claim(self) -> AttemptHolder:
        return current_holder(await self._engine.ownership.claim(key(self._name), SPEC, self._other, ""))


async def test_a_claim_that_is_tried_again_does_not_revive_a_finished_activity(engine: Engine) -> None:
    name, activity_key = await start(engine)
    other = next(
        f"other-{n}" for n in range(100) if engine.shard_of(f"other-{n}") is not engine.shard_of("w")
    )
    await engine.beat(other, lease_ms=60_000)
    remote = WorkerThatMovesHere(engine, name, other)
    ownership = ActivityOwnership(engine.node, remote)
    with pytest.raises(ActivityFinished):
        await ownership.claim(activity_key, SPEC, WORKER, "")
