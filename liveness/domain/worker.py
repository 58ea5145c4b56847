"""The worker as a value. Everything here is immutable; `evolve` makes the next value.

Times are milliseconds on the shard's observed clock unless a name says otherwise.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from liveness.domain.component import NO_ORDERS, Component, OrderBook
from liveness.domain.keys import ActivityId
from liveness.domain.registry import Entry, FormerSession

SUPERSEDED_SESSIONS_MAX = 100
"""How many replaced sessions a worker remembers. A process that is more restarts behind counts as a new session."""

LOST_MAX = 1_000
"""How many lost activities a worker is asked to cancel: the newest ones, and always all of its last lease."""


class WorkerState(IntEnum):
    ACTIVE = 1
    INACTIVE = 2
    CLEANED_UP = 3


class WorkerStatus(IntEnum):
    """Reported by the worker for people; decides nothing."""

    UNSPECIFIED = 0
    STARTING = 1
    RUNNING = 2
    PAUSED = 3
    STOPPING = 4


class InactiveReason(IntEnum):
    LEASE_EXPIRED = 1
    SHUTDOWN = 2
    FORCED = 3
    DISCONNECTED = 4
    DRAINED = 5
    PROCESS_EXITED = 6
    """Its supervisor saw the process end or hang."""


class BoundActivity(NamedTuple):
    """One attempt of one activity, as a worker holds it."""

    workflow_id: str
    run_id: str
    activity_id: str
    attempt: int
    task_queue: str
    token: bytes = b""

    @property
    def id(self) -> ActivityId:
        # Avoids the slow constructor: this runs for every binding of every heartbeat.
        return tuple.__new__(ActivityId, self[:3])


class Profile(NamedTuple):
    """How a worker describes itself; decides nothing."""

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


NO_PROFILE = Profile()


class SharedProfile(NamedTuple):
    """The part of a profile that many workers have in common."""

    task_queue: str
    build_id: str
    sdk_name: str
    sdk_version: str
    host_name: str
    labels: tuple[tuple[str, str], ...]
    capabilities: tuple[str, ...]


SHARED_PARTS_MAX = 16_384
"""How many different shared parts are remembered. Of those beyond, several copies may exist."""


@lru_cache(maxsize=SHARED_PARTS_MAX)
def _intern_profile(
    task_queue: str,
    build_id: str,
    sdk_name: str,
    sdk_version: str,
    host_name: str,
    labels: tuple[tuple[str, str], ...],
    capabilities: tuple[str, ...],
) -> SharedProfile:
    return SharedProfile(task_queue, build_id, sdk_name, sdk_version, host_name, labels, capabilities)


@lru_cache(maxsize=1_024)
def intern_ms(value: int) -> int:
    """Keep one copy of equal durations and offsets; a fleet has only a few different ones."""
    return value


NO_BINDINGS: Mapping[ActivityId, BoundActivity] = MappingProxyType({})


NO_HANDED: Mapping[ActivityId, bool] = MappingProxyType({})


class Standing(NamedTuple):
    """State that few workers have besides their lease. The others share one value, `NO_STANDING`."""

    paused: bool = False
    draining: bool = False
    """Ends with the session."""
    drain_deadline_ms: int = 0
    """When the remaining activities are taken from the worker; 0 without a limit or after it has passed."""
    grace_ms: int = 0
    """How long the lease lasts after the worker's stream broke; 0 if a broken stream has no effect."""
    loop_lag_ms: int = 0
    handed: Mapping[ActivityId, bool] = NO_HANDED
    """Bindings made by the service, not by a heartbeat, and whether the worker is known to have received each."""
    component: Component | None = None
    """Set if a supervisor runs the worker's processes. Outlives sessions, leases and the cleanup."""
    orders: OrderBook = NO_ORDERS
    """If the worker is a supervisor: the orders to its group. They, too, outlive everything but the tombstone."""
    entry: Entry | None = None
    """Set if the worker is a registered component. It, too, outlives everything but the tombstone."""
    former: tuple[FormerSession, ...] = ()
    """If the worker is a registered component: the sessions that had it before and counted, oldest first."""
    last_error_wall_ms: int = 0
    """When `Worker.last_error` was reported last; 0 if it never was, or to a version that did not store it. Outlives sessions
    and leases."""


NO_STANDING = Standing()


