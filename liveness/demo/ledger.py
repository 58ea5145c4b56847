"""The reckoning: what the worker processes noted down themselves, against what the server has on record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from liveness.demo.notes import Note, NoteKind

REFUSAL_REASONS = frozenset({"FENCED_OFF", "ACTIVITY_FINISHED"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """An activity that is COMPLETED on record, and whose work was taken."""

    activity: str
    worker: str
    attempt: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    scheduled: int
    executed: int
    """Attempts that some worker began; each is counted once more below, in one of three lines."""
    completed: int
    cut_short: int
    """Attempts that ended with their process, or with its lease."""
    refused: int
    """Attempts that a zombie reported as complete, and the server turned away."""
    lost: int
    """Activities that are not completed on record, or whose completion no worker knows of."""
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
    """`times_completed`: how often the server's log says so, by activity."""
    by_kind: dict[NoteKind, list[Note]] = {deed: [] for deed in NoteKind}
    for note in notes:
        by_kind[note.deed].append(note)
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
    """By the server's log; and by its answers, of which there may be fewer than completions (whoever is killed notes
    nothing down), but not more."""
    in_the_log = sum(times - 1 for times in times_completed.values() if times > 1)
    acknowledged: Counter[str] = Counter()
    for note in by_kind[NoteKind.ACKNOWLEDGED]:
        acknowledged[note.worker] = max(acknowledged[note.worker], note.count)
    answers = acknowledged.total() + len(by_kind[NoteKind.ACCEPTED])
    return max(in_the_log, answers - completed, len(by_kind[NoteKind.ACCEPTED]))
