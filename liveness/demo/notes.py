"""The notes that a worker process writes about its own work, line by line in a file, independently of the server."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO


class NoteKind(StrEnum):
    STARTED = "started"
    FINISHED = "finished"
    """The work is done, and the SDK is about to report it."""
    REFUSED = "refused"
    """Reported after the lease had ended, and refused."""
    ACCEPTED = "accepted"
    """Reported after the lease had ended, and accepted: that must never happen."""
    ACKNOWLEDGED = "acknowledged"
    """The number of completions that the server has acknowledged to this process so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    kind: NoteKind
    worker: str
    activity: str = ""
    attempt: int = 0
    digest: str = ""
    reason: str = ""
    """The server's reason for a refusal."""
    count: int = 0


class NoteWriter:
    """Writes the notes of one process. Each line reaches the file at once, so that `kill -9` loses nothing."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.open("ab", buffering=0)

    def add(self, note: Note) -> None:
        self._file.write(json.dumps(asdict(note)).encode() + b"\n")


class NoteReader:
    """Reads the lines that were added since the last call. An incomplete last line is left for the next call."""

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
        return [_parse_note(line) for line in written.splitlines()]


def _parse_note(line: bytes) -> Note:
    fields = json.loads(line)
    return Note(**{**fields, "kind": NoteKind(fields["kind"])})
