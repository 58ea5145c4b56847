"""Compare the notes of the worker processes with the server's records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from liveness.demo.notes import Note, NoteKind

REFUSAL_REASONS = frozenset({"FENCED_OFF", "ACTIVITY_FINISHED"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """An activity that the server recorded as COMPLETED, with the attempt whose result it accepted."""

    activity: str
    worker: str
    attempt: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    scheduled: int
    executed: int
    """Attempts that a worker started. Each is also counted as completed, cut short or refused."""
    completed: int
    cut_short: int
    """Attempts that ended because their process died or its lease ended."""
    refused: int
    """Attempts that a zombie reported as complete, and that the server refused."""
    lost: int
    """Activities that the server did not record as completed, or whose completion no worker noted."""
    completed_twice: int

    @property
    def is_balanced(self) -> bool:
        return self.executed == self.completed + self.cut_short + self.refused

    @property
    def is_clean(self) -> bool:
        return (
            self.lost == 0
            and self.completed_twice == 0
            and self.completed == self.scheduled
            and self.is_balanced
        )


def compute_ledger(
    scheduled: Sequence[str],
    completions: Sequence[Completion],
    times_completed: Mapping[str, int],
    notes: Sequence[Note],
) -> Ledger:
    """`times_completed`: by activity, the number of completions in the server's log."""
    by_kind: dict[NoteKind, list[Note]] = {kind: [] for kind in NoteKind}
    for note in notes:
        by_kind[note.kind].append(note)
    finished = {
        (note.activity, note.worker, note.attempt, note.digest) for note in by_kind[NoteKind.FINISHED]
    }
    confirmed = {
        done.activity
        for done in completions
        if (done.activity, done.worker, done.attempt, done.digest) in finished
    }
    refused = {
        (note.activity, note.worker, note.attempt)
        for note in by_kind[NoteKind.REFUSED]
        if note.reason in REFUSAL_REASONS
    }
    accepted = {(done.activity, done.worker, done.attempt) for done in completions}
    started = [(note.activity, note.worker, note.attempt) for note in by_kind[NoteKind.STARTED]]
    return Ledger(
        scheduled=len(scheduled),
        executed=len(started),
        completed=len(confirmed & set(scheduled)),
        cut_short=sum(attempt not in accepted and attempt not in refused for attempt in started),
        refused=len(refused),
        lost=len(set(scheduled) - confirmed),
        completed_twice=_count_completed_twice(times_completed, by_kind, len(completions)),
    )


def _count_completed_twice(
    times_completed: Mapping[str, int], by_kind: Mapping[NoteKind, list[Note]], completed: int
) -> int:
    """The larger count of two sources: the server's log, and the server's answers to the workers. There may be fewer answers
    than completions, because a killed worker notes nothing, but never more."""
    in_the_log = sum(times - 1 for times in times_completed.values() if times > 1)
    acknowledged: Counter[str] = Counter()
    for note in by_kind[NoteKind.ACKNOWLEDGED]:
        acknowledged[note.worker] = max(acknowledged[note.worker], note.count)
    answers = acknowledged.total() + len(by_kind[NoteKind.ACCEPTED])
    return max(in_the_log, answers - completed, len(by_kind[NoteKind.ACCEPTED]))
