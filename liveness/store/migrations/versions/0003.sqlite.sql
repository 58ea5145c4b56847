CREATE TABLE nodes (
    node_id TEXT COLLATE "BINARY" NOT NULL,
    kind TEXT COLLATE "BINARY" NOT NULL,
    address TEXT NOT NULL,
    host TEXT NOT NULL,
    process_id INTEGER NOT NULL,
    version TEXT NOT NULL,
    state INTEGER NOT NULL,
    lease_ms INTEGER NOT NULL,
    beat INTEGER NOT NULL,
    started_wall_ms INTEGER NOT NULL,
    renewed_wall_ms INTEGER NOT NULL,
    PRIMARY KEY (node_id),
    CONSTRAINT nodes_state CHECK (state IN (1, 2)),
    CONSTRAINT nodes_lease CHECK (lease_ms > 0 AND beat > 0)
)
 STRICT;
CREATE TABLE slots (
    namespace TEXT COLLATE "BINARY" NOT NULL,
    shard_id INTEGER NOT NULL,
    granted INTEGER NOT NULL,
    PRIMARY KEY (namespace, shard_id),
    CONSTRAINT slots_granted CHECK (granted > 0)
)
 WITHOUT ROWID,
 STRICT;
CREATE INDEX slots_by_shard ON slots (shard_id);
CREATE TABLE relays (
    relay TEXT COLLATE "BINARY" NOT NULL,
    shard_id INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (relay, shard_id),
    CONSTRAINT relays_place CHECK (seq >= 0)
)
 WITHOUT ROWID,
 STRICT;
INSERT INTO slots SELECT namespace, shard_id, COUNT(*) FROM workers WHERE state IN (1, 2) GROUP BY namespace, shard_id;
