"""The tokens in memory, as of half a second ago at most."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Protocol

import structlog

from liveness.clock import Clock
from liveness.domain.errors import Unauthenticated
from liveness.security.grants import Role, parse_grants
from liveness.security.principal import INVALID_TOKEN, SESSION, TOKEN, Principal
from liveness.security.tokens import is_secret, split_token
from liveness.store.errors import StoreError
from liveness.store.tokens import TokenRow, TokensMark

logger = structlog.get_logger("liveness.security")

POLL_INTERVAL_MS = 500
"""A token that was revoked at any node is refused at all of them within a second."""


class TokenStore(Protocol):
    async def tokens_mark(self) -> TokensMark: ...

    async def read_tokens(self) -> tuple[TokensMark, list[TokenRow]]: ...

    async def insert_token(self, row: TokenRow, stamp: int) -> None: ...

    async def revoke_token(self, token_id: str, wall_ms: int, stamp: int) -> TokenRow | None: ...

    async def insert_session(self, row: TokenRow, stamp: int) -> None: ...

    async def end_sessions(self, principal: str, token_id: str) -> int: ...


class TokenTable:
    def __init__(self, store: TokenStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._rows: dict[str, TokenRow] = {}
        self._mark: TokensMark | None = None
        self._last_error = ""
        # An unknown id is compared with a hash, too, so that the time that it takes tells nothing.
        self._no_hash = secrets.token_hex(32)
        self.on_change: Callable[[], None] = lambda: None
        """Called when the table has changed."""
        self.on_poll: Callable[[], None] = lambda: None
        """Called after each look at the table, changed or not: tokens expire without a change."""

    def rows(self) -> list[TokenRow]:
        """Newest first."""
        return list(self._rows.values())

    def identify(self, text: str) -> Principal:
        split = split_token(text)
        if split is None:
            raise Unauthenticated(why=INVALID_TOKEN)
        token_id, secret = split
        row = self._rows.get(token_id)
        is_right = is_secret(secret, self._no_hash if row is None else row.secret_hash)
        if row is None or not is_right or not self._is_live(row):
            raise Unauthenticated(why=INVALID_TOKEN)
        kind = SESSION if row.parent_id else TOKEN
        return Principal(row.principal, parse_grants(row.grants), kind, token_id, self._expires_wall_ms(row))

    def _is_live(self, row: TokenRow) -> bool:
        """A session ends with the token that it was created with."""
        now_ms = self._clock.wall_ms()
        if not row.parent_id:
            return row.is_live(now_ms)
        parent = self._rows.get(row.parent_id)
        return row.is_live(now_ms) and parent is not None and parent.is_live(now_ms)

    def _expires_wall_ms(self, row: TokenRow) -> int:
        parent = self._rows.get(row.parent_id)
        return row.expires_wall_ms if parent is None else min(row.expires_wall_ms, parent.expires_wall_ms)

    async def refresh(self) -> None:
        """Read the table if it has changed."""
        if self._mark is not None and await self._store.tokens_mark() == self._mark:
            return
        self._mark, rows = await self._store.read_tokens()
        self._rows = {row.token_id: row for row in rows}
        self.on_change()

    async def run(self) -> None:
        while True:
            await self._clock.sleep(POLL_INTERVAL_MS)
            try:
                await self.refresh()
            except StoreError as error:
                if self._last_error != str(error):
                    logger.warning("cannot read the tokens; using those read last", why=str(error))
                self._last_error = str(error)
            else:
                self._last_error = ""
            self.on_poll()


def is_admin(row: TokenRow) -> bool:
    """Whether the token may create others."""
    return any(grant.role is Role.ADMIN and grant.covers("") for grant in parse_grants(row.grants))
