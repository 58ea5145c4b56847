"""A second telling of a component's life, for comparison: from all that ever happened to it, what must have followed.

It keeps no state between calls. It reads the whole story from its beginning, names each phase of life by a word, and finds
broken limits by looking at every window of time there is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

WINDOW_MS, WINDOW_LIMIT, TOTAL_LIMIT = 300_000, 5, 20
HEALTH_MS = 300_000


class Fact(NamedTuple):
    at_ms: int
    """Monotonic."""
    name: str
    value: Any = None


@dataclass
class Told:
    paused: bool = False
    wanted: bool = True
    restarts: list[int] = field(default_factory=list)

    def copy(self) -> Told:
        return Told(self.paused, self.wanted, list(self.restarts))

    def differs(self, other: Told) -> bool:
        return (self.paused, self.wanted, len(self.restarts)) != (
            other.paused,
            other.wanted,
            len(other.restarts),
        )


class Ending(NamedTuple):
    followed: list[str]
    """The actions that the last fact led to: names of statuses, and of others in small letters."""
    status: str
    told: Told
    restart_ms: int | None = None
    """When the delay after a crash is over."""


def breaks_a_limit(times_ms: list[int]) -> bool:
    crowded = any(
        len([time for time in times_ms if first <= time < first + WINDOW_MS]) > WINDOW_LIMIT
        for first in times_ms
    )
    return crowded or len(times_ms) > TOTAL_LIMIT


def delay_ms(restarts: int, jitter: float) -> int:
    seconds = [1, 2, 4, 8, 16, 32, 60][min(restarts, 6)]
    shortest, longest = max(seconds * 0.9, 1), min(seconds * 1.1, 60)
    return round(1_000 * (shortest + jitter * (longest - shortest)))


def end_of(story: list[Fact], health: str, jitter: float) -> Ending:
    phase, status = "rest", ""  # rest, asked, starting, up, stopping, hung, waiting
    now, told = Told(), Told()
    leaving = again = killed = False
    born = ready = fresh = since = wait_until = 0
    beat: int | None = None
    closed: int | None = None
    spoke = piped = False
    out: list[str] = []

    def say(new: str) -> None:
        nonlocal status, told
        out.append(new)
        status, told = new, now.copy()

    def ask() -> None:
        nonlocal phase
        out.append("spawn")
        phase = "asked"

    def settle() -> None:
        nonlocal phase
        phase = "rest"
        if status != "STOPPED" and not (status == "FAILED" and now.wanted):
            say("STOPPED")

    def crashed(at: int, wait: int | None) -> None:
        """`wait` None: by the rule."""
        nonlocal phase, wait_until, again
        if leaving or not now.wanted:
            settle()
        elif again:
            again = False
            ask()
        else:
            wait_until = at + (delay_ms(len(now.restarts), jitter) if wait is None else wait)
            if breaks_a_limit([*now.restarts, wait_until]):
                phase = "rest"
                say("FAILED")
            else:
                phase = "waiting"
                if wait_until == at:
                    go(at)

    def go(at: int) -> None:
        now.restarts.append(at)
        ask()

    def quit_process(at: int, new: str) -> None:
        nonlocal phase, since, killed
        say(new)
        out.append("signal")
        phase, since, killed = ("stopping" if new == "STOPPING" else "hung"), at, False

    def up(at: int) -> None:
        nonlocal phase, ready
        if phase == "starting":
            phase, ready = "up", at
            say("PAUSED" if now.paused else "HEALTHY")

    for at, name, value in story:
        out.clear()
        if phase == "up" and at - ready >= HEALTH_MS:
            now.restarts = []
        silent = health == "process" or (health == "auto" and not spoke)
        if name == "died":
            phase, leaving, again, now = "rest", False, False, told.copy()
        elif name == "start" and status == "CRASHED":
            crashed(at, None)
        elif name == "start" and status != "FAILED":
            if not now.wanted:
                settle()
            else:
                if status in ("STARTING", "HEALTHY", "PAUSED", "STOPPING"):
                    say("CRASHED")
                ask()
        elif name == "spawned":
            phase, born, beat, closed, spoke, piped = "starting", at, None, None, False, False
            say("STARTING")
            if leaving or again or not now.wanted:
                again = False
                quit_process(at, "STOPPING")
            elif now.paused:
                out.append("control")
        elif name == "spawn_failed":
            again = False
            if leaving or not now.wanted:
                settle()
            else:
                say("STARTING")
                say("CRASHED")
                crashed(at, None)
        elif name == "frame" and phase in ("starting", "up") and health in ("auto", "pipe"):
            spoke = piped = True
            beat = at
            if value in ("healthy", "paused"):
                up(at)
        elif name == "watchdog" and phase in ("starting", "up") and health in ("auto", "notify"):
            spoke, beat = True, at
        elif name == "ready":
            up(at)
        elif name == "closed" and phase in ("starting", "up") and closed is None:
            if health == "pipe" or (health == "auto" and piped):
                closed = at
        elif name == "liveness_failed" and phase == "up":
            quit_process(at, "CRASHED")
        elif name == "exited":
            if phase == "stopping":
                say("STOPPED")
                phase = "rest"
                if now.wanted and not leaving:
                    ask()
            elif phase == "hung":
                crashed(at, None)
            elif value == 0:
                phase = "rest"
                say("STOPPED")
            else:
                say("CRASHED")
                if value == 3:
                    phase = "rest"
                    say("FAILED")
                else:
                    crashed(at, 0 if value == 4 else None)
        elif name == "tick":
            if phase == "waiting" and at >= wait_until:
                go(at)
            elif phase in ("stopping", "hung") and not killed and at >= since + 10_000:
                killed = True
                out.append("kill")
            elif phase in ("starting", "up"):
                if phase == "starting" and silent and at >= born + 1_000:
                    up(at)
                late = phase == "starting" and not silent and at >= born + 30_000
                quiet = max(ready, beat or 0, fresh)
                stale = phase == "up" and (beat is not None or health == "pipe") and at >= quiet + 30_000
                if late or stale or (closed is not None and at >= closed + 1_000):
                    quit_process(at, "CRASHED")
        elif name == "shut_down" and not leaving:
            leaving = True
            if phase in ("starting", "up"):
                quit_process(at, "STOPPING")
            elif phase == "waiting":
                settle()
        elif leaving:
            pass
        elif name == "stop" and now.wanted:
            now.wanted = again = False
            if phase in ("starting", "up"):
                quit_process(at, "STOPPING")
            elif phase in ("rest", "waiting"):
                settle()
        elif name in ("start_ordered", "restart"):
            now.wanted = True
            if phase == "rest" or (phase == "waiting" and name == "restart"):
                ask()
            elif name == "restart" and phase in ("starting", "up"):
                quit_process(at, "STOPPING")
            elif name == "restart" and phase in ("asked", "hung"):
                again = True
        elif name in ("pause", "resume") and now.paused != (name == "pause"):
            now.paused = name == "pause"
            if phase in ("starting", "up"):
                out.append("control")
            if phase == "up":
                say("PAUSED" if now.paused else "HEALTHY")
                fresh = at  # a process that a signal froze could not tell
        elif name == "reset":
            now.restarts = []
            if status == "FAILED" and phase == "rest":
                ask()
        if phase != "asked" and now.differs(told):
            out.append("remember")
            told = now.copy()
    return Ending(out, status, told, wait_until if phase == "waiting" else None)
