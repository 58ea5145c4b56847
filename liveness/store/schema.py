"""The tables. All differences between the databases' schemas are declared here.

log         the source of truth: one ordered log per shard
shards      head of each shard: fencing epoch, last sequence, observed time, owner
checkpoints the renewals of a shard, folded to one per worker
workers     projection: current row per worker; renewals and binding changes since the checkpoint are in the log
activities  projection: current row per activity
tasks       the stored queues, keyed by the activity's shard
config      projection: settings per namespace
nodes       registry of nodes, each with a short lease
slots       how many workers of a namespace each shard may hold; the sum never exceeds the namespace's quota. Open activities
            and their bytes have rows of their own, with a suffix after the namespace (cluster/slots.py)
relays      how far each shard's log was published to a broker
deaths      projection: who died when, so that certificates count those who died with a worker
progress    projection: how far units of work are
objects     projection: schedules and concurrency limits
verdicts    projection: per namespace, workers that were declared dead, and those of them that proved to be alive
silences    how long workers that lived were not heard, counted by length, for `liveness tune`
deletions   which events retention has deleted from the log, so that no reader skips them without notice
sizes       the size of the database over the last days, for its growth
tokens      credentials of callers, as hashes of their secrets
audit       what operators and admins changed, and denied access by the minute
metric_series, metric_samples
            what components report about themselves, with a retention of its own; not in the log
meta        properties of the database, set when it was created, migrated or restored; the epoch floor of each shard
"""

from __future__ import annotations

