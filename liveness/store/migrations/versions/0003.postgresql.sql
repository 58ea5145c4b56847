CREATE TABLE nodes (
    node_id TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    address TEXT NOT NULL,
    host TEXT NOT NULL,
    process_id BIGINT NOT NULL,
    version TEXT NOT NULL,
    state SMALLINT NOT NULL,
    lease_ms BIGINT NOT NULL,
    beat BIGINT NOT NULL,
    started_wall_ms BIGINT NOT NULL,
    renewed_wall_ms BIGINT NOT NULL,
    PRIMARY KEY (node_id),
    CONSTRAINT nodes_state CHECK (state IN (1, 2)),
    CONSTRAINT nodes_lease CHECK (lease_ms > 0 AND beat > 0)
);
CREATE TABLE slots (
    namespace TEXT COLLATE "C" NOT NULL,
    shard_id INTEGER NOT NULL,
    granted BIGINT NOT NULL,
    PRIMARY KEY (namespace, shard_id),
    CONSTRAINT slots_granted CHECK (granted > 0)
);
CREATE INDEX slots_by_shard ON slots (shard_id);
CREATE TABLE relays (
    relay TEXT COLLATE "C" NOT NULL,
    shard_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    PRIMARY KEY (relay, shard_id),
    CONSTRAINT relays_place CHECK (seq >= 0)
);
INSERT INTO slots SELECT namespace, shard_id, COUNT(*) FROM workers WHERE state IN (1, 2) GROUP BY namespace, shard_id;
