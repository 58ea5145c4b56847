CREATE TABLE audit (
    wall_ms BIGINT NOT NULL,
    entry_id BIGINT NOT NULL,
    principal TEXT COLLATE "C" NOT NULL,
    credential_kind TEXT NOT NULL,
    credential_id TEXT NOT NULL,
    address TEXT NOT NULL,
    method TEXT COLLATE "C" NOT NULL,
    namespace TEXT COLLATE "C" NOT NULL,
    target TEXT NOT NULL,
    reason TEXT NOT NULL,
    outcome TEXT NOT NULL,
    calls BIGINT NOT NULL,
    PRIMARY KEY (wall_ms, entry_id),
    CONSTRAINT audit_calls CHECK (calls > 0)
);
CREATE INDEX audit_by_namespace ON audit (namespace, wall_ms);
CREATE INDEX audit_by_principal ON audit (principal, wall_ms);
