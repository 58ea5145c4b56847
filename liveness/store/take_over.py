"""Take over shards: raise their epochs, which fences every earlier owner, and read back their state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from sys import intern
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Row, and_, func, select, update

from liveness.domain.activity import Activity
from liveness.domain.events import ShardTaken
from liveness.domain.keys import ActivityId, ActivityKey, WorkerKey
from liveness.domain.worker import Worker
from liveness.store import codec
from liveness.store.api import TAKEOVERS_KEPT, ShardSnapshot
from liveness.store.bulk import insert_rows, read_rows
from liveness.store.codec import LogEntry, LogRow, RenewalState, encode_entry
from liveness.store.errors import LogIncomplete
from liveness.store.object_rows import read_objects
from liveness.store.progress_rows import read_progress
from liveness.store.schema import activities, checkpoints, log, shards, slots, workers
from liveness.store.timeline import read_epoch_floors

DECODE_SECONDS_MAX = 15
LOG_COLUMNS = [log.c[name] for name in LogRow._fields]


def take_over(
    connection: Connection,
    shard_ids: Sequence[int],
    owner: str,
    wall_ms: int,
    expected_epochs: Mapping[int, int] | None = None,
) -> list[ShardSnapshot]:
    if connection.dialect.name == "postgresql":
        # Decoding a million rows between the statements below takes longer than the usual limit allows.
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{DECODE_SECONDS_MAX}s'")
    if expected_epochs is not None:
        shard_ids = _lock_unchanged(connection, shard_ids, expected_epochs)
        if not shard_ids:
            return []
    # The update comes first: on PostgreSQL it waits for the old owner's commit in flight, which the reads below must see.
    is_wanted = shards.c.shard_id.in_(shard_ids)
    connection.execute(
        update(shards)
        .where(is_wanted)
        .values(epoch=shards.c.epoch + 1, last_seq=shards.c.last_seq + 1, owner=owner)
    )
    heads = connection.execute(select(shards).where(is_wanted).order_by(shards.c.shard_id)).all()
    takeovers = {}
    log_rows = []
    for head in heads:
        times = (*codec.decode_takeovers(head.takeovers), head.observed_ms)[-TAKEOVERS_KEPT:]
        takeovers[head.shard_id] = times
        connection.execute(
            update(shards)
            .where(shards.c.shard_id == head.shard_id)
            .values(takeovers=codec.encode_takeovers(times))
        )
        event = ShardTaken(epoch=head.epoch, owner=owner)
        entry = LogEntry(head.last_seq, None, None, None, wall_ms, head.observed_ms, event)
        log_rows.append(encode_entry(head.shard_id, entry))
    insert_rows(connection, log, log_rows, LogRow._fields)
    checkpoint_rows = {
        row.shard_id: row
        for row in connection.execute(select(checkpoints).where(checkpoints.c.shard_id.in_(shard_ids)))
    }
    shard_workers = _read_workers(connection, shard_ids, checkpoint_rows)
    activity_rows = _read_activities(connection, shard_ids)
    slots_by_shard = _read_slots(connection, shard_ids)
    epoch_floors = read_epoch_floors(connection, shard_ids)
    progress = read_progress(connection, shard_ids)
    objects = read_objects(connection, shard_ids)
    previous_heads = {head.shard_id: head.last_seq - 1 for head in heads}
    checkpoint_positions = {id: (row.seq, row.position) for id, row in checkpoint_rows.items()}
    tails = _read_tails(connection, previous_heads, checkpoint_positions, shard_workers)
    return [
        ShardSnapshot(
            shard_id=head.shard_id,
            epoch=head.epoch,
            last_seq=head.last_seq,
            observed_ms=head.observed_ms,
            taken_wall_ms=wall_ms,
            takeovers=takeovers[head.shard_id],
            checkpoint_seq=checkpoint_rows[head.shard_id].seq if head.shard_id in checkpoint_rows else 0,
            workers=shard_workers[head.shard_id].workers,
            row_seqs=shard_workers[head.shard_id].row_seqs,
            tail=tails[head.shard_id],
            activities=activity_rows[head.shard_id],
            slots=slots_by_shard[head.shard_id],
            epoch_floor=epoch_floors.get(head.shard_id, 1),
            progress=progress[head.shard_id],
            objects=objects[head.shard_id],
        )
        for head in heads
    ]


def _lock_unchanged(
    connection: Connection, shard_ids: Sequence[int], expected_epochs: Mapping[int, int]
) -> list[int]:
    """Lock the shards that still have the expected epoch until the transaction ends, and return them."""
    query = (
        select(shards.c.shard_id, shards.c.epoch)
        .where(shards.c.shard_id.in_(shard_ids))
        .order_by(shards.c.shard_id)
        .with_for_update()
    )
    return [shard_id for shard_id, epoch in connection.execute(query) if expected_epochs[shard_id] == epoch]


def _read_slots(connection: Connection, shard_ids: Sequence[int]) -> Mapping[int, dict[str, int]]:
    found: defaultdict[int, dict[str, int]] = defaultdict(dict)
    query = select(slots).where(slots.c.shard_id.in_(shard_ids))
    for row in connection.execute(query):
        found[row.shard_id][row.namespace] = row.granted
    return found


class _ShardWorkers:
    """The workers of one shard, as far as rows and checkpoint tell."""

    __slots__ = ("checkpoint_seq", "checkpointed", "row_seqs", "workers")

    def __init__(self, checkpoint: Row[Any] | None) -> None:
        self.workers: dict[WorkerKey, Worker] = {}
        self.row_seqs: dict[WorkerKey, int] = {}
        """How much of the log a row contains, for rows that are newer than the checkpoint."""
        self.checkpoint_seq = 0
        self.checkpointed: dict[int, RenewalState] = {}
        """The renewals up to the checkpoint, by the number of the worker."""
        if checkpoint is not None:
            shard_id, self.checkpoint_seq, position, payload = (
                checkpoint.shard_id, checkpoint.seq, checkpoint.position, checkpoint.payload,
            )  # fmt: skip
            codec.verify_checksum(payload, "checkpoints", shard_id, self.checkpoint_seq, position)
            self.checkpointed = {state.number: state for state in codec.decode_renewal_states(payload)}


def _read_workers(
    connection: Connection, shard_ids: Sequence[int], checkpoint_rows: Mapping[int, Row[Any]]
) -> Mapping[int, _ShardWorkers]:
    query = select(
        workers.c.shard_id,
        workers.c.namespace,
        workers.c.worker_key,
        workers.c.number,
        workers.c.as_of_seq,
        workers.c.state,
        workers.c.payload,
    ).where(_shard_condition(connection, workers.c.shard_id, shard_ids))
    found = {shard_id: _ShardWorkers(checkpoint_rows.get(shard_id)) for shard_id in shard_ids}
    for shard_id, namespace, key, number, as_of_seq, state, payload in read_rows(connection, query):
        codec.verify_worker_checksum(payload, namespace, key, number, as_of_seq, state)
        shard = found[shard_id]
        # One copy of a name that many keys share; by the constructor of tuples, because there may be a million.
        worker_key = tuple.__new__(WorkerKey, (intern(namespace), key))
        checkpointed = None
        if as_of_seq > shard.checkpoint_seq:
            shard.row_seqs[worker_key] = as_of_seq
        else:
            checkpointed = shard.checkpointed.pop(number, None)
        shard.workers[worker_key] = codec.decode_worker(number, state, payload, checkpointed)
    return found


def _shard_condition(
    connection: Connection, column: Column[int], shard_ids: Sequence[int]
) -> ColumnElement[bool]:
    """If most rows are wanted, a table scan takes SQLite a third of the time that the index on shards would take. An
    expression instead of the column hides the index from it."""
    if connection.dialect.name == "sqlite":
        (count,) = connection.execute(select(func.count()).select_from(shards)).one()
        if 2 * len(shard_ids) > count:
            return (column + 0).in_(shard_ids)
    return column.in_(shard_ids)


def _read_activities(
    connection: Connection, shard_ids: Sequence[int]
) -> Mapping[int, dict[ActivityKey, Activity]]:
    found: defaultdict[int, dict[ActivityKey, Activity]] = defaultdict(dict)
    unfinished = and_(activities.c.shard_id.in_(shard_ids), activities.c.finished_wall_ms.is_(None))
    for row in connection.execute(select(activities).where(unfinished)):
        key, activity = decode_activity_row(row)
        found[row.shard_id][key] = activity
    return found


def decode_activity_row(row: Sequence[Any]) -> tuple[ActivityKey, Activity]:
    """`row`: a whole row of `activities`, in column order."""
    (
        namespace,
        workflow_id,
        run_id,
        activity_id,
        _,
        state,
        task_queue,
        worker_key,
        finished_wall_ms,
        payload,
    ) = row
    id = ActivityId(workflow_id, run_id, activity_id)
    codec.verify_checksum(payload, "activities", namespace, *id, state, task_queue, worker_key)
    activity = codec.decode_activity(id, state, task_queue, worker_key, payload)
    if activity.since_wall_ms is None and finished_wall_ms is not None:
        # Written by a version that stored this time alone.
        activity = activity._replace(since_wall_ms=finished_wall_ms)
    return ActivityKey(namespace, *id), activity


def _read_tails(
    connection: Connection,
    heads: Mapping[int, int],
    checkpoint_positions: Mapping[int, tuple[int, int]],
    shard_workers: Mapping[int, _ShardWorkers],
) -> Mapping[int, list[LogEntry]]:
    """Each shard's entries after its checkpoint, up to its head, in one scan for all shards.

    Entries that the row of their worker contains already, most of them registrations, are not decoded.
    """
    found: defaultdict[int, list[LogEntry]] = defaultdict(list)
    read_seqs: defaultdict[int, list[int]] = defaultdict(list)
    after = {shard_id: checkpoint_positions.get(shard_id, (0, 0))[0] for shard_id in heads}
    behind = [shard_id for shard_id, last_seq in heads.items() if last_seq > after[shard_id]]
    if not behind:
        return found
    position = min(checkpoint_positions.get(shard_id, (0, 0))[1] for shard_id in behind)
    query = select(*LOG_COLUMNS).where(log.c.id > position, log.c.shard_id.in_(behind)).order_by(log.c.id)
    for values in read_rows(connection, query):
        shard_id, seq, _, _, namespace, worker, *_ = values
        if not after[shard_id] < seq <= heads[shard_id]:
            continue
        read_seqs[shard_id].append(seq)
        row_seq = shard_workers[shard_id].row_seqs.get((namespace, worker), 0)  # type: ignore[call-overload]
        if row_seq < seq or seq == heads[shard_id]:
            found[shard_id].append(codec.decode_entry(LogRow._make(values)))
    for shard_id in behind:
        if read_seqs[shard_id] != list(range(after[shard_id] + 1, heads[shard_id] + 1)):
            # Checksums cannot detect a missing row.
            raise LogIncomplete(shard_id=shard_id, after=after[shard_id], head=heads[shard_id])
    return found
