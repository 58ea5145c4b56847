"""The `Store` over any `Database`: shared SQL for SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import structlog
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    func,
    insert,
    inspect,
    or_,
    select,
    text,
    tuple_,
)

from liveness.domain.activity import Activity
from liveness.domain.death_certificate import Death
from liveness.domain.errors import SeriesQuotaExceeded
from liveness.domain.keys import ActivityId, ActivityKey, WorkerKey
from liveness.domain.silences import CountedSilence
from liveness.domain.verdicts import VerdictCounts
from liveness.domain.worker import WorkerState
from liveness.store import codec, component_metrics, relay_progress, retention, task_counts
from liveness.store.api import (
    OPEN_TASK_STATES,
    PARKED_MS,
    ActivityFilter,
    ActivityRow,
    FeedPage,
    ObjectRow,
    ProgressRow,
    QueueCount,
    RelayBacklog,
    ShardCommit,
    ShardSnapshot,
    StoredTask,
    TaskRange,
    TaskState,
    UnpublishedRetention,
    WorkerFilter,
    WorkerRow,
)
from liveness.store.audit import AuditFilter, AuditRow, insert_audit, prune_audit, read_audit
from liveness.store.bulk import find_rows, insert_rows
from liveness.store.codec import LogEntry, LogRow
from liveness.store.commit import apply_commits, check_epochs
from liveness.store.component_metrics import Point, SampleReport, Series, SeriesFilter, Steps
from liveness.store.database import ConnectionCounts, Database
from liveness.store.database_identity import check_identity, write_identity
from liveness.store.deaths import read_deaths
from liveness.store.deletions import DeletedEvents, read_deletions
from liveness.store.errors import StoreUnusable, WrongShardCount
from liveness.store.lease_history import read_lease_events
from liveness.store.migrate import MIGRATIONS, Revisions, migrate
from liveness.store.node_registry import (
    ClusterView,
    NodeRow,
    disown_shards,
    read_cluster,
    read_nodes,
    remove_nodes,
    renew_node,
)
from liveness.store.object_rows import list_objects
from liveness.store.pages import Page, read_page
from liveness.store.population import Population, TimedDeath, read_population, read_timed_deaths
from liveness.store.prefixes import starts_with
from liveness.store.progress_rows import list_progress
from liveness.store.recent_events import recent_events
from liveness.store.retention import DeletableEvents, EventScan
from liveness.store.schema import (
    OPEN_TASKS_SQL,
    RENEWALS_KIND,
    activities,
    config,
    log,
    meta,
    nodes,
    shards,
    tasks,
    verdicts,
    workers,
)
from liveness.store.search_turns import SearchTurns
from liveness.store.silences import read_silences
from liveness.store.size import Storage, read_storage, record_size
from liveness.store.take_over import LOG_COLUMNS, decode_activity_row, take_over
from liveness.store.task_rows import read_tasks
from liveness.store.timeline import (
    Timeline,
    begin_restore,
    check_timeline,
    finish_restore,
    read_timeline,
    remove_silent_nodes,
    write_timeline,
)
from liveness.store.tokens import (
    TokenRow,
    TokensMark,
    end_sessions,
    insert_session,
    insert_token,
    read_mark,
    read_tokens,
    revoke_token,
)
from liveness.store.worker_slots import grant_slots, return_slots

logger = structlog.get_logger("liveness.store")

T = TypeVar("T")

ANY_TIME_MS = 2**62
ACTIVITIES_PAGE_BYTES_MAX = 8 * 1024 * 1024
"""More than of other pages: most of it are users' payloads, which nothing looks into."""
_ACTIVITY_ORDER = (activities.c.workflow_id, activities.c.run_id, activities.c.activity_id)


