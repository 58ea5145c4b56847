"""The table of tokens: whom each belongs to, what it grants, and a hash of its secret. The secret itself is nowhere.

Sessions of browsers are rows without a slot, whose id begins with the id of the token that they were created with.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, delete, func, insert, select, update

from liveness.store.errors import StoreError
from liveness.store.schema import tokens

SLOTS = (1, 2)
"""A principal has at most two live tokens, so that one can replace the other without a gap."""
KEPT_MS = 30 * 86_400_000
"""How long tokens that were revoked or have expired are still listed."""

SESSION_MARK = "-"
"""Between the two parts of a session's id. Ids of tokens do not contain it."""
SESSIONS_MAX = 20
"""Live sessions of a principal. The oldest ends when one more is created."""


class TokenRow(NamedTuple):
    token_id: str
    principal: str
    secret_hash: str
    """SHA-256 of the secret, in hex."""
    grants: str
    """The grants, with spaces between them."""
    created_wall_ms: int
    expires_wall_ms: int
    revoked_wall_ms: int | None
    created_by: str

    @property
    def parent_id(self) -> str:
        """The token that a session was created with; empty for a token."""
        parent_id, mark, _ = self.token_id.partition(SESSION_MARK)
        return parent_id if mark else ""

    def is_live(self, wall_ms: int) -> bool:
        return self.revoked_wall_ms is None and wall_ms < self.expires_wall_ms


class TokensMark(NamedTuple):
    """Differs whenever the table has changed."""

    rows: int
    stamps: int


class TooManyTokens(StoreError):
    template = "{principal} has {limit} live tokens already."

    principal: str
    limit: int = len(SLOTS)


class AdminTokenExists(StoreError):
    template = "There is an admin token already."


def read_mark(connection: Connection) -> TokensMark:
    count, stamps = connection.execute(
        select(func.count(), func.coalesce(func.sum(tokens.c.stamp), 0)).select_from(tokens)
    ).one()
    return TokensMark(int(count), int(stamps))


def read_tokens(connection: Connection) -> list[TokenRow]:
    columns = [tokens.c[name] for name in TokenRow._fields]
    rows = connection.execute(select(*columns).order_by(tokens.c.created_wall_ms.desc(), tokens.c.token_id))
    return [TokenRow(*row) for row in rows]


def insert_token(connection: Connection, row: TokenRow, stamp: int) -> None:
    """Refuses a third live token of a principal. Two nodes that insert at once take different slots, or one fails."""
    now_ms = row.created_wall_ms
    over = (tokens.c.expires_wall_ms <= now_ms) | tokens.c.revoked_wall_ms.is_not(None)
    gone = (tokens.c.expires_wall_ms <= now_ms - KEPT_MS) | (tokens.c.revoked_wall_ms <= now_ms - KEPT_MS)
    connection.execute(delete(tokens).where(gone))
    connection.execute(update(tokens).where(tokens.c.principal == row.principal, over).values(slot=None))
    taken = set(
        connection.execute(
            select(tokens.c.slot).where(tokens.c.principal == row.principal, tokens.c.slot.is_not(None))
        ).scalars()
    )
    free = [slot for slot in SLOTS if slot not in taken]
    if not free:
        raise TooManyTokens(principal=row.principal)
    connection.execute(insert(tokens).values(**row._asdict(), slot=free[0], stamp=stamp))


def revoke_token(connection: Connection, token_id: str, wall_ms: int, stamp: int) -> TokenRow | None:
    """Returns the token; None if there is none. A token that was revoked before stays as it is."""
    connection.execute(
        update(tokens)
        .where(tokens.c.token_id == token_id, tokens.c.revoked_wall_ms.is_(None))
        .values(revoked_wall_ms=wall_ms, slot=None, stamp=stamp)
    )
    return next((row for row in read_tokens(connection) if row.token_id == token_id), None)


def insert_session(connection: Connection, row: TokenRow, stamp: int) -> None:
    """Sessions take no slot. Those that are over are deleted, so that signing in again and again does not fill the table."""
    over = (tokens.c.expires_wall_ms <= row.created_wall_ms) | tokens.c.revoked_wall_ms.is_not(None)
    connection.execute(delete(tokens).where(_is_session, over))
    own = select(tokens.c.token_id).where(_is_session, tokens.c.principal == row.principal)
    newest_first = own.order_by(tokens.c.created_wall_ms.desc(), tokens.c.token_id)
    surplus = connection.execute(newest_first).scalars().all()[SESSIONS_MAX - 1 :]
    connection.execute(delete(tokens).where(tokens.c.token_id.in_(surplus)))
    connection.execute(insert(tokens).values(**row._asdict(), slot=None, stamp=stamp))


def end_sessions(connection: Connection, principal: str, token_id: str) -> int:
    """Delete a session of the principal, or all of them if `token_id` is empty. Return how many there were."""
    ended = delete(tokens).where(_is_session, tokens.c.principal == principal)
    if token_id:
        ended = ended.where(tokens.c.token_id == token_id)
    return connection.execute(ended).rowcount


_is_session = tokens.c.token_id.contains(SESSION_MARK, autoescape=True)
