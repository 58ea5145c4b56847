"""The only mapping between domain values and stored rows.

Payloads are JSON: small enough, and readable with any database shell. Each log row carries a checksum over all its
columns, so that a flipped bit is detected and never served. For projections and queues, see `add_checksum`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import repeat
from operator import attrgetter
from sys import intern
from types import MappingProxyType
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
from msgspec.structs import astuple

from liveness.domain import events
from liveness.domain.activity import Activity, ActivityState, EndedAttempt, ReleasedAttempt
from liveness.domain.component import NO_ORDERS, Component, ComponentStatus, OrderAction, OrderBook
from liveness.domain.concurrency import ConcurrencyLimit
from liveness.domain.death_certificate import Death
from liveness.domain.events import (
    DEFAULT_PRIORITY,
    NO_LIMITS,
    Event,
    LeaseRenewed,
    Priority,
    Retry,
    TimeLimits,
)
from liveness.domain.fold import freeze_bindings
from liveness.domain.keys import ActivityId
from liveness.domain.progress import UnitProgress
from liveness.domain.registry import Entry, FormerSession
from liveness.domain.schedule import Firing, Schedule
from liveness.domain.worker import (
    NO_BINDINGS,
    NO_HANDED,
    NO_STANDING,
    BoundActivity,
    InactiveReason,
    Standing,
    Worker,
    WorkerState,
    WorkerStatus,
    intern_ms,
    pack_texts,
    shared_state,
)
from liveness.store.errors import CorruptRow, WrittenByNewerVersion
from liveness.store.schema import RENEWALS_KIND

VERSION = 1
"""The version of all event payloads so far. A change that old readers would misread needs a new number, and a reader for
the old one."""

_EVENT_TYPES: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        events.WorkerRegistered,
        events.SessionReplaced,
        events.WorkerResurrected,
        events.WorkerAdopted,
        events.LeaseTermsChanged,
        events.BindingsChanged,
        events.ActivityHanded,
        events.BindingsEnded,
        events.WorkerPaused,
        events.WorkerResumed,
        events.DrainBegun,
        events.DisconnectGraceGranted,
        events.WorkerDescribed,
        events.WorkerDeactivated,
        events.WorkerCleanedUp,
        events.WorkerForgotten,
        events.ComponentChanged,
        events.ComponentsOrdered,
        events.ComponentOrdersDone,
        events.EntryChanged,
        events.ReplicaSeen,
        events.ReplicaLeft,
        events.ActivityScheduled,
        events.ActivityStarted,
        events.ActivityHeartbeatRecorded,
        events.ActivityTimedOut,
        events.ActivityCompleted,
        events.ActivityAttemptFailed,
        events.ActivityFailed,
        events.ActivityGivenBack,
        events.ActivityCancelled,
        events.ActivityCancelRequested,
        events.ActivityReleased,
        events.ActivityMadeAvailable,
        events.ActivityQuarantined,
        events.ActivityHandedOn,
        events.ProgressReported,
        events.ProgressForgotten,
        events.ScheduleSaved,
        events.SchedulePaused,
        events.ScheduleResumed,
        events.ScheduleFired,
        events.ScheduleTicksDropped,
        events.ScheduleDeleted,
        events.ConcurrencyLimitSet,
        events.ConcurrencyLimitRemoved,
        events.ConfigChanged,
        events.ShardTaken,
    )
}
EVENT_KINDS = (RENEWALS_KIND, *_EVENT_TYPES)
SHORT_LIVED_KINDS = tuple(kind.__name__ for kind in events.SHORT_LIVED_EVENTS)

_encode = msgspec.json.Encoder().encode
_event_decoders: dict[str, msgspec.json.Decoder[Any]] = {
    name: msgspec.json.Decoder(kind) for name, kind in _EVENT_TYPES.items()
}


class RenewalBatch(NamedTuple):
    """All plain renewals of one shard in one commit: worker numbers, and the events in the same order."""

    worker_numbers: list[int]
    renewals: list[LeaseRenewed]


class LogEntry(NamedTuple):
    """A decoded row of the log."""

    seq: int
    namespace: str | None
    worker: str | None
    workflow_id: str | None
    wall_ms: int
    observed_ms: int
    event: Event | RenewalBatch


class LogRow(NamedTuple):
    """A row of the log in column order, without its id."""

    shard_id: int
    seq: int
    kind: str
    version: int
    namespace: str | None
    worker_key: str | None
    workflow_id: str | None
    wall_ms: int
    observed_ms: int
    payload: str
    checksum: int


_renewals_decoder = msgspec.json.Decoder(RenewalBatch)


def encode_entry(shard_id: int, entry: LogEntry) -> LogRow:
    event = entry.event
    kind = event_kind(event)
    payload = _encode(event).decode()
    columns = (
        shard_id,
        entry.seq,
        kind,
        VERSION,
        entry.namespace,
        entry.worker,
        entry.workflow_id,
        entry.wall_ms,
        entry.observed_ms,
    )
    return LogRow(*columns, payload, _checksum(*columns, payload))


def decode_entry(row: LogRow) -> LogEntry:
    if row.checksum != _checksum(*row[:-1]):
        raise CorruptRow(table="log", row=f"shard {row.shard_id}, sequence {row.seq}")
    if row.version > VERSION or row.kind not in EVENT_KINDS:
        raise WrittenByNewerVersion(what=f"an event {row.kind} of version {row.version}")
    event: Event | RenewalBatch
    if row.kind == RENEWALS_KIND:
        event = _renewals_decoder.decode(row.payload)
    else:
        event = _event_decoders[row.kind].decode(row.payload)
    return LogEntry(
        row.seq, row.namespace, row.worker_key, row.workflow_id, row.wall_ms, row.observed_ms, event
    )


def _checksum(
    shard_id: int,
    seq: int,
    kind: str,
    version: int,
    namespace: str | None,
    worker_key: str | None,
    workflow_id: str | None,
    wall_ms: int,
    observed_ms: int,
    payload: str,
) -> int:
    """Checksum over all other columns, written by hand so that no new version of a library can change it."""
    names = "\0\0"
    if namespace is not None or workflow_id is not None:
        names = "\0".join("" if part is None else f"={part}" for part in (namespace, worker_key, workflow_id))
    header = f"={shard_id}\0={seq}\0={kind}\0={version}\0{names}\0={wall_ms}\0={observed_ms}"
    return crc32(payload.encode(), crc32(header.encode()))


# -- checksums of projections and queues

_WHITESPACE_OF_BYTE = tuple(
    "".join(" \t\n\r"[byte >> shift & 3] for shift in (6, 4, 2, 0)) for byte in range(256)
)
_CHECKSUM_CHARS = 16
_ENDS_WITHOUT_CHECKSUM = ("]", "}")
"""Payloads are arrays and objects. No single flipped bit turns white space into one of these characters."""


def add_checksum(payload: str, *columns: str | int) -> str:
    """Append a checksum over the JSON and over other columns of the row.

    The checksum is encoded as white space after the JSON, which every JSON parser skips. A version that does not know
    checksums can still read the row, and the rows that it writes, without one, are accepted unchecked.
    """
    return payload + _whitespace_checksum(payload, columns)


def verify_checksum(payload: str, table: str, *columns: str | int) -> None:
    if payload.endswith(_ENDS_WITHOUT_CHECKSUM):
        return
    if payload[-_CHECKSUM_CHARS:] != _whitespace_checksum(payload[:-_CHECKSUM_CHARS], columns):
        raise CorruptRow(table=table, row=", ".join(map(str, columns)))


def verify_worker_checksum(
    payload: str, namespace: str, key: str, number: int, as_of_seq: int, state: int
) -> None:
    """`verify_checksum` for the table `workers`, of which a start may read a million rows."""
    if payload.endswith(_ENDS_WITHOUT_CHECKSUM):
        return
    columns = f"({namespace!a}, {key!a}, {number}, {as_of_seq}, {state})"  # what `ascii` writes for a tuple
    checksum = crc32(payload[:-_CHECKSUM_CHARS].encode(), crc32(columns.encode()))
    if payload[-_CHECKSUM_CHARS:] != _to_whitespace(checksum):
        raise CorruptRow(table="workers", row=", ".join(map(str, (namespace, key, number, as_of_seq, state))))


class ChecksumWriter:
    """`add_checksum` for many rows that differ only in the first column; needs at least two other columns."""

    __slots__ = ("_others",)

    def __init__(self, *others: str | int) -> None:
        self._others = ascii(others)[1:]

    def add_checksum(self, payload: str, first: int) -> str:
        return payload + _to_whitespace(crc32(payload.encode(), crc32(f"({first}, {self._others}".encode())))


def _whitespace_checksum(payload: str, columns: tuple[str | int, ...]) -> str:
    """Uses `ascii`: the result of `repr` depends on what a version of Python considers printable."""
    return _to_whitespace(crc32(payload.encode(), crc32(ascii(columns).encode())))


def _to_whitespace(checksum: int) -> str:
    return (
        _WHITESPACE_OF_BYTE[checksum >> 24]
        + _WHITESPACE_OF_BYTE[checksum >> 16 & 255]
        + _WHITESPACE_OF_BYTE[checksum >> 8 & 255]
        + _WHITESPACE_OF_BYTE[checksum & 255]
    )


class RenewalState(NamedTuple):
    """The part of a worker that plain renewals change, as a checkpoint holds it."""

    number: int
    sequence: int
    renewed_ms: int
    successes: int
    errors: int
    resync: bool
    wall_offset_ms: int | None = None
    """Stored once for all states that share it, see `encode_renewal_states`; version 0.1.0 stored none."""
    heartbeats: int = 0
    """Stored for several states together, see `encode_renewal_states`; earlier versions stored none."""


def renewal_state_of(worker: Worker) -> RenewalState:
    number, sequence, renewed_ms, successes, errors, heartbeats, wall_offset_ms, _, _, shared = worker
    return _new(RenewalState, (
        number, sequence, renewed_ms, successes, errors, shared.resync, wall_offset_ms, heartbeats,
    ))  # fmt: skip


_STORED_STATE_FIELDS = RenewalState._fields.index("wall_offset_ms")
_new = tuple.__new__
_NO_WORKER = 0
_HEARTBEATS = -1
"""In place of a worker's number: the state has the heartbeats of the `_COUNTS_PER_STATE` states before it."""
_COUNTS_PER_STATE = 4
_renewal_states_decoder = msgspec.json.Decoder(list[tuple[int, int, int, int, int, bool]])


