"""Where the notes of all workers are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from liveness.demo.cast import Cast
from liveness.demo.notes import Deed, Note, Reader


class Desk:
    """`tell` is called with each new note."""

    def __init__(self, folder: Path, cast: Cast, tell: Callable[[Note], None]) -> None:
        self._folder = folder
        self._cast = cast
        self._tell = tell
        self._readers: dict[str, Reader] = {}
        self._in_hand: dict[str, list[str]] = {}
        self.notes: list[Note] = []

    def read_notes(self) -> None:
        for name in self._cast.workers:
            reader = self._readers.setdefault(name, Reader(self._folder / f"{name}.jsonl"))
            for note in reader.news():
                self._file(note)

    def in_hand(self, worker: str) -> list[str]:
        """What it has begun and not ended."""
        return self._in_hand.get(worker, [])

    def _file(self, note: Note) -> None:
        self.notes.append(note)
        in_hand = self._in_hand.setdefault(note.worker, [])
        if note.deed is Deed.STARTED:
            in_hand.append(note.activity)
        elif note.activity in in_hand:
            in_hand.remove(note.activity)
        self._tell(note)
