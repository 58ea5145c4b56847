"""A machine with a clock, for examples, and the steps that many of them begin with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from liveness.domain.component import Component, ComponentStatus, ProcessExit
from liveness.supervisor.actions import Action, Moment, Report, Signal
from liveness.supervisor.settings import ExitMeaning, GroupSettings, Health
from liveness.supervisor.state_machine import ComponentMachine

WALL_MS = 1_700_000_000_000
GROUP = GroupSettings(name="g", command=("run",), health=Health.PIPE)
TERM = Signal("SIGTERM", whole_group=False)
TERM_ALL = Signal("SIGTERM", whole_group=True)
CRASH = ProcessExit(1)

Step = tuple[Any, ...]


class Life:
    """A machine with a clock. A step is the name of an input with its values; a number lets so many seconds pass."""

    def __init__(self, settings: GroupSettings = GROUP, component: Component | None = None) -> None:
        self.machine = ComponentMachine(settings, lambda: 0.0)
        self.now = Moment(0, WALL_MS)
        self.edges: list[tuple[ComponentStatus | None, ComponentStatus]] = []
        self._status = component.status if component else None
        if component is not None:
            self.machine.resume_from(component, self.now)

    def go(self, *steps: str | float | Step) -> list[Action]:
        """Return the actions of the last step."""
        actions: list[Action] = []
        for step in steps:
            if isinstance(step, int | float):
                actions = self.wait(step)
                continue
            name, *values = (step,) if isinstance(step, str) else step
            if name == "spawned":
                values = [7, WALL_MS]
            actions = self._take(getattr(self.machine, name)(self.now, *values))
        return actions

    def wait(self, seconds: float) -> list[Action]:
        """Tick whenever the machine wants it."""
        end_ms = self.now.monotonic_ms + round(seconds * 1_000)
        actions: list[Action] = []
        while (at_ms := self.machine.next_tick_ms) is not None and at_ms <= end_ms:
            self._advance(at_ms)
            actions += self._take(self.machine.tick(self.now))
        self._advance(end_ms)
        return actions

    def _advance(self, monotonic_ms: int) -> None:
        self.now = Moment(monotonic_ms, self.now.wall_ms + monotonic_ms - self.now.monotonic_ms)

    def _take(self, actions: list[Action]) -> list[Action]:
        for action in actions:
            if isinstance(action, Report):
                self.edges.append((self._status, action.status))
                self._status = action.status
        return actions


def short(actions: list[Action]) -> list[object]:
    """Reports by their status."""
    return [action.status.name if isinstance(action, Report) else action for action in actions]


UP = ("start", "spawned", "ready")
EXIT = ("exited", CRASH)
DONE = ("exited", ProcessExit(0))
FAILED = (*UP, ("exited", ProcessExit(3)))
WITH_FAILED = replace(GROUP, exit_codes={0: ExitMeaning.DONE, 3: ExitMeaning.FAILED})
