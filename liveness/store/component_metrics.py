"""Metrics that components report: series, and their samples. They are written in transactions of their own, beside the log."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, and_, delete, exists, func, select, tuple_

from liveness.domain.errors import SeriesQuotaExceeded
from liveness.domain.keys import WorkerKey
from liveness.store.bulk import insert_rows, update_rows
from liveness.store.schema import metric_samples, metric_series

HASHES_PER_QUERY = 500
DELETE_BATCH = 1_000
"""Samples, or series without samples, that one transaction deletes."""
SAMPLE_BYTES = 44
"""What a sample takes in SQLite, its place in the index included."""
_SERIES_LOCK = 0x6D65747269635F73  # "metric_s"


class MetricType(IntEnum):
    """The numbers are those of `liveness.v1.MetricType`."""

    GAUGE = 1
    COUNTER = 2


class Sample(NamedTuple):
    name: str
    labels: str
    """A JSON object, sorted by name, without spaces."""
    type: MetricType
    unit: str
    help: str
    wall_ms: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleReport:
    """Samples of one component; all of them are stored, or none."""

    key: WorkerKey
    samples: Sequence[Sample]
    series_max: int
    """Of the namespace."""
    series_per_worker_max: int


class Series(NamedTuple):
    series_id: int
    worker_key: str
    name: str
    labels: str
    type: MetricType
    unit: str
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesFilter:
    """All conditions hold together; an empty one always holds."""

    namespace: str
    worker_key: str = ""
    name: str = ""
    labels: Sequence[str] = ()
    """A member of the JSON object each, as it is written there: "name":"value"."""


class Steps(NamedTuple):
    """A range of time in steps of equal length. The last step may end after the range."""

    start_wall_ms: int
    end_wall_ms: int
    """Not included."""
    step_ms: int

    @property
    def step_count(self) -> int:
        return -(-(self.end_wall_ms - self.start_wall_ms) // self.step_ms)


class Point(NamedTuple):
    """The samples of one series within one step."""

    wall_ms: int
    average: float
    last: float
    low: float
    high: float
    samples: int
    last_wall_ms: int
    """The time of the last one."""


# -- storing


def insert_samples(
    connection: Connection, reports: Sequence[SampleReport]
) -> list[SeriesQuotaExceeded | None]:
    """Store reports. Returns for each why it was refused, or None."""
    hashes = [[_series_hash(report.key, sample) for sample in report.samples] for report in reports]
    wanted = {each for of_report in hashes for each in of_report}
    stored = _find_series(connection, wanted)
    refusals: list[SeriesQuotaExceeded | None] = [None] * len(reports)
    if missing := wanted - stored.keys():
        _lock_series(connection)
        stored |= _find_series(connection, missing)  # another node may have created some meanwhile
        refusals = _create_series(connection, reports, hashes, stored)
        stored |= _find_series(connection, wanted - stored.keys())
    newest: dict[tuple[int, int], float] = {}
    described: dict[int, tuple[int, str, str]] = {}
    for report, of_report, refusal in zip(reports, hashes, refusals, strict=True):
        if refusal is None:
            for sample, series_hash in zip(report.samples, of_report, strict=True):
                series = stored[series_hash]
                newest[series.series_id, sample.wall_ms] = sample.value
                _, unit, help_text = described.get(series.series_id, (series.type, series.unit, series.help))
                described[series.series_id] = sample.type, sample.unit or unit, sample.help or help_text
    _update_descriptions(connection, stored.values(), described)
    # In this order on every node: two transactions that write the same samples must not wait for each other.
    rows = ((*place, value) for place, value in sorted(newest.items()))
    insert_rows(connection, metric_samples, rows, replace_on=("series_id", "wall_ms"))
    return refusals


def _series_hash(key: WorkerKey, sample: Sample) -> str:
    identity = f"{key.namespace}\0{key.instance_key}\0{sample.name}\0{sample.labels}"
    return blake2b(identity.encode(), digest_size=16).hexdigest()


class _StoredSeries(NamedTuple):
    series_hash: str
    series_id: int
    type: int
    unit: str
    help: str


_STORED_COLUMNS = tuple(metric_series.c[name] for name in _StoredSeries._fields)


def _find_series(connection: Connection, hashes: Collection[str]) -> dict[str, _StoredSeries]:
    """Find series by their hashes, and keep them from being deleted until this transaction ends."""
    found: dict[str, _StoredSeries] = {}
    wanted = sorted(hashes)
    for start in range(0, len(wanted), HASHES_PER_QUERY):
        query = (
            select(*_STORED_COLUMNS)
            .where(metric_series.c.series_hash.in_(wanted[start : start + HASHES_PER_QUERY]))
            .order_by(metric_series.c.series_id)
            .with_for_update(read=True, key_share=True)
        )
        rows: Sequence[Any] = connection.execute(query).all()  # they have the fields of `_StoredSeries`
        found.update(zip((row[0] for row in rows), rows, strict=True))
    return found


def _lock_series(connection: Connection) -> None:
    """Let no other transaction create series until this one ends, so that none exceeds a limit. SQLite serialises writers
    anyway."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_SERIES_LOCK})")


