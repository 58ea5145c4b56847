"""Taking shards: raise their epochs, which fences every earlier owner, and read back what they hold."""

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
from liveness.store.api import TAKEOVERS_KEPT, ShardImage
from liveness.store.bulk import insert_rows, read_rows
from liveness.store.codec import LogEntry, LogRow, Pulse, encode_entry
from liveness.store.errors import LogIncomplete
from liveness.store.schema import activities, checkpoints, log, shards, slots, workers

UNPACKING_SECONDS_MAX = 15
LOG_COLUMNS = [log.c[name] for name in LogRow._fields]


def take_over(
    connection: Connection,
    shard_ids: Sequence[int],
    owner: str,
    wall_ms: int,
    seen: Mapping[int, int] | None = None,
) -> list[ShardImage]:
    if connection.dialect.name == "postgresql":
        # Between the statements below, everything that was read is unpacked.
        connection.exec_driver_sql(
            f"SET LOCAL idle_in_transaction_session_timeout = '{UNPACKING_SECONDS_MAX}s'"
        )
    if seen is not None:
        shard_ids = _unchanged(connection, shard_ids, seen)
        if not shard_ids:
            return []
    # The update comes first: on PostgreSQL it waits for the old owner's commit in flight, which the reads below
    # must see.
    mine = shards.c.shard_id.in_(shard_ids)
    connection.execute(
        update(shards)
        .where(mine)
        .values(epoch=shards.c.epoch + 1, last_seq=shards.c.last_seq + 1, owner=owner)
    )
    heads = connection.execute(select(shards).where(mine).order_by(shards.c.shard_id)).all()
    takeovers = {}
    taken = []
    for head in heads:
        times = (*codec.decode_times(head.takeovers), head.observed_ms)[-TAKEOVERS_KEPT:]
        takeovers[head.shard_id] = times
        connection.execute(
            update(shards)
            .where(shards.c.shard_id == head.shard_id)
            .values(takeovers=codec.encode_times(times))
        )
        fact = ShardTaken(epoch=head.epoch, owner=owner)
        entry = LogEntry(head.last_seq, None, None, None, wall_ms, head.observed_ms, fact)
        taken.append(encode_entry(head.shard_id, entry))
    insert_rows(connection, log, taken, LogRow._fields)
    saved = {
        row.shard_id: row
        for row in connection.execute(select(checkpoints).where(checkpoints.c.shard_id.in_(shard_ids)))
    }
    worker_rows = _read_workers(connection, shard_ids)
    activity_rows = _read_activities(connection, shard_ids)
    room = _read_slots(connection, shard_ids)
    before_this = {head.shard_id: head.last_seq - 1 for head in heads}
    places = {id: (row.seq, row.position) for id, row in saved.items()}
    tails = _read_tails(connection, before_this, places, worker_rows)
    return [
        ShardImage(
            shard_id=head.shard_id,
            epoch=head.epoch,
            last_seq=head.last_seq,
            observed_ms=head.observed_ms,
            takeovers=takeovers[head.shard_id],
            checkpoint_seq=saved[head.shard_id].seq if head.shard_id in saved else 0,
            pulses=_pulses(saved[head.shard_id]) if head.shard_id in saved else [],
            workers=worker_rows[head.shard_id],
            tail=tails[head.shard_id],
            activities=activity_rows[head.shard_id],
            slots=room[head.shard_id],
        )
        for head in heads
    ]


def _pulses(row: Row[Any]) -> list[Pulse]:
    codec.check_seal(row.payload, "checkpoints", row.shard_id, row.seq, row.position)
    return codec.decode_pulses(row.payload)


def _unchanged(connection: Connection, shard_ids: Sequence[int], seen: Mapping[int, int]) -> list[int]:
    """Those whose epoch is still the one that was seen; they stay so until the transaction ends."""
    query = (
        select(shards.c.shard_id, shards.c.epoch)
        .where(shards.c.shard_id.in_(shard_ids))
        .order_by(shards.c.shard_id)
        .with_for_update()
    )
    return [shard_id for shard_id, epoch in connection.execute(query) if seen[shard_id] == epoch]


