"""What a binding stores about a Temporal attempt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from liveness.bridges.temporal.binding_record import BindingRecord, NotRecordable, identifier
from liveness.bridges.temporal.messages import Completion

RECORD = BindingRecord(
    task_token=b"\x00token",
    workflow_id="wf",
    run_id="run",
    activity_id="7",
    activity_type="charge",
    attempt=2,
    maximum_attempts=3,
    worker_key="key",
    task_queue="q",
)
STORED = bytes.fromhex(
    "0a0a74656d706f72616c2f31120600746f6b656e1a027766220372756e2a0137320663686172"
    "6765380240034a036b6579520171"
)  # fmt: skip


def test_a_stored_record_stays_readable() -> None:
    assert RECORD.encode() == STORED
    assert BindingRecord.decode(STORED) == RECORD
    newer = STORED + b"\xa2\x06\x03new"
    assert BindingRecord.decode(newer) == RECORD
    told = replace(RECORD, interval_ms=2_000)
    assert BindingRecord.decode(told.encode()) == told


@pytest.mark.parametrize("token", [b"", b"mine", b"\xff", b"\x0a\x05other"])
def test_other_tokens_are_not_taken_for_records(token: bytes) -> None:
    assert BindingRecord.decode(token) is None


def test_each_attempt_is_an_activity_of_its_own() -> None:
    reference = RECORD.reference()
    assert (reference.workflow_id, reference.run_id, reference.activity_id) == ("wf", "run", "7@2")
    assert (reference.attempt, reference.task_queue) == (2, "temporal-rescue")
    assert BindingRecord.decode(reference.token) == RECORD
    assert RECORD.reference(generation=5).activity_id == "7@2.5"


def test_a_standalone_activity_stands_in_the_place_of_a_workflow() -> None:
    record = replace(RECORD, workflow_id="")
    reference = record.reference()
    assert (reference.workflow_id, reference.run_id, reference.activity_id) == ("7", "run", "@2")
    assert BindingRecord.decode(reference.token) == record


@pytest.mark.parametrize(
    ("completion", "is_meant"),
    [
        (Completion("n", "me", b"\x00token"), True),
        (Completion("n", "me", b"other"), False),
        (Completion("n", "me", b"", "wf", "run", "7"), True),
        (Completion("n", "me", b"", "wf", "", "7"), True),
        (Completion("n", "me", b"", "wf", "another", "7"), False),
        (Completion("n", "me", b"", "", "run", "7"), False),
    ],
)
def test_which_activity_a_completion_means(completion: Completion, is_meant: bool) -> None:
    assert RECORD.is_meant_by(completion) is is_meant


def test_a_record_that_is_too_large_is_refused() -> None:
    fields = {name: getattr(RECORD, name) for name in BindingRecord.__slots__}
    with pytest.raises(NotRecordable):
        BindingRecord(**(fields | {"task_token": bytes(2_100)})).reference()


def test_names_that_liveness_does_not_take_end_in_their_hash() -> None:
    assert identifier("plain") == "plain"
    assert identifier("") == "-"
    long, other = identifier("ä" * 1_000), identifier("ä" * 1_001)
    assert len(long.encode()) <= 255
    assert long != other
    assert identifier("a\nb").startswith("ab~")