class SharedState(NamedTuple):
    """The part of a worker that most workers of a fleet have in common, so that these share one copy of it. A plain renewal leaves
    it as it is."""

    state: WorkerState
    epoch: int
    """The fencing token."""
    granted_ms: int
    bindings: Mapping[ActivityId, BoundActivity]
    lost: Mapping[ActivityId, BoundActivity]
    """Activities taken from this worker that it has not unbound yet: replies ask it to cancel them."""
    superseded: tuple[str, ...]
    """Replaced sessions, oldest first."""
    profile: SharedProfile
    status: WorkerStatus
    last_error: str
    resync: bool
    """The server may not know the whole set of the worker's bindings; replies ask for it."""
    inactive_reason: InactiveReason | None
    inactive_detail: str
    standing: Standing
    principal: str
    """Who registered the key. Others are refused; empty if callers were not asked."""


@lru_cache(maxsize=SHARED_PARTS_MAX)
def _intern_plain(
    state: WorkerState,
    epoch: int,
    granted_ms: int,
    profile: SharedProfile,
    status: WorkerStatus,
    resync: bool,  # a cache compares positions
    inactive_reason: InactiveReason | None,
    principal: str,
) -> SharedState:
    return SharedState(
        state, epoch, granted_ms, NO_BINDINGS, NO_BINDINGS, (), profile, status, "", resync, inactive_reason, "", NO_STANDING,
        principal,
    )  # fmt: skip


def shared_state(
    state: WorkerState,
    epoch: int,
    granted_ms: int,
    bindings: Mapping[ActivityId, BoundActivity],
    lost: Mapping[ActivityId, BoundActivity],
    superseded: tuple[str, ...],
    profile: SharedProfile,
    status: WorkerStatus,
    last_error: str,
    resync: bool,  # positions are those of the fields
    inactive_reason: InactiveReason | None,
    inactive_detail: str,
    standing: Standing,
    principal: str,
) -> SharedState:
    """Return the state; one copy of it if it is likely that many workers have the same."""
    if bindings or lost or superseded or last_error or inactive_detail or standing is not NO_STANDING:
        return SharedState(
            state, epoch, granted_ms, bindings, lost, superseded, profile, status, last_error, resync, inactive_reason,
            inactive_detail, standing, principal,
        )  # fmt: skip
    return _intern_plain(state, epoch, granted_ms, profile, status, resync, inactive_reason, principal)


class _Parts(NamedTuple):
    number: int
    """The sequence of the log row that registered it: short, unique in its shard, never reused."""
    sequence: int
    """Sequence number of the last applied heartbeat; 0 if it had none."""
    renewed_ms: int
    """When the last heartbeat was applied."""
    successes: int
    errors: int
    heartbeats: int
    """Heartbeats that were applied since registration. Each of them is one activation or renewal in the log, so the fold
    counts them and no event carries the number."""
    wall_offset_ms: int | None
    """Wall time minus observed time when the last heartbeat came. Many workers share one number, which a wall time of
    each would not allow. None for a row of a version that did not store it."""
    end_ms: int | None
    """INACTIVE: cleanup. CLEANED_UP: end of the tombstone, 0 for never. None if ACTIVE: the lease's end follows from the last
    heartbeat."""
    texts: str
    """The session id and what only this worker has of its profile, packed: a string of its own for each would take three times
    the memory."""
    shared: SharedState


def pack_texts(session_id: str, profile: Profile | tuple[Any, ...]) -> tuple[str, SharedProfile]:
    """`profile`: or its fields in order."""
    (identity, task_queue, build_id, sdk_name, sdk_version, host_name, process_id, start_time_ns, labels, capabilities,
     current_job) = profile  # fmt: skip
    start = "" if start_time_ns is None else start_time_ns
    texts = f"{len(session_id)},{len(identity)},{len(process_id)},{start}:{session_id}{identity}{process_id}{current_job}"
    return texts, _intern_profile(
        task_queue, build_id, sdk_name, sdk_version, host_name, labels, capabilities
    )


