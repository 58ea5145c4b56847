"""Putting a backup in a database's place, and what must follow: the world has gone on since the backup was made.

Workers hold leases that the restored database knows nothing of, or that it believes in although they are long over. So
all of them end here: each worker that it shows as ACTIVE is deactivated and what it held is rescheduled, and the
database begins a new history (`liveness.store.history`) in which no token of an earlier one is ever given out again. A
worker that still runs comes back with its next heartbeat, as after any lapse, and is told what it lost.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NamedTuple

from liveness.clock import Clock
from liveness.domain.commands import Deactivate
from liveness.domain.errors import LivenessError
from liveness.domain.worker import InactiveReason, WorkerState
from liveness.shard.deadlines import Subject
from liveness.shard.node import Node
from liveness.shard.shard import Shard
from liveness.store.api import Store
from liveness.store.backup import BackupFailed, install, sync, unfinished
from liveness.store.errors import StoreError
from liveness.store.history import FLOOR_MAX, following
from liveness.store.inspection import Contents, Progress, floor_of, inspect
from liveness.store.sql import SqlStore
from liveness.store.sqlite import RESTORING, SHARED_MEMORY, WAL, SqliteDatabase, beside, hold

OWNER = "liveness restore"
WHY = "the database was restored from a backup"


class RestoreFailed(StoreError):
    """Nothing was restored: {detail}."""


class Restored(NamedTuple):
    workers: int
    """Taken from ACTIVE to INACTIVE."""
    activities: int
    """Taken from them and rescheduled."""
    token_floor: int


def restore(
    backup: Path, target: Path, clock: Clock, progress: Progress, *, replace: bool = False
) -> tuple[Contents, Restored]:
    """`target` is replaced by the whole backup, made fit to be served, or not touched.

    An interruption at any point leaves the old database as it was, or a mark that a server refuses to start beside.
    """
    contents = inspect(backup, progress)
    if target.exists() and target.samefile(backup):
        raise RestoreFailed(detail=f"{target} is the backup itself; choose another with --db")
    with hold(target):
        mark = beside(target, RESTORING)
        if target.exists() and not (replace or mark.exists()):
            raise RestoreFailed(detail=f"{target} exists; move it away, or say --force to replace it")
        try:
            with unfinished(target) as copy:
                progress("copying", 0, 1)
                shutil.copyfile(backup, copy)
                restored = asyncio.run(_make_fit(copy, contents.shards, clock, floor_of(target), progress))
                _own_like(target, copy)
                # From here on the old database loses its WAL, without which it is not what it was.
                install(copy, mark)
                for ending in (WAL, SHARED_MEMORY):
                    beside(target, ending).unlink(missing_ok=True)
                sync(target.absolute().parent)
                install(mark, target)
        except BackupFailed as error:
            raise RestoreFailed(detail=error.fields["detail"]) from error
    return contents, restored


async def _make_fit(copy: Path, shards: int, clock: Clock, known: int, progress: Progress) -> Restored:
    store = SqlStore(SqliteDatabase(copy))
    try:
        await store.open(shards, OWNER)
        restored = await begin_new_history(store, shards, clock, known, progress)
    finally:
        await store.close()
    if beside(copy, WAL).exists():
        raise RestoreFailed(detail=f"{beside(copy, WAL)} was not taken up into its database")
    return restored


def _own_like(target: Path, copy: Path) -> None:
    """Whoever may use the old file, may use the new one."""
    if target.exists():
        old = target.stat()
        copy.chmod(old.st_mode & 0o777)
        if os.geteuid() == 0:
            os.chown(copy, old.st_uid, old.st_gid)


class _NoDeadlines:
    def arm(self, key: Subject, due_ms: int) -> None:
        pass

    def disarm(self, key: Subject) -> None:
        pass


async def begin_new_history(
    store: Store, shards: int, clock: Clock, known: int, progress: Progress
) -> Restored:
    """End every lease in an open store that nobody else uses. `known`: tokens up to here are known from elsewhere."""
    node = Node(
        store,
        clock,
        shard_count=shards,
        owner=OWNER,
        grace_ms=0,
        commit_interval_ms=0,
        deadlines=lambda shard_id: _NoDeadlines(),
    )
    await node.open()
    node.start(pulse=False)
    highest = max(known, store.history.token_floor, *(_highest_token(shard) for shard in node.shards()))
    history = following(highest, clock.wall_ms())
    # First, so that an interruption leaves a database that has a higher floor than it needs, and never a lower one.
    await store.begin_history(history)
    workers = activities = 0
    for shard in node.shards():
        progress("ending leases", shard.id, shards)
        ended = _end_leases(node, shard)
        workers += len(ended)
        activities += sum(ended)
        await _unless_broken(node, node.durable(shard))
    await _unless_broken(node, node.close())
    return Restored(workers, activities, history.token_floor)


async def _unless_broken(node: Node, work: Coroutine[Any, Any, None]) -> None:
    """Whoever waits for a commit on a broken disk waits for ever."""
    working = asyncio.create_task(work)
    ends: set[asyncio.Future[Any]] = {working, node.broken}
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if not working.done():
        working.cancel()
        raise node.broken.result()
    try:
        await working
    except LivenessError as error:
        raise RestoreFailed(detail=f"a commit failed, as on a full disk ({error})") from error


def _highest_token(shard: Shard) -> int:
    held = [binding.attempt for worker in shard.workers.values() for binding in worker.bindings.values()]
    attempts = [*held, *(activity.attempt for activity in shard.activities.values())]
    # Whoever numbers attempts so high does it by a rule of its own, which needs no help of ours.
    ours = [attempt for attempt in attempts if attempt <= FLOOR_MAX]
    return max([0, *ours, *(worker.epoch for worker in shard.workers.values())])


def _end_leases(node: Node, shard: Shard) -> list[int]:
    """How many activities were taken from each worker."""
    active = [key for key, worker in shard.workers.items() if worker.state is WorkerState.ACTIVE]
    return [
        shard.deactivate(key, Deactivate(InactiveReason.FORCED, WHY, node.policies.of(key.namespace)))[1]
        for key in active
    ]