def encode_renewal_states(renewal_states: Iterable[RenewalState]) -> str:
    """Encode the states, ordered by offset. A state of worker number 0, which no worker has, precedes those with another
    offset and has it in place of the sequence number. A state of worker number -1 has the heartbeats of the four states of
    workers before it, or at the end of fewer. Earlier versions accept no longer tuples, but skip numbers of workers that do
    not exist."""
    stored: list[tuple[object, ...]] = []
    counts: list[int] = []
    offset_ms = None
    for state in sorted(renewal_states, key=_offset_order):
        if state.wall_offset_ms is not None and state.wall_offset_ms != offset_ms:
            offset_ms = state.wall_offset_ms
            stored.append((_NO_WORKER, offset_ms, 0, 0, 0, False))
        stored.append(state[:_STORED_STATE_FIELDS])
        counts.append(state.heartbeats)
        if len(counts) == _COUNTS_PER_STATE:
            stored.append((_HEARTBEATS, *counts, False))
            counts = []
    if counts:
        stored.append((_HEARTBEATS, *counts, *[0] * (_COUNTS_PER_STATE - len(counts)), False))
    return _encode(stored).decode()


def _offset_order(state: RenewalState) -> tuple[bool, int]:
    return state.wall_offset_ms is not None, state.wall_offset_ms or 0


