-- SQLite cannot change a CHECK in place: each table is made anew and filled from the old one.
DROP INDEX activities_by_queue;
DROP INDEX activities_by_shard;
ALTER TABLE activities RENAME TO activities_0001;
CREATE TABLE activities (
    namespace TEXT COLLATE "BINARY" NOT NULL,
    workflow_id TEXT COLLATE "BINARY" NOT NULL,
    run_id TEXT COLLATE "BINARY" NOT NULL,
    activity_id TEXT COLLATE "BINARY" NOT NULL,
    shard_id INTEGER NOT NULL,
    state INTEGER NOT NULL,
    task_queue TEXT COLLATE "BINARY" NOT NULL,
    worker_key TEXT COLLATE "BINARY" NOT NULL,
    finished_wall_ms INTEGER,
    payload TEXT NOT NULL,
    PRIMARY KEY (namespace, workflow_id, run_id, activity_id),
    CONSTRAINT activities_state CHECK (state BETWEEN 1 AND 10),
    CONSTRAINT activities_holder CHECK ((state = 4) = (worker_key <> '')),
    CONSTRAINT activities_finish CHECK ((state IN (6, 7, 8, 10)) = (finished_wall_ms IS NOT NULL))
)
 WITHOUT ROWID,
 STRICT;
INSERT INTO activities SELECT namespace, workflow_id, run_id, activity_id, shard_id, state, task_queue, '', NULL, payload FROM activities_0001;
DROP TABLE activities_0001;
CREATE INDEX activities_by_queue ON activities (namespace, task_queue, state);
CREATE INDEX activities_by_shard ON activities (shard_id) WHERE finished_wall_ms IS NULL;
CREATE INDEX activities_by_worker ON activities (namespace, worker_key) WHERE worker_key <> '';
CREATE INDEX activities_finished ON activities (finished_wall_ms) WHERE finished_wall_ms IS NOT NULL;
DROP INDEX tasks_due;
ALTER TABLE tasks RENAME TO tasks_0001;
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
    died INTEGER NOT NULL,
    created_wall_ms INTEGER NOT NULL,
    finished_wall_ms INTEGER,
    CONSTRAINT tasks_state CHECK (state IN (1, 2, 3, 4, 5)),
    CONSTRAINT tasks_finish CHECK ((state IN (4, 5)) = (finished_wall_ms IS NOT NULL)),
    CONSTRAINT tasks_died CHECK (died IN (0, 1))
)
 STRICT;
INSERT INTO tasks SELECT task_id, shard_id, kind, state, due_ms, attempts, last_error, namespace, worker_key, lease_epoch, activity, 1, created_wall_ms, finished_wall_ms FROM tasks_0001;
DELETE FROM sqlite_sequence WHERE name = 'tasks';
UPDATE sqlite_sequence SET name = 'tasks' WHERE name = 'tasks_0001';
DROP TABLE tasks_0001;
CREATE INDEX tasks_due ON tasks (shard_id, due_ms) WHERE state IN (1, 2);