def _read_slots(connection: Connection, shard_ids: Sequence[int]) -> Mapping[int, dict[str, int]]:
    found: defaultdict[int, dict[str, int]] = defaultdict(dict)
    query = select(slots).where(slots.c.shard_id.in_(shard_ids))
    for row in connection.execute(query):
        found[row.shard_id][row.namespace] = row.granted
    return found


def _read_workers(connection: Connection, shard_ids: Sequence[int]) -> Mapping[int, dict[WorkerKey, Any]]:
    query = select(
        workers.c.shard_id,
        workers.c.namespace,
        workers.c.worker_key,
        workers.c.number,
        workers.c.as_of_seq,
        workers.c.state,
        workers.c.payload,
    ).where(_of_shards(connection, workers.c.shard_id, shard_ids))
    found: defaultdict[int, dict[WorkerKey, Any]] = defaultdict(dict)
    for shard_id, namespace, key, number, as_of_seq, state, payload in read_rows(connection, query):
        codec.check_seal(payload, "workers", namespace, key, number, as_of_seq, state)
        own = WorkerKey(intern(namespace), key)  # one copy of a name that so many have in common
        found[shard_id][own] = (codec.decode_worker(number, state, payload), as_of_seq)
    return found


def _of_shards(connection: Connection, column: Column[int], shard_ids: Sequence[int]) -> ColumnElement[bool]:
    """SQLite would follow an index of the shards to one row after the other. If most rows are wanted, to read them as
    they lie takes a third of the time; an expression hides the index from it."""
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
        key, activity = stored_activity(row)
        found[row.shard_id][key] = activity
    return found


def stored_activity(row: Row[Any]) -> tuple[ActivityKey, Activity]:
    id = ActivityId(row.workflow_id, row.run_id, row.activity_id)
    codec.check_seal(row.payload, "activities", row.namespace, *id, row.state, row.task_queue, row.worker_key)
    activity = codec.decode_activity(id, row.state, row.task_queue, row.worker_key, row.payload)
    return ActivityKey(row.namespace, *id), activity


def _read_tails(
    connection: Connection,
    heads: Mapping[int, int],
    places: Mapping[int, tuple[int, int]],
    worker_rows: Mapping[int, Mapping[WorkerKey, tuple[Worker, int]]],
) -> Mapping[int, list[LogEntry]]:
    """Each shard's entries after its checkpoint, up to its head, without those that the row of their worker contains:
    nobody reads these, registrations above all, before somebody asks for them. One scan in log order serves all
    shards."""
    found: defaultdict[int, list[LogEntry]] = defaultdict(list)
    seen: defaultdict[int, list[int]] = defaultdict(list)
    after = {shard_id: places.get(shard_id, (0, 0))[0] for shard_id in heads}
    behind = [shard_id for shard_id, last_seq in heads.items() if last_seq > after[shard_id]]
    if not behind:
        return found
    position = min(places.get(shard_id, (0, 0))[1] for shard_id in behind)
    query = select(*LOG_COLUMNS).where(log.c.id > position, log.c.shard_id.in_(behind)).order_by(log.c.id)
    for values in read_rows(connection, query):
        shard_id, seq, _, _, namespace, worker, *_ = values
        if not after[shard_id] < seq <= heads[shard_id]:
            continue
        seen[shard_id].append(seq)
        known = worker_rows[shard_id].get((namespace, worker))  # type: ignore[call-overload]
        if known is None or known[1] < seq or seq == heads[shard_id]:
            found[shard_id].append(codec.decode_entry(LogRow._make(values)))
    for shard_id in behind:
        if seen[shard_id] != list(range(after[shard_id] + 1, heads[shard_id] + 1)):
            # A checksum says nothing of a row that is not there.
            raise LogIncomplete(shard_id=shard_id, after=after[shard_id], head=heads[shard_id])
    return found
