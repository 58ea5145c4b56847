"""Delete renewals that a checkpoint contains, and rows older than their retention.

Each function deletes one batch in the caller's transaction. The caller owns the shards, and their epochs stay locked until
the commit. Events to delete are searched in read transactions, because a search may pass many events that stay, and a write
transaction makes all heartbeats wait.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, and_, case, delete, func, or_, select, tuple_

from liveness.store import relay_progress
from liveness.store.api import FINISHED_TASK_STATES, UnpublishedRetention
from liveness.store.commit import check_epochs
from liveness.store.deletions import DeletedRow, record_deletions
from liveness.store.schema import RENEWALS_KIND, activities, checkpoints, deaths, log, shards, silences, tasks
from liveness.store.size import EVENT_OVERHEAD_BYTES

DELETE_BATCH = 5_000
EVENT_DELETE_BATCH = 1_000
"""Events are deleted from three indexes as well: more at once would make heartbeats wait."""
SCAN_IDS = 20_000
_ACTIVITY_KEY = (
    activities.c.namespace,
    activities.c.workflow_id,
    activities.c.run_id,
    activities.c.activity_id,
)


def prune_activities(
    connection: Connection, owned: Mapping[int, int], cutoffs: Mapping[str, int], default_cutoff: int
) -> int:
    check_epochs(connection, owned)
    finished_ms = activities.c.finished_wall_ms
    is_expired = or_(
        and_(activities.c.namespace.not_in(list(cutoffs)), finished_ms < default_cutoff),
        *(and_(activities.c.namespace == name, finished_ms < cutoff) for name, cutoff in cutoffs.items()),
    )
    keys = (
        select(*_ACTIVITY_KEY)
        .where(finished_ms.is_not(None), activities.c.shard_id.in_(owned), is_expired)
        .limit(DELETE_BATCH)
    )
    return connection.execute(delete(activities).where(tuple_(*_ACTIVITY_KEY).in_(keys))).rowcount


def compact_renewals(connection: Connection, owned: Mapping[int, int], after: int, through: int) -> int:
    check_epochs(connection, owned)
    is_compactable = and_(
        log.c.kind == RENEWALS_KIND, log.c.id > after, log.c.id <= through, log.c.shard_id.in_(owned)
    )
    return _delete_batch(connection, is_compactable)


def checkpointed_through(connection: Connection, shard_ids: Collection[int]) -> int:
    """The log id up to which the checkpoints of all these shards contain their renewals.

    A shard without entries after its checkpoint does not lower it.
    """
    rows = connection.execute(
        select(shards.c.last_seq, checkpoints.c.seq, checkpoints.c.position)
        .join_from(shards, checkpoints, shards.c.shard_id == checkpoints.c.shard_id, isouter=True)
        .where(shards.c.shard_id.in_(shard_ids))
    ).all()
    pending_positions = [position or 0 for last_seq, seq, position in rows if last_seq > (seq or 0)]
    return (
        min(pending_positions)
        if pending_positions
        else max((position or 0 for _, _, position in rows), default=0)
    )


class EventScan(NamedTuple):
    """One part of the log, examined for events that may be deleted."""

    last_id: int
    oldest_wall_ms: int
    first_deletable: int | None
    first_kept: int | None
    """The first event of the examined kinds and shards that may not be deleted now."""


class DeletableEvents:
    """Events of the owned shards that may be deleted: the checkpoint contains them, and the relay has published them.

    `kinds`: only events of these kinds; empty for all.
    """

    def __init__(
        self,
        owned: Mapping[int, int],
        kinds: Collection[str] = (),
        unpublished: UnpublishedRetention | None = None,
    ) -> None:
        self.owned = owned
        self._is_examined = and_(
            log.c.shard_id.in_(owned), log.c.kind.in_(kinds) if kinds else log.c.kind != RENEWALS_KIND
        )
        checkpointed = (
            select(checkpoints.c.seq).where(checkpoints.c.shard_id == log.c.shard_id).scalar_subquery()
        )
        self._is_deletable = and_(self._is_examined, log.c.seq <= checkpointed)
        if unpublished is not None:
            self._is_deletable = and_(self._is_deletable, relay_progress.is_published(unpublished))

    def older_than(self, cutoffs: Mapping[str, int], default_cutoff: int) -> DeletableEvents:
        """Those that are older than the cutoff of their namespace."""
        self._is_deletable = and_(
            self._is_deletable,
            or_(
                and_(
                    func.coalesce(log.c.namespace, "").not_in(list(cutoffs)), log.c.wall_ms < default_cutoff
                ),
                *(
                    and_(log.c.namespace == namespace, log.c.wall_ms < cutoff)
                    for namespace, cutoff in cutoffs.items()
                ),
            ),
        )
        return self

    def scan(self, connection: Connection, after_id: int) -> EventScan | None:
        """Examine the next part of the log; None at its end. A part is small, so that other reads need not wait long."""
        first_id = connection.execute(select(func.min(log.c.id)).where(log.c.id > after_id)).scalar_one()
        if first_id is None:
            return None
        row = connection.execute(
            select(
                func.max(log.c.id),  # rows that follow have higher ids, and are for the next scan
                func.min(log.c.wall_ms),
                func.min(case((self._is_deletable, log.c.id))),
                func.min(case((self._is_deletable, None), (self._is_examined, log.c.id))),
            ).where(log.c.id.between(first_id, first_id + SCAN_IDS - 1))
        ).one()
        return EventScan(*row)

    def delete(self, connection: Connection, first_id: int, last_id: int) -> tuple[int, int]:
        """Delete those between these ids, and record that. Returns their number, and about how many bytes they took."""
        check_epochs(connection, self.owned)
        rows = connection.execute(
            delete(log)
            .where(log.c.id.between(first_id, last_id), self._is_deletable)
            .returning(log.c.shard_id, log.c.namespace, log.c.seq, log.c.wall_ms, func.length(log.c.payload))
        ).all()
        record_deletions(connection, (DeletedRow(*row[:4]) for row in rows))
        return len(rows), sum(row[4] + EVENT_OVERHEAD_BYTES for row in rows)


def prune_deaths(
    connection: Connection, owned: Mapping[int, int], cutoffs: Mapping[str, int], default_cutoff: int
) -> int:
    return _prune_by_time(connection, deaths, owned, cutoffs, default_cutoff)


def prune_silences(
    connection: Connection, owned: Mapping[int, int], cutoffs: Mapping[str, int], default_cutoff: int
) -> int:
    return _prune_by_time(connection, silences, owned, cutoffs, default_cutoff)


def _prune_by_time(
    connection: Connection,
    table: Table,
    owned: Mapping[int, int],
    cutoffs: Mapping[str, int],
    default_cutoff: int,
) -> int:
    check_epochs(connection, owned)
    wall_ms, in_namespace = table.c.wall_ms, table.c.namespace
    is_expired = or_(
        and_(in_namespace.not_in(list(cutoffs)), wall_ms < default_cutoff),
        *(and_(in_namespace == namespace, wall_ms < cutoff) for namespace, cutoff in cutoffs.items()),
    )
    keys = select(*table.primary_key).where(table.c.shard_id.in_(owned), is_expired).limit(DELETE_BATCH)
    return connection.execute(delete(table).where(tuple_(*table.primary_key).in_(keys))).rowcount


def prune_tasks(connection: Connection, owned: Mapping[int, int], cutoff_wall_ms: int) -> int:
    check_epochs(connection, owned)
    is_expired = select(tasks.c.task_id).where(
        tasks.c.shard_id.in_(owned),
        tasks.c.state.in_(FINISHED_TASK_STATES),
        tasks.c.finished_wall_ms < cutoff_wall_ms,
    )
    return connection.execute(
        delete(tasks).where(tasks.c.task_id.in_(is_expired.limit(DELETE_BATCH)))
    ).rowcount


def _delete_batch(connection: Connection, condition: ColumnElement[bool]) -> int:
    ids = select(log.c.id).where(condition).order_by(log.c.id).limit(DELETE_BATCH)
    return connection.execute(delete(log).where(log.c.id.in_(ids))).rowcount
