CREATE TABLE objects (
    namespace TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    shard_id INTEGER NOT NULL,
    payload TEXT NOT NULL,
    PRIMARY KEY (namespace, kind, name)
);
CREATE INDEX objects_by_shard ON objects (shard_id);
