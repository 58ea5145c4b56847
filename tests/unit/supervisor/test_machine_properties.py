"""The state machine of a component under random lives, compared with `component_story`."""

from __future__ import annotations

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from liveness.domain.component import LEGAL_CHANGES, Component, ComponentStatus, ProcessExit
from liveness.supervisor.actions import Action, Kill, Moment, Remember, Report, SendControl, Signal, Spawn
from liveness.supervisor.settings import ExitMeaning, GroupSettings, Health
from liveness.supervisor.state_machine import ComponentMachine
from tests.unit.supervisor.component_story import (
    WINDOW_MS,
    Ending,
    Fact,
    Told,
    breaks_a_limit,
    delay_ms,
    end_of,
)

NAMES: dict[type, str] = {
    Spawn: "spawn",
    Signal: "signal",
    Kill: "kill",
    SendControl: "control",
    Remember: "remember",
}
CODES: dict[int | str, ExitMeaning] = {0: ExitMeaning.DONE, 3: ExitMeaning.FAILED, 4: ExitMeaning.RESTART_NOW}
ORDERS = ("stop", "start_ordered", "restart", "pause", "resume", "reset")


class RandomLife(RuleBasedStateMachine):
    @initialize(health=st.sampled_from(Health), jitter=st.sampled_from([0.0, 0.3, 1.0]))
    def begin(self, health: Health, jitter: float) -> None:
        self.settings = GroupSettings(name="g", command=("run",), health=health, exit_codes=CODES)
        self.jitter = jitter
        self.machine = ComponentMachine(self.settings, lambda: jitter)
        self.now = Moment(0, 1_700_000_000_000)
        self.story: list[Fact] = []
        self.asked = self.alive = False
        self.clock_was_set = False
        self.reported: ComponentStatus | None = None
        self.kept = self.machine.kept
        self.ending = Ending([], "", Told())
        self.happens("start")

    def happens(self, name: str, value: object = None) -> list[Action]:
        machine, now = self.machine, self.now
        match name:
            case "frame":
                actions = machine.heard(now, str(value))
            case "watchdog":
                actions = machine.heard(now, by_pipe=False)
            case "closed":
                actions = machine.health_closed(now)
            case "spawned":
                self.asked, self.alive = False, True
                actions = machine.spawned(now, 7, now.wall_ms)
            case "spawn_failed":
                self.asked = False
                actions = machine.spawn_failed(now, "no such file")
            case "liveness_failed":
                actions = machine.liveness_failed(now, "check failed")
            case "exited":
                self.alive = False
                code = value if isinstance(value, int) else None
                actions = machine.exited(
                    now, ProcessExit(code, "" if code is not None else str(value), now.wall_ms)
                )
            case _:
                actions = getattr(machine, name)(now)
        self.story.append(Fact(now.monotonic_ms, name, value))
        self.ending = end_of(self.story, self.settings.health, self.jitter)
        self.obey(actions)
        return actions

    def obey(self, actions: list[Action]) -> None:
        followed = []
        for action in actions:
            if isinstance(action, Report):
                assert action.status in LEGAL_CHANGES[self.reported]
                self.reported = action.status
                followed.append(action.status.name)
            else:
                followed.append(NAMES[type(action)])
            if isinstance(action, Report | Remember):
                self.kept = action.kept
                self.clock_was_set = False
            if isinstance(action, Spawn):
                assert not self.asked, "two processes were asked for"
                assert not self.alive, "two processes at once"
                assert self.machine.wanted
                assert not self.machine.is_shutting_down
                self.asked = True
            if isinstance(action, Signal | Kill | SendControl):
                assert self.alive
        assert followed == self.ending.followed
        if isinstance(actions[-1] if actions else None, Kill):
            self.happens("exited", "SIGKILL")

    def pass_time(self, ms: int) -> None:
        self.now = Moment(self.now.monotonic_ms + ms, self.now.wall_ms + ms)

    def next_tick(self) -> bool:
        at_ms = self.machine.next_tick_ms
        if at_ms is not None:
            self.pass_time(max(0, at_ms - self.now.monotonic_ms))
            self.happens("tick")
        return at_ms is not None

    # -- what happens

    @precondition(lambda self: self.asked)
    @rule(succeeds=st.sampled_from([True, True, True, False]))
    def answer_spawn(self, succeeds: bool) -> None:
        self.happens("spawned" if succeeds else "spawn_failed")

    @precondition(lambda self: self.alive)
    @rule(value=st.sampled_from([0, 1, 3, 4, 255, "SIGKILL", "SIGTERM"]))
    def exit(self, value: int | str) -> None:
        self.happens("exited", value)

    @precondition(lambda self: self.alive)
    @rule(status=st.sampled_from(["starting", "healthy", "healthy", "paused", "stopping"]))
    def send_frame(self, status: str) -> None:
        self.happens("frame", status)

    @precondition(lambda self: self.alive)
    @rule(name=st.sampled_from(["ready", "ready", "watchdog", "closed", "liveness_failed"]))
    def tell(self, name: str) -> None:
        self.happens(name)

    @rule(name=st.sampled_from(ORDERS))
    def order(self, name: str) -> None:
        self.happens(name)

    @rule(first=st.sampled_from([*ORDERS, "liveness_failed"]), second=st.sampled_from(ORDERS))
    def order_while_the_last_order_is_carried_out(self, first: str, second: str) -> None:
        """Or while a process that hangs is ended."""
        for _ in range(3):
            if self.asked:
                self.happens("spawned")
            elif not self.alive:
                self.happens("restart")
        if self.alive:
            self.happens("ready")
            self.happens(first)
            self.happens(second)

    @rule(ms=st.sampled_from([1, 999, 1_000, 9_999, 29_000, 30_000, 61_000, 240_000, 300_000]))
    def wait_in_vain(self, ms: int) -> None:
        """A late tick."""
        self.pass_time(ms)
        self.happens("tick")

    @rule()
    def wait_for_the_next_timer(self) -> None:
        self.next_tick()

    @rule(crashes=st.integers(2, 24), life_ms=st.sampled_from([0, 5_000, 29_999, 59_000, 240_000, 299_999]))
    def crash_again_and_again(self, crashes: int, life_ms: int) -> None:
        for _ in range(crashes):
            if self.asked:
                self.happens("spawned")
                self.happens("ready")
            if self.alive:
                self.pass_time(life_ms)
                self.happens("exited", 1)
            if not self.asked:
                self.next_tick()

    @precondition(lambda self: self.alive and self.machine.history.count >= 5)
    @rule(early_ms=st.sampled_from([0, 1]))
    def crash_at_the_edge_of_the_window(self, early_ms: int) -> None:
        """So that the restart would come 5 minutes after the fifth last one, or a little earlier."""
        history = self.machine.history
        planned_ms = history.times_ms[-5] + WINDOW_MS - early_ms - delay_ms(history.count, self.jitter)
        if not self.clock_was_set and planned_ms >= self.now.wall_ms:
            self.pass_time(planned_ms - self.now.wall_ms)
            self.happens("exited", 1)

    @precondition(lambda self: self.alive)
    @rule(name=st.sampled_from(["frame", "watchdog"]), ms=st.sampled_from([29_999, 30_000]))
    def fall_silent(self, name: str, ms: int) -> None:
        self.happens("ready")
        self.happens(name, "healthy")
        self.pass_time(ms)
        self.happens("tick")

    @rule(step_ms=st.sampled_from([-3_600_000, -200_000, 200_000, 3_600_000]))
    def set_wall_clock(self, step_ms: int) -> None:
        self.now = Moment(self.now.monotonic_ms, self.now.wall_ms + step_ms)
        self.clock_was_set = True

    @precondition(lambda self: not self.clock_was_set)
    @rule(after_ms=st.sampled_from([0, 5_000, 100_000]))
    def supervisor_dies_and_another_begins(self, after_ms: int) -> None:
        """All that the next one has is what was reported."""
        self.pass_time(after_ms)
        self.asked = self.alive = False
        self.story.append(Fact(self.now.monotonic_ms, "died"))
        self.machine = ComponentMachine(self.settings, lambda: self.jitter)
        if self.reported is not None:
            paused, wanted, count, times = self.kept
            component = Component(
                1, self.reported, 0, "s", paused=paused, wanted=wanted, restart_count=count, restarts=times
            )
            self.machine.resume_from(component, self.now)
            assert self.machine.kept == self.kept
        self.happens("start")

    @precondition(lambda self: not self.clock_was_set)
    @rule()
    def shut_down(self) -> None:
        self.happens("shut_down")
        self.come_to_rest()
        assert self.reported in (ComponentStatus.STOPPED, ComponentStatus.FAILED, None)
        self.supervisor_dies_and_another_begins(0)

    def come_to_rest(self) -> None:
        """Let the process ignore signals; only a kill ends it."""
        for _ in range(5):
            if self.asked:
                self.happens("spawned")
            elif not self.machine.is_at_rest:
                self.next_tick()
        assert self.machine.is_at_rest

    # -- what is always true

    @invariant()
    def agrees_with_the_story(self) -> None:
        assert (self.reported.name if self.reported else "") == self.ending.status
        told = self.ending.told
        assert (self.kept.paused, self.kept.wanted, self.kept.restart_count) == (
            told.paused,
            told.wanted,
            len(told.restarts),
        )

    @invariant()
    def limits_hold(self) -> None:
        """For all restarts since the last reset. A clock that was set moves all of them."""
        history = self.machine.history
        assert not breaks_a_limit(list(history.times_ms))
        assert history.count == len(history.times_ms)

    @invariant()
    def delays_are_right(self) -> None:
        if self.ending.restart_ms is not None:
            assert self.machine.next_tick_ms == self.ending.restart_ms

    @invariant()
    def a_crash_leads_somewhere(self) -> None:
        if self.machine.status is ComponentStatus.CRASHED:
            assert self.machine.has_process or self.machine.next_tick_ms is not None

    def teardown(self) -> None:
        if hasattr(self, "machine"):
            self.happens("stop")
            self.come_to_rest()
            assert self.reported is ComponentStatus.STOPPED


def test_any_life_is_as_the_story_tells_it() -> None:
    limits = hypothesis_settings(max_examples=250, stateful_step_count=30, derandomize=True)
    run_state_machine_as_test(RandomLife, settings=limits)
