"""Read the notes of all workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from liveness.demo.notes import Note, NoteKind, NoteReader
from liveness.demo.processes import DemoProcesses


class NoteCollector:
    def __init__(self, folder: Path, processes: DemoProcesses, on_note: Callable[[Note], None]) -> None:
        """`on_note` is called with each new note."""
        self._folder = folder
        self._processes = processes
        self._on_note = on_note
        self._readers: dict[str, NoteReader] = {}
        self._in_progress: dict[str, list[str]] = {}
        self.notes: list[Note] = []

    def read_notes(self) -> None:
        for name in self._processes.workers:
            reader = self._readers.setdefault(name, NoteReader(self._folder / f"{name}.jsonl"))
            for note in reader.read_new():
                self._add(note)

    def in_progress(self, worker: str) -> list[str]:
        """The activities that the worker has started and not ended."""
        return self._in_progress.get(worker, [])

    def _add(self, note: Note) -> None:
        self.notes.append(note)
        in_progress = self._in_progress.setdefault(note.worker, [])
        if note.kind is NoteKind.STARTED:
            in_progress.append(note.activity)
        elif note.activity in in_progress:
            in_progress.remove(note.activity)
        self._on_note(note)
