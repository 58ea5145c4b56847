CREATE TABLE metric_series (
    series_id BIGSERIAL NOT NULL,
    series_hash TEXT COLLATE "C" NOT NULL,
    namespace TEXT COLLATE "C" NOT NULL,
    worker_key TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    labels TEXT NOT NULL,
    type SMALLINT NOT NULL,
    unit TEXT NOT NULL,
    help TEXT NOT NULL,
    PRIMARY KEY (series_id),
    UNIQUE (series_hash),
    CONSTRAINT metric_series_type CHECK (type IN (1, 2))
);
CREATE INDEX metric_series_by_name ON metric_series (namespace, worker_key, name, series_id);
CREATE TABLE metric_samples (
    series_id BIGINT NOT NULL,
    wall_ms BIGINT NOT NULL,
    value DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (series_id, wall_ms)
);
CREATE INDEX metric_samples_by_time ON metric_samples (wall_ms);
