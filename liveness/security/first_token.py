"""The first admin token, written straight into the database: without one, nobody could create any."""

from __future__ import annotations

from liveness.clock import Clock
from liveness.security.grants import ALL_NAMESPACES, Grant, Role
from liveness.security.token_table import TokenStore, is_admin
from liveness.security.tokens import (
    LIFETIME_MS_DEFAULT,
    NewToken,
    create_token,
    grants_text,
    new_stamp,
)
from liveness.store.tokens import SLOTS, AdminTokenExists, TokenRow

PRINCIPAL = "admin"


async def create_first_token(store: TokenStore, clock: Clock, *, force: bool = False) -> NewToken:
    """Refuses if there is a live admin token already, unless `force`, which is for an admin who has lost it."""
    now_ms = clock.wall_ms()
    _, rows = await store.read_tokens()
    live = [row for row in rows if row.is_live(now_ms) and not row.parent_id]
    if any(map(is_admin, live)) and not force:
        raise AdminTokenExists
    own = [row for row in live if row.principal == PRINCIPAL]
    for row in own[len(SLOTS) - 1 :]:  # newest first: the oldest make room
        await store.revoke_token(row.token_id, now_ms, new_stamp())
    token = create_token()
    row = TokenRow(
        token_id=token.token_id,
        principal=PRINCIPAL,
        secret_hash=token.secret_hash,
        grants=grants_text((Grant(Role.ADMIN, ALL_NAMESPACES),)),
        created_wall_ms=now_ms,
        expires_wall_ms=now_ms + LIFETIME_MS_DEFAULT,
        revoked_wall_ms=None,
        created_by="",
    )
    await store.insert_token(row, new_stamp())
    return token
