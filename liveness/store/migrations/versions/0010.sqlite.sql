CREATE TABLE audit (
    wall_ms INTEGER NOT NULL,
    entry_id INTEGER NOT NULL,
    principal TEXT COLLATE "BINARY" NOT NULL,
    credential_kind TEXT NOT NULL,
    credential_id TEXT NOT NULL,
    address TEXT NOT NULL,
    method TEXT COLLATE "BINARY" NOT NULL,
    namespace TEXT COLLATE "BINARY" NOT NULL,
    target TEXT NOT NULL,
    reason TEXT NOT NULL,
    outcome TEXT NOT NULL,
    calls INTEGER NOT NULL,
    PRIMARY KEY (wall_ms, entry_id),
    CONSTRAINT audit_calls CHECK (calls > 0)
)
 WITHOUT ROWID,
 STRICT;
CREATE INDEX audit_by_namespace ON audit (namespace, wall_ms);
CREATE INDEX audit_by_principal ON audit (principal, wall_ms);
