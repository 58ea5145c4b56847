"""What a component writes to stdout and stderr: kept in files that rotate by size, and its last lines in memory.

`OutputLog` outlives the single processes of a component. Writing must never stop a process: if a file cannot be written, the bytes
are counted and gone, and the pipe is read on. Lines of the file begin with the time and `o` or `e`.

A position is the number of bytes ever written to the log, as far as this object and the files that it found know.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from liveness.clock import Clock

logger = logging.getLogger("liveness.supervisor")

FILE_BYTES_MAX = 10 * 1024 * 1024
FILES_MAX = 5
TAIL_LINES_MAX = 200
TAIL_LINE_BYTES_MAX = 4_096
LINE_BYTES_MAX = 65_536
"""A line that has not ended after so many bytes is cut."""
READ_BYTES_MAX = 65_536


class LogSettings(NamedTuple):
    directory: Path
    file_bytes_max: int = FILE_BYTES_MAX
    files_max: int = FILES_MAX
    """The current file included."""
    has_prefix: bool = True
    """Whether each line begins with its time and stream."""


class LogPart(NamedTuple):
    data: bytes
    next_position: int
    """Where to read on."""
    skipped: int
    """How many bytes between the wanted position and the data are gone with their files."""


class OutputLog:
    def __init__(self, settings: LogSettings, group: str, index: int, clock: Clock) -> None:
        self.path = settings.directory / group / f"{index}.log"
        self.dropped_bytes = 0
        self._settings = settings
        self._clock = clock
        self._tail: deque[bytes] = deque(maxlen=TAIL_LINES_MAX)
        self._partial: dict[str, bytes] = {}
        """For each stream the line that has not ended."""
        self._descriptor = -1
        self._size = 0
        self._is_failing = False
        older = sum(_size_of(self._file(number)) for number in range(1, settings.files_max))
        self._base = older
        """The position where the current file begins."""
        self._size = _size_of(self.path)

    def change_settings(self, settings: LogSettings) -> None:
        """Of the next lines. Another directory counts for the next start of the supervisor: positions must stay good."""
        self._settings = settings._replace(directory=self._settings.directory)

    @property
    def end(self) -> int:
        """The position after the last byte."""
        return self._base + self._size

    def write(self, stream: str, data: bytes) -> None:
        """`stream`: "o" or "e"."""
        data = self._partial.pop(stream, b"") + data
        complete, newline, partial = data.rpartition(b"\n")
        if newline:
            self._write_lines(stream, complete)
        while len(partial) > LINE_BYTES_MAX:
            self._write_lines(stream, partial[:LINE_BYTES_MAX])
            partial = partial[LINE_BYTES_MAX:]
        if partial:
            self._partial[stream] = partial

    def end_lines(self) -> None:
        """Write what had no newline: the process has ended."""
        for stream, partial in sorted(self._partial.items()):
            self._write_lines(stream, partial)
        self._partial.clear()

    def tail(self, lines: int = TAIL_LINES_MAX) -> tuple[str, ...]:
        """Return the last lines without time and stream, an unfinished one included."""
        kept = [*self._tail, *(partial[:TAIL_LINE_BYTES_MAX] for partial in self._partial.values())]
        return tuple(line.decode(errors="replace") for line in kept[-lines:]) if lines > 0 else ()

    def read_after(self, position: int, bytes_max: int = READ_BYTES_MAX) -> LogPart:
        """Return what follows a position, also in files that were rotated. A position beyond the end means the end."""
        wanted = min(max(position, 0), self.end)
        files = [(self._base, self.path)]
        for number in range(1, self._settings.files_max):
            start = files[-1][0] - _size_of(self._file(number))
            if start == files[-1][0]:
                break
            files.append((start, self._file(number)))
        at = max(wanted, files[-1][0])
        for start, path in files:
            if at >= start:
                data = _read(path, at - start, bytes_max)
                return LogPart(data, at + len(data), at - wanted)
        return LogPart(b"", at, at - wanted)

    def read_lines(self, count: int, after: str) -> tuple[list[str], str]:
        """Return the last lines, or those after the position that an earlier answer ended at; and where this answer ends."""
        position = int(after) if after.isascii() and after.isdigit() else None
        start = self.end - READ_BYTES_MAX if position is None else position
        part = self.read_after(max(start, 0))
        lines = part.data.split(b"\n")[:-1]
        if position is None:
            if start > 0 and lines:
                del lines[0]  # its beginning was not read
            return _texts(lines[-count:]), str(part.next_position - _unfinished_bytes(part.data))
        first = part.next_position - len(part.data)
        lines = lines[:count]
        return _texts(lines), str(first + sum(len(line) + 1 for line in lines))

    def close(self) -> None:
        self.end_lines()
        self._close_file()

    def _write_lines(self, stream: str, lines: bytes) -> None:
        """`lines` has no newline at its end."""
        for line in lines.rsplit(b"\n", TAIL_LINES_MAX)[-TAIL_LINES_MAX:]:
            self._tail.append(line[:TAIL_LINE_BYTES_MAX])
        if self._settings.has_prefix:
            moment = datetime.fromtimestamp(self._clock.wall_ms() / 1_000, UTC)
            prefix = f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1_000:03}Z {stream} ".encode()
            lines = prefix + lines.replace(b"\n", b"\n" + prefix)
        self._store(lines + b"\n")

    def _store(self, data: bytes) -> None:
        try:
            if self._size and self._size + len(data) > self._settings.file_bytes_max:
                self._rotate()
            if self._descriptor < 0:
                self._open()
            while data:
                written = os.write(self._descriptor, data)
                self._size += written
                data = data[written:]
        except OSError as error:
            self.dropped_bytes += len(data)
            if not self._is_failing:
                self._is_failing = True
                logger.warning("the output of %s is not kept: %s", self.path, error)
            return
        if self._is_failing:
            self._is_failing = False
            logger.info("the output of %s is kept again; %s bytes are lost", self.path, self.dropped_bytes)

    def _open(self) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _rotate(self) -> None:
        self._close_file()
        for number in range(self._settings.files_max - 1, 0, -1):
            newer = self._file(number - 1)
            if newer.exists():
                newer.replace(self._file(number))
        if self._settings.files_max == 1:
            self.path.unlink(missing_ok=True)
        self._base += self._size
        self._size = 0

    def _close_file(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _file(self, number: int) -> Path:
        return self.path if number == 0 else self.path.with_name(f"{self.path.name}.{number}")


def _texts(lines: list[bytes]) -> list[str]:
    return [line[:TAIL_LINE_BYTES_MAX].decode(errors="replace") for line in lines]


def _unfinished_bytes(data: bytes) -> int:
    """How many bytes follow the last newline."""
    return len(data) - data.rfind(b"\n") - 1


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read(path: Path, start: int, bytes_max: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(bytes_max)
    except OSError:
        return b""