def decode_renewal_states(payload: str) -> list[RenewalState]:
    """A start may decode a million: each is made once, by the constructor of tuples, when its heartbeats are known."""
    states: list[RenewalState] = []
    uncounted: list[tuple[int, int, int, int, int, bool]] = []
    offsets: list[int | None] = []
    """Of `uncounted`, in the same order."""
    offset_ms = None

    def add(counts: Iterable[int]) -> None:
        for fields, offset, heartbeats in zip(uncounted, offsets, counts, strict=False):
            states.append(_new(RenewalState, (*fields, offset, heartbeats)))
        uncounted.clear()
        offsets.clear()

    for entry in _renewal_states_decoder.decode(payload):
        number = entry[0]
        if number > 0:
            uncounted.append(entry)
            offsets.append(offset_ms)
        elif number == _NO_WORKER:
            offset_ms = intern_ms(entry[1])
        elif number == _HEARTBEATS:
            add(entry[1:5])
    add(repeat(0))  # written by a version that did not count
    return states


class _StoredStanding(msgspec.Struct, omit_defaults=True):
    paused: bool = False
    draining: bool = False
    drain_deadline_ms: int = 0
    grace_ms: int = 0
    loop_lag_ms: int = 0
    handed: list[tuple[ActivityId, bool]] = []
    component: Component | None = None
    orders: OrderBook | None = None
    entry: Entry | None = None
    last_error_wall_ms: int = 0
    former: tuple[FormerSession, ...] = ()


