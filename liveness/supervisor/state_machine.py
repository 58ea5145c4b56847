"""The life of one component: what happened to its process and what was ordered goes in, what to do about it comes out.

The machine does nothing itself and reads no clock. Each input returns the actions that follow, in order; afterwards
`next_tick_ms` says when it wants to be asked again. It has at most one process: after `Spawn` it waits for `spawned` or
`spawn_failed`, and after `spawned` for `exited`, before it asks for another.

A status that has a process is reported when the process is there. So between `Spawn` and its answer the component still has
the status from before; orders that arrive meanwhile are carried out after the answer.

A process that hangs is reported as CRASHED at once, so that its work moves on, and then ended. What follows, a restart or
FAILED, waits until it has ended.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from liveness.domain.component import STATUSES_WITH_PROCESS, Component, ComponentStatus, ProcessExit
from liveness.supervisor.actions import Action, Moment, SendControl
from liveness.supervisor.component_steps import NOBODY, WELL, ComponentSteps, Process
from liveness.supervisor.process_watch import ProcessWatch, is_clean_end, listens
from liveness.supervisor.restart_policy import NO_RESTARTS, RestartHistory

_Values = ParamSpec("_Values")


def _input(
    method: Callable[Concatenate[ComponentMachine, Moment, _Values], None],
) -> Callable[Concatenate[ComponentMachine, Moment, _Values], list[Action]]:
    """Turn a method that adds actions into one that returns them."""

    @wraps(method)
    def take(
        machine: ComponentMachine, now: Moment, /, *values: _Values.args, **named: _Values.kwargs
    ) -> list[Action]:
        machine._begin(now)
        method(machine, now, *values, **named)
        return machine._end()

    return take


class ComponentMachine(ComponentSteps):
    # -- the life of the process

    def resume_from(self, component: Component, now: Moment) -> None:
        """Continue what an earlier supervisor left, whose processes are gone. Call `start` next."""
        self.status = component.status
        self.paused, self.wanted = component.paused, component.wanted
        self.history = RestartHistory.of_component(component, now.wall_ms)
        self._told = self._to_tell

    @_input
    def start(self, now: Moment) -> None:
        """Begin. What was stopped by an order stays stopped, and what failed stays failed.

        Processes end with their supervisor. That is no fault of theirs, so it is reported, but not counted as a restart."""
        if self.has_process or self.status is ComponentStatus.FAILED:
            return
        if self.status is ComponentStatus.CRASHED:
            # The earlier supervisor saw the crash and has not come to the restart.
            self._after_crash()
            return
        had_process = self.status in STATUSES_WITH_PROCESS
        if not self.wanted:
            self._cause = ("", "its supervisor was gone") if had_process else NOBODY
            self._rest()
            return
        if had_process:
            self._report(ComponentStatus.CRASHED, "its supervisor was gone")
        self._spawn()

    @_input
    def spawned(self, now: Moment, process_id: int, process_start_ms: int) -> None:
        self._answer_spawn()
        self._process = Process.RUNNING
        self.process_id, self.process_start_ms = process_id, process_start_ms
        self.unclean = False
        self._watch = ProcessWatch(started_ms=now.monotonic_ms)
        self._report_start()
        if self.is_shutting_down or not self.wanted or self._restart_ordered:
            self._restart_ordered = False
            self._stop_process()
            return
        self._cause = NOBODY
        if self.paused:
            self._actions.append(SendControl(True))
        self._meet_deadlines()

    @_input
    def spawn_failed(self, now: Moment, text: str) -> None:
        self._answer_spawn()
        self._restart_ordered = False
        if self.is_shutting_down or not self.wanted:
            self._rest()
            return
        self._report_start()
        self._report(ComponentStatus.CRASHED, f"could not be started: {text}")
        self._after_crash()

    @_input
    def ready(self, now: Moment, *, by_check: bool = False) -> None:
        """The process told that it is ready, or its readiness check succeeded. With such a check, only that counts."""
        if by_check or self.settings.readiness is None:
            self._become_ready("ready")

    @_input
    def heard(self, now: Moment, status: str = "", *, regular: bool = True, by_pipe: bool = True) -> None:
        """The process sent a frame (`by_pipe`) or a notification. `regular`: such messages come again and again, and their end
        means that it hangs. Frames are regular, and so is WATCHDOG=1, but not READY=1 and STATUS=.

        A frame with the status "healthy" makes the process ready, and so does "paused": a process that was told of the pause
        before its first frame says nothing else. Others say only that it is alive. Whether it is paused or stopping is not for
        the process to say."""
        if self._process is not Process.RUNNING or not listens(self.settings, by_pipe=by_pipe):
            return
        self._watch = self._watch.heard(now.monotonic_ms, regular=regular, by_pipe=by_pipe)
        if status in ("healthy", "paused") and self.settings.readiness is None:
            self._become_ready("healthy")

    @_input
    def health_closed(self, now: Moment) -> None:
        """The process closed its health pipe. This is a crash if it used the pipe and does not end within a moment."""
        if (
            self._process is Process.RUNNING
            and self._watch.closed_ms is None
            and self._watch.must_keep_pipe(self.settings)
        ):
            self._watch = self._watch._replace(closed_ms=now.monotonic_ms)

    @_input
    def liveness_failed(self, now: Moment, reason: str) -> None:
        """Checks count from when the process is ready."""
        if self.status in WELL and self._process is Process.RUNNING and not self._is_frozen:
            self._hang(reason)

    @_input
    def exited(self, now: Moment, ended: ProcessExit) -> None:
        if self._process in (Process.NONE, Process.ASKED):
            return
        killed, asked_to_end = self._process is Process.KILLED, self._process is not Process.RUNNING
        self._process = Process.NONE
        self.process_id = self.process_start_ms = 0
        self._exit = ended
        if self.status is ComponentStatus.STOPPING:
            number = signal.Signals[self.settings.stop_signal].value
            self.unclean = killed or not is_clean_end(ended, self.settings, number)
            by, reason = self._cause
            self._report(ComponentStatus.STOPPED, reason, by)
            if self.wanted and not self.is_shutting_down:
                self._spawn(by, reason)
        elif asked_to_end:
            self.unclean = killed
            self._after_crash()
        else:
            self._after_exit(ended)

    @_input
    def tick(self, now: Moment) -> None:
        self._meet_deadlines()

    @_input
    def shut_down(self, now: Moment) -> None:
        """The supervisor ends: stop the process and start no other; the next supervisor will. Orders that come afterwards are
        for that one, and change nothing here."""
        if self.is_shutting_down:
            return
        self.is_shutting_down = True
        if self.wanted:
            self._order("", "its supervisor ends")
        if self._process is Process.RUNNING:
            self._stop_process()
        elif self.status is ComponentStatus.CRASHED and not self.has_process:
            self._rest()

    # -- orders

    @_input
    def stop(self, now: Moment, by: str = "", reason: str = "") -> None:
        if self.is_shutting_down or not self.wanted:
            return
        self.wanted = self._restart_ordered = False
        self._order(by, reason or "ordered to stop")
        if self._process is Process.RUNNING:
            self._stop_process()
        elif not self.has_process:
            self._rest()

    @_input
    def start_ordered(self, now: Moment, by: str = "", reason: str = "") -> None:
        if not self.is_shutting_down:
            self._order_start(by, reason or "ordered to start")

    @_input
    def restart(self, now: Moment, by: str = "", reason: str = "") -> None:
        """Replace the process, or start one, also if it had failed or was stopped by an order. This does not count as a
        restart, and forgets none."""
        reason = reason or "ordered to restart"
        if self.is_shutting_down:
            return
        if self._process is Process.RUNNING:
            self._order(by, reason)
            self._stop_process()
        elif self._restart_at_ms is not None:
            self._spawn(by, reason)
        elif self.has_process and self.status is not ComponentStatus.STOPPING:
            self.wanted = self._restart_ordered = True
            self._order(by, reason)
        else:
            self._order_start(by, reason)

    @_input
    def pause(self, now: Moment, by: str = "", reason: str = "") -> None:
        self._set_paused(True, by, reason or "ordered to pause")

    @_input
    def resume(self, now: Moment, by: str = "", reason: str = "") -> None:
        self._set_paused(False, by, reason or "ordered to resume")

    @_input
    def reset(self, now: Moment, by: str = "", reason: str = "") -> None:
        """Forget earlier restarts, and start what has failed."""
        if self.is_shutting_down:
            return
        self.history = NO_RESTARTS
        self._remark = (by, reason or "ordered to reset")
        if self.status is ComponentStatus.FAILED and not self.has_process:
            self._spawn(*self._remark)
