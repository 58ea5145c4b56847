"""The component: a process that a supervisor keeps running, as a part of its worker's state.

The component `worker:GROUP:INDEX` is the worker of the same key. Each process of it is one session of that worker. The
supervisor reports every change of status; this file says which changes are legal. The supervisor of a group is a worker
itself, `supervisor:GROUP`, whose state holds the orders that operators gave and it has not carried out yet.

All times are wall times, because people read them and the supervisor measures them by its own clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

ORDERS_MAX = 100
"""How many orders to one group may wait for its supervisor."""
RESTARTS_MAX = 100
"""How many restarts a component remembers with their times."""
LAST_LINES_MAX = 20
LINE_CHARS_MAX = 400
DETAILS_BYTES_MAX = 4_096

COMPONENT_PREFIX = "worker:"
SUPERVISOR_PREFIX = "supervisor:"
GROUP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_COMPONENT_ID = re.compile(rf"worker:({GROUP_NAME.pattern}):(0|[1-9][0-9]{{0,5}})")


class ComponentStatus(IntEnum):
    STARTING = 1
    """The process was started and has not said yet that it is ready."""
    HEALTHY = 2
    PAUSED = 3
    """It finishes its current job and takes no other."""
    STOPPING = 4
    STOPPED = 5
    CRASHED = 6
    """The process ended or hung; it is started again, unless it was too often."""
    FAILED = 7
    """It crashed too often, and is left alone until somebody starts it."""


class OrderAction(IntEnum):
    RESTART = 1
    """Stop and start at once, all components of the order together."""
    ROLLING_RESTART = 2
    """The same one after the other; the next waits until the one before is healthy."""
    STOP = 3
    START = 4
    PAUSE = 5
    RESUME = 6
    RESET = 7
    """Forget earlier restarts, and start what has failed."""
    SCALE = 8
    """Run another number of processes."""


STATUSES_WITH_PROCESS = frozenset(
    (ComponentStatus.STARTING, ComponentStatus.HEALTHY, ComponentStatus.PAUSED, ComponentStatus.STOPPING)
)

LEGAL_CHANGES: Mapping[ComponentStatus | None, frozenset[ComponentStatus]] = {
    before: frozenset(after)
    for before, after in {
        None: (ComponentStatus.STARTING, ComponentStatus.STOPPED),
        ComponentStatus.STARTING: (
            ComponentStatus.HEALTHY,
            ComponentStatus.PAUSED,
            ComponentStatus.STOPPING,
            ComponentStatus.STOPPED,
            ComponentStatus.CRASHED,
        ),
        ComponentStatus.HEALTHY: (
            ComponentStatus.PAUSED,
            ComponentStatus.STOPPING,
            ComponentStatus.STOPPED,
            ComponentStatus.CRASHED,
        ),
        ComponentStatus.PAUSED: (
            ComponentStatus.HEALTHY,
            ComponentStatus.STOPPING,
            ComponentStatus.STOPPED,
            ComponentStatus.CRASHED,
        ),
        ComponentStatus.STOPPING: (ComponentStatus.STOPPED, ComponentStatus.CRASHED),
        ComponentStatus.STOPPED: (ComponentStatus.STARTING,),
        ComponentStatus.CRASHED: (ComponentStatus.STARTING, ComponentStatus.FAILED, ComponentStatus.STOPPED),
        ComponentStatus.FAILED: (ComponentStatus.STARTING, ComponentStatus.STOPPED),
    }.items()
}
"""By the status before; None for a component that was never reported. A process may end by itself (STOPPED) from any status
that has one: an exit code can mean "done"."""


class ProcessExit(NamedTuple):
    """How a process ended."""

    code: int | None = None
    """None if a signal ended it, or if it was not seen to end."""
    signal: str = ""
    """Such as SIGKILL."""
    wall_ms: int = 0
    last_lines: tuple[str, ...] = ()
    """What it wrote last, to stdout or stderr."""

    def __str__(self) -> str:
        if self.signal:
            return f"killed by {self.signal}"
        return "ended" if self.code is None else f"exit code {self.code}"


class Component(NamedTuple):
    number: int
    """Rises by one with every reported change. A report that repeats a number changes nothing."""
    status: ComponentStatus
    since_ms: int
    session_id: str
    """The session of the process that was reported last."""
    reason: str = ""
    """Why it has this status."""
    by: str = ""
    """Who caused it: the operator that ordered it; empty for the supervisor."""
    process_id: int = 0
    """0 without a process."""
    process_start_ms: int = 0
    paused: bool = False
    """Whether it shall take no job, also after a restart."""
    wanted: bool = True
    """Whether a process shall run; False after an order to stop."""
    details: str = ""
    """A JSON object with what the process or its supervisor tell."""
    restart_count: int = 0
    restarts: tuple[int, ...] = ()
    """When it was restarted, as far as the limits count it. Oldest first."""
    created_ms: int = 0
    last_exit: ProcessExit | None = None

    @property
    def last_restart_ms(self) -> int:
        """0 if it never was."""
        return self.restarts[-1] if self.restarts else 0


class ComponentOrder(NamedTuple):
    """What an operator wants of a group. Kept until its supervisor has carried it out."""

    number: int
    action: OrderAction
    components: tuple[str, ...] = ()
    """Component ids; empty for the whole group."""
    processes: int = 0
    """SCALE: how many processes shall run."""
    reason: str = ""
    by: str = ""
    wall_ms: int = 0


class OrderBook(NamedTuple):
    """The orders to one group, kept by the worker that is its supervisor."""

    last_number: int = 0
    waiting: tuple[ComponentOrder, ...] = ()
    """Oldest first."""


NO_ORDERS = OrderBook()


def component_id(group: str, index: int) -> str:
    return f"{COMPONENT_PREFIX}{group}:{index}"


def supervisor_key(group: str) -> str:
    return f"{SUPERVISOR_PREFIX}{group}"


def group_of(id: str) -> str | None:
    """Return the group of a component id, or None if it is none."""
    matched = _COMPONENT_ID.fullmatch(id)
    return matched[1] if matched else None


def index_of(id: str) -> int | None:
    matched = _COMPONENT_ID.fullmatch(id)
    return int(matched[2]) if matched else None
