CREATE TABLE activities (
    namespace TEXT COLLATE "C" NOT NULL,
    workflow_id TEXT COLLATE "C" NOT NULL,
    run_id TEXT COLLATE "C" NOT NULL,
    activity_id TEXT COLLATE "C" NOT NULL,
    shard_id INTEGER NOT NULL,
    state SMALLINT NOT NULL,
    task_queue TEXT COLLATE "C" NOT NULL,
    payload TEXT NOT NULL,
    PRIMARY KEY (namespace, workflow_id, run_id, activity_id),
    CONSTRAINT activities_state CHECK (state IN (1, 2, 3))
);

CREATE INDEX activities_by_queue ON activities (namespace, task_queue, state);

CREATE INDEX activities_by_shard ON activities (shard_id);

CREATE TABLE checkpoints (
    shard_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    position BIGINT NOT NULL,
    payload TEXT NOT NULL,
    PRIMARY KEY (shard_id),
    CONSTRAINT checkpoints_place CHECK (seq >= 0 AND position >= 0)
);

CREATE TABLE config (
    namespace TEXT COLLATE "C" NOT NULL,
    shard_id INTEGER NOT NULL,
    payload TEXT NOT NULL,
    PRIMARY KEY (namespace)
);

CREATE TABLE log (
    id BIGSERIAL NOT NULL,
    shard_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    version SMALLINT NOT NULL,
    namespace TEXT COLLATE "C",
    worker_key TEXT COLLATE "C",
    workflow_id TEXT COLLATE "C",
    wall_ms BIGINT NOT NULL,
    observed_ms BIGINT NOT NULL,
    payload TEXT NOT NULL,
    checksum BIGINT NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT log_place CHECK (seq > 0 AND version > 0),
    CONSTRAINT log_worker_has_namespace CHECK ((worker_key IS NULL) OR (namespace IS NOT NULL))
);

CREATE UNIQUE INDEX log_by_shard ON log (shard_id, seq);

CREATE INDEX log_by_worker ON log (namespace, worker_key, seq) WHERE worker_key IS NOT NULL;

CREATE TABLE meta (
    name TEXT COLLATE "C" NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE shards (
    shard_id INTEGER NOT NULL,
    epoch BIGINT NOT NULL,
    last_seq BIGINT NOT NULL,
    observed_ms BIGINT NOT NULL,
    takeovers TEXT NOT NULL,
    owner TEXT NOT NULL,
    PRIMARY KEY (shard_id),
    CONSTRAINT shards_id CHECK (shard_id >= 0),
    CONSTRAINT shards_head CHECK (epoch >= 0 AND last_seq >= 0 AND observed_ms >= 0)
);

CREATE TABLE tasks (
    task_id BIGSERIAL NOT NULL,
    shard_id INTEGER NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    state SMALLINT NOT NULL,
    due_ms BIGINT NOT NULL,
    attempts INTEGER NOT NULL,
    last_error TEXT NOT NULL,
    namespace TEXT COLLATE "C" NOT NULL,
    worker_key TEXT COLLATE "C" NOT NULL,
    lease_epoch BIGINT NOT NULL,
    activity TEXT NOT NULL,
    created_wall_ms BIGINT NOT NULL,
    finished_wall_ms BIGINT,
    PRIMARY KEY (task_id),
    CONSTRAINT tasks_state CHECK (state IN (1, 2, 3, 4, 5)),
    CONSTRAINT tasks_finish CHECK ((state IN (4, 5)) = (finished_wall_ms IS NOT NULL))
);

CREATE INDEX tasks_due ON tasks (shard_id, due_ms) WHERE state IN (1, 2);

CREATE TABLE workers (
    namespace TEXT COLLATE "C" NOT NULL,
    worker_key TEXT COLLATE "C" NOT NULL,
    shard_id INTEGER NOT NULL,
    number BIGINT NOT NULL,
    as_of_seq BIGINT NOT NULL,
    state SMALLINT NOT NULL,
    task_queue TEXT COLLATE "C" NOT NULL,
    build_id TEXT COLLATE "C" NOT NULL,
    host_name TEXT COLLATE "C" NOT NULL,
    payload TEXT NOT NULL,
    PRIMARY KEY (namespace, worker_key),
    CONSTRAINT workers_state CHECK (state IN (1, 2, 3)),
    CONSTRAINT workers_place CHECK (number > 0 AND as_of_seq >= number)
);

CREATE INDEX workers_by_shard ON workers (shard_id);
