CREATE INDEX tasks_dead ON tasks (shard_id) WHERE state = 3;
