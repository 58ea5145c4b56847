"""When a crashed process is started again, and when no more.

A restart is one attempt to start a new process because the one before crashed: it ended with a code or signal that does not
mean done, it hung, or it could not be started. It counts from the moment of the attempt, whether the attempt succeeds or
not. The first start of a component does not count, nor do starts and restarts that an operator or a new configuration
ordered, nor the start after a supervisor itself was gone. An order to restart does not forget earlier restarts; an order to
reset does, and so does health that lasts.

At most `window_limit` restarts lie in any time of `window_ms`, its end not included. The decision falls when the process has
crashed, for the moment when the delay will be over. The attempt is made then or later, and in between nothing is added to
the history. So if the limit holds for the planned moment, it holds for the real one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from liveness.domain.component import RESTARTS_MAX, Component, ProcessExit
from liveness.supervisor.settings import ExitMeaning, GroupSettings, RestartSettings

_DOUBLINGS_MAX = 40


@dataclass(frozen=True, slots=True)
class RestartHistory:
    """The restarts of one component since the last reset. It belongs to the component, not to a process: pauses, and a new
    supervisor, continue it."""

    count: int = 0
    times_ms: tuple[int, ...] = ()
    """In wall time, oldest first, as many as a component may keep. No window allows more."""

    @classmethod
    def of_component(cls, component: Component, now_ms: int) -> RestartHistory:
        """Continue what the server knows. Times in the future come from a clock that was wrong; they count as now."""
        times = sorted(min(time_ms, now_ms) for time_ms in component.restarts)
        return cls(max(component.restart_count, len(times)), tuple(times[-RESTARTS_MAX:]))

    def restarted(self, now_ms: int) -> RestartHistory:
        return RestartHistory(self.count + 1, (*self.times_ms, now_ms)[-RESTARTS_MAX:])

    def shifted(self, by_ms: int) -> RestartHistory:
        """The same history after the wall clock was set by so much: a window is a length of time, not a pair of dates."""
        return RestartHistory(self.count, tuple(time_ms + by_ms for time_ms in self.times_ms))

    def within(self, window_ms: int, end_ms: int) -> int:
        """Count the restarts that share a time of `window_ms` with one at `end_ms`."""
        return sum(time_ms > end_ms - window_ms for time_ms in self.times_ms)


NO_RESTARTS = RestartHistory()


class Restart(NamedTuple):
    delay_ms: int


class GiveUp(NamedTuple):
    reason: str


class Done(NamedTuple):
    reason: str


def next_step(
    history: RestartHistory, settings: GroupSettings, ended: ProcessExit | None, now_ms: int, jitter: float
) -> Restart | GiveUp | Done:
    """What follows after a process ended. `ended` is None if how it ended means nothing: it hung and was killed, or never
    started. `jitter`: from 0 to 1."""
    meaning = ExitMeaning.RESTART if ended is None else settings.meaning_of(ended)
    if meaning is ExitMeaning.DONE:
        return Done(str(ended))
    if meaning is ExitMeaning.FAILED:
        return GiveUp(f"{ended} means failed")
    limits = settings.restart
    if history.count >= limits.total_limit:
        return GiveUp(f"restarted {_times(history.count)}, and the limit is {limits.total_limit} in all")
    delay_ms = 0 if meaning is ExitMeaning.RESTART_NOW else delay(history.count, limits, jitter)
    recent = history.within(limits.window_ms, now_ms + delay_ms)
    if recent >= limits.window_limit:
        window = f"{limits.window_ms / 1_000:g} s"
        return GiveUp(f"restarted {_times(recent)} within {window}, and the limit is {limits.window_limit}")
    return Restart(delay_ms)


def delay(restarts: int, limits: RestartSettings, jitter: float) -> int:
    """Return a time around `min_delay_ms` doubled `restarts` times. Jitter takes it out of neither bound, and spreads also
    what lies at a bound."""
    base_ms = min(limits.min_delay_ms << min(restarts, _DOUBLINGS_MAX), limits.max_delay_ms)
    low_ms = max(base_ms * (1 - limits.jitter), limits.min_delay_ms)
    high_ms = min(base_ms * (1 + limits.jitter), limits.max_delay_ms)
    return round(low_ms + (high_ms - low_ms) * jitter)


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")
