"""What a worker process notes down about its own doing, line by line in a file: the ledger outside the server."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO


class NoteKind(StrEnum):
    STARTED = "started"
    FINISHED = "finished"
    """Done, and handed to the SDK to be reported."""
    REFUSED = "refused"
    """Reported after the lease was over, and turned away."""
    ACCEPTED = "accepted"
    """The same, and taken: that must not be."""
    ACKNOWLEDGED = "acknowledged"
    """How many completions the server has acknowledged to this process so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    deed: NoteKind
    worker: str
    activity: str = ""
    attempt: int = 0
    digest: str = ""
    reason: str = ""
    """Of a refusal, as the server gave it."""
    count: int = 0


class NoteWriter:
    """Written by one process. Each line reaches the file at once, so that `kill -9` takes nothing back."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.open("ab", buffering=0)

    def add(self, note: Note) -> None:
        self._file.write(json.dumps(asdict(note)).encode() + b"\n")


class NoteReader:
    """Reads on where it left off; a line that is being written is left for the next time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read_new(self) -> list[Note]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            written, end, _ = file.read().rpartition(b"\n")
        self._offset += len(written) + len(end)
        return [_note(line) for line in written.splitlines()]


def _note(line: bytes) -> Note:
    fields = json.loads(line)
    return Note(**{**fields, "deed": NoteKind(fields["deed"])})
