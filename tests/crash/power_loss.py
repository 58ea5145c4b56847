"""Simulate a power loss: take back all or some of the writes that a killed process had not synced."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

SOURCE = Path(__file__).with_name("power_loss.c")
_RECORD = struct.Struct("=6q")
SECTOR = 512


class Write(NamedTuple):
    kind: str
    name: str
    offset: int
    replaced: bytes
    written: bytes
    size_before: int


class PowerLoss:
    """Power losses of one machine, on which several servers run on the same file, one after the other."""

    def __init__(self, library: Path, database: Path, preloaded: str = "") -> None:
        """`preloaded`: another library to preload; it sees the writes that this one passes on."""
        self._database = database
        self._journal = database.with_name("power-journal")
        self.environ = {
            "LD_PRELOAD": f"{library} {preloaded}".strip(),
            "LIVENESS_TEST_POWER_FILE": str(database),
            "LIVENESS_TEST_POWER_JOURNAL": str(self._journal),
        }

    def fail(self, random: Random, *, all_of_it: bool) -> int:
        """Lose unsynced writes after the process was killed, and return how many were lost.

        With `all_of_it`, the disk keeps no unsynced write; otherwise it keeps a random part in random order, some
        writes by half.
        """
        undurable = list(self._undurable())
        for write in reversed(undurable):
            _undo(write)
        kept = [] if all_of_it else [write for write in undurable if random.random() < 0.5]
        random.shuffle(kept)
        for write in kept:
            _redo(write, random)
        for file in (self._journal, self._database.with_name(self._database.name + "-shm")):
            file.unlink(missing_ok=True)  # shared memory does not survive a power loss
        return len(undurable) - len(kept)

    def _undurable(self) -> Iterator[Write]:
        waiting: dict[str, list[Write]] = {}
        order: list[Write] = []
        for write in _read(self._journal):
            if write.kind == "s":
                waiting[write.name] = []
            else:
                waiting.setdefault(write.name, []).append(write)
                order.append(write)
        undurable = {id(write) for writes in waiting.values() for write in writes}
        return (write for write in order if id(write) in undurable)


def _read(journal: Path) -> Iterator[Write]:
    if not journal.exists():
        return
    data = journal.read_bytes()
    at = 0

    def take(size: int) -> bytes:
        nonlocal at
        at += size
        return data[at - size : at]

    while at + _RECORD.size <= len(data):
        kind, name_size, offset, size, replaced, size_before = _RECORD.unpack(take(_RECORD.size))
        name = take(name_size).decode()
        old = take(replaced)
        yield Write(chr(kind), name, offset, old, take(size) if kind == ord("w") else b"", size_before)
    assert at == len(data), "the journal itself is torn"


def _undo(write: Write) -> None:
    with Path(write.name).open("r+b", buffering=0) as file:
        os.pwrite(file.fileno(), write.replaced, write.offset)
        os.ftruncate(file.fileno(), write.size_before)


def _redo(write: Write, random: Random) -> None:
    with Path(write.name).open("r+b", buffering=0) as file:
        if write.kind == "t":
            os.ftruncate(file.fileno(), write.offset)
            return
        written = write.written
        if random.random() < 0.3:
            written = written[: len(written) // 2 // SECTOR * SECTOR]
        os.pwrite(file.fileno(), written, write.offset)
