CREATE TABLE verdicts (
    namespace TEXT COLLATE "BINARY" NOT NULL,
    shard_id INTEGER NOT NULL,
    deaths INTEGER NOT NULL,
    refuted INTEGER NOT NULL,
    PRIMARY KEY (namespace, shard_id),
    CONSTRAINT verdicts_counts CHECK (deaths >= 0 AND refuted >= 0)
)
 WITHOUT ROWID,
 STRICT;
