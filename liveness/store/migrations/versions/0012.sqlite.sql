CREATE TABLE metric_series (
    series_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    series_hash TEXT COLLATE "BINARY" NOT NULL,
    namespace TEXT COLLATE "BINARY" NOT NULL,
    worker_key TEXT COLLATE "BINARY" NOT NULL,
    name TEXT COLLATE "BINARY" NOT NULL,
    labels TEXT NOT NULL,
    type INTEGER NOT NULL,
    unit TEXT NOT NULL,
    help TEXT NOT NULL,
    CONSTRAINT metric_series_type CHECK (type IN (1, 2)),
    UNIQUE (series_hash)
)
 STRICT;
CREATE INDEX metric_series_by_name ON metric_series (namespace, worker_key, name, series_id);
CREATE TABLE metric_samples (
    series_id INTEGER NOT NULL,
    wall_ms INTEGER NOT NULL,
    value REAL NOT NULL,
    PRIMARY KEY (series_id, wall_ms)
)
 WITHOUT ROWID,
 STRICT;
CREATE INDEX metric_samples_by_time ON metric_samples (wall_ms);