class _StoredProfile(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A `Profile` as it is read: a NamedTuple takes longer to make."""

    worker_identity: str = ""
    task_queue: str = ""
    build_id: str = ""
    sdk_name: str = ""
    sdk_version: str = ""
    host_name: str = ""
    process_id: str = ""
    start_time_ns: int | None = None
    labels: tuple[tuple[str, str], ...] = ()
    capabilities: tuple[str, ...] = ()
    current_job: str = ""


class _StoredWorker(msgspec.Struct, omit_defaults=True):
    session_id: str
    sequence: int
    epoch: int
    granted_ms: int
    renewed_ms: int
    deadline_ms: int
    bindings: list[BoundActivity] = []
    lost: list[BoundActivity] = []
    superseded: tuple[str, ...] = ()
    profile: _StoredProfile = _StoredProfile()
    status: WorkerStatus = WorkerStatus.UNSPECIFIED
    last_error: str = ""
    successes: int = 0
    errors: int = 0
    resync: bool = False
    inactive_reason: InactiveReason | None = None
    inactive_detail: str = ""
    standing: _StoredStanding | None = None
    renewed_wall_ms: int | None = None
    principal: str = ""
    heartbeats: int = 0


_worker_decoder = msgspec.json.Decoder(_StoredWorker)
_WORKER_STATES = {int(state): state for state in WorkerState}
ACTIVE = WorkerState.ACTIVE


def encode_worker(worker: Worker) -> str:
    return _encode(
        _StoredWorker(
            session_id=worker.session_id,
            sequence=worker.sequence,
            epoch=worker.epoch,
            granted_ms=worker.granted_ms,
            renewed_ms=worker.renewed_ms,
            deadline_ms=worker.deadline_ms,
            bindings=list(worker.bindings.values()),
            lost=list(worker.lost.values()),
            superseded=worker.superseded,
            profile=_StoredProfile(*worker.profile),
            status=worker.status,
            last_error=worker.last_error,
            successes=worker.successes,
            errors=worker.errors,
            resync=worker.resync,
            inactive_reason=worker.inactive_reason,
            inactive_detail=worker.inactive_detail,
            standing=_encode_standing(worker.standing),
            renewed_wall_ms=worker.renewed_wall_ms,
            principal=worker.principal,
            heartbeats=worker.heartbeats,
        )
    ).decode()


def _encode_standing(standing: Standing) -> _StoredStanding | None:
    if standing == NO_STANDING:
        return None
    return _StoredStanding(
        paused=standing.paused,
        draining=standing.draining,
        drain_deadline_ms=standing.drain_deadline_ms,
        grace_ms=standing.grace_ms,
        loop_lag_ms=standing.loop_lag_ms,
        handed=list(standing.handed.items()),
        component=standing.component,
        orders=standing.orders if standing.orders != NO_ORDERS else None,
        entry=standing.entry,
        last_error_wall_ms=standing.last_error_wall_ms,
        former=standing.former,
    )


def _decode_standing(stored: _StoredStanding) -> Standing:
    return Standing(
        paused=stored.paused,
        draining=stored.draining,
        drain_deadline_ms=stored.drain_deadline_ms,
        grace_ms=stored.grace_ms,
        loop_lag_ms=stored.loop_lag_ms,
        handed=MappingProxyType(dict(stored.handed)) if stored.handed else NO_HANDED,
        component=stored.component,
        orders=stored.orders or NO_ORDERS,
        entry=stored.entry,
        last_error_wall_ms=stored.last_error_wall_ms,
        former=stored.former,
    )


def decode_worker(number: int, state: int, payload: str, checkpointed: RenewalState | None = None) -> Worker:
    """`checkpointed`: the renewals up to the checkpoint, if the row is older."""
    # A start may decode a million workers: by position, which takes half the time.
    (
        session_id, sequence, epoch, granted_ms, renewed_ms, deadline_ms, bindings, lost, superseded, profile, status,
        last_error, successes, errors, resync, inactive_reason, inactive_detail, standing, renewed_wall_ms,
        principal, heartbeats,
    ) = astuple(_worker_decoder.decode(payload))  # fmt: skip
    wall_offset_ms = None if renewed_wall_ms is None else intern_ms(renewed_wall_ms - renewed_ms)
    if checkpointed is not None:
        counted = heartbeats
        _, sequence, renewed_ms, successes, errors, resync, wall_offset_ms, heartbeats = checkpointed
        # A checkpoint of a version that did not count heartbeats has none.
        heartbeats = max(counted, heartbeats)
    texts, shared_profile = pack_texts(session_id, astuple(profile))
    shared = shared_state(
        _WORKER_STATES[state], epoch, intern_ms(granted_ms), _bindings_by_id(bindings) if bindings else NO_BINDINGS,
        _bindings_by_id(lost) if lost else NO_BINDINGS, superseded, shared_profile, status, last_error, resync, inactive_reason,
        inactive_detail, NO_STANDING if standing is None else _decode_standing(standing), intern(principal),
    )  # fmt: skip
    end_ms = None if shared.state is ACTIVE else deadline_ms
    return _new(Worker, (
        number, sequence, renewed_ms, successes, errors, heartbeats, wall_offset_ms, end_ms, texts, shared,
    ))  # fmt: skip


def _bindings_by_id(activities: list[BoundActivity]) -> Mapping[ActivityId, BoundActivity]:
    return freeze_bindings({activity.id: activity for activity in activities})


class _StoredActivity(msgspec.Struct, omit_defaults=True):
    attempt: int
    token: bytes
    releases: tuple[ReleasedAttempt, ...]
    type: str = ""
    input: bytes = b""
    retry: Retry | None = None
    epoch: int = 0
    since_ms: int = 0
    since_wall_ms: int | None = None
    due_ms: int = 0
    failures: int = 0
    deaths: int = 0
    last_failure: str = ""
    result: bytes = b""
    end: EndedAttempt | None = None
    input_encoding: str = ""
    result_encoding: str = ""
    limits: TimeLimits = NO_LIMITS
    close_by_ms: int = 0
    heard_ms: int = 0
    heard_wall_ms: int = 0
    details: bytes = b""
    details_encoding: str = ""
    details_wall_ms: int = 0
    start_wall_ms: int = 0
    priority: Priority = DEFAULT_PRIORITY
    timed_out: str = ""


_activity_decoder = msgspec.json.Decoder(_StoredActivity)
_PAYLOAD_FIELDS = _StoredActivity.__struct_fields__
_payload_values = attrgetter(*_PAYLOAD_FIELDS)


def encode_activity(activity: Activity) -> str:
    """Encode the fields that have no column of their own."""
    return _encode(_StoredActivity(*_payload_values(activity))).decode()


def decode_activity(id: ActivityId, state: int, task_queue: str, worker: str, payload: str) -> Activity:
    stored = _activity_decoder.decode(payload)
    return Activity(
        id=id,
        state=ActivityState(state),
        task_queue=task_queue,
        worker=worker,
        **{name: getattr(stored, name) for name in _PAYLOAD_FIELDS},
    )


class _StoredProgress(msgspec.Struct, omit_defaults=True):
    created_wall_ms: int
    updated_wall_ms: int
    successes: int = 0
    errors: int = 0
    last_success_wall_ms: int = 0
    last_success_worker: str = ""
    last_error_wall_ms: int = 0
    last_error: str = ""
    last_error_worker: str = ""
    report_ids: tuple[str, ...] = ()


_progress_decoder = msgspec.json.Decoder(_StoredProgress)
_PROGRESS_FIELDS = _StoredProgress.__struct_fields__


def encode_progress(progress: UnitProgress) -> str:
    """Encode the fields that have no column of their own."""
    return _encode(_StoredProgress(*(getattr(progress, name) for name in _PROGRESS_FIELDS))).decode()


def decode_progress(failing: bool, payload: str) -> UnitProgress:
    stored = _progress_decoder.decode(payload)
    return UnitProgress(failing=failing, **{name: getattr(stored, name) for name in _PROGRESS_FIELDS})


class _StoredSchedule(msgspec.Struct, omit_defaults=True):
    spec: events.ScheduleSpec
    created_ms: int
    updated_ms: int
    next_ms: int
    paused: bool = False
    pause_reason: str = ""
    last_tick_ms: int = 0
    fired: int = 0
    missed: int = 0
    overlapped: int = 0
    firings: tuple[Firing, ...] = ()


_schedule_decoder = msgspec.json.Decoder(_StoredSchedule)


def encode_schedule(schedule: Schedule) -> str:
    return _encode(_StoredSchedule(*schedule)).decode()


def decode_schedule(payload: str) -> Schedule:
    return Schedule(*astuple(_schedule_decoder.decode(payload)))


_limit_decoder = msgspec.json.Decoder(ConcurrencyLimit)


def encode_limit(limit: ConcurrencyLimit) -> str:
    return _encode(limit).decode()


def decode_limit(payload: str) -> ConcurrencyLimit:
    return _limit_decoder.decode(payload)


_deaths_decoder = msgspec.json.Decoder(list[Death])
_bound_decoder = msgspec.json.Decoder(BoundActivity)
_settings_decoder = msgspec.json.Decoder(dict[str, float])
_takeovers_decoder = msgspec.json.Decoder(tuple[int, ...])


def encode_bound_activity(activity: BoundActivity) -> str:
    return _encode(activity).decode()


def decode_bound_activity(payload: str) -> BoundActivity:
    return _bound_decoder.decode(payload)


def encode_deaths(deaths: list[Death]) -> str:
    return _encode(deaths).decode()


def decode_deaths(payload: str) -> list[Death]:
    return _deaths_decoder.decode(payload)


def encode_settings(overrides: Mapping[str, float]) -> str:
    return _encode(dict(overrides)).decode()


def decode_settings(payload: str) -> dict[str, float]:
    return _settings_decoder.decode(payload)


def encode_takeovers(times: tuple[int, ...]) -> str:
    return _encode(times).decode()


def decode_takeovers(payload: str) -> tuple[int, ...]:
    return _takeovers_decoder.decode(payload)


def replace_unstorable(text: str) -> str:
    """Replace NUL and lone surrogates, which databases refuse, in text from any source."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\0", "\ufffd")


