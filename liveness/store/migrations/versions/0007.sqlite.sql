CREATE TABLE deletions (
    shard_id INTEGER NOT NULL,
    namespace TEXT COLLATE "BINARY" NOT NULL,
    through_seq INTEGER NOT NULL,
    events INTEGER NOT NULL,
    newest_wall_ms INTEGER NOT NULL,
    PRIMARY KEY (shard_id, namespace),
    CONSTRAINT deletions_place CHECK (through_seq > 0 AND events >= 0)
)
 WITHOUT ROWID,
 STRICT;

CREATE TABLE sizes (
    wall_ms INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (wall_ms),
    CONSTRAINT sizes_bytes CHECK (bytes >= 0)
)
 WITHOUT ROWID,
 STRICT;

INSERT INTO deletions (shard_id, namespace, through_seq, events, newest_wall_ms)
SELECT shard_id, '*', oldest - 1, 0, 0
FROM (
    SELECT shards.shard_id, COALESCE(
        (SELECT MIN(seq) FROM log WHERE log.shard_id = shards.shard_id AND kind <> 'LeasesRenewed'),
        shards.last_seq + 1
    ) AS oldest
    FROM shards
) AS kept
WHERE oldest > 1;
