CREATE TABLE activities (
    namespace TEXT COLLATE "BINARY" NOT NULL,
    workflow_id TEXT COLLATE "BINARY" NOT NULL,
    run_id TEXT COLLATE "BINARY" NOT NULL,
    activity_id TEXT COLLATE "BINARY" NOT NULL,
    shard_id INTEGER NOT NULL,
    state INTEGER NOT NULL,
    task_queue TEXT COLLATE "BINARY" NOT NULL,
    payload TEXT NOT NULL,
    PRIMARY KEY (namespace, workflow_id, run_id, activity_id),
    CONSTRAINT activities_state CHECK (state IN (1, 2, 3))
)
 WITHOUT ROWID,
 STRICT;

CREATE INDEX activities_by_queue ON activities (namespace, task_queue, state);

CREATE INDEX activities_by_shard ON activities (shard_id);

CREATE TABLE checkpoints (
    shard_id INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    position INTEGER NOT NULL,
    payload TEXT NOT NULL,
    PRIMARY KEY (shard_id),
    CONSTRAINT checkpoints_place CHECK (seq >= 0 AND position >= 0)
)
 STRICT;

CREATE TABLE config (
    namespace TEXT COLLATE "BINARY" NOT NULL,
    shard_id INTEGER NOT NULL,
    payload TEXT NOT NULL,
    PRIMARY KEY (namespace)
)
 STRICT;

CREATE TABLE log (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    shard_id INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    kind TEXT COLLATE "BINARY" NOT NULL,
    version INTEGER NOT NULL,
    namespace TEXT COLLATE "BINARY",
    worker_key TEXT COLLATE "BINARY",
    workflow_id TEXT COLLATE "BINARY",
    wall_ms INTEGER NOT NULL,
    observed_ms INTEGER NOT NULL,
    payload TEXT NOT NULL,
    checksum INTEGER NOT NULL,
    CONSTRAINT log_place CHECK (seq > 0 AND version > 0),
    CONSTRAINT log_worker_has_namespace CHECK ((worker_key IS NULL) OR (namespace IS NOT NULL))
)
 STRICT;

CREATE UNIQUE INDEX log_by_shard ON log (shard_id, seq) WHERE kind <> 'LeasesRenewed';

CREATE INDEX log_by_worker ON log (namespace, worker_key, seq) WHERE worker_key IS NOT NULL;

CREATE TABLE meta (
    name TEXT COLLATE "BINARY" NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (name)
)
 STRICT;

CREATE TABLE shards (
    shard_id INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    observed_ms INTEGER NOT NULL,
    takeovers TEXT NOT NULL,
    owner TEXT NOT NULL,
    PRIMARY KEY (shard_id),
    CONSTRAINT shards_id CHECK (shard_id >= 0),
    CONSTRAINT shards_head CHECK (epoch >= 0 AND last_seq >= 0 AND observed_ms >= 0)
)
 STRICT;

CREATE TABLE tasks (
    task_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    shard_id INTEGER NOT NULL,
    kind TEXT COLLATE "BINARY" NOT NULL,
    state INTEGER NOT NULL,
    due_ms INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    last_error TEXT NOT NULL,
    namespace TEXT COLLATE "BINARY" NOT NULL,
    worker_key TEXT COLLATE "BINARY" NOT NULL,
    lease_epoch INTEGER NOT NULL,
    activity TEXT NOT NULL,
    created_wall_ms INTEGER NOT NULL,
    finished_wall_ms INTEGER,
    CONSTRAINT tasks_state CHECK (state IN (1, 2, 3, 4, 5)),
    CONSTRAINT tasks_finish CHECK ((state IN (4, 5)) = (finished_wall_ms IS NOT NULL))
)
 STRICT;

CREATE INDEX tasks_due ON tasks (shard_id, due_ms) WHERE state IN (1, 2);

CREATE TABLE workers (
    namespace TEXT COLLATE "BINARY" NOT NULL,
    worker_key TEXT COLLATE "BINARY" NOT NULL,
    shard_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    as_of_seq INTEGER NOT NULL,
    state INTEGER NOT NULL,
    task_queue TEXT COLLATE "BINARY" NOT NULL,
    build_id TEXT COLLATE "BINARY" NOT NULL,
    host_name TEXT COLLATE "BINARY" NOT NULL,
    payload TEXT NOT NULL,
    PRIMARY KEY (namespace, worker_key),
    CONSTRAINT workers_state CHECK (state IN (1, 2, 3)),
    CONSTRAINT workers_place CHECK (number > 0 AND as_of_seq >= number)
)
 WITHOUT ROWID,
 STRICT;

CREATE INDEX workers_by_shard ON workers (shard_id);
