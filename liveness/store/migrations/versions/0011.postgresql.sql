CREATE TABLE progress (
    namespace TEXT COLLATE "C" NOT NULL,
    unit TEXT COLLATE "C" NOT NULL,
    shard_id INTEGER NOT NULL,
    failing SMALLINT NOT NULL,
    payload TEXT NOT NULL,
    PRIMARY KEY (namespace, unit),
    CONSTRAINT progress_failing CHECK (failing IN (0, 1))
);
CREATE INDEX progress_by_shard ON progress (shard_id);
