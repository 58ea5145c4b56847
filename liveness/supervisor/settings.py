"""The settings of supervised groups. `settings_file` reads them from a TOML file or from flags, and says what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, NamedTuple

from liveness.config.settings import SettingsError
from liveness.domain.component import ProcessExit

PROCESSES_MAX = 10_000
SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS


class Health(StrEnum):
    """How a process tells that it is healthy."""

    AUTO = "auto"
    """The first way that it uses; until then, and without any, it is healthy as long as it runs."""
    PIPE = "pipe"
    """By lines on LIVENESS_HEALTH_FD, which must not stop."""
    NOTIFY = "notify"
    """By systemd's protocol: READY=1, and WATCHDOG=1 from its first time on."""
    PROCESS = "process"
    """Not at all: it is healthy as long as it runs."""


class ExitMeaning(StrEnum):
    """What a supervisor does about a process that ended by itself."""

    DONE = "done"
    """It has nothing left to do, and is not started again."""
    RESTART = "restart"
    """It crashed: it is started again after a delay, within the limits."""
    RESTART_NOW = "restart-now"
    """The same without the delay."""
    FAILED = "failed"
    """Another start would not help."""


@dataclass(frozen=True, slots=True)
class RestartSettings:
    min_delay_ms: int = SECOND_MS
    """Before the first restart; doubled with each further one."""
    max_delay_ms: int = 60 * SECOND_MS
    jitter: float = 0.1
    """By which part a delay may differ from the doubled one, so that processes which crashed together do not start
    together."""
    window_ms: int = 5 * MINUTE_MS
    window_limit: int = 5
    """How many restarts there may be within any time of `window_ms`; 0: none."""
    total_limit: int = 20
    """How many there may be in all until the counts are reset."""
    reset_after_ms: int = 5 * MINUTE_MS
    """After so much health without a break, earlier restarts are forgotten."""


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """One of `http`, `tcp` and `command` is set."""

    http: str = ""
    """A URL that must answer with a status from 200 to 399."""
    tcp: str = ""
    """HOST:PORT that must accept a connection."""
    command: tuple[str, ...] = ()
    """A program that must end with 0."""
    interval_ms: int = 10 * SECOND_MS
    timeout_ms: int = 3 * SECOND_MS
    failures: int = 3
    """After so many failures in a row it has failed."""
    successes: int = 1


@dataclass(frozen=True, slots=True)
class OutputSettings:
    directory: str = ""
    """Empty: a place that the supervisor chooses."""
    max_bytes: int = 10 * 1024 * 1024
    """A larger file is put aside."""
    files: int = 5
    """How many files are kept of each process, with the current one."""


DEFAULT_EXIT_CODES: Mapping[int | str, ExitMeaning] = {0: ExitMeaning.DONE}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    name: str
    command: tuple[str, ...]
    processes: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the supervisor's own."""
    directory: str = ""
    """Empty: the supervisor's own."""
    user: str | None = None
    task_queue: str = ""
    """Of the workers; becomes the group's name if it is empty."""
    build_id: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    lease_ms: int = 15 * SECOND_MS
    health: Health = Health.AUTO
    health_timeout_ms: int = 30 * SECOND_MS
    """A process that sent frames and has sent none for longer hangs."""
    start_timeout_ms: int = 30 * SECOND_MS
    """How long a process may take until it is ready."""
    ready_after_ms: int = SECOND_MS
    """A process that does not tell when it is ready is taken for ready when it has run so long."""
    stop_signal: str = "SIGTERM"
    stop_timeout_ms: int = 10 * SECOND_MS
    """A process that has not ended by then is killed."""
    pause_signal: str | None = None
    resume_signal: str | None = None
    restart: RestartSettings = RestartSettings()
    exit_codes: Mapping[int | str, ExitMeaning] = field(default_factory=lambda: DEFAULT_EXIT_CODES)
    """By exit code (0 to 255) or name of the signal that ended the process. All others mean `RESTART`."""
    readiness: CheckSettings | None = None
    """With it, a process is ready when the check has succeeded, whatever the process tells."""
    liveness: CheckSettings | None = None
    """A process whose check has failed hangs."""
    output: OutputSettings = OutputSettings()
    snapshot_interval_ms: int = 30 * SECOND_MS

    def __post_init__(self) -> None:
        if not self.task_queue:
            object.__setattr__(self, "task_queue", self.name)

    def meaning_of(self, ended: ProcessExit) -> ExitMeaning:
        if ended.signal:
            return self.exit_codes.get(ended.signal, ExitMeaning.RESTART)
        if ended.code is None:
            return ExitMeaning.RESTART
        return self.exit_codes.get(ended.code, ExitMeaning.RESTART)


@dataclass(frozen=True, slots=True)
class SupervisorSettings:
    groups: tuple[GroupSettings, ...]

    def __post_init__(self) -> None:
        names = [group.name for group in self.groups]
        for name in names:
            if names.count(name) > 1:
                raise SettingsError(f"there are two groups named {name}; rename one of them.")

    def group(self, name: str) -> GroupSettings | None:
        return next((group for group in self.groups if group.name == name), None)


class ReloadStep(StrEnum):
    """What a reload does to a group whose settings changed."""

    START = "start"
    STOP = "stop"
    LIMITS = "limits"
    """Only timers, limits, checks or output: running processes are not touched."""
    COUNT = "count"
    """Start the processes that are missing, or stop those with the highest numbers."""
    RESTART = "restart"
    """What a process is given when it starts has changed."""


class GroupChange(NamedTuple):
    name: str
    steps: tuple[ReloadStep, ...]
    """In the order in which to take them; empty if nothing changed."""
    changed: tuple[str, ...] = ()
    """The names of the settings that differ."""
    old: GroupSettings | None = None
    new: GroupSettings | None = None


GIVEN_AT_START = frozenset(
    ("command", "environment", "directory", "user", "task_queue", "build_id", "labels", "health")
)
"""Settings that a running process cannot take over."""


def differences(old: SupervisorSettings, new: SupervisorSettings) -> tuple[GroupChange, ...]:
    """Return one change per group of either: first those that go, then those of `new` in their order."""
    gone = [
        GroupChange(group.name, (ReloadStep.STOP,), old=group)
        for group in old.groups
        if new.group(group.name) is None
    ]
    return (*gone, *(_difference(old.group(group.name), group) for group in new.groups))


def _difference(old: GroupSettings | None, new: GroupSettings) -> GroupChange:
    if old is None:
        return GroupChange(new.name, (ReloadStep.START,), new=new)
    changed = {each.name for each in fields(new) if _value(old, each.name) != _value(new, each.name)}
    taken = {
        ReloadStep.LIMITS: changed - GIVEN_AT_START - {"processes"},
        ReloadStep.COUNT: changed & {"processes"},
        ReloadStep.RESTART: changed & GIVEN_AT_START,
    }
    steps = tuple(step for step, names in taken.items() if names)
    return GroupChange(new.name, steps, tuple(sorted(changed)), old, new)


def _value(group: GroupSettings, name: str) -> Any:
    return getattr(group, name)
