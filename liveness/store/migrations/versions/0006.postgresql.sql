CREATE TABLE deaths (
    namespace TEXT COLLATE "C" NOT NULL,
    wall_ms BIGINT NOT NULL,
    shard_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    payload TEXT NOT NULL,
    PRIMARY KEY (namespace, wall_ms, shard_id, seq),
    CONSTRAINT deaths_place CHECK (seq > 0)
);
