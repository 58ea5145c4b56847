"""What the state machine of a component asks its supervisor to do."""

from __future__ import annotations

from typing import NamedTuple

from liveness.domain.component import ComponentStatus, ProcessExit


class Moment(NamedTuple):
    """One reading of both clocks."""

    monotonic_ms: int
    """For timers."""
    wall_ms: int
    """For records."""


class Spawn(NamedTuple):
    """Start a process now. `spawned` or `spawn_failed` answers it."""


class Signal(NamedTuple):
    name: str
    whole_group: bool
    """To all processes of the process group, not only to the first."""


class Kill(NamedTuple):
    """SIGKILL to the whole process group."""


class SendControl(NamedTuple):
    """Write to the process's control pipe, if it still has one."""

    paused: bool


class Kept(NamedTuple):
    """What a component keeps when its process ends."""

    paused: bool
    wanted: bool
    restart_count: int
    restarts: tuple[int, ...]


class Report(NamedTuple):
    """The status changed, along one edge of LEGAL_CHANGES."""

    status: ComponentStatus
    reason: str
    by: str
    """The operator whose order it follows from; empty for the supervisor."""
    exit: ProcessExit | None
    """How the process ended, once, in the first report after it."""
    wall_ms: int
    process_id: int
    """0 without a process. A process that hangs is still there when CRASHED is reported."""
    process_start_ms: int
    kept: Kept


class Remember(NamedTuple):
    """What is kept changed without a change of status, for instance by a pause of a crashed component."""

    reason: str
    by: str
    wall_ms: int
    kept: Kept


Action = Spawn | Signal | Kill | SendControl | Report | Remember
