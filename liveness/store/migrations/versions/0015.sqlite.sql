CREATE TABLE objects (
    namespace TEXT COLLATE "BINARY" NOT NULL,
    kind TEXT COLLATE "BINARY" NOT NULL,
    name TEXT COLLATE "BINARY" NOT NULL,
    shard_id INTEGER NOT NULL,
    payload TEXT NOT NULL,
    PRIMARY KEY (namespace, kind, name)
)
 WITHOUT ROWID,
 STRICT;
CREATE INDEX objects_by_shard ON objects (shard_id);
