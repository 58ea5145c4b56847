"""The audit table: what operators and admins changed, one row each, and denied access, summed by the minute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, delete, or_, select

from liveness.store.bulk import insert_rows
from liveness.store.schema import audit

DELETE_BATCH = 5_000


class AuditRow(NamedTuple):
    wall_ms: int
    entry_id: int
    """Random. With `wall_ms` it identifies the row; nodes share no counter."""
    principal: str
    """Who called; empty if callers are not asked, or if the credential was not valid."""
    credential_kind: str
    credential_id: str
    address: str
    """From where; empty if it is not known."""
    method: str
    """SERVICE/METHOD."""
    namespace: str
    target: str
    """What the call named: a worker, a task, a token."""
    reason: str
    """The operator's own words."""
    outcome: str
    """OK, or the name of a gRPC status code."""
    calls: int = 1
    """More than 1 for denied access: the calls of a minute."""


COLUMNS = AuditRow._fields


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """All conditions hold together; an empty one always holds."""

    namespace: str = ""
    principal: str = ""
    method: str = ""
    since_wall_ms: int = 0
    until_wall_ms: int = 2**63 - 1


def insert_audit(connection: Connection, rows: Sequence[AuditRow]) -> None:
    insert_rows(connection, audit, rows)


def read_audit(
    connection: Connection, where: AuditFilter, before: tuple[int, int] | None, limit: int
) -> list[AuditRow]:
    """Newest first. `before`: the time and the id of the last row of the page before."""
    conditions: list[ColumnElement[bool]] = [
        audit.c.wall_ms >= where.since_wall_ms,
        audit.c.wall_ms <= where.until_wall_ms,
    ]
    names = ("namespace", "principal", "method")
    conditions += [audit.c[name] == value for name in names if (value := getattr(where, name))]
    if before is not None:
        wall_ms, entry_id = before
        conditions.append(
            or_(audit.c.wall_ms < wall_ms, and_(audit.c.wall_ms == wall_ms, audit.c.entry_id < entry_id))
        )
    query = (
        select(*(audit.c[name] for name in COLUMNS))
        .where(*conditions)
        .order_by(audit.c.wall_ms.desc(), audit.c.entry_id.desc())
        .limit(limit)
    )
    rows: Sequence[Any] = connection.execute(query).all()
    return [AuditRow(*row) for row in rows]


def prune_audit(connection: Connection, cutoff_wall_ms: int) -> int:
    """Delete a batch of rows that are older."""
    newest = (
        select(audit.c.wall_ms)
        .where(audit.c.wall_ms < cutoff_wall_ms)
        .order_by(audit.c.wall_ms)
        .offset(DELETE_BATCH - 1)
        .limit(1)
    )
    through_ms = connection.execute(newest).scalar()
    # Rows of one millisecond are deleted together.
    through_ms = cutoff_wall_ms - 1 if through_ms is None else through_ms
    return connection.execute(delete(audit).where(audit.c.wall_ms <= through_ms)).rowcount
