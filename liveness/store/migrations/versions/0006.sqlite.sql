CREATE TABLE deaths (
    namespace TEXT COLLATE "BINARY" NOT NULL,
    wall_ms INTEGER NOT NULL,
    shard_id INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    payload TEXT NOT NULL,
    PRIMARY KEY (namespace, wall_ms, shard_id, seq),
    CONSTRAINT deaths_place CHECK (seq > 0)
)
 WITHOUT ROWID,
 STRICT;
