CREATE TABLE verdicts (
    namespace TEXT COLLATE "C" NOT NULL,
    shard_id INTEGER NOT NULL,
    deaths BIGINT NOT NULL,
    refuted BIGINT NOT NULL,
    PRIMARY KEY (namespace, shard_id),
    CONSTRAINT verdicts_counts CHECK (deaths >= 0 AND refuted >= 0)
);