def _create_series(
    connection: Connection,
    reports: Sequence[SampleReport],
    hashes: Sequence[Sequence[str]],
    stored: Mapping[str, _StoredSeries],
) -> list[SeriesQuotaExceeded | None]:
    """Create the series that reports bring, and refuse reports that bring too many."""
    counts: dict[WorkerKey, int] = {}
    created: dict[str, tuple[Any, ...]] = {}
    refusals: list[SeriesQuotaExceeded | None] = []
    for report, of_report in zip(reports, hashes, strict=True):
        new = {
            series_hash: sample
            for series_hash, sample in zip(of_report, report.samples, strict=True)
            if series_hash not in stored and series_hash not in created
        }
        refusal = _admit(connection, report, len(new), counts) if new else None
        refusals.append(refusal)
        if refusal is None:
            created.update(
                (
                    series_hash,
                    (series_hash, *report.key, each.name, each.labels, each.type, each.unit, each.help),
                )
                for series_hash, each in new.items()
            )
    columns = tuple(column.name for column in metric_series.c if column.name != "series_id")
    insert_rows(connection, metric_series, created.values(), columns)
    return refusals


def _admit(
    connection: Connection, report: SampleReport, added: int, counts: dict[WorkerKey, int]
) -> SeriesQuotaExceeded | None:
    """Add new series to the counts of their component and their namespace, whose key is empty, or refuse them."""
    key, whole = report.key, WorkerKey(report.key.namespace, "")
    for each in (key, whole):
        if each not in counts:
            counts[each] = _count_series(connection, each)
    if counts[key] + added > report.series_per_worker_max:
        whose, limit = f"Component {key.instance_key}", report.series_per_worker_max
        return SeriesQuotaExceeded(
            whose=whose, limit=limit, added=added, setting="max_metric_series_per_worker"
        )
    if counts[whole] + added > report.series_max:
        whose = f"Namespace {key.namespace}"
        return SeriesQuotaExceeded(
            whose=whose, limit=report.series_max, added=added, setting="max_metric_series"
        )
    counts[key] += added
    counts[whole] += added
    return None


def _count_series(connection: Connection, key: WorkerKey) -> int:
    query = select(func.count()).where(metric_series.c.namespace == key.namespace)
    if key.instance_key:
        query = query.where(metric_series.c.worker_key == key.instance_key)
    return int(connection.execute(query).scalar_one())


def _update_descriptions(
    connection: Connection, stored: Iterable[_StoredSeries], described: Mapping[int, tuple[int, str, str]]
) -> None:
    changed = [
        (series.series_id, *described[series.series_id])
        for series in sorted(stored, key=lambda series: series.series_id)
        if series.series_id in described
        and described[series.series_id] != (series.type, series.unit, series.help)
    ]
    update_rows(
        connection,
        metric_series.name,
        "type = given.column2, unit = given.column3, help = given.column4",
        "metric_series.series_id = given.column1",
        changed,
        ("BIGINT", "INTEGER", "TEXT", "TEXT"),
    )


# -- reading


_SERIES_COLUMNS = tuple(metric_series.c[name] for name in Series._fields)


def _series(row: Sequence[Any]) -> Series:
    found = Series._make(row)
    return found._replace(type=MetricType(found.type))


