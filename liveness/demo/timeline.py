"""The events of the demo as sentences, with their times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from liveness.demo.notes import Note, NoteKind
from liveness.demo.processes import DemoProcesses
from liveness.demo.server_client import ServerEvent


class EntryKind(StrEnum):
    INFO = "info"
    FAULT = "fault"
    """The demo killed, froze or continued a worker."""
    DETECTED = "detected"
    """The server ended the lease of a worker."""
    MOVED = "moved"
    REFUSED = "refused"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    at_ms: int
    """Milliseconds since the demo began."""
    text: str
    kind: EntryKind

    @property
    def time(self) -> str:
        return f"{self.at_ms // 60_000}:{self.at_ms % 60_000 / 1_000:04.1f}"


class Timeline:
    def __init__(
        self, processes: DemoProcesses, now_ms: Callable[[], int], on_entry: Callable[[TimelineEntry], None]
    ) -> None:
        """`on_entry` is called with each new entry."""
        self._processes = processes
        self._now_ms = now_ms
        self._began_ms = now_ms()
        self._on_entry = on_entry
        self._held: dict[str, set[str]] = {}
        """The activities that each worker holds, by the same events: the entry for an ended lease names how many move."""
        self.lines: list[TimelineEntry] = []
        self.detection_ms: dict[str, int] = {}
        """By worker: time from the fault until its lease ended."""
        self.moved = 0
        """Attempts that the server took from a worker whose lease had ended."""

    @property
    def elapsed_ms(self) -> int:
        return self._now_ms() - self._began_ms

    def add(self, text: str, kind: EntryKind = EntryKind.INFO) -> None:
        line = TimelineEntry(self.elapsed_ms, text, kind)
        self.lines.append(line)
        self._on_entry(line)

    def add_event(self, event: ServerEvent) -> None:
        worker, held = event.worker, self._held
        match event.type:
            case "WorkerRegistered":
                self.add(f"{worker} is active")
            case "WorkerResurrected":
                self.add(f"{worker} registers again under a new lease and holds nothing")
            case "WorkerDeactivated":
                self._on_lease_ended(worker, str(event.data["reason"]))
            case "ActivityStarted":
                held.setdefault(worker, set()).add(event.activity)
                if event.data["attempt"] > 1:
                    self.add(
                        f"{event.activity} goes on at {worker} (attempt {event.data['attempt']})",
                        EntryKind.MOVED,
                    )
            case "ActivityCancelRequested":
                self.moved += 1
            case "ActivityCompleted" | "ActivityGivenBack" | "ActivityAttemptFailed":
                held.get(worker, set()).discard(event.activity)
            case "ActivityFailed" | "ActivityQuarantined" | "ActivityCancelled":
                self.add(
                    f"{event.activity} is {event.type.removeprefix('Activity').upper()}", EntryKind.ERROR
                )

    def add_note(self, note: Note) -> None:
        match note.kind:
            case NoteKind.REFUSED:
                self.add(
                    f"zombie {note.worker} was refused for {note.activity}: {note.reason}",
                    EntryKind.REFUSED,
                )
            case NoteKind.ACCEPTED:
                self.add(
                    f"{note.worker} completed {note.activity} after its lease had ended", EntryKind.ERROR
                )

    def _on_lease_ended(self, worker: str, reason: str) -> None:
        moving = len(self._held.pop(worker, set()))
        if reason == "SHUTDOWN":
            self.add(f"{worker} shut down")
            return
        child = self._processes.workers.get(worker)
        after = ""
        if child is not None and child.fault_ms:
            self.detection_ms[worker] = self._now_ms() - child.fault_ms
            after = f" after {self.detection_ms[worker] / 1_000:.1f} s"
        self.add(
            f"lease of {worker} lapsed{after}: {activity_count_text(moving)} {move_verb(moving)}",
            EntryKind.DETECTED,
        )


def activity_count_text(count: int) -> str:
    return {0: "nothing", 1: "1 activity"}.get(count, f"{count} activities")


def move_verb(count: int) -> str:
    return "move" if count > 1 else "moves"


def join_names(parts: Sequence[str]) -> str:
    """block-07, block-09 and block-11"""
    return " and ".join([*([", ".join(parts[:-1])] if parts[:-1] else []), *parts[-1:]])
