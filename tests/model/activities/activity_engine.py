"""An engine with all services for activities, on a store that fails, stalls and loses shards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from liveness.clock import ManualClock
from liveness.domain.activity import Activity
from liveness.domain.errors import InvalidRequest, LivenessError, MalformedRequest, Unavailable
from liveness.domain.keys import ActivityKey
from liveness.domain.reactions import ActivityRescheduleTask
from liveness.server.activity_service import ActivityService
from liveness.store.api import ShardCommit, ShardSnapshot
from liveness.store.database import Database
from liveness.store.errors import CommitRejected, CommitUnknown, ShardsLost, StoreError
from liveness.tasks.activity_reschedule import ActivityReschedule
from liveness.tasks.sinks import Sink
from liveness.v1.service_pb2 import AttachRequest, AttachResponse
from tests.integration.engine.engine import Engine
from tests.integration.store.faulty_store import FaultyStore
from tests.model.activities.activity_checker import ActivityChecker, Token

TAKEOVER_GRACE_MS = 1_500
TASK_ATTEMPTS_MAX = 2


class SlowStore(FaultyStore):
    """A store that finishes every started call even if its caller is gone, as a real database does."""

    def __init__(self, database: Database, checker: ActivityChecker) -> None:
        super().__init__(database, checker)
        self.checker = checker
        self.during_find: Callable[[], Awaitable[None]] | None = None
        """Runs between the next read of activities and its answer."""
        self.keep_answers = False
        """Commits succeed, but their answers are never delivered."""
        self.kept = asyncio.Event()
        self.commits_allowed = asyncio.Event()
        self.commits_allowed.set()
        self._under_way: set[asyncio.Task[Any]] = set()

    async def _shielded(self, work: Awaitable[Any]) -> Any:
        task = asyncio.ensure_future(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    async def idle(self) -> None:
        if self._under_way:
            await asyncio.wait(self._under_way)

    async def take_over(
        self,
        shard_ids: Collection[int],
        owner: str,
        wall_ms: int,
        expected_epochs: Mapping[int, int] | None = None,
    ) -> list[ShardSnapshot]:
        try:
            snapshots: list[ShardSnapshot] = await self._shielded(
                super().take_over(shard_ids, owner, wall_ms, expected_epochs)
            )
        except AssertionError as violation:
            self.checker.violation = violation
            raise
        return snapshots

    async def commit(self, commits: Sequence[ShardCommit]) -> None:
        await self.commits_allowed.wait()
        shard_ids = {commit.shard_id for commit in commits}
        try:
            await self._shielded(super().commit(commits))
        except AssertionError as violation:
            self.checker.violation = violation
            raise
        except ShardsLost as error:
            self.checker.seen["a shard lost to another owner"] += 1
            self.checker.dropped |= set(error.shard_ids)
            if set(error.shard_ids) != shard_ids:
                self.checker.lost_parts = frozenset(error.shard_ids)
            raise
        except (CommitRejected, CommitUnknown) as error:
            self.checker.dropped |= shard_ids
            self._count(type(error).__name__, commits)
            raise
        if self.keep_answers:
            self.kept.set()
            await asyncio.Event().wait()

    def _count(self, trouble: str, commits: Sequence[ShardCommit]) -> None:
        kinds = {type(entry.event).__name__ for commit in commits for entry in commit.entries}
        self.checker.seen[trouble] += 1
        self.checker.seen[f"{trouble}: a hand-out"] += "ActivityStarted" in kinds
        self.checker.seen[f"{trouble}: an end"] += "ActivityCompleted" in kinds
        self.checker.seen[f"{trouble}: a loss"] += "WorkerDeactivated" in kinds

    async def find_activities(self, keys: Collection[ActivityKey]) -> dict[ActivityKey, Activity]:
        found = await super().find_activities(keys)
        if (meanwhile := self.during_find) is not None:
            self.during_find = None
            await meanwhile()
        return found


class OtherEngine:
    """A sink that accepts, refuses or hangs."""

    def __init__(self, checker: ActivityChecker) -> None:
        self._checker = checker
        self.mode = "takes"

    async def deliver(self, key: ActivityKey, activity: Activity, task: ActivityRescheduleTask) -> None:
        self._checker.seen[f"a sink {self.mode}"] += 1
        if self.mode == "hangs":
            await asyncio.sleep(3_600)
        if self.mode == "refuses":
            raise RuntimeError("not now")
        self._checker.delivered[key, activity.attempt] += 1


class ActivityEngine(Engine):
    def __init__(self, store: SlowStore, clock: ManualClock, route: Callable[[str], Sink | None]) -> None:
        super().__init__(store, clock, grace_ms=TAKEOVER_GRACE_MS, attempts_max=TASK_ATTEMPTS_MAX)
        self.queue._reschedule = ActivityReschedule(lambda namespace, task_queue: route(task_queue))
        self.queue.delivery_timeout_s = 0.01
        self.activities = ActivityService(self.node, self.ownership, self.matching)

    async def call(self, handler: Callable[[Any], Awaitable[Any]], request: Any) -> Any:
        """Return the answer or the refusal, as `server.binding` does."""
        try:
            return await handler(request)
        except InvalidRequest:
            raise
        except LivenessError as error:
            try:
                await self.node.wait_all_durable()
            except Unavailable as trouble:
                return trouble
            return error
        except StoreError:
            return Unavailable()


class WorkerStream:
    """An open attach stream of a worker."""

    def __init__(self, engine: ActivityEngine) -> None:
        self._requests: asyncio.Queue[AttachRequest | None] = asyncio.Queue()
        self.orders: dict[str, AttachResponse.Orders] = {}
        """The last orders received for each worker."""
        self.attached: dict[str, AttachResponse.Attached] = {}
        self.task = asyncio.ensure_future(self._read(engine))

    async def _read(self, engine: ActivityEngine) -> None:
        async for answer in engine.streams.attach(self._written()):
            kind = answer.WhichOneof("response")
            if kind == "orders":
                self.orders[answer.orders.worker_instance_key] = answer.orders
            elif kind == "attached":
                self.attached[answer.attached.worker_instance_key] = answer.attached

    async def _written(self) -> AsyncIterator[AttachRequest | MalformedRequest]:
        while (request := await self._requests.get()) is not None:
            yield request

    def write(self, request: AttachRequest) -> None:
        self._requests.put_nowait(request)

    async def end(self) -> None:
        """End the stream without a detach."""
        self.task.cancel()
        await asyncio.wait([self.task])


class WorkerClient:
    """A worker process and its view of its own state."""

    def __init__(self, name: str, session: str) -> None:
        self.name = name
        self.session = session
        self.sequence = 0
        self.epoch = 0
        self.held: dict[ActivityKey, Token] = {}
        self.stream: WorkerStream | None = None
        self.detached = False
        """Whether the worker has detached from its stream."""
