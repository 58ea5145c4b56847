"""Replaces a database by a backup, and ends the leases that the backup contains.

Since the backup was made, workers have got leases that the restored database does not know, and leases that it shows
have ended. So the restore ends all leases: it deactivates each worker that is ACTIVE, reschedules the worker's
activities, and begins a new history (`liveness.store.timeline`) that never issues a token of an earlier one again. A
worker that still runs comes back with its next heartbeat, as after any lapse, and is told what it lost.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from liveness.clock import Clock
from liveness.domain.commands import Deactivate
from liveness.domain.errors import LivenessError
from liveness.domain.worker import InactiveReason, WorkerState
from liveness.engine.node import Node
from liveness.engine.shard import Shard
from liveness.engine.timers import TimerKey
from liveness.store.api import Store
from liveness.store.backup import BackupFailed, partial_file, replace_durably, sync
from liveness.store.errors import CommitRejected, NodeServes, StoreBroken, StoreError
from liveness.store.integrity import DatabaseSummary, Progress, check_database, read_token_floor
from liveness.store.node_registry import NodeRow
from liveness.store.sql import SqlStore
from liveness.store.sqlite import (
    RESTORING_SUFFIX,
    SHARED_MEMORY,
    WAL,
    SqliteDatabase,
    acquire_lock,
    sibling_path,
)
from liveness.store.timeline import TOKEN_FLOOR_MAX, next_timeline

OWNER = "liveness restore"
BEAT_POLL_MS = 250
DEACTIVATION_DETAIL = "the database was restored from a backup"


class RestoreFailed(StoreError):
    template = "Nothing was restored: {detail}."

    detail: str


class RestoreIncomplete(StoreError):
    template = (
        "The restore has begun and has not ended: {detail}; no server starts on this database until"
        " `liveness restore --already-restored` has succeeded."
    )

    detail: str


class RestoreSummary(NamedTuple):
    workers: int
    """Workers that went from ACTIVE to INACTIVE."""
    activities: int
    """Activities that were taken from them and rescheduled."""
    token_floor: int


def restore(
    backup: Path, target: Path, clock: Clock, progress: Progress, *, replace: bool = False
) -> tuple[DatabaseSummary, RestoreSummary]:
    """Replace `target` by the backup, ready to be served; if that fails, leave `target` as it is.

    An interruption at any point leaves the old database as it was, or a mark beside which no server starts.
    """
    contents = check_database(backup, progress)
    if target.exists() and target.samefile(backup):
        raise RestoreFailed(detail=f"{target} is the backup itself; choose another with --db")
    with acquire_lock(target):
        mark = sibling_path(target, RESTORING_SUFFIX)
        if target.exists() and not (replace or mark.exists()):
            raise RestoreFailed(detail=f"{target} exists; move it away, or use --force to replace it")
        try:
            with partial_file(target) as copy:
                progress("copying", 0, 1)
                shutil.copyfile(backup, copy)
                restored = asyncio.run(
                    _prepare_copy(copy, contents.shards, clock, read_token_floor(target), progress)
                )
                _copy_permissions(target, copy)
                # From here on the old database loses its WAL, and with it the commits that are only there.
                replace_durably(copy, mark)
                for suffix in (WAL, SHARED_MEMORY):
                    sibling_path(target, suffix).unlink(missing_ok=True)
                sync(target.absolute().parent)
                replace_durably(mark, target)
        except BackupFailed as error:
            raise RestoreFailed(detail=error.detail) from error
    return contents, restored


async def _prepare_copy(
    copy: Path, shards: int, clock: Clock, known_floor: int, progress: Progress
) -> RestoreSummary:
    store = SqlStore(SqliteDatabase(copy))
    try:
        await store.open(shards, OWNER, is_restore=True)
        restored = await begin_new_history(store, shards, clock, known_floor, progress)
    except RestoreIncomplete as error:
        raise RestoreFailed(detail=error.detail) from error
    finally:
        await store.close()
    if sibling_path(copy, WAL).exists():
        raise RestoreFailed(detail=f"{sibling_path(copy, WAL)} was not taken up into its database")
    return restored


def _copy_permissions(target: Path, copy: Path) -> None:
    """Give the new file the owner and the permissions of the old one."""
    if target.exists():
        old = target.stat()
        copy.chmod(old.st_mode & 0o777)
        if os.geteuid() == 0:
            os.chown(copy, old.st_uid, old.st_gid)


class _NoDeadlines:
    def arm(self, key: TimerKey, due_ms: int) -> None:
        pass

    def disarm(self, key: TimerKey) -> None:
        pass


async def begin_new_history(
    store: Store,
    shards: int,
    clock: Clock,
    known_floor: int,
    progress: Progress,
    silent: Mapping[str, int] | None = None,
) -> RestoreSummary:
    """End every lease in an open store.

    `known_floor`: tokens up to this one were issued by the database that is replaced. `silent`: the result of
    `wait_until_nodes_are_silent`; without it this process must be the only one that can open the database.

    Either nothing is changed, or `RestoreIncomplete` is raised and no server opens the database until a later call has
    succeeded, or everything is done.
    """
    if silent is None:
        silent = _beats(await store.registered_nodes())
    await store.begin_restore(silent)
    try:
        restored = await _end_all_leases(store, shards, clock, known_floor, progress)
        await store.finish_restore()
    except StoreError as error:
        detail = getattr(error, "detail", None) or str(error).removesuffix(".")
        raise RestoreIncomplete(detail=detail) from error
    return restored


async def wait_until_nodes_are_silent(store: Store, clock: Clock, progress: Progress) -> dict[str, int]:
    """Wait until the leases of all registered nodes are over, and return their last beats; raise `NodeServes` as soon as
    one of them shows that it is alive.

    A node that stopped in order is not registered. The registry of a restored database shows the nodes that served when
    the backup was made, so being registered proves nothing: a living node raises its beat within its lease. The store
    need not be open: opening it may migrate the tables, which is no harmless act if a node serves.
    """
    rows = await store.registered_nodes()
    since_ms = clock.monotonic_ms()
    beats = _beats(rows)
    lease_ms = max((row.lease_ms for row in rows), default=0)
    while (waited_ms := clock.monotonic_ms() - since_ms) < lease_ms:
        progress("waiting for nodes that may still serve", waited_ms, lease_ms)
        await clock.sleep(min(BEAT_POLL_MS, lease_ms - waited_ms))
        for node_id, beat in _beats(await store.registered_nodes()).items():
            if beats.get(node_id) != beat:
                raise NodeServes(node_id=node_id)
    return beats


def _beats(rows: Iterable[NodeRow]) -> dict[str, int]:
    return {row.node_id: row.beat for row in rows}


async def _end_all_leases(
    store: Store, shards: int, clock: Clock, known_floor: int, progress: Progress
) -> RestoreSummary:
    node = Node(
        store,
        clock,
        shard_count=shards,
        owner=OWNER,
        grace_ms=0,
        commit_interval_ms=0,
        timers=lambda shard_id: _NoDeadlines(),
    )
    try:
        return await _end_leases_of(node, known_floor, progress)
    except BaseException:
        node.abort(StoreBroken(detail="the restore was given up"))
        await node.close()
        raise


async def _end_leases_of(node: Node, known_floor: int, progress: Progress) -> RestoreSummary:
    store, clock = node.store, node.clock
    await node.open()
    node.start(tick=False)
    highest = max(
        known_floor, store.timeline.token_floor, *(_highest_token(shard) for shard in node.shards())
    )
    timeline = next_timeline(highest, clock.wall_ms())
    # First, so that an interruption leaves a database that has a higher floor than it needs, and never a lower one.
    await store.begin_timeline(timeline)
    workers = activities = 0
    for shard in node.shards():
        progress("ending leases", shard.id, node.shard_count)
        ended = _end_leases(node, shard)
        workers += len(ended)
        activities += sum(ended)
        await _await_unless_broken(node, node.wait_durable(shard))
    await _await_unless_broken(node, node.close())
    return RestoreSummary(workers, activities, timeline.token_floor)


async def _await_unless_broken(node: Node, work: Coroutine[Any, Any, None]) -> None:
    """Await `work`, or raise if the store breaks meanwhile: a commit on a broken disk never ends."""
    working = asyncio.create_task(work)
    ends: set[asyncio.Future[Any]] = {working, node.broken}
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if not working.done():
        working.cancel()
        raise node.broken.result()
    try:
        await working
    except LivenessError as error:
        raise CommitRejected(detail=f"a commit failed, as on a full disk ({error})") from error


def _highest_token(shard: Shard) -> int:
    held = [binding.attempt for worker in shard.workers.values() for binding in worker.bindings.values()]
    attempts = [*held, *(activity.attempt for activity in shard.activities.values())]
    # A client that numbers attempts higher than this uses its own rule, and needs no floor.
    floored = [attempt for attempt in attempts if attempt <= TOKEN_FLOOR_MAX]
    return max([shard.epoch_floor - 1, *floored, *(worker.epoch for worker in shard.workers.values())])


def _end_leases(node: Node, shard: Shard) -> list[int]:
    """End all leases of a shard. Returns the number of activities that were taken from each worker."""
    active = [key for key, worker in shard.workers.items() if worker.state is WorkerState.ACTIVE]
    return [
        shard.deactivate(
            key, Deactivate(InactiveReason.FORCED, DEACTIVATION_DETAIL, node.policies.of(key.namespace))
        )[1]
        for key in active
    ]
