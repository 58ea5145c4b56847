"""The audit: who changed what, from where and with which outcome, and who was denied access.

A change is on disk before its caller is answered. Denied access is summed by the minute and written later: whoever is
denied must not be able to fill the database.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import structlog
from google.api import annotations_pb2
from google.api.http_pb2 import HttpRule
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from liveness.background import BackgroundTasks, RepeatedWarning
from liveness.clock import Clock
from liveness.security.authorization import access_rule
from liveness.security.grants import Role
from liveness.security.principal import Principal, caller_address, current_caller
from liveness.store.audit import AuditRow
from liveness.store.errors import StoreError

logger = structlog.get_logger("liveness.security")

OK = "OK"
DENIED_OUTCOME = "PERMISSION_DENIED"
MINUTE_MS = 60_000
DENIED_PER_MINUTE_MAX = 100
"""So many kinds of denied calls are told apart within a minute; the others are one more."""
OTHERS = "(others)"
WAITING_ROWS_MAX = 10_000
"""Rows that nobody waits for, while the database cannot be written. More are dropped, which is counted."""
NAME_CHARS_MAX = 200
TEXT_CHARS_MAX = 1_000

OPERATORS = frozenset({Role.OPERATOR, Role.ADMIN})
SIGN_INS = frozenset({"AdminService/CreateSession", "AdminService/EndSession"})
TARGET_FIELDS = (
    "worker_instance_key", "filter", "all", "limit", "task_id", "id", "token_id", "principal", "grants", "lifetime",
    "set", "unset", "task_queue", "since", "events", "workflow_id", "run_id", "activity_id", "states", "build_id",
    "host_name", "key_prefix", "seconds", "nanos", "everywhere", "group", "action", "component_ids",
    "count", "unit", "preview", "query", "activity_type", "workflow_id_prefix",
)  # fmt: skip
"""The fields of requests that are recorded. A field that is not listed is left out, since it may hold a payload."""

_CREDENTIALS = re.compile(r"lv[ts]_[A-Za-z0-9_-]+|eyJ[A-Za-z0-9_-]{5,}(\.[A-Za-z0-9_-]*){1,2}")
"""Tokens and JWTs that somebody typed where a name belongs."""


class AuditStore(Protocol):
    async def insert_audit(self, rows: Sequence[AuditRow]) -> None: ...


def is_change_by_operators(method: MethodDescriptor) -> bool:
    """Whether a call is a change by an operator: it needs an operator or an admin, and does not only read, as a GET in HTTP does."""
    if not access_rule(method).roles <= OPERATORS:
        return False
    rule: HttpRule = method.GetOptions().Extensions[annotations_pb2.http]  # type: ignore[index]
    return not rule.get


def is_audited(method: MethodDescriptor) -> bool:
    """Whether a call is recorded: a change by an operator or an admin, or a person who signs in or out."""
    return is_change_by_operators(method) or f"{method.containing_service.name}/{method.name}" in SIGN_INS


def plain(text: str, chars_max: int = NAME_CHARS_MAX) -> str:
    """The text without credentials, in one line, and not longer than that. Databases store all of it."""
    text = _CREDENTIALS.sub("***", text[: 4 * chars_max])
    text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"


def describe_target(request: Message) -> str:
    """What the request names, as NAME=VALUE, without its namespace and its reason."""
    return plain(" ".join(_named_fields(request, TARGET_FIELDS)), TEXT_CHARS_MAX)


def _named_fields(message: Message, names: Sequence[str] | None) -> list[str]:
    found = []
    for field, value in message.ListFields():
        if names is None or field.name in names:
            found.append(f"{field.name}={_describe_value(field, value, names)}")
    return found


def _describe_value(field: FieldDescriptor, value: Any, names: Sequence[str] | None) -> str:
    # All fields of a configuration are numbers and durations.
    names = None if field.message_type is not None and field.name == "set" else names
    if isinstance(value, Message):
        if value.DESCRIPTOR.full_name == "google.protobuf.Duration":
            return f"{value.ToMilliseconds()}ms"  # type: ignore[attr-defined]
        return f"({' '.join(_named_fields(value, names))})"
    if isinstance(value, str | int | float):
        return str(value)[:TEXT_CHARS_MAX]
    return ",".join(_describe_value(field, part, names) for _, part in zip(range(100), value, strict=False))


class DeniedCalls(NamedTuple):
    """Denied calls that are counted together."""

    principal: str
    credential_kind: str
    credential_id: str
    address: str
    method: str
    namespace: str
    outcome: str


class AuditLog:
    def __init__(self, store: AuditStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._tasks = BackgroundTasks("audit")
        self._waiting: list[tuple[AuditRow, asyncio.Future[None] | None]] = []
        self._writer: asyncio.Task[None] | None = None
        self._denied: dict[DeniedCalls, int] = {}
        self._denied_minute = 0
        self._warning = RepeatedWarning(logger, "cannot write the audit", clock)
        self.dropped = 0
        """Rows that were lost, because the database could not be written for long."""

    async def record_change(
        self, principal: Principal | None, method: str, request: Any, outcome: str
    ) -> None:
        """Return when the record is durable. Raises `StoreError`."""
        done = asyncio.get_running_loop().create_future()
        self._add(self._row(principal, method, request, outcome), done)
        await done

    def record_later(self, principal: Principal | None, method: str, request: Any, outcome: str) -> None:
        """Record a call whose caller does not wait for the answer any more."""
        self._add(self._row(principal, method, request, outcome), None)

    def count_denied(
        self, principal: Principal | None, address: str, method: str, namespace: str, outcome: str, calls: int
    ) -> None:
        """Count denied calls. They are known by their principal, or by their address if that is not known."""
        minute = self._clock.wall_ms() // MINUTE_MS
        if minute != self._denied_minute:
            self._close_minute()
            self._denied_minute = minute
        key = DeniedCalls(
            *_who(principal), "" if principal is not None else address, method, plain(namespace), outcome
        )
        if key not in self._denied and len(self._denied) >= DENIED_PER_MINUTE_MAX:
            key = DeniedCalls(OTHERS, "", "", "", "", "", outcome)
        self._denied[key] = self._denied.get(key, 0) + calls

    async def run(self) -> None:
        """Write the sums of denied calls when their minute is over."""
        while True:
            await self._clock.sleep(MINUTE_MS - self._clock.wall_ms() % MINUTE_MS)
            self._close_minute()
            self._start_writer()

    async def flush(self) -> None:
        """Write everything that waits, the sums of the current minute included."""
        self._close_minute()
        self._start_writer()
        while self._writer is not None:
            await asyncio.wait({self._writer})

    async def close(self) -> None:
        await self.flush()
        await self._tasks.close()

    def _close_minute(self) -> None:
        denied, self._denied = self._denied, {}
        for key, calls in denied.items():
            row = AuditRow(
                wall_ms=self._denied_minute * MINUTE_MS,
                entry_id=_new_id(),
                target="",
                reason="",
                calls=calls,
                **key._asdict(),
            )
            self._add(row, None)

    def _row(self, principal: Principal | None, method: str, request: Any, outcome: str) -> AuditRow:
        name, kind, credential_id = _who(principal)
        return AuditRow(
            wall_ms=self._clock.wall_ms(),
            entry_id=_new_id(),
            principal=name,
            credential_kind=kind,
            credential_id=credential_id,
            address=caller_address.get(),
            method=method,
            namespace=plain(getattr(request, "namespace", "")),
            target=describe_target(request),
            reason=plain(getattr(request, "reason", ""), TEXT_CHARS_MAX),
            outcome=outcome,
        )

    def _add(self, row: AuditRow, done: asyncio.Future[None] | None) -> None:
        if done is None and len(self._waiting) >= WAITING_ROWS_MAX:
            self.dropped += 1
            return
        self._waiting.append((row, done))
        self._start_writer()

    def _start_writer(self) -> None:
        if self._writer is None and self._waiting:
            self._writer = self._tasks.start(self._write())

    async def _write(self) -> None:
        """Write all rows that have gathered in one transaction, until none is left or one fails."""
        try:
            while self._waiting:
                rows, self._waiting = self._waiting, []
                try:
                    await self._store.insert_audit([row for row, _ in rows])
                except StoreError as error:
                    self._fail(rows, error)
                    return
                self._warning.resolve()
                for _, done in rows:
                    if done is not None and not done.done():
                        done.set_result(None)
        finally:
            self._writer = None

    def _fail(self, rows: Sequence[tuple[AuditRow, asyncio.Future[None] | None]], error: StoreError) -> None:
        """Fail the callers, and keep the rows: their changes may be durable."""
        self._warning.warn(why=str(error))
        for _, done in (*rows, *self._waiting):
            if done is not None and not done.done():
                done.set_exception(error)
        kept = [(row, None) for row, _ in (*rows, *self._waiting)]
        self.dropped += max(0, len(kept) - WAITING_ROWS_MAX)
        self._waiting = list(kept[:WAITING_ROWS_MAX])


def serving_principal() -> Principal | None:
    caller = current_caller.get()
    return None if caller is None else caller.principal


def _who(principal: Principal | None) -> tuple[str, str, str]:
    if principal is None:
        return "", "", ""
    return plain(principal.name), principal.credential_kind, plain(principal.credential_id)


def _new_id() -> int:
    return secrets.randbits(53)