class Worker(_Parts):
    """A worker as a value, in two parts: its own, and one that it shares with others like it. There may be a million, and a
    heartbeat copies the first part only. Callers see one value with all fields."""

    __slots__ = ()

    def __new__(
        cls,
        *,
        number: int,
        state: WorkerState,
        session_id: str,
        sequence: int,
        epoch: int,
        granted_ms: int,
        renewed_ms: int,
        deadline_ms: int,
        bindings: Mapping[ActivityId, BoundActivity],
        lost: Mapping[ActivityId, BoundActivity],
        superseded: tuple[str, ...],
        profile: Profile,
        status: WorkerStatus,
        last_error: str,
        successes: int,
        errors: int,
        resync: bool,
        inactive_reason: InactiveReason | None,
        inactive_detail: str,
        standing: Standing = NO_STANDING,
        wall_offset_ms: int | None = None,
        principal: str = "",
        heartbeats: int = 0,
    ) -> Self:
        texts, shared_profile = pack_texts(session_id, profile)
        shared = shared_state(
            state, epoch, granted_ms, bindings, lost, superseded, shared_profile, status, last_error, resync, inactive_reason,
            inactive_detail, standing, principal,
        )  # fmt: skip
        end_ms = None if state is WorkerState.ACTIVE else deadline_ms
        return tuple.__new__(cls, (
            number, sequence, renewed_ms, successes, errors, heartbeats, wall_offset_ms, end_ms, texts, shared,
        ))  # fmt: skip

    def _replace(self, **changes: Any) -> Self:
        """`NamedTuple._replace` for the fields of the whole worker."""
        if changes.keys() & _TEXT_FIELDS:
            session_id = changes.pop("session_id", None)
            profile = changes.pop("profile", None)
            changes["texts"], shared_profile = pack_texts(
                self.session_id if session_id is None else session_id,
                self.profile if profile is None else profile,
            )
            changes["profile"] = shared_profile
        if shared_changes := {name: changes.pop(name) for name in changes.keys() & _SHARED_FIELDS}:
            changes["shared"] = shared_state(*self.shared._replace(**shared_changes))
        if "deadline_ms" in changes:
            changes["end_ms"] = changes.pop("deadline_ms")
        after = super()._replace(**changes)
        end_ms = None if after.shared.state is WorkerState.ACTIVE else after.deadline_ms
        return after if after.end_ms == end_ms else _Parts._replace(after, end_ms=end_ms)

    def __repr__(self) -> str:
        return f"Worker({', '.join(f'{name}={getattr(self, name)!r}' for name in WORKER_FIELDS)})"

    @property
    def session_id(self) -> str:
        """Empty for a client that sends none."""
        head, _, rest = self.texts.partition(":")
        return rest[: int(head.partition(",")[0])]

    @property
    def profile(self) -> Profile:
        head, _, rest = self.texts.partition(":")
        session, identity, process, start = head.split(",")
        from_ = int(session)
        until = from_ + int(identity)
        to = until + int(process)
        shared = self.shared.profile
        return Profile(
            rest[from_:until], shared.task_queue, shared.build_id, shared.sdk_name, shared.sdk_version, shared.host_name,
            rest[until:to], int(start) if start else None, shared.labels, shared.capabilities, rest[to:],
        )  # fmt: skip

    @property
    def deadline_ms(self) -> int:
        """ACTIVE: end of the lease. INACTIVE: cleanup. CLEANED_UP: end of the tombstone, 0 for never."""
        return self.renewed_ms + self.shared.granted_ms if self.end_ms is None else self.end_ms

    @property
    def renewed_wall_ms(self) -> int | None:
        """When the last heartbeat came, for people."""
        return None if self.wall_offset_ms is None else self.renewed_ms + self.wall_offset_ms

    @property
    def state(self) -> WorkerState:
        return self.shared.state

    @property
    def epoch(self) -> int:
        return self.shared.epoch

    @property
    def granted_ms(self) -> int:
        return self.shared.granted_ms

    @property
    def bindings(self) -> Mapping[ActivityId, BoundActivity]:
        return self.shared.bindings

    @property
    def lost(self) -> Mapping[ActivityId, BoundActivity]:
        return self.shared.lost

    @property
    def superseded(self) -> tuple[str, ...]:
        return self.shared.superseded

    @property
    def status(self) -> WorkerStatus:
        return self.shared.status

    @property
    def last_error(self) -> str:
        return self.shared.last_error

    @property
    def resync(self) -> bool:
        return self.shared.resync

    @property
    def inactive_reason(self) -> InactiveReason | None:
        return self.shared.inactive_reason

    @property
    def inactive_detail(self) -> str:
        return self.shared.inactive_detail

    @property
    def standing(self) -> Standing:
        return self.shared.standing

    @property
    def principal(self) -> str:
        return self.shared.principal


WORKER_FIELDS = tuple(inspect.signature(Worker).parameters)
_SHARED_FIELDS = frozenset(SharedState._fields)
_TEXT_FIELDS = frozenset(("session_id", "profile"))
