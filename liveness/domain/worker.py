"""The worker as a value. Everything here is immutable; `evolve` makes the next value.

Times are milliseconds on the shard's observed clock unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from sys import intern
from types import MappingProxyType
from typing import NamedTuple

from liveness.domain.keys import ActivityId

SUPERSEDED_SESSIONS_MAX = 100
"""How many replaced sessions a worker remembers. A zombie older than that many restarts is taken for a new session."""

LOST_MAX = 1_000
"""How many activities a worker that unbinds none of them is asked to cancel: the newest, and those of its last lease
in any case."""


class WorkerState(IntEnum):
    ACTIVE = 1
    INACTIVE = 2
    CLEANED_UP = 3


class WorkerStatus(IntEnum):
    """What the worker says of itself; for people."""

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
        return ActivityId(self.workflow_id, self.run_id, self.activity_id)


class Profile(NamedTuple):
    """What a worker tells about itself. Decides nothing."""

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

    def sharing(self) -> Profile:
        """The same with one copy in memory of what many workers have in common."""
        return self._replace(
            task_queue=intern(self.task_queue),
            build_id=intern(self.build_id),
            sdk_name=intern(self.sdk_name),
            sdk_version=intern(self.sdk_version),
            host_name=intern(self.host_name),
        )


NO_PROFILE = Profile()

NO_BINDINGS: Mapping[ActivityId, BoundActivity] = MappingProxyType({})


NO_HANDED: Mapping[ActivityId, bool] = MappingProxyType({})


class Standing(NamedTuple):
    """What few workers have besides their lease. In a field of its own, so that the others share one value of it."""

    paused: bool = False
    draining: bool = False
    """Until a new session comes."""
    drain_deadline_ms: int = 0
    """When what is left is taken from it; 0 once that is over, or without a limit."""
    grace_ms: int = 0
    """Part of the lease's terms: how long the lease goes on after the worker's stream broke; 0 for as if it had not."""
    loop_lag_ms: int = 0
    handed: Mapping[ActivityId, bool] = NO_HANDED
    """Bindings that were made here, not by a heartbeat, and whether the worker is known to have heard of each."""


NO_STANDING = Standing()


class Worker(NamedTuple):
    number: int
    """Sequence of the log row that registered it: short, unique in its shard, never used again."""
    state: WorkerState
    session_id: str
    """Empty for a client that sends none."""
    sequence: int
    """Of the last applied heartbeat; 0 if it had none."""
    epoch: int
    """The fencing token."""
    granted_ms: int
    renewed_ms: int
    """When the last heartbeat was applied."""
    deadline_ms: int
    """ACTIVE: end of the lease. INACTIVE: cleanup. CLEANED_UP: end of the tombstone, 0 for never."""
    bindings: Mapping[ActivityId, BoundActivity]
    lost: Mapping[ActivityId, BoundActivity]
    """Taken from this worker and not yet unbound by it: its replies ask it to cancel these."""
    superseded: tuple[str, ...]
    """Replaced sessions, oldest first."""
    profile: Profile
    status: WorkerStatus
    last_error: str
    successes: int
    errors: int
    resync: bool
    """The client's whole set of bindings may not be known here."""
    inactive_reason: InactiveReason | None
    inactive_detail: str
    standing: Standing = NO_STANDING
