"""ListAudit: what operators and admins changed, and who was denied access."""

from __future__ import annotations

from dataclasses import astuple
from typing import Protocol

from google.protobuf.timestamp_pb2 import Timestamp

from liveness.domain.errors import InvalidField, PageTokenInvalid
from liveness.server import tokens
from liveness.server.validation import optional_identifier, page_size, timestamp_ns
from liveness.server.wire import timestamp
from liveness.store.audit import AuditFilter, AuditRow
from liveness.v1 import audit_pb2 as pb

METHOD_CHARS_MAX = 200
NEWEST_MS = 2**53


class AuditReader(Protocol):
    async def read_audit(
        self, where: AuditFilter, before: tuple[int, int] | None, limit: int
    ) -> list[AuditRow]: ...


class AuditHandlers:
    def __init__(self, store: AuditReader) -> None:
        self._store = store

    async def list(self, request: pb.ListAuditRequest) -> pb.ListAuditResponse:
        if len(request.method) > METHOD_CHARS_MAX or "\0" in request.method:
            raise InvalidField(field="method", rule="must be SERVICE/METHOD")
        where = AuditFilter(
            namespace=optional_identifier("namespace", request.namespace),
            principal=optional_identifier("principal", request.principal),
            method=request.method,
            since_wall_ms=_wall_ms("since", request.since) if request.HasField("since") else 0,
            until_wall_ms=_wall_ms("until", request.until) if request.HasField("until") else NEWEST_MS,
        )
        size = page_size(request.page_size)
        listing = ("audit", *astuple(where))
        before = (
            tokens.redeem(
                request.page_token, tuple[tokens.Sequence, tokens.Sequence], PageTokenInvalid, *listing
            )
            if request.page_token
            else None
        )
        rows = await self._store.read_audit(where, before, size + 1)
        response = pb.ListAuditResponse(entries=map(_message, rows[:size]))
        if len(rows) > size:
            last = rows[size - 1]
            response.next_page_token = tokens.issue((last.wall_ms, last.entry_id), *listing)
        return response


def _wall_ms(field: str, value: Timestamp) -> int:
    return timestamp_ns(field, value) // 1_000_000


def _message(row: AuditRow) -> pb.AuditEntry:
    return pb.AuditEntry(
        time=timestamp(row.wall_ms),
        principal=row.principal,
        credential=row.credential_kind,
        credential_id=row.credential_id,
        address=row.address,
        method=row.method,
        namespace=row.namespace,
        target=row.target,
        reason=row.reason,
        outcome=row.outcome,
        calls=row.calls,
    )
