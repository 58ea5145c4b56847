"""The notes of a worker process about its own actions, line by line in a file that outlives it."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any


class Action(StrEnum):
    RUNNING = "running"
    """Registered, and about to take work."""
    STARTED = "started"
    FINISHED = "finished"
    """The body has succeeded; its outcome is on its way."""
    LOST = "lost"
    """The SDK has reported that the attempt is lost."""
    STOPPED = "stopped"
    """The body has ended because of the loss."""
    HANDED_BACK = "handed back"
    """The body was told to end because the worker stops."""
    REFUSED = "refused"
    """A completion that was reported in spite of the loss, and rejected."""
    ACCEPTED = "accepted"
    """The same, but accepted: the worker had given up before the server handed the attempt to another."""
    COUNTED = "counted"
    """The SDK's own count of completed, lost and released attempts."""
    ENDED = "ended"
    """By itself; the text names the error, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    action: Action
    at: float
    """On the machine's monotonic clock, which all its processes share."""
    worker: str
    activity: str = ""
    attempt: int = 0
    epoch: int = 0
    text: str = ""
    completed: int = 0
    lost: int = 0
    released: int = 0


class NoteWriter:
    """Writes the notes of one process, from any of its threads. Each note is one write, so `kill -9` loses none."""

    def __init__(self, path: Path, worker: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._worker = worker

    def add(self, action: Action, **fields: Any) -> None:
        note = Note(action=action, at=time.monotonic(), worker=self._worker, **fields)
        os.write(self._file, json.dumps(asdict(note)).encode() + b"\n")


def read_notes(path: Path) -> list[Note]:
    """Read the notes, except a last line that is incomplete."""
    if not path.exists():
        return []
    written = path.read_bytes().rpartition(b"\n")[0]
    return [_note(line) for line in written.splitlines()]


def _note(line: bytes) -> Note:
    fields = json.loads(line)
    return Note(**{**fields, "action": Action(fields["action"])})