def type_in_payload(activity_type: str) -> str:
    """What the payload of every activity of this type contains, and of no other: quotes inside of texts are escaped, and tokens and
    inputs are Base64."""
    return f'"type":{_encode(activity_type).decode()}'


def activity_payload_prefix(id: ActivityId) -> str:
    """How the payloads of all events about an activity begin, within its workflow."""
    return _encode({"run_id": id.run_id, "activity_id": id.activity_id}).decode()[:-1] + ","


def event_kind(event: Event | RenewalBatch) -> str:
    return RENEWALS_KIND if isinstance(event, RenewalBatch) else type(event).__name__


def event_to_json(event: Event | RenewalBatch) -> str:
    """Encode the event as JSON with all field names, for people and API clients."""
    return _encode(_with_field_names(event)).decode()


def _with_field_names(value: Any) -> Any:
    if isinstance(value, RenewalBatch):
        return {"renewals": len(value.worker_numbers)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _with_field_names(part) for name, part in value._asdict().items()}
    if isinstance(value, list | tuple):
        return [_with_field_names(part) for part in value]
    if isinstance(value, WorkerStatus | InactiveReason | WorkerState | ComponentStatus | OrderAction):
        return value.name
    if hasattr(value, "__dataclass_fields__"):
        return {name: _with_field_names(getattr(value, name)) for name in value.__dataclass_fields__}
    return value
