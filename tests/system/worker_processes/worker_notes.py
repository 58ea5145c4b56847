"""What a worker process notes down about its own doing, line by line in a file that outlives it."""

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
    """Registered, and about to take up work."""
    STARTED = "started"
    FINISHED = "finished"
    """The body has ended well; its outcome is on its way."""
    LOST = "lost"
    """The SDK has told that the attempt is lost."""
    STOPPED = "stopped"
    """The body has ended because of that."""
    HANDED_BACK = "handed back"
    """The body was told to end because the worker stops."""
    REFUSED = "refused"
    """A completion that was reported in spite of the loss, and turned away."""
    ACCEPTED = "accepted"
    """The same, and taken: the worker had given up before the server gave the attempt to somebody else."""
    COUNTED = "counted"
    """The SDK's own count of attempts that were completed, lost, and released so far."""
    ENDED = "ended"
    """By itself; the text says by which error, if any."""


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
    """Written by one process, from any of its threads. Each note is one write, so `kill -9` takes nothing back."""

    def __init__(self, path: Path, worker: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._worker = worker

    def add(self, action: Action, **fields: Any) -> None:
        note = Note(action=action, at=time.monotonic(), worker=self._worker, **fields)
        os.write(self._file, json.dumps(asdict(note)).encode() + b"\n")


def read_notes(path: Path) -> list[Note]:
    """Without a line that is being written, or was when its writer died."""
    if not path.exists():
        return []
    written = path.read_bytes().rpartition(b"\n")[0]
    return [_note(line) for line in written.splitlines()]


def _note(line: bytes) -> Note:
    fields = json.loads(line)
    return Note(**{**fields, "action": Action(fields["action"])})
