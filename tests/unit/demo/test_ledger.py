"""The ledger of the demo detects lost and duplicated work in every record."""

from __future__ import annotations

from dataclasses import replace

import pytest

from liveness.demo.ledger import Completion, Ledger, compute_ledger
from liveness.demo.notes import Note, NoteKind

BLOCKS = ["block-1", "block-2"]


def note(
    kind: NoteKind, activity: str, *, worker: str = "worker-1", attempt: int = 1, reason: str = ""
) -> Note:
    digest = "" if kind is NoteKind.STARTED else f"digest of {activity}"
    return Note(kind=kind, worker=worker, activity=activity, attempt=attempt, digest=digest, reason=reason)


def acknowledged(count: int, worker: str = "worker-1") -> Note:
    return Note(kind=NoteKind.ACKNOWLEDGED, worker=worker, count=count)


def completion(activity: str, *, worker: str = "worker-1", attempt: int = 1) -> Completion:
    return Completion(activity=activity, worker=worker, attempt=attempt, digest=f"digest of {activity}")


GOOD_NOTES = [
    *(note(kind, block) for block in BLOCKS for kind in (NoteKind.STARTED, NoteKind.FINISHED)),
    acknowledged(1),
    acknowledged(2),
]
GOOD_RECORD = [completion(block) for block in BLOCKS]
ONCE = dict.fromkeys(BLOCKS, 1)


def test_a_run_without_losses_is_clean() -> None:
    ledger = compute_ledger(BLOCKS, GOOD_RECORD, ONCE, GOOD_NOTES)

    assert ledger == Ledger(
        scheduled=2, executed=2, completed=2, cut_short=0, refused=0, lost=0, completed_twice=0
    )
    assert ledger.is_clean


def test_the_ledger_distinguishes_cut_short_and_refused_attempts() -> None:
    """One attempt died with its worker; the other belonged to a superseded worker."""
    notes = [
        note(NoteKind.STARTED, "block-1", worker="killed"),
        note(NoteKind.STARTED, "block-2", worker="zombie"),
        note(NoteKind.REFUSED, "block-2", worker="zombie", reason="FENCED_OFF"),
        *(note(kind, block, attempt=2) for block in BLOCKS for kind in (NoteKind.STARTED, NoteKind.FINISHED)),
    ]

    ledger = compute_ledger(BLOCKS, [completion(block, attempt=2) for block in BLOCKS], ONCE, notes)

    assert (ledger.executed, ledger.completed, ledger.cut_short, ledger.refused) == (4, 2, 1, 1)
    assert ledger.is_clean


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (GOOD_RECORD[:1], "the record lacks it"),
        ([GOOD_RECORD[0], completion("block-2", attempt=2)], "no worker started that attempt"),
        ([GOOD_RECORD[0], completion("block-2", worker="worker-9")], "that worker did not run it"),
        ([GOOD_RECORD[0], replace(GOOD_RECORD[1], digest="another")], "the digest differs from the worker's"),
    ],
)
def test_an_activity_whose_record_does_not_match_a_worker_counts_as_lost(
    record: list[Completion], why: str
) -> None:
    ledger = compute_ledger(BLOCKS, record, ONCE, GOOD_NOTES)

    assert (ledger.lost, ledger.completed) == (1, 1), why
    assert not ledger.is_clean


def test_two_completions_in_the_log_count_as_a_duplicate() -> None:
    ledger = compute_ledger(BLOCKS, GOOD_RECORD, {**ONCE, "block-2": 2}, GOOD_NOTES)

    assert ledger.completed_twice == 1
    assert not ledger.is_clean


def test_more_acknowledgements_than_completions_count_as_a_duplicate() -> None:
    """The record itself does not show the duplicate."""
    ledger = compute_ledger(BLOCKS, GOOD_RECORD, ONCE, [*GOOD_NOTES, acknowledged(1, "worker-2")])

    assert ledger.completed_twice == 1
    assert not ledger.is_clean


def test_an_accepted_completion_of_a_superseded_worker_counts_as_a_duplicate() -> None:
    """The worker that was acknowledged before may have been killed before it noted that."""
    zombie = note(NoteKind.ACCEPTED, "block-2", worker="zombie")
    unacknowledged = [known for known in GOOD_NOTES if known.kind is not NoteKind.ACKNOWLEDGED]

    ledger = compute_ledger(BLOCKS, GOOD_RECORD, ONCE, [*unacknowledged, zombie])

    assert ledger.completed_twice == 1
    assert not ledger.is_clean


def test_a_completion_without_a_start_is_unbalanced() -> None:
    notes = [known for known in GOOD_NOTES if (known.kind, known.activity) != (NoteKind.STARTED, "block-2")]

    ledger = compute_ledger(BLOCKS, GOOD_RECORD, ONCE, notes)

    assert not ledger.is_balanced
    assert not ledger.is_clean
