CREATE TABLE silences (
    namespace TEXT COLLATE "C" NOT NULL,
    wall_ms BIGINT NOT NULL,
    shard_id INTEGER NOT NULL,
    kind SMALLINT NOT NULL,
    terms_ms BIGINT NOT NULL,
    silence_ms BIGINT NOT NULL,
    count BIGINT NOT NULL,
    PRIMARY KEY (namespace, wall_ms, shard_id, kind, terms_ms, silence_ms),
    CONSTRAINT silences_kind CHECK (kind IN (1, 2, 3)),
    CONSTRAINT silences_counts CHECK (terms_ms > 0 AND silence_ms > 0 AND count > 0)
);
