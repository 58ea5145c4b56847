"""What an installation of pgai itself looks like to a follower: integers, and nothing of ours."""

STOCK_TABLES = """
CREATE SCHEMA ai;
CREATE TABLE ai.vectorizer_worker_process (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), version text NOT NULL,
    started timestamptz NOT NULL DEFAULT now(), expected_heartbeat_interval interval NOT NULL,
    last_heartbeat timestamptz NOT NULL DEFAULT now(), heartbeat_count int NOT NULL DEFAULT 0,
    error_count int NOT NULL DEFAULT 0, success_count int NOT NULL DEFAULT 0, last_error_at timestamptz, last_error_message text);
CREATE TABLE ai.vectorizer_worker_progress (vectorizer_id int PRIMARY KEY, success_count int NOT NULL DEFAULT 0,
    error_count int NOT NULL DEFAULT 0, last_success_at timestamptz, last_success_process_id uuid,
    last_error_at timestamptz, last_error_message text, last_error_process_id uuid);
"""
STOCK_FUNCTIONS = """
CREATE FUNCTION ai._worker_start(version text, i interval) RETURNS uuid LANGUAGE sql AS $$
    INSERT INTO ai.vectorizer_worker_process (version, expected_heartbeat_interval) VALUES (version, i) RETURNING id $$;
CREATE FUNCTION ai._worker_heartbeat(w uuid, s int, e int, m text) RETURNS void LANGUAGE sql AS $$
    UPDATE ai.vectorizer_worker_process SET last_heartbeat = clock_timestamp(), heartbeat_count = heartbeat_count + 1,
        success_count = success_count + s, error_count = error_count + e WHERE id = w $$;
CREATE FUNCTION ai._worker_progress(w uuid, v int, n int, m text) RETURNS void LANGUAGE sql AS '';
"""