def find_series(
    connection: Connection, where: SeriesFilter, steps: Steps, after: tuple[str, str, int] | None, limit: int
) -> list[Series]:
    """Find series with samples in a range of time, ordered by component, name and id. `after`: those of the last series of
    the page before."""
    series = metric_series.c
    conditions: list[ColumnElement[bool]] = [series.namespace == where.namespace]
    if where.worker_key:
        conditions.append(series.worker_key == where.worker_key)
    if where.name:
        conditions.append(series.name == where.name)
    contains = func.instr if connection.dialect.name == "sqlite" else func.strpos
    conditions += [contains(series.labels, label) > 0 for label in where.labels]
    if after is not None:
        conditions.append(tuple_(series.worker_key, series.name, series.series_id) > tuple_(*after))
    in_range = exists().where(metric_samples.c.series_id == series.series_id, _in_range(steps))
    query = (
        select(*_SERIES_COLUMNS)
        .where(*conditions, in_range)
        .order_by(series.worker_key, series.name, series.series_id)
        .limit(limit)
    )
    return [_series(row) for row in connection.execute(query)]


def read_points(connection: Connection, series_ids: Collection[int], steps: Steps) -> dict[int, list[Point]]:
    """Read the samples of each series, merged to a point per step, oldest first."""
    query = _points_query(series_ids, steps)
    found: dict[int, list[Point]] = {series_id: [] for series_id in series_ids}
    for series_id, step, total, count, low, high, last_wall_ms, last in connection.execute(query):
        wall_ms = steps.start_wall_ms + int(step) * steps.step_ms
        found[series_id].append(Point(wall_ms, total / count, last, low, high, int(count), int(last_wall_ms)))
    return found


def _points_query(series_ids: Collection[int], steps: Steps) -> Select[Any]:
    samples = metric_samples.c
    step = (samples.wall_ms - steps.start_wall_ms) // steps.step_ms
    numbered = (
        select(samples.series_id, samples.wall_ms, samples.value, step.label("step"))
        .where(samples.series_id.in_(series_ids), _in_range(steps))
        .subquery()
    )
    value = numbered.c.value
    merged = (
        # Not avg(): PostgreSQL also sums the squares, which overflow.
        select(numbered.c.series_id, numbered.c.step)
        .add_columns(func.sum(value).label("total"), func.count().label("samples"))
        .add_columns(func.min(value).label("low"), func.max(value).label("high"))
        .add_columns(func.max(numbered.c.wall_ms).label("last_wall_ms"))
        .group_by(numbered.c.series_id, numbered.c.step)
        .subquery()
    )
    is_last = and_(samples.series_id == merged.c.series_id, samples.wall_ms == merged.c.last_wall_ms)
    names = ("series_id", "step", "total", "samples", "low", "high", "last_wall_ms")
    return (
        select(*(merged.c[name] for name in names), samples.value)
        .join_from(merged, metric_samples, is_last)
        .order_by(merged.c.series_id, merged.c.step)
    )


def _in_range(steps: Steps) -> ColumnElement[bool]:
    wall_ms = metric_samples.c.wall_ms
    return and_(wall_ms >= steps.start_wall_ms, wall_ms < steps.end_wall_ms)


# -- retention


def delete_oldest_samples(connection: Connection, before_wall_ms: int, limit: int = DELETE_BATCH) -> int:
    """Delete the oldest samples before a time, a batch at most."""
    samples = metric_samples.c
    oldest = (
        select(samples.series_id, samples.wall_ms)
        .where(samples.wall_ms < before_wall_ms)
        .order_by(samples.wall_ms)
        .limit(limit)
    )
    is_oldest = tuple_(samples.series_id, samples.wall_ms).in_(oldest)
    return connection.execute(delete(metric_samples).where(is_oldest)).rowcount


def find_empty_series(connection: Connection, after_id: int) -> list[int]:
    """The first series after `after_id` that have no samples."""
    query = (
        select(metric_series.c.series_id)
        .where(metric_series.c.series_id > after_id, ~_has_samples())
        .order_by(metric_series.c.series_id)
        .limit(DELETE_BATCH)
    )
    return list(connection.execute(query).scalars())


def delete_empty_series(connection: Connection, series_ids: Collection[int]) -> int:
    """Delete those of the series that have no samples, and to which no transaction adds any."""
    lock = select(metric_series.c.series_id).where(metric_series.c.series_id.in_(series_ids))
    locked = connection.execute(lock.with_for_update(skip_locked=True)).scalars().all()
    # A statement of its own: it sees samples that were committed before the rows were locked.
    return connection.execute(
        delete(metric_series).where(metric_series.c.series_id.in_(locked), ~_has_samples())
    ).rowcount


def _has_samples() -> ColumnElement[bool]:
    return exists().where(metric_samples.c.series_id == metric_series.c.series_id)