class SqlStore:
    def __init__(self, database: Database, migrations: Path = MIGRATIONS) -> None:
        self._database = database
        self._migrations = migrations
        self._search_turns = SearchTurns()
        self._revisions: Revisions | None = None
        """None until the store is open."""
        self._restore_id: str | None = None
        """Of a restore that this store has begun."""
        self.timeline = Timeline()
        self._compacted_through: tuple[dict[int, int], int] = ({}, 0)
        """The owned shards, and the log id up to which they have no renewals left."""
        self._pruned_through: dict[frozenset[str], tuple[dict[int, int], int]] = {}
        """The same for events of certain kinds."""

    async def open(self, shard_count: int, created_by: str, *, is_restore: bool = False) -> None:
        def prepare(connection: Connection) -> tuple[Revisions, Timeline, str]:
            revisions = Revisions(self._migrations)
            migrate(connection, revisions)
            _create_or_check_shards(connection, shard_count, created_by)
            timeline = read_timeline(connection)
            if is_restore:
                return revisions, timeline, ""
            check_timeline(connection, timeline)
            return revisions, timeline, check_identity(connection)

        self._revisions, self.timeline, warning = await self._database.write(prepare)
        if warning:
            logger.warning(warning)

    async def registered_nodes(self) -> tuple[NodeRow, ...]:
        return await self._database.read(
            lambda connection: read_nodes(connection) if inspect(connection).has_table(nodes.name) else ()
        )

    async def begin_restore(self, silent: Mapping[str, int]) -> None:
        restore_id = uuid4().hex
        await self._database.write(lambda connection: begin_restore(connection, restore_id, silent))
        self._restore_id = restore_id

    async def begin_timeline(self, timeline: Timeline) -> None:
        await self._database.write(lambda connection: write_timeline(connection, timeline))
        self.timeline = timeline

    async def finish_restore(self) -> None:
        restore_id = self._restore_id
        assert restore_id is not None
        await self._database.write(lambda connection: finish_restore(connection, restore_id))
        self._restore_id = None

    async def accept_move(self, silent: Mapping[str, int]) -> None:
        def accept(connection: Connection) -> None:
            remove_silent_nodes(connection, silent)
            check_timeline(connection, self.timeline)
            write_identity(connection)

        await self._database.write(accept)

    def connection_counts(self) -> ConnectionCounts:
        return self._database.connection_counts()

    async def close(self) -> None:
        await self._database.close()

    async def take_over(
        self,
        shard_ids: Collection[int],
        owner: str,
        wall_ms: int,
        expected_epochs: Mapping[int, int] | None = None,
    ) -> list[ShardSnapshot]:
        def take(connection: Connection) -> list[ShardSnapshot]:
            snapshots = take_over(connection, sorted(shard_ids), owner, wall_ms, expected_epochs)
            # Checked last: `take_over` has waited for the row locks of a migration in progress that excludes this version.
            self._check_usable(connection)
            return snapshots

        return await self._database.write(take)

    async def renew_node(self, own_row: NodeRow) -> ClusterView:
        def renew(connection: Connection) -> ClusterView:
            view = renew_node(connection, own_row)
            try:
                self._check_usable(connection)
            except StoreUnusable as error:
                return view._replace(unusable=error)
            return view

        return await self._database.write(renew)

    async def read_cluster(self) -> ClusterView:
        return await self._database.read(read_cluster)

    async def end_sessions_of(self, owners: Collection[str]) -> int:
        return await self._database.end_sessions(owners)

    async def disown_shards(self, owner: str, expected_epochs: Mapping[int, int]) -> None:
        await self._database.write(lambda connection: disown_shards(connection, owner, expected_epochs))

    async def remove_nodes(self, node_ids: Collection[str]) -> None:
        await self._database.write(lambda connection: remove_nodes(connection, node_ids))

    async def tokens_mark(self) -> TokensMark:
        return await self._database.read(read_mark)

    async def read_tokens(self) -> tuple[TokensMark, list[TokenRow]]:
        return await self._database.read(lambda connection: (read_mark(connection), read_tokens(connection)))

    async def insert_token(self, row: TokenRow, stamp: int) -> None:
        await self._database.write(lambda connection: insert_token(connection, row, stamp))

    async def revoke_token(self, token_id: str, wall_ms: int, stamp: int) -> TokenRow | None:
        return await self._database.write(
            lambda connection: revoke_token(connection, token_id, wall_ms, stamp)
        )

    async def insert_session(self, row: TokenRow, stamp: int) -> None:
        await self._database.write(lambda connection: insert_session(connection, row, stamp))

    async def end_sessions(self, principal: str, token_id: str) -> int:
        return await self._database.write(lambda connection: end_sessions(connection, principal, token_id))

    async def insert_audit(self, rows: Sequence[AuditRow]) -> None:
        await self._database.write(lambda connection: insert_audit(connection, rows))

    async def read_audit(
        self, where: AuditFilter, before: tuple[int, int] | None, limit: int
    ) -> list[AuditRow]:
        return await self._search(
            where.namespace, lambda connection: read_audit(connection, where, before, limit)
        )

    async def prune_audit(self, owned: Mapping[int, int], cutoff_wall_ms: int) -> int:
        def prune(connection: Connection) -> int:
            check_epochs(connection, owned)
            return prune_audit(connection, cutoff_wall_ms)

        return await self._delete_in_batches(prune)

    async def insert_samples(self, reports: Sequence[SampleReport]) -> list[SeriesQuotaExceeded | None]:
        return await self._database.write(
            lambda connection: component_metrics.insert_samples(connection, reports)
        )

    async def find_series(
        self, where: SeriesFilter, steps: Steps, after: tuple[str, str, int] | None, limit: int
    ) -> list[Series]:
        return await self._search(
            where.namespace,
            lambda connection: component_metrics.find_series(connection, where, steps, after, limit),
        )

    async def read_points(self, series_ids: Collection[int], steps: Steps) -> dict[int, list[Point]]:
        return await self._search(
            None, lambda connection: component_metrics.read_points(connection, series_ids, steps)
        )

    async def prune_samples(self, owned: Mapping[int, int], cutoff_wall_ms: int) -> int:
        def prune(connection: Connection) -> int:
            check_epochs(connection, owned)
            return component_metrics.delete_oldest_samples(connection, cutoff_wall_ms)

        total = await self._delete_in_batches(prune, component_metrics.DELETE_BATCH)
        after_id = 0
        while empty := await self._database.read(
            partial(component_metrics.find_empty_series, after_id=after_id)
        ):
            await self._database.write(partial(component_metrics.delete_empty_series, series_ids=empty))
            after_id = empty[-1]
        return total

    async def delete_oldest_samples(self, owned: Mapping[int, int], bytes_to_free: int) -> int:
        left = start = -(-bytes_to_free // component_metrics.SAMPLE_BYTES)

        def delete(connection: Connection, limit: int) -> int:
            check_epochs(connection, owned)
            return component_metrics.delete_oldest_samples(connection, ANY_TIME_MS, limit)

        while left > 0:
            limit = min(left, component_metrics.DELETE_BATCH)
            deleted = await self._database.write(partial(delete, limit=limit))
            left -= deleted
            if deleted < limit:
                break
        return (start - left) * component_metrics.SAMPLE_BYTES

    def _check_usable(self, connection: Connection) -> None:
        """Refuse a database that was migrated by a version that excludes this one, or restored, since it was opened."""
        if self._revisions is not None:
            self._revisions.check_tables(connection)
            if self._restore_id is None:
                check_timeline(connection, self.timeline)

    async def commit(self, commits: Sequence[ShardCommit]) -> None:
        await self._database.write(lambda connection: apply_commits(connection, commits))

    async def grant_slots(
        self, shard_id: int, epoch: int, namespace: str, want: int, limit: int, extra_max: int = 1_000
    ) -> int:
        return await self._database.write(
            lambda connection: grant_slots(connection, shard_id, epoch, namespace, want, limit, extra_max)
        )

    async def return_slots(self, owned: Mapping[int, int], namespace: str, kept: Mapping[int, int]) -> None:
        await self._database.write(lambda connection: return_slots(connection, owned, namespace, kept))

    async def load_config(self) -> dict[str, dict[str, float]]:
        def load(connection: Connection) -> dict[str, dict[str, float]]:
            rows = connection.execute(select(config.c.namespace, config.c.payload))
            return {namespace: codec.decode_settings(payload) for namespace, payload in rows}

        return await self._database.read(load)

    async def list_workers(
        self, namespace: str, where: WorkerFilter, after_key: str | None, limit: int
    ) -> Page[WorkerRow]:
        query = (
            select(
                workers.c.worker_key,
                workers.c.shard_id,
                workers.c.number,
                workers.c.as_of_seq,
                workers.c.state,
                workers.c.payload,
            )
            .where(_worker_conditions(namespace, where))
            .order_by(workers.c.worker_key)
            .limit(limit)
        )
        if after_key is not None:
            query = query.where(workers.c.worker_key > after_key)

        def read(connection: Connection) -> Page[WorkerRow]:
            rows = read_page(connection, query, workers.c.payload)
            found = []
            for key, shard_id, number, as_of_seq, state, payload in rows:
                codec.verify_checksum(payload, "workers", namespace, key, number, as_of_seq, state)
                worker = codec.decode_worker(number, state, payload)
                found.append(WorkerRow(WorkerKey(namespace, key), shard_id, worker))
            return Page.of(found, is_cut=rows.is_cut)

        return await self._search(namespace, read)

    async def count_workers(self, namespace: str, where: WorkerFilter) -> dict[WorkerState, int]:
        query = (
            select(workers.c.state, func.count())
            .where(_worker_conditions(namespace, where))
            .group_by(workers.c.state)
        )
        found = await self._search(namespace, lambda connection: connection.execute(query).all())
        return {WorkerState(state): count for state, count in found}

    async def worker_history(
        self,
        key: WorkerKey,
        shard_id: int,
        *,
        newest_first: bool,
        beyond_seq: int | None,
        limit: int,
        kinds: Collection[str] = (),
    ) -> Page[LogEntry]:
        query = (
            select(*LOG_COLUMNS)
            .where(
                log.c.namespace == key.namespace,
                log.c.worker_key == key.instance_key,
                log.c.shard_id == shard_id,
            )
            .order_by(log.c.seq.desc() if newest_first else log.c.seq)
            .limit(limit)
        )
        if beyond_seq is not None:
            query = query.where(log.c.seq < beyond_seq if newest_first else log.c.seq > beyond_seq)
        if kinds:
            query = query.where(log.c.kind.in_(kinds))

        def read(connection: Connection) -> Page[LogEntry]:
            rows = read_page(connection, query, log.c.payload)
            return Page.of((codec.decode_entry(LogRow(*row)) for row in rows), is_cut=rows.is_cut)

        return await self._search(key.namespace, read)

    async def activity_history(
        self, key: ActivityKey, shard_id: int, *, limit: int, without: Collection[str] = ()
    ) -> Page[LogEntry]:
        prefix = codec.activity_payload_prefix(key.id)
        query = (
            select(*LOG_COLUMNS)
            .where(
                log.c.workflow_id == key.workflow_id,
                log.c.namespace == key.namespace,
                log.c.shard_id == shard_id,
                func.substr(log.c.payload, 1, len(prefix)) == prefix,
            )
            .order_by(log.c.seq.desc())
            .limit(limit)
        )
        if without:
            query = query.where(log.c.kind.not_in(without))

        def read(connection: Connection) -> Page[LogEntry]:
            rows = read_page(connection, query, log.c.payload)
            return Page.of((codec.decode_entry(LogRow(*row)) for row in rows), is_cut=rows.is_cut)

        return await self._search(key.namespace, read)

    async def deaths_between(self, namespace: str, from_wall_ms: int, to_wall_ms: int) -> list[Death]:
        return await self._search(
            namespace, lambda connection: read_deaths(connection, namespace, from_wall_ms, to_wall_ms)
        )

    async def timed_deaths(self, namespace: str, from_wall_ms: int, to_wall_ms: int) -> list[TimedDeath]:
        return await self._search(
            namespace, lambda connection: read_timed_deaths(connection, namespace, from_wall_ms, to_wall_ms)
        )

    async def population(self, namespace: str, names: Collection[str]) -> Population:
        return await self._search(namespace, lambda connection: read_population(connection, namespace, names))

    async def silences_between(
        self, namespace: str, from_wall_ms: int, to_wall_ms: int
    ) -> list[CountedSilence]:
        return await self._search(
            namespace, lambda connection: read_silences(connection, namespace, from_wall_ms, to_wall_ms)
        )

    async def lease_events(self, namespace: str, from_wall_ms: int, to_wall_ms: int) -> Page[LogEntry]:
        return await self._search(
            namespace, lambda connection: read_lease_events(connection, namespace, from_wall_ms, to_wall_ms)
        )

    async def verdicts(self) -> dict[str, VerdictCounts]:
        deaths, refuted = func.sum(verdicts.c.deaths), func.sum(verdicts.c.refuted)
        query = select(verdicts.c.namespace, deaths, refuted).group_by(verdicts.c.namespace)
        return {
            namespace: VerdictCounts(*map(int, counts)) for namespace, *counts in await self._fetch_all(query)
        }

    async def read_log(
        self,
        shard_id: int,
        after_seq: int,
        through_seq: int,
        limit: int,
        *,
        namespace: str | None = None,
        worker: str | None = None,
    ) -> list[LogEntry]:
        page = await self.read_feed(
            shard_id, after_seq, through_seq, limit, namespace=namespace, worker=worker
        )
        return page.entries

    async def read_feed(
        self,
        shard_id: int,
        after_seq: int,
        through_seq: int,
        limit: int,
        *,
        namespace: str | None = None,
        worker: str | None = None,
        bytes_max: int | None = None,
    ) -> FeedPage:
        query = (
            select(*LOG_COLUMNS)
            .where(
                log.c.shard_id == shard_id,
                log.c.seq > after_seq,
                log.c.seq <= through_seq,
                log.c.kind != RENEWALS_KIND,
            )
            .order_by(log.c.seq)
            .limit(limit)
        )
        if namespace is not None:
            query = query.where(log.c.namespace == namespace)
        if worker is not None:
            query = query.where(log.c.worker_key == worker)

        def read(connection: Connection) -> FeedPage:
            rows = (
                Page(connection.execute(query).all())
                if bytes_max is None
                else read_page(connection, query, log.c.payload, bytes_max)
            )
            # Read last: what was deleted before the rows were read is then recorded for certain.
            deleted = read_deletions(connection, [shard_id], namespace).get(shard_id, DeletedEvents())
            entries = (codec.decode_entry(LogRow(*row)) for row in rows)
            return FeedPage(Page.of(entries, is_cut=rows.is_cut), deleted)

        return await self._database.read(read)

    async def recent_events(self, namespace: str | None, limit: int) -> list[tuple[int, LogEntry]]:
        return await self._search(namespace, lambda connection: recent_events(connection, namespace, limit))

    async def due_tasks(
        self, shard_id: int, now_ms: int, limit: int, *, include_parked: bool = True
    ) -> list[StoredTask]:
        due = tasks.c.due_ms <= now_ms
        query = (
            select(tasks)
            .where(
                tasks.c.shard_id == shard_id,
                tasks.c.state.in_(OPEN_TASK_STATES),
                or_(due, tasks.c.due_ms == PARKED_MS) if include_parked else due,
            )
            .order_by(tasks.c.due_ms, tasks.c.task_id)
            .limit(limit)
        )
        return await self._database.read(lambda connection: read_tasks(connection, query))

    async def new_task_range(self, shard_ids: Collection[int]) -> TaskRange:
        # Literal conditions, because SQLite uses a partial index only if its condition contains no parameters.
        query = select(func.count(), func.min(tasks.c.task_id), func.max(tasks.c.task_id)).where(
            tasks.c.shard_id.in_(shard_ids), text(OPEN_TASKS_SQL), text("due_ms = 0")
        )
        found = await self._database.read(lambda connection: connection.execute(query).one())
        count, first_id, last_id = found
        return TaskRange(count, first_id, last_id) if count else TaskRange()

    async def new_tasks(self, shard_ids: Collection[int], first_id: int, last_id: int) -> list[StoredTask]:
        query = (
            select(tasks)
            .where(
                tasks.c.task_id.between(first_id, last_id),
                (tasks.c.shard_id + 0).in_(shard_ids),  # an expression: the index on shards would not help
                tasks.c.state.in_(OPEN_TASK_STATES),
                tasks.c.due_ms == 0,
            )
            .order_by(tasks.c.task_id)
        )
        return await self._database.read(lambda connection: read_tasks(connection, query))

    async def shards_with_new_tasks(self, shard_ids: Collection[int]) -> list[int]:
        query = (
            select(tasks.c.shard_id)
            .where(tasks.c.shard_id.in_(shard_ids), tasks.c.state.in_(OPEN_TASK_STATES), tasks.c.due_ms == 0)
            .distinct()
        )
        return [shard_id for (shard_id,) in await self._fetch_all(query)]

    async def next_due_ms(self, shard_id: int, after_ms: int = -1) -> int | None:
        query = select(func.min(tasks.c.due_ms)).where(
            tasks.c.shard_id == shard_id,
            tasks.c.state.in_(OPEN_TASK_STATES),
            tasks.c.due_ms > after_ms,
            tasks.c.due_ms < PARKED_MS,
        )
        [(due_ms,)] = await self._fetch_all(query)
        return due_ms  # type: ignore[no-any-return]

    async def count_tasks(self, shard_ids: Collection[int]) -> list[QueueCount]:
        return await self._database.read(lambda connection: task_counts.count_tasks(connection, shard_ids))

    async def list_tasks(
        self, namespace: str | None, states: Collection[TaskState], after_id: int, limit: int
    ) -> list[StoredTask]:
        query = (
            select(tasks)
            .where(tasks.c.state.in_(states), tasks.c.task_id > after_id)
            .order_by(tasks.c.task_id)
            .limit(limit)
        )
        if namespace is not None:
            query = query.where(tasks.c.namespace == namespace)
        return await self._search(namespace, lambda connection: read_tasks(connection, query))

    async def finished_tasks(
        self, shard_ids: Collection[int], since_wall_ms: int, namespace: str | None, after_id: int, limit: int
    ) -> list[StoredTask]:
        query = (
            select(tasks)
            .where(
                tasks.c.shard_id.in_(shard_ids),
                tasks.c.state == TaskState.DONE,
                tasks.c.finished_wall_ms >= since_wall_ms,
                tasks.c.task_id > after_id,
            )
            .order_by(tasks.c.task_id)
            .limit(limit)
        )
        if namespace is not None:
            query = query.where(tasks.c.namespace == namespace)
        return await self._database.read(lambda connection: read_tasks(connection, query))

    async def get_task(self, task_id: int) -> StoredTask | None:
        query = select(tasks).where(tasks.c.task_id == task_id)
        found = await self._database.read(lambda connection: read_tasks(connection, query))
        return found[0] if found else None

    async def find_activities(self, keys: Collection[ActivityKey]) -> dict[ActivityKey, Activity]:
        def find(connection: Connection) -> dict[ActivityKey, Activity]:
            return dict(
                map(decode_activity_row, find_rows(connection, activities, ActivityKey._fields, wanted))
            )

        wanted = list(keys)
        return await self._database.read(find)

    async def list_activities(
        self, namespace: str, where: ActivityFilter, after: ActivityId | None, limit: int
    ) -> Page[ActivityRow]:
        query = select(activities).where(activities.c.namespace == namespace)
        if where.states:
            query = query.where(activities.c.state.in_(where.states))
        if where.task_queue:
            query = query.where(activities.c.task_queue == where.task_queue)
        if where.worker:
            query = query.where(activities.c.worker_key == where.worker)
        if where.workflow_prefix:
            query = query.where(starts_with(activities.c.workflow_id, where.workflow_prefix))
        if where.type:
            # No column: few look for types, and every activity would pay for it.
            query = query.where(
                activities.c.payload.contains(codec.type_in_payload(where.type), autoescape=True)
            )
        if after is not None:
            query = query.where(tuple_(*_ACTIVITY_ORDER) > tuple_(*after))

        def read(connection: Connection) -> Page[ActivityRow]:
            ordered = query.order_by(*_ACTIVITY_ORDER).limit(limit)
            rows = read_page(connection, ordered, activities.c.payload, ACTIVITIES_PAGE_BYTES_MAX)
            found = (ActivityRow(*decode_activity_row(row), row.shard_id) for row in rows)
            return Page.of(found, is_cut=rows.is_cut)

        return await self._search(namespace, read)

    async def list_objects(
        self, namespace: str, kind: str, prefix: str, after: str | None, limit: int
    ) -> Page[ObjectRow]:
        return await self._database.read(
            lambda connection: list_objects(connection, namespace, kind, prefix, after, limit)
        )

    async def list_progress(
        self, namespace: str, prefix: str, failing: bool, after_unit: str | None, limit: int
    ) -> Page[ProgressRow]:
        return await self._search(
            namespace,
            lambda connection: list_progress(connection, namespace, prefix, failing, after_unit, limit),
        )

    async def prune_activities(
        self, owned: Mapping[int, int], cutoffs: Mapping[str, int], default_cutoff: int
    ) -> int:
        return await self._delete_in_batches(
            lambda connection: retention.prune_activities(connection, owned, cutoffs, default_cutoff)
        )

    async def compact_renewals(self, owned: Mapping[int, int]) -> int:
        # A shard that was taken since may have older renewals.
        after = self._compacted_through[1] if self._compacted_through[0] == owned else 0
        through = await self._database.read(
            lambda connection: retention.checkpointed_through(connection, owned)
        )
        deleted = await self._delete_in_batches(
            lambda connection: retention.compact_renewals(connection, owned, after, through)
        )
        self._compacted_through = (dict(owned), through)
        return deleted

    async def prune_events(
        self,
        owned: Mapping[int, int],
        cutoffs: Mapping[str, int],
        default_cutoff: int,
        unpublished: UnpublishedRetention | None = None,
        *,
        kinds: Collection[str] = (),
    ) -> int:
        events = DeletableEvents(owned, kinds, unpublished).older_than(cutoffs, default_cutoff)
        # Before this id, the last run left no event of these kinds, unless another node's shards came since.
        last_owned, after_id = self._pruned_through.get(frozenset(kinds), ({}, 0))
        if last_owned != owned:
            after_id = 0
        newest_cutoff = max(default_cutoff, *cutoffs.values()) if cutoffs else default_cutoff
        total, first_kept = 0, None
        while (scan := await self._scan(events, after_id)) and scan.oldest_wall_ms < newest_cutoff:
            first_kept = first_kept or scan.first_kept
            deleted, _, after_id = await self._delete_scanned(events, scan)
            total += deleted
        self._pruned_through[frozenset(kinds)] = (dict(owned), first_kept - 1 if first_kept else after_id)
        return total

    async def delete_oldest_events(
        self,
        owned: Mapping[int, int],
        bytes_to_free: int,
        unpublished: UnpublishedRetention | None = None,
        *,
        kinds: Collection[str] = (),
    ) -> int:
        events = DeletableEvents(owned, kinds, unpublished)
        freed = after_id = 0
        while freed < bytes_to_free and (scan := await self._scan(events, after_id)):
            _, added, after_id = await self._delete_scanned(events, scan, bytes_to_free - freed)
            freed += added
        return freed

    async def read_storage(self, wall_ms: int) -> Storage:
        return await self._database.read(lambda connection: read_storage(connection, wall_ms))

    async def record_size(self, owned: Mapping[int, int], wall_ms: int) -> None:
        def record(connection: Connection) -> None:
            check_epochs(connection, owned)
            record_size(connection, wall_ms)

        await self._database.write(record)

    async def _scan(self, events: DeletableEvents, after_id: int) -> EventScan | None:
        return await self._database.read(lambda connection: events.scan(connection, after_id))

    async def _delete_scanned(
        self, events: DeletableEvents, scan: EventScan, bytes_to_free: int | None = None
    ) -> tuple[int, int, int]:
        """Delete what a scan found, in short transactions. Returns how many events, their bytes, and the last id."""
        deleted = freed = 0
        next_id = scan.first_deletable or scan.last_id + 1
        while next_id <= scan.last_id and (bytes_to_free is None or freed < bytes_to_free):
            first_id, next_id = next_id, next_id + retention.EVENT_DELETE_BATCH
            count, added = await self._database.write(
                partial(events.delete, first_id=first_id, last_id=min(scan.last_id, next_id - 1))
            )
            deleted, freed = deleted + count, freed + added
        return deleted, freed, min(scan.last_id, next_id - 1)

    async def read_deletions(
        self, shard_ids: Collection[int], namespace: str | None
    ) -> dict[int, DeletedEvents]:
        return await self._database.read(lambda connection: read_deletions(connection, shard_ids, namespace))

    async def prune_silences(
        self, owned: Mapping[int, int], cutoffs: Mapping[str, int], default_cutoff: int
    ) -> int:
        return await self._delete_in_batches(
            lambda connection: retention.prune_silences(connection, owned, cutoffs, default_cutoff)
        )

    async def prune_deaths(
        self, owned: Mapping[int, int], cutoffs: Mapping[str, int], default_cutoff: int
    ) -> int:
        return await self._delete_in_batches(
            lambda connection: retention.prune_deaths(connection, owned, cutoffs, default_cutoff)
        )

    async def prune_tasks(self, owned: Mapping[int, int], cutoff_wall_ms: int) -> int:
        return await self._delete_in_batches(
            lambda connection: retention.prune_tasks(connection, owned, cutoff_wall_ms)
        )

    async def relay_cursors(self, relay: str, shard_ids: Collection[int]) -> dict[int, int]:
        return await self._database.read(
            lambda connection: relay_progress.read_cursors(connection, relay, shard_ids)
        )

    async def advance_relay_cursors(
        self, relay: str, owned: Mapping[int, int], cursors: Mapping[int, int]
    ) -> None:
        def advance_cursors(connection: Connection) -> None:
            check_epochs(connection, {shard_id: owned[shard_id] for shard_id in cursors})
            relay_progress.advance_cursors(connection, relay, cursors)

        await self._database.write(advance_cursors)

    async def relay_backlogs(self, relay: str, shard_ids: Collection[int]) -> dict[int, RelayBacklog]:
        return await self._database.read(
            lambda connection: relay_progress.read_backlogs(connection, relay, shard_ids)
        )

    async def first_seq_since(self, shard_id: int, wall_ms: int) -> int | None:
        query = select(func.min(log.c.seq)).where(
            log.c.shard_id == shard_id, log.c.wall_ms >= wall_ms, log.c.kind != RENEWALS_KIND
        )
        [(seq,)] = await self._fetch_all(query)
        return seq  # type: ignore[no-any-return]

    async def _delete_in_batches(
        self, delete_batch: Callable[[Connection], int], batch: int = retention.DELETE_BATCH
    ) -> int:
        """Delete in short transactions, so that heartbeats can commit in between."""
        total = 0
        while deleted := await self._database.write(delete_batch):
            total += deleted
            if deleted < batch:
                break
        return total

    async def _search(self, namespace: str | None, work: Callable[[Connection], T]) -> T:
        """Read what a client asked for."""
        async with self._search_turns.turn(namespace or ""):
            return await self._database.search(work)

    async def _fetch_all(self, query: Select[Any]) -> Sequence[Any]:
        return await self._database.read(lambda connection: connection.execute(query).all())


def _create_or_check_shards(connection: Connection, shard_count: int, created_by: str) -> None:
    stored = connection.execute(select(meta.c.value).where(meta.c.name == "shard_count")).scalar()
    if stored is None:
        connection.execute(
            insert(meta),
            [{"name": "shard_count", "value": str(shard_count)}, {"name": "created_by", "value": created_by}],
        )
        insert_rows(connection, shards, ([shard_id, 0, 0, 0, "[]", ""] for shard_id in range(shard_count)))
    elif int(stored) != shard_count:
        raise WrongShardCount(stored=int(stored), requested=shard_count)


def _worker_conditions(namespace: str, where: WorkerFilter) -> ColumnElement[bool]:
    conditions: list[ColumnElement[bool]] = [workers.c.namespace == namespace]
    if where.states:
        conditions.append(workers.c.state.in_(where.states))
    columns = ("task_queue", "build_id", "host_name")
    conditions += [workers.c[name] == value for name in columns if (value := getattr(where, name))]
    if where.key_prefix:
        conditions.append(starts_with(workers.c.worker_key, where.key_prefix))
    for word in where.words:
        found = [func.lower(workers.c[name]).contains(word.text, autoescape=True) for name in word.fields]
        conditions.append(or_(*found, workers.c.state.in_(word.states)))
    return and_(*conditions)
