"""One group commit of several shards, checked against their epochs and heads in the same transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, and_, delete, func, select, update

from liveness.domain.activity import FINISHED_ACTIVITY_STATES
from liveness.domain.keys import WorkerKey
from liveness.domain.reactions import ActivityRescheduleTask
from liveness.store import codec
from liveness.store.api import FINISHED_TASK_STATES, ShardCommit, TaskState, TaskUpdate
from liveness.store.bulk import insert_rows, update_rows
from liveness.store.codec import LogRow, encode_entry
from liveness.store.deaths import death_rows
from liveness.store.errors import ShardsLost
from liveness.store.object_rows import write_objects
from liveness.store.progress_rows import write_progress
from liveness.store.schema import (
    activities,
    checkpoints,
    config,
    deaths,
    log,
    shards,
    silences,
    tasks,
    verdicts,
    workers,
)
from liveness.store.silences import silence_rows
from liveness.store.timeline import write_epoch_floors

_NEW_TASK_CONSTANTS = (
    ("kind", f"'{ActivityRescheduleTask.__name__}'"),
    ("state", str(int(TaskState.PENDING))),
    ("due_ms", "0"),  # at once, whatever the observed time of the activity's shard
    ("attempts", "0"),
    ("last_error", "''"),
)
_NEW_TASK_COLUMNS = (
    "shard_id", "namespace", "worker_key", "lease_epoch", "activity", "died", "created_wall_ms",
)  # fmt: skip
_SILENCE_KEY = ("namespace", "wall_ms", "shard_id", "kind", "terms_ms", "silence_ms")
_HEAD_TYPES = ("BIGINT",) * 5


def apply_commits(connection: Connection, commits: Sequence[ShardCommit]) -> None:
    _advance_heads(connection, commits)
    insert_rows(
        connection,
        log,
        (encode_entry(commit.shard_id, entry) for commit in commits for entry in commit.entries),
        LogRow._fields,
    )
    _delete_workers(
        connection, [key for commit in commits for key, row in commit.workers.items() if row is None]
    )
    insert_rows(
        connection,
        workers,
        _worker_rows(commits),
        replace_on=("namespace", "worker_key"),
        keep_columns=("shard_id",),  # it never changes, and updating its index is expensive
    )
    insert_rows(
        connection,
        activities,
        _activity_rows(commits),
        replace_on=("namespace", "workflow_id", "run_id", "activity_id"),
        keep_columns=("shard_id",),
    )
    write_progress(connection, commits)
    write_objects(connection, commits)
    for commit in commits:
        if commit.config:
            rows = [
                (name, commit.shard_id, codec.encode_settings(values))
                for name, values in commit.config.items()
            ]
            insert_rows(connection, config, rows, replace_on=("namespace",))
    insert_rows(
        connection,
        tasks,
        _new_task_rows(commits),
        _NEW_TASK_COLUMNS,
        constant_columns=_NEW_TASK_CONSTANTS,
    )
    _update_tasks(connection, commits)
    if counts := [
        (namespace, commit.shard_id, *added)
        for commit in commits
        for namespace, added in commit.verdicts.items()
    ]:
        insert_rows(connection, verdicts, counts, replace_on=("namespace", "shard_id"), add=True)
    insert_rows(connection, deaths, death_rows(commits))
    insert_rows(connection, silences, silence_rows(commits), replace_on=_SILENCE_KEY, add=True)
    if floors := {c.shard_id: c.epoch_floor for c in commits if c.epoch_floor is not None}:
        write_epoch_floors(connection, floors)
    _write_checkpoints(connection, commits)
    if handed_over := [commit.shard_id for commit in commits if commit.is_hand_over]:
        connection.execute(update(shards).where(shards.c.shard_id.in_(handed_over)).values(owner=""))


def _advance_heads(connection: Connection, commits: Sequence[ShardCommit]) -> None:
    """Fencing: each stored head must be the one that this commit builds on, at the epoch that this owner holds."""
    heads = [(c.shard_id, c.epoch, c.after_seq, c.last_seq, c.observed_ms) for c in commits]
    matched = update_rows(
        connection,
        "shards",
        "last_seq = given.column4, observed_ms = given.column5",
        "shards.shard_id = given.column1 AND shards.epoch = given.column2 AND shards.last_seq = given.column3",
        heads,
        _HEAD_TYPES,
    )
    if matched != len(heads):
        # Shards that matched have their new head already; any other head was written by another owner.
        expected_heads = {c.shard_id: (c.epoch, c.last_seq) for c in commits}
        rows = connection.execute(
            select(shards.c.shard_id, shards.c.epoch, shards.c.last_seq).where(
                shards.c.shard_id.in_(expected_heads)
            )
        )
        kept = {
            shard_id for shard_id, epoch, last_seq in rows if expected_heads[shard_id] == (epoch, last_seq)
        }
        raise ShardsLost(shard_ids=frozenset(expected_heads.keys() - kept))


def check_epochs(connection: Connection, owned: Mapping[int, int]) -> None:
    """Fencing for transactions without a new head: verify and lock the epochs until the commit."""
    query = (
        select(shards.c.shard_id, shards.c.epoch)
        .where(shards.c.shard_id.in_(owned))
        .with_for_update(read=True)
    )
    lost = {shard_id for shard_id, epoch in connection.execute(query) if owned[shard_id] != epoch}
    if lost:
        raise ShardsLost(shard_ids=frozenset(lost))


def _delete_workers(connection: Connection, keys: Iterable[WorkerKey]) -> None:
    for key in keys:
        connection.execute(
            delete(workers).where(
                and_(workers.c.namespace == key.namespace, workers.c.worker_key == key.instance_key)
            )
        )


def _worker_rows(commits: Sequence[ShardCommit]) -> Iterator[tuple[Any, ...]]:
    """Sorted like the table: writing many rows in this order takes half the time."""
    changed = [
        (key, commit.shard_id, row)
        for commit in commits
        for key, row in commit.workers.items()
        if row is not None
    ]
    for key, shard_id, (worker, as_of_seq) in sorted(changed, key=itemgetter(0)):
        profile, number, state = worker.shared.profile, worker.number, int(worker.state)
        yield (
            key.namespace,
            key.instance_key,
            shard_id,
            number,
            as_of_seq,
            state,
            profile.task_queue,
            profile.build_id,
            profile.host_name,
            codec.add_checksum(codec.encode_worker(worker), *key, number, as_of_seq, state),
        )


def _activity_rows(commits: Sequence[ShardCommit]) -> Iterator[tuple[Any, ...]]:
    """Sorted like the table, for the same reason."""
    changed = [(key, commit, activity) for commit in commits for key, activity in commit.activities.items()]
    for key, commit, activity in sorted(changed, key=itemgetter(0)):
        state, queue, worker = int(activity.state), activity.task_queue, activity.worker
        yield (
            *key,
            commit.shard_id,
            state,
            queue,
            worker,
            commit.wall_ms if activity.state in FINISHED_ACTIVITY_STATES else None,
            codec.add_checksum(codec.encode_activity(activity), *key, state, queue, worker),
        )


def _new_task_rows(commits: Sequence[ShardCommit]) -> Iterator[tuple[Any, ...]]:
    for commit in commits:
        wall_ms = commit.wall_ms
        for shard_ids, (namespace, worker, epoch, died, taken) in commit.new_tasks:
            # The checksum covers only columns that never change; the others change with each attempt.
            columns = (ActivityRescheduleTask.__name__, namespace, worker, epoch, int(died), wall_ms)
            add_checksum = codec.ChecksumWriter(*columns).add_checksum
            for shard_id, activity in zip(shard_ids, taken, strict=True):
                payload = add_checksum(codec.encode_bound_activity(activity), shard_id)
                yield shard_id, namespace, worker, epoch, payload, int(died), wall_ms


def _update_tasks(connection: Connection, commits: Sequence[ShardCommit]) -> None:
    def row(commit: ShardCommit, task_update: TaskUpdate) -> tuple[Any, ...]:
        task_id, state, due_ms, attempts, last_error = task_update
        finished_ms = commit.wall_ms if state in FINISHED_TASK_STATES else None
        error = codec.replace_unstorable(last_error) if last_error else ""
        return task_id, int(state), due_ms, attempts, error, finished_ms, commit.shard_id

    update_rows(
        connection,
        "tasks",
        "state = given.column2, due_ms = given.column3, attempts = given.column4, last_error = given.column5, "
        "finished_wall_ms = given.column6",
        "tasks.task_id = given.column1 AND tasks.shard_id = given.column7 AND tasks.state IN (1, 2, 3)",
        # Sorted like the table: writing many rows in this order takes half the time.
        sorted(row(commit, update) for commit in commits for update in commit.task_updates.values()),
        ("BIGINT", "INTEGER", "BIGINT", "INTEGER", "TEXT", "BIGINT", "INTEGER"),
    )


def _write_checkpoints(connection: Connection, commits: Sequence[ShardCommit]) -> None:
    new_checkpoints = [
        (commit.shard_id, *commit.checkpoint) for commit in commits if commit.checkpoint is not None
    ]
    if new_checkpoints:
        # All log rows that the checkpoints contain exist by now, with ids up to this position.
        position = connection.execute(select(func.coalesce(func.max(log.c.id), 0))).scalar_one()
        rows = [
            (
                shard_id,
                seq,
                position,
                codec.add_checksum(codec.encode_renewal_states(renewal_states), shard_id, seq, position),
            )
            for shard_id, seq, renewal_states in new_checkpoints
        ]
        insert_rows(connection, checkpoints, rows, replace_on=("shard_id",))
