CREATE TABLE silences (
    namespace TEXT COLLATE "BINARY" NOT NULL,
    wall_ms INTEGER NOT NULL,
    shard_id INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    terms_ms INTEGER NOT NULL,
    silence_ms INTEGER NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (namespace, wall_ms, shard_id, kind, terms_ms, silence_ms),
    CONSTRAINT silences_kind CHECK (kind IN (1, 2, 3)),
    CONSTRAINT silences_counts CHECK (terms_ms > 0 AND silence_ms > 0 AND count > 0)
)
 WITHOUT ROWID,
 STRICT;
