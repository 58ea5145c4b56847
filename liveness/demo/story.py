"""What happened, in plain words and with the time at which it did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from liveness.demo.cast import Cast
from liveness.demo.notes import Deed, Note
from liveness.demo.record import Happening


class Tone(StrEnum):
    QUIET = "quiet"
    BLOW = "blow"
    """Something was done to a worker."""
    NOTICED = "noticed"
    """The server has found out."""
    MOVED = "moved"
    REFUSED = "refused"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Line:
    at_ms: int
    """Since the demo began."""
    text: str
    tone: Tone

    @property
    def time(self) -> str:
        return f"{self.at_ms // 60_000}:{self.at_ms % 60_000 / 1_000:04.1f}"


class Story:
    """`tell` is called with each new line."""

    def __init__(self, cast: Cast, now_ms: Callable[[], int], tell: Callable[[Line], None]) -> None:
        self._cast = cast
        self._now_ms = now_ms
        self._began_ms = now_ms()
        self._tell = tell
        self._held: dict[str, set[str]] = {}
        """Who holds what, told by the same events: how much moves must be known when a lease ends, not after."""
        self.lines: list[Line] = []
        self.lapses_ms: dict[str, int] = {}
        """How long after the blow the lease of a worker ended."""
        self.moved = 0
        """Attempts that were taken from a worker whose lease had ended."""

    @property
    def elapsed_ms(self) -> int:
        return self._now_ms() - self._began_ms

    def add(self, text: str, tone: Tone = Tone.QUIET) -> None:
        line = Line(self.elapsed_ms, text, tone)
        self.lines.append(line)
        self._tell(line)

    def hear(self, happening: Happening) -> None:
        worker, held = happening.worker, self._held
        match happening.type:
            case "WorkerRegistered":
                self.add(f"{worker} is active")
            case "WorkerResurrected":
                self.add(f"{worker} starts over under a new lease, empty-handed")
            case "WorkerDeactivated":
                self._lapsed(worker, str(happening.data["reason"]))
            case "ActivityStarted":
                held.setdefault(worker, set()).add(happening.activity)
                if happening.data["attempt"] > 1:
                    self.add(
                        f"{happening.activity} goes on at {worker} (attempt {happening.data['attempt']})",
                        Tone.MOVED,
                    )
            case "ActivityCancelRequested":
                self.moved += 1
            case "ActivityCompleted" | "ActivityGivenBack" | "ActivityAttemptFailed":
                held.get(worker, set()).discard(happening.activity)
            case "ActivityFailed" | "ActivityQuarantined" | "ActivityCancelled":
                self.add(
                    f"{happening.activity} is {happening.type.removeprefix('Activity').upper()}", Tone.WRONG
                )

    def note(self, note: Note) -> None:
        match note.deed:
            case Deed.REFUSED:
                self.add(
                    f"zombie {note.worker} was refused for {note.activity}: {note.reason}",
                    Tone.REFUSED,
                )
            case Deed.ACCEPTED:
                self.add(f"{note.worker} completed {note.activity} after its lease was over", Tone.WRONG)

    def _lapsed(self, worker: str, reason: str) -> None:
        moving = len(self._held.pop(worker, set()))
        if reason == "SHUTDOWN":
            self.add(f"{worker} said goodbye")
            return
        actor = self._cast.workers.get(worker)
        after = ""
        if actor is not None and actor.struck_ms:
            self.lapses_ms[worker] = self._now_ms() - actor.struck_ms
            after = f" after {self.lapses_ms[worker] / 1_000:.1f} s"
        self.add(f"lease of {worker} lapsed{after}: {things(moving)} {verb(moving)}", Tone.NOTICED)


def things(count: int) -> str:
    return {0: "nothing", 1: "1 activity"}.get(count, f"{count} activities")


def verb(count: int) -> str:
    return "move" if count > 1 else "moves"


def names(parts: Sequence[str]) -> str:
    """block-07, block-09 and block-11"""
    return " and ".join([*([", ".join(parts[:-1])] if parts[:-1] else []), *parts[-1:]])
