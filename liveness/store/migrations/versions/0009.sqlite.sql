CREATE TABLE tokens (
    token_id TEXT COLLATE "BINARY" NOT NULL,
    principal TEXT COLLATE "BINARY" NOT NULL,
    slot INTEGER,
    secret_hash TEXT NOT NULL,
    grants TEXT NOT NULL,
    created_wall_ms INTEGER NOT NULL,
    expires_wall_ms INTEGER NOT NULL,
    revoked_wall_ms INTEGER,
    created_by TEXT NOT NULL,
    stamp INTEGER NOT NULL,
    PRIMARY KEY (token_id),
    CONSTRAINT tokens_slot UNIQUE (principal, slot),
    CONSTRAINT tokens_lifetime CHECK (expires_wall_ms > created_wall_ms),
    CONSTRAINT tokens_live CHECK (slot IS NULL OR slot IN (1, 2) AND revoked_wall_ms IS NULL)
)
 WITHOUT ROWID,
 STRICT;
