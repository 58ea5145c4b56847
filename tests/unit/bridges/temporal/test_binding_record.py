"""What a binding stores about a Temporal attempt."""

from __future__ import annotations

import pytest

from liveness.bridges.temporal.binding_record import BindingRecord, NotRecordable, identifier

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


@pytest.mark.parametrize("token", [b"", b"mine", b"\xff", b"\x0a\x05other"])
def test_other_tokens_are_not_taken_for_records(token: bytes) -> None:
    assert BindingRecord.decode(token) is None


def test_each_attempt_is_an_activity_of_its_own() -> None:
    reference = RECORD.reference()
    assert (reference.workflow_id, reference.run_id, reference.activity_id) == ("wf", "run", "7@2")
    assert (reference.attempt, reference.task_queue) == (2, "temporal-rescue")
    assert BindingRecord.decode(reference.token) == RECORD
    assert RECORD.reference(generation=5).activity_id == "7@2.5"


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
