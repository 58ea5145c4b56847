"""The state of one component and the steps that change it. `state_machine` says which input takes which steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum

from liveness.domain.component import ComponentStatus, ProcessExit
from liveness.supervisor.actions import (
    Action,
    Kept,
    Kill,
    Moment,
    Remember,
    Report,
    SendControl,
    Signal,
    Spawn,
)
from liveness.supervisor.process_watch import CLOSED_PIPE_MS, SIGNALS_THAT_FREEZE, ProcessWatch
from liveness.supervisor.restart_policy import NO_RESTARTS, Done, GiveUp, Restart, next_step
from liveness.supervisor.settings import GroupSettings, Health

CLOCK_STEP_MS = 1_000
"""A smaller change between the two clocks is drift; a larger one means that somebody set the wall clock."""
WELL = (ComponentStatus.HEALTHY, ComponentStatus.PAUSED)
NOBODY = ("", "")


class Process(Enum):
    NONE = 0
    ASKED = 1
    """`Spawn` was returned and is not answered yet."""
    RUNNING = 2
    """The component is STARTING, HEALTHY or PAUSED."""
    ENDING = 3
    """It got the stop signal. The component is STOPPING, or CRASHED if it hung."""
    KILLED = 4
    """The same after SIGKILL."""


class ComponentSteps:
    def __init__(self, settings: GroupSettings, jitter: Callable[[], float]) -> None:
        """`jitter` returns numbers from 0 to 1, such as `random.random`."""
        self.settings = settings
        """May be replaced at any time: timers and limits apply at once, the rest to the next process."""
        self.status: ComponentStatus | None = None
        self.paused = False
        self.wanted = True
        self.history = NO_RESTARTS
        self.process_id = 0
        self.process_start_ms = 0
        self.unclean = False
        """The last process had to be killed, or did not end well when it was asked to."""
        self.is_shutting_down = False

        self._jitter = jitter
        self._process = Process.NONE
        self._watch = ProcessWatch()
        self._restart_at_ms: int | None = None
        """When the delay after a crash is over."""
        self._end_since_ms = 0
        """When the process got the stop signal."""
        self._restart_ordered = False
        """To be carried out when `Spawn` is answered, or when the hanging process has ended."""
        self._exit: ProcessExit | None = None
        """Not reported yet."""
        self._cause = NOBODY
        """By whom and why the next changes of status are, if an order led to them."""

        self._now = Moment(0, 0)
        self._clock_difference_ms: int | None = None
        self._actions: list[Action] = []
        self._told = self._to_tell
        self._remark = NOBODY
        """By whom and why the current input changes what is kept."""

    # -- what a supervisor wants to know

    @property
    def has_process(self) -> bool:
        """Also true while it is unknown whether `Spawn` succeeds."""
        return self._process is not Process.NONE

    @property
    def is_asked(self) -> bool:
        """Whether a process was asked for and is not there yet, so that the status is still the one from before."""
        return self._process is Process.ASKED

    def listens(self, way: Health) -> bool:
        """Whether what the process tells this way says something about its health."""
        return self._watch.listens(self.settings, way)

    @property
    def is_at_rest(self) -> bool:
        """No process, and none to come without an order."""
        return not self.has_process and self._restart_at_ms is None

    @property
    def next_tick_ms(self) -> int | None:
        """When to call `tick`, in monotonic time. None: not before the next other input."""
        return min((at_ms for at_ms, _ in self._deadlines()), default=None)

    @property
    def kept(self) -> Kept:
        return Kept(self.paused, self.wanted, self.history.count, self.history.times_ms)

    def _order(self, by: str, reason: str) -> None:
        self._cause = self._remark = (by, reason)

    def _order_start(self, by: str, reason: str) -> None:
        if self.is_at_rest:
            self.wanted = True
            self._spawn(by, reason)
        elif not self.wanted:
            # A process is still about to stop, or about to start. What follows it depends on `wanted`.
            self.wanted = True
            self._order(by, reason)

    def _set_paused(self, paused: bool, by: str, reason: str) -> None:
        if self.is_shutting_down or self.paused == paused:
            return
        self.paused = paused
        self._remark = (by, reason)
        if self._process is not Process.RUNNING:
            return
        self._actions.append(SendControl(paused))
        if self.status in WELL:
            self._report(ComponentStatus.PAUSED if paused else ComponentStatus.HEALTHY, reason, by)
            self._signal_paused()
            self._watch = self._watch._replace(heard_ms=self._now.monotonic_ms)  # frozen ones could not write

    # -- steps

    def _begin(self, now: Moment) -> None:
        self._now = now
        self._remark = NOBODY
        difference_ms = now.wall_ms - now.monotonic_ms
        if self._clock_difference_ms is None:
            self._clock_difference_ms = difference_ms
        elif abs(step_ms := difference_ms - self._clock_difference_ms) >= CLOCK_STEP_MS:
            self.history = self.history.shifted(step_ms)
            self._clock_difference_ms = difference_ms
        # Before the input, because a crash after enough health counts as the first.
        if (at_ms := self._forget_at_ms) is not None and at_ms <= now.monotonic_ms:
            self._forget()

    def _end(self) -> list[Action]:
        # While `Spawn` is not answered nothing is told, because a report follows that tells it all.
        if self._process is not Process.ASKED and self._to_tell != self._told:
            by, reason = self._remark
            self._actions.append(Remember(reason, by, self._now.wall_ms, self.kept))
            self._told = self._to_tell
        actions, self._actions = self._actions, []
        return actions

    @property
    def _to_tell(self) -> tuple[bool, bool, int]:
        return self.paused, self.wanted, self.history.count

    def _report(self, status: ComponentStatus, reason: str, by: str = "") -> None:
        self.status = status
        process = (self.process_id, self.process_start_ms)
        self._actions.append(
            Report(status, reason, by, self._exit, self._now.wall_ms, *process, kept=self.kept)
        )
        self._exit = None
        self._told = self._to_tell

    def _report_start(self) -> None:
        by, reason = self._cause
        was_crashed = self.status is ComponentStatus.CRASHED
        self._report(
            ComponentStatus.STARTING, reason or ("restarted after a crash" if was_crashed else "started"), by
        )

    def _spawn(self, by: str = "", reason: str = "") -> None:
        self._restart_at_ms = None
        self._cause = (by, reason)
        self._process = Process.ASKED
        self._actions.append(Spawn())

    def _answer_spawn(self) -> None:
        if self._process is not Process.ASKED:
            raise ValueError("this is an answer to a Spawn, but there was none")
        self._process = Process.NONE

    def _become_ready(self, reason: str) -> None:
        if self.status is not ComponentStatus.STARTING or self._process is not Process.RUNNING:
            return
        self._watch = self._watch._replace(ready_ms=self._now.monotonic_ms)
        self._report(ComponentStatus.PAUSED if self.paused else ComponentStatus.HEALTHY, reason)
        if self.paused:
            self._signal_paused()  # not before, because a process without a handler would be ended by it

    def _signal_paused(self) -> None:
        name = self.settings.pause_signal if self.paused else self.settings.resume_signal
        if name is not None:
            self._actions.append(Signal(name, whole_group=False))

    @property
    def _is_frozen(self) -> bool:
        """It was stopped by a signal, so that it cannot tell its health."""
        return self.status is ComponentStatus.PAUSED and self.settings.pause_signal in SIGNALS_THAT_FREEZE

    def _stop_process(self) -> None:
        by, reason = self._cause
        frozen = self._is_frozen
        self._report(ComponentStatus.STOPPING, reason, by)
        self._ask_to_end(whole_group=False)
        if frozen:
            self._actions.append(Signal("SIGCONT", whole_group=True))

    def _hang(self, reason: str) -> None:
        self._report(ComponentStatus.CRASHED, reason)
        self._ask_to_end(whole_group=True)

    def _ask_to_end(self, *, whole_group: bool) -> None:
        self._process = Process.ENDING
        self._end_since_ms = self._now.monotonic_ms
        self._actions.append(Signal(self.settings.stop_signal, whole_group))

    def _kill(self) -> None:
        self._process = Process.KILLED
        self._actions.append(Kill())

    def _after_exit(self, ended: ProcessExit) -> None:
        """The process ended without being asked to."""
        step = next_step(self.history, self.settings, ended, self._now.wall_ms, self._jitter())
        if isinstance(step, Done):
            self._report(ComponentStatus.STOPPED, step.reason)
            return
        self._report(ComponentStatus.CRASHED, str(ended))
        self._follow(step)

    def _after_crash(self) -> None:
        """There is no process after a crash that no exit explains: it hung and was ended, or it was never there."""
        if self.is_shutting_down or not self.wanted:
            self._rest()
        elif self._restart_ordered:
            self._restart_ordered = False
            self._spawn(*self._cause)
        else:
            self._follow(next_step(self.history, self.settings, None, self._now.wall_ms, self._jitter()))

    def _follow(self, step: Restart | GiveUp | Done) -> None:
        match step:
            case Restart(delay_ms):
                self._restart_at_ms = self._now.monotonic_ms + delay_ms
                self._meet_deadlines()
            case GiveUp(reason):
                self._report(ComponentStatus.FAILED, reason)
            case Done(reason):
                self._report(ComponentStatus.STOPPED, reason)

    def _rest(self) -> None:
        """Come to rest without a process. What has failed stays so, unless it was ordered to stop."""
        self._restart_at_ms = None
        stays = ComponentStatus.FAILED if self.wanted else ComponentStatus.STOPPED
        if self.status not in (stays, ComponentStatus.STOPPED):
            by, reason = self._cause
            self._report(ComponentStatus.STOPPED, reason or "ordered to stop", by)

    # -- timers

    def _deadlines(self) -> Iterator[tuple[int, Callable[[], None]]]:
        """When something happens by itself, and what."""
        settings, watch = self.settings, self._watch
        if self._restart_at_ms is not None:
            yield self._restart_at_ms, self._restart_now
        if self._process is Process.ENDING:
            yield self._end_since_ms + settings.stop_timeout_ms, self._kill
        if self._process is not Process.RUNNING:
            return
        if watch.closed_ms is not None:
            yield watch.closed_ms + CLOSED_PIPE_MS, lambda: self._hang("closed its health pipe")
        if watch.ending_ms is not None:
            limit = f"said that it ends, and did not within {settings.stop_timeout_ms / 1_000:g} s"
            yield watch.ending_ms + settings.stop_timeout_ms, lambda: self._hang(limit)
        if self.status is ComponentStatus.STARTING:
            if (ready_ms := watch.ready_by_itself_ms(settings)) is not None:
                yield ready_ms, lambda: self._become_ready("runs")
            else:
                text = f"was not ready within {settings.start_timeout_ms / 1_000:g} s"
                yield watch.started_ms + settings.start_timeout_ms, lambda: self._hang(text)
        elif not self._is_frozen and (stale_ms := watch.stale_ms(settings)) is not None:
            text = f"told nothing for {settings.health_timeout_ms / 1_000:g} s"
            yield stale_ms, lambda: self._hang(text)
        if (forget_ms := self._forget_at_ms) is not None:
            yield forget_ms, self._forget

    def _meet_deadlines(self) -> None:
        """Do all that is due, the earliest first. Each takes its own deadline away, so this ends."""
        while due := min(self._deadlines(), key=lambda deadline: deadline[0], default=None):
            at_ms, do = due
            if at_ms > self._now.monotonic_ms:
                return
            do()

    def _restart_now(self) -> None:
        self.history = self.history.restarted(self._now.wall_ms)
        self._spawn()

    @property
    def _forget_at_ms(self) -> int | None:
        if self._process is not Process.RUNNING or self._watch.ready_ms is None or not self.history.count:
            return None
        return self._watch.ready_ms + self.settings.restart.reset_after_ms

    def _forget(self) -> None:
        self.history = NO_RESTARTS
        if self._remark == NOBODY:
            self._remark = ("", f"healthy for {self.settings.restart.reset_after_ms / 1_000:g} s")