from sqlalchemy import (
    REAL,
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData()

# Byte order on both databases: keys are compared, sorted and paged byte for byte.
KeyText = (
    String(255)
    .with_variant(Text(collation="BINARY"), "sqlite")
    .with_variant(Text(collation="C"), "postgresql")
)
# SQLite's rowid must be declared INTEGER; STRICT tables know no BIGINT.
Int64 = BigInteger().with_variant(Integer(), "sqlite")
Int16 = SmallInteger().with_variant(Integer(), "sqlite")
JsonText = Text()

RENEWALS_KIND = "LeasesRenewed"
_NOT_RENEWALS = text(f"kind <> '{RENEWALS_KIND}'")

meta = Table(
    "meta",
    metadata,
    Column("name", KeyText, primary_key=True),
    Column("value", Text, nullable=False),
    sqlite_strict=True,
)

shards = Table(
    "shards",
    metadata,
    Column("shard_id", Integer, primary_key=True, autoincrement=False),
    Column("epoch", Int64, nullable=False),
    Column("last_seq", Int64, nullable=False),
    Column("observed_ms", Int64, nullable=False),
    Column("takeovers", JsonText, nullable=False),  # observed times of the last few, oldest first
    Column("owner", Text, nullable=False),
    CheckConstraint("shard_id >= 0", name="shards_id"),
    CheckConstraint("epoch >= 0 AND last_seq >= 0 AND observed_ms >= 0", name="shards_head"),
    sqlite_strict=True,
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("shard_id", Integer, primary_key=True, autoincrement=False),
    Column("seq", Int64, nullable=False),
    Column("position", Int64, nullable=False),  # recovery starts after this log.id
    Column("payload", JsonText, nullable=False),
    CheckConstraint("seq >= 0 AND position >= 0", name="checkpoints_place"),
    sqlite_strict=True,
)

log = Table(
    "log",
    metadata,
    Column("id", Int64, primary_key=True),
    Column("shard_id", Integer, nullable=False),
    Column("seq", Int64, nullable=False),
    Column("kind", KeyText, nullable=False),
    Column("version", Int16, nullable=False),
    Column("namespace", KeyText),
    Column("worker_key", KeyText),
    Column("workflow_id", KeyText),
    Column("wall_ms", Int64, nullable=False),
    Column("observed_ms", Int64, nullable=False),
    Column("payload", JsonText, nullable=False),
    Column("checksum", Int64, nullable=False),
    CheckConstraint("seq > 0 AND version > 0", name="log_place"),
    CheckConstraint("(worker_key IS NULL) OR (namespace IS NOT NULL)", name="log_worker_has_namespace"),
    # Most rows are renewals, which are only read in order from a checkpoint. On SQLite an index over them would touch a page
    # per shard in each commit and triple its cost; the shard's head row keeps the sequence unique.
    Index("log_by_shard", "shard_id", "seq", unique=True, sqlite_where=_NOT_RENEWALS),
    Index(
        "log_by_worker",
        "namespace",
        "worker_key",
        "seq",
        sqlite_where=text("worker_key IS NOT NULL"),
        postgresql_where=text("worker_key IS NOT NULL"),
    ),
    Index(
        "log_by_workflow",
        "workflow_id",
        "seq",
        sqlite_where=text("workflow_id IS NOT NULL"),
        postgresql_where=text("workflow_id IS NOT NULL"),
    ),
    sqlite_strict=True,
    sqlite_autoincrement=True,  # a reused id could be below a checkpoint's position, and recovery would skip the row
)

workers = Table(
    "workers",
    metadata,
    Column("namespace", KeyText, primary_key=True),
    Column("worker_key", KeyText, primary_key=True),
    Column("shard_id", Integer, nullable=False),
    Column("number", Int64, nullable=False),
    Column("as_of_seq", Int64, nullable=False),  # the row contains every event up to here
    Column("state", Int16, nullable=False),
    Column("task_queue", KeyText, nullable=False),
    Column("build_id", KeyText, nullable=False),
    Column("host_name", KeyText, nullable=False),
    Column("payload", JsonText, nullable=False),
    CheckConstraint("state IN (1, 2, 3)", name="workers_state"),
    CheckConstraint("number > 0 AND as_of_seq >= number", name="workers_place"),
    Index("workers_by_shard", "shard_id"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

_FINISHED = text("finished_wall_ms IS NOT NULL")
_UNFINISHED = text("finished_wall_ms IS NULL")
_HELD = text("worker_key <> ''")

activities = Table(
    "activities",
    metadata,
    Column("namespace", KeyText, primary_key=True),
    Column("workflow_id", KeyText, primary_key=True),
    Column("run_id", KeyText, primary_key=True),
    Column("activity_id", KeyText, primary_key=True),
    Column("shard_id", Integer, nullable=False),
    Column("state", Int16, nullable=False),
    Column("task_queue", KeyText, nullable=False),
    Column("worker_key", KeyText, nullable=False),  # the holder; empty if there is none
    Column("finished_wall_ms", Int64),
    Column("payload", JsonText, nullable=False),
    CheckConstraint("state BETWEEN 1 AND 10", name="activities_state"),
    CheckConstraint("(state = 4) = (worker_key <> '')", name="activities_holder"),
    CheckConstraint("(state IN (6, 7, 8, 10)) = (finished_wall_ms IS NOT NULL)", name="activities_finish"),
    Index("activities_by_shard", "shard_id", sqlite_where=_UNFINISHED, postgresql_where=_UNFINISHED),
    Index("activities_by_queue", "namespace", "task_queue", "state"),
    Index("activities_by_worker", "namespace", "worker_key", sqlite_where=_HELD, postgresql_where=_HELD),
    Index("activities_finished", "finished_wall_ms", sqlite_where=_FINISHED, postgresql_where=_FINISHED),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

OPEN_TASKS_SQL = "state IN (1, 2)"
DEAD_TASKS_SQL = "state = 3"
_OPEN_TASKS, _DEAD_TASKS = text(OPEN_TASKS_SQL), text(DEAD_TASKS_SQL)

tasks = Table(
    "tasks",
    metadata,
    Column("task_id", Int64, primary_key=True),
    Column("shard_id", Integer, nullable=False),
    Column("kind", KeyText, nullable=False),
    Column("state", Int16, nullable=False),
    Column("due_ms", Int64, nullable=False),  # on the shard's observed clock
    Column("attempts", Integer, nullable=False),
    Column("last_error", Text, nullable=False),
    Column("namespace", KeyText, nullable=False),
    Column("worker_key", KeyText, nullable=False),
    Column("lease_epoch", Int64, nullable=False),
    Column("activity", JsonText, nullable=False),
    Column("died", Int16, nullable=False),  # whether the worker died with it
    Column("created_wall_ms", Int64, nullable=False),
    Column("finished_wall_ms", Int64),
    CheckConstraint("state IN (1, 2, 3, 4, 5)", name="tasks_state"),
    CheckConstraint("(state IN (4, 5)) = (finished_wall_ms IS NOT NULL)", name="tasks_finish"),
    CheckConstraint("died IN (0, 1)", name="tasks_died"),
    Index("tasks_due", "shard_id", "due_ms", sqlite_where=_OPEN_TASKS, postgresql_where=_OPEN_TASKS),
    Index("tasks_dead", "shard_id", sqlite_where=_DEAD_TASKS, postgresql_where=_DEAD_TASKS),
    sqlite_strict=True,
    sqlite_autoincrement=True,
)

config = Table(
    "config",
    metadata,
    Column("namespace", KeyText, primary_key=True),
    Column("shard_id", Integer, nullable=False),
    Column("payload", JsonText, nullable=False),
    sqlite_strict=True,
)

nodes = Table(
    "nodes",
    metadata,
    Column("node_id", KeyText, primary_key=True),  # one per run of a process
    Column("kind", KeyText, nullable=False),
    Column("address", Text, nullable=False),  # where other nodes reach it
    Column("host", Text, nullable=False),
    Column("process_id", Int64, nullable=False),
    Column("version", Text, nullable=False),
    Column("state", Int16, nullable=False),
    Column("lease_ms", Int64, nullable=False),
    Column(
        "beat", Int64, nullable=False
    ),  # rises with each renewal; clocks of other machines are not trusted
    Column("started_wall_ms", Int64, nullable=False),
    Column("renewed_wall_ms", Int64, nullable=False),  # for people
    Column("machine", Text, nullable=False, server_default=""),  # where the process id means something
    CheckConstraint("state IN (1, 2)", name="nodes_state"),
    CheckConstraint("lease_ms > 0 AND beat > 0", name="nodes_lease"),
    sqlite_strict=True,
)

slots = Table(
    "slots",
    metadata,
    Column("namespace", KeyText, primary_key=True),
    Column("shard_id", Integer, primary_key=True),
    Column("granted", Int64, nullable=False),
    CheckConstraint("granted > 0", name="slots_granted"),
    Index("slots_by_shard", "shard_id"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

relays = Table(
    "relays",
    metadata,
    Column("relay", KeyText, primary_key=True),
    Column("shard_id", Integer, primary_key=True),
    Column("seq", Int64, nullable=False),  # everything up to here was acknowledged by the broker
    CheckConstraint("seq >= 0", name="relays_place"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

deaths = Table(
    "deaths",
    metadata,
    Column("namespace", KeyText, primary_key=True),
    Column("wall_ms", Int64, primary_key=True),
    Column("shard_id", Integer, primary_key=True),
    Column("seq", Int64, primary_key=True),  # of the first event in the row
    Column("payload", JsonText, nullable=False),  # the deaths of one commit in this millisecond
    CheckConstraint("seq > 0", name="deaths_place"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

verdicts = Table(
    "verdicts",
    metadata,
    Column("namespace", KeyText, primary_key=True),
    Column("shard_id", Integer, primary_key=True),
    Column("deaths", Int64, nullable=False),
    # May exceed deaths: nodes of the version before this table do not count deaths.
    Column("refuted", Int64, nullable=False),
    CheckConstraint("deaths >= 0 AND refuted >= 0", name="verdicts_counts"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

progress = Table(
    "progress",
    metadata,
    Column("namespace", KeyText, primary_key=True),
    Column("unit", KeyText, primary_key=True),
    Column("shard_id", Integer, nullable=False),
    Column("failing", Int16, nullable=False),  # whether the last report was an error
    Column("payload", JsonText, nullable=False),
    CheckConstraint("failing IN (0, 1)", name="progress_failing"),
    Index("progress_by_shard", "shard_id"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

silences = Table(
    "silences",
    metadata,
    Column("namespace", KeyText, primary_key=True),
    Column("wall_ms", Int64, primary_key=True, autoincrement=False),  # the day, or when a worker was saved
    Column("shard_id", Integer, primary_key=True, autoincrement=False),
    Column("kind", Int16, primary_key=True, autoincrement=False),
    Column("terms_ms", Int64, primary_key=True, autoincrement=False),
    Column("silence_ms", Int64, primary_key=True, autoincrement=False),
    Column("count", Int64, nullable=False),
    CheckConstraint("kind IN (1, 2, 3)", name="silences_kind"),
    CheckConstraint("terms_ms > 0 AND silence_ms > 0 AND count > 0", name="silences_counts"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

objects = Table(
    "objects",
    metadata,
    Column("namespace", KeyText, primary_key=True),
    Column("kind", KeyText, primary_key=True),
    Column("name", KeyText, primary_key=True),
    Column("shard_id", Integer, nullable=False),
    Column("payload", JsonText, nullable=False),
    Index("objects_by_shard", "shard_id"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

deletions = Table(
    "deletions",
    metadata,
    Column("shard_id", Integer, primary_key=True),
    Column("namespace", KeyText, primary_key=True),  # empty: events of none; * for events that may be of any
    Column("through_seq", Int64, nullable=False),  # the newest deleted event; older ones may be left
    Column("events", Int64, nullable=False),
    Column("newest_wall_ms", Int64, nullable=False),  # the time of the newest deleted event
    CheckConstraint("through_seq > 0 AND events >= 0", name="deletions_place"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

sizes = Table(
    "sizes",
    metadata,
    Column("wall_ms", Int64, primary_key=True, autoincrement=False),
    Column("bytes", Int64, nullable=False),  # without space that can be used again
    CheckConstraint("bytes >= 0", name="sizes_bytes"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

tokens = Table(
    "tokens",
    metadata,
    Column("token_id", KeyText, primary_key=True),
    Column("principal", KeyText, nullable=False),
    Column("slot", Int16),  # a principal has two; a token that was revoked or has expired gives its own up
    Column("secret_hash", Text, nullable=False),
    Column("grants", Text, nullable=False),
    Column("created_wall_ms", Int64, nullable=False),
    Column("expires_wall_ms", Int64, nullable=False),
    Column("revoked_wall_ms", Int64),
    Column("created_by", Text, nullable=False),
    Column(
        "stamp", Int64, nullable=False
    ),  # random, new with each change: the sum of all tells readers of changes
    UniqueConstraint("principal", "slot", name="tokens_slot"),
    CheckConstraint("expires_wall_ms > created_wall_ms", name="tokens_lifetime"),
    CheckConstraint("slot IS NULL OR slot IN (1, 2) AND revoked_wall_ms IS NULL", name="tokens_live"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

audit = Table(
    "audit",
    metadata,
    Column("wall_ms", Int64, primary_key=True, autoincrement=False),
    Column("entry_id", Int64, primary_key=True, autoincrement=False),  # random: nodes share no counter
    Column("principal", KeyText, nullable=False),
    Column("credential_kind", Text, nullable=False),
    Column("credential_id", Text, nullable=False),
    Column("address", Text, nullable=False),
    Column("method", KeyText, nullable=False),
    Column("namespace", KeyText, nullable=False),
    Column("target", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("calls", Int64, nullable=False),
    CheckConstraint("calls > 0", name="audit_calls"),
    Index("audit_by_namespace", "namespace", "wall_ms"),
    Index("audit_by_principal", "principal", "wall_ms"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

metric_series = Table(
    "metric_series",
    metadata,
    Column("series_id", Int64, primary_key=True),
    Column(
        "series_hash", KeyText, nullable=False, unique=True
    ),  # of the next four; together they are too long for an index
    Column("namespace", KeyText, nullable=False),
    Column("worker_key", KeyText, nullable=False),
    Column("name", KeyText, nullable=False),
    Column("labels", JsonText, nullable=False),  # sorted by name
    Column("type", Int16, nullable=False),
    Column("unit", Text, nullable=False),
    Column("help", Text, nullable=False),
    CheckConstraint("type IN (1, 2)", name="metric_series_type"),
    Index("metric_series_by_name", "namespace", "worker_key", "name", "series_id"),
    sqlite_strict=True,
    sqlite_autoincrement=True,  # samples that are deleted later must never belong to a newer series
)

metric_samples = Table(
    "metric_samples",
    metadata,
    Column("series_id", Int64, primary_key=True, autoincrement=False),
    Column("wall_ms", Int64, primary_key=True, autoincrement=False),
    Column("value", Double().with_variant(REAL(), "sqlite"), nullable=False),
    Index("metric_samples_by_time", "wall_ms"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
