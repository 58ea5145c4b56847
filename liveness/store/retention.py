"""Delete renewals that a checkpoint contains, and rows older than their retention.

Each function deletes one batch in the caller's transaction. The caller owns the shards, and their epochs stay locked until
the commit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import ColumnElement, Connection, and_, delete, func, or_, select, tuple_

from liveness.store import relay_progress
from liveness.store.api import FINISHED_TASK_STATES, UnpublishedRetention
from liveness.store.commit import check_epochs
from liveness.store.schema import RENEWALS_KIND, activities, checkpoints, log, shards, tasks

DELETE_BATCH = 5_000
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


def prune_events(
    connection: Connection,
    owned: Mapping[int, int],
    cutoffs: Mapping[str, int],
    default_cutoff: int,
    unpublished: UnpublishedRetention | None,
) -> int:
    check_epochs(connection, owned)
    checkpointed = select(checkpoints.c.seq).where(checkpoints.c.shard_id == log.c.shard_id).scalar_subquery()
    is_expired = or_(
        and_(func.coalesce(log.c.namespace, "").not_in(list(cutoffs)), log.c.wall_ms < default_cutoff),
        *(
            and_(log.c.namespace == namespace, log.c.wall_ms < cutoff)
            for namespace, cutoff in cutoffs.items()
        ),
    )
    is_prunable = and_(log.c.shard_id.in_(owned), log.c.seq <= checkpointed, log.c.kind != RENEWALS_KIND)
    if unpublished is not None:
        is_expired = and_(is_expired, relay_progress.is_published(unpublished))
    return _delete_batch(connection, and_(is_prunable, is_expired))


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
