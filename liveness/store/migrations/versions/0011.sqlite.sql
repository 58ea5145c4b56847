CREATE TABLE progress (
    namespace TEXT COLLATE "BINARY" NOT NULL,
    unit TEXT COLLATE "BINARY" NOT NULL,
    shard_id INTEGER NOT NULL,
    failing INTEGER NOT NULL,
    payload TEXT NOT NULL,
    PRIMARY KEY (namespace, unit),
    CONSTRAINT progress_failing CHECK (failing IN (0, 1))
)
 WITHOUT ROWID,
 STRICT;
CREATE INDEX progress_by_shard ON progress (shard_id);
