"""The worker as a value. Everything here is immutable; `evolve` makes the next value.

Times are milliseconds on the shard's observed clock unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from liveness.domain.component import NO_ORDERS, Component, OrderBook
from liveness.domain.keys import ActivityId
from liveness.domain.registry import Entry

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


class _SharedFields(NamedTuple):
    """The part of a profile that many workers have in common."""

    task_queue: str
    build_id: str
    sdk_name: str
    sdk_version: str
    host_name: str
    labels: tuple[tuple[str, str], ...]
    capabilities: tuple[str, ...]


SHARED_FIELDS_MAX = 16_384


@lru_cache(maxsize=SHARED_FIELDS_MAX)
def _intern_fields(common: _SharedFields) -> _SharedFields:
    """Keep one copy of equal values in memory."""
    return common


@lru_cache(maxsize=1_024)
def intern_ms(value: int) -> int:
    """Keep one copy of equal durations and offsets; a fleet has only a few different ones."""
    return value


class CompactProfile:
    """A profile in half the memory: the common fields are shared, the worker's own are packed into one string.

    Equal to the profile that it was made from.
    """

    __slots__ = ("_common", "_own")

    def __init__(self, profile: Profile) -> None:
        self._common, self._own = _split_profile(profile)

    @property
    def task_queue(self) -> str:
        return self._common.task_queue

    @property
    def build_id(self) -> str:
        return self._common.build_id

    @property
    def host_name(self) -> str:
        return self._common.host_name

    def expand(self) -> Profile:
        head, _, rest = self._own.partition(":")
        identity, process, start = head.split(",")
        until = int(identity)
        to = until + int(process)
        common = self._common
        return Profile(
            rest[:until], common.task_queue, common.build_id, common.sdk_name, common.sdk_version, common.host_name,
            rest[until:to], int(start) if start else None, common.labels, common.capabilities, rest[to:],
        )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        if isinstance(other, CompactProfile):
            return self._own == other._own and self._common == other._common
        if isinstance(other, Profile):
            return (self._common, self._own) == _split_profile(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.expand())

    def __repr__(self) -> str:
        return repr(self.expand())


def _split_profile(profile: Profile) -> tuple[_SharedFields, str]:
    (identity, task_queue, build_id, sdk_name, sdk_version, host_name, process_id, start_time_ns, labels, capabilities,
     current_job) = profile  # fmt: skip
    start = "" if start_time_ns is None else start_time_ns
    own = f"{len(identity)},{len(process_id)},{start}:{identity}{process_id}{current_job}"
    return _intern_fields(
        _SharedFields(task_queue, build_id, sdk_name, sdk_version, host_name, labels, capabilities)
    ), own


def compact_profile(profile: Profile | CompactProfile) -> Profile | CompactProfile:
    if isinstance(profile, CompactProfile):
        return profile
    return NO_PROFILE if profile == NO_PROFILE else CompactProfile(profile)


def full_profile(profile: Profile | CompactProfile) -> Profile:
    return profile.expand() if isinstance(profile, CompactProfile) else profile


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
    last_error_wall_ms: int = 0
    """When `Worker.last_error` was reported last; 0 if it never was, or to a version that did not store it. Outlives sessions
    and leases."""


NO_STANDING = Standing()


class Worker(NamedTuple):
    number: int
    """The sequence of the log row that registered it: short, unique in its shard, never reused."""
    state: WorkerState
    session_id: str
    """Empty for a client that sends none."""
    sequence: int
    """Sequence number of the last applied heartbeat; 0 if it had none."""
    epoch: int
    """The fencing token."""
    granted_ms: int
    renewed_ms: int
    """When the last heartbeat was applied."""
    deadline_ms: int
    """ACTIVE: end of the lease. INACTIVE: cleanup. CLEANED_UP: end of the tombstone, 0 for never."""
    bindings: Mapping[ActivityId, BoundActivity]
    lost: Mapping[ActivityId, BoundActivity]
    """Activities taken from this worker that it has not unbound yet: replies ask it to cancel them."""
    superseded: tuple[str, ...]
    """Replaced sessions, oldest first."""
    profile: Profile | CompactProfile
    status: WorkerStatus
    last_error: str
    successes: int
    errors: int
    resync: bool
    """The server may not know the whole set of the worker's bindings; replies ask for it."""
    inactive_reason: InactiveReason | None
    inactive_detail: str
    standing: Standing = NO_STANDING
    wall_offset_ms: int | None = None
    """Wall time minus observed time when the last heartbeat came. Many workers share one number, which a wall time of
    each would not allow. None for a row of a version that did not store it."""
    principal: str = ""
    """Who registered the key. Others are refused; empty if callers were not asked."""
    heartbeats: int = 0
    """Heartbeats that were applied since registration. Each of them is one activation or renewal in the log, so the fold
    counts them and no event carries the number."""

    @property
    def renewed_wall_ms(self) -> int | None:
        """When the last heartbeat came, for people."""
        return None if self.wall_offset_ms is None else self.renewed_ms + self.wall_offset_ms
