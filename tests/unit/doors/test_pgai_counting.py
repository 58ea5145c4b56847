"""What a worker counts is counted once, however followers take over and whatever of their heartbeats is lost, late or repeated.

A heartbeat on its way may arrive at any later time, or never.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

from hypothesis import example, given, settings
from hypothesis import strategies as st

from liveness.doors.pgai.counting import (
    COUNTER_MAX,
    Recorded,
    Totals,
    count,
    new_life,
    recorded_from_labels,
)
from liveness.doors.pgai.followed_worker import FollowedWorker
from liveness.doors.pgai.rows import ProcessRow
from liveness.v1.worker_pb2 import WORKER_STATE_ACTIVE, Worker, WorkerHeartbeat

NOTHING = Totals()
ID = "6f1d9ea2-1111-2222-3333-444455556666"


@dataclass
class Liveness:
    """The rule of the worker's state machine about sessions and sequence numbers."""

    worker: Worker | None = None

    def apply(self, beat: WorkerHeartbeat) -> bool:
        """Returns whether it is answered with OK."""
        if self.worker is None:
            self.worker = Worker(state=WORKER_STATE_ACTIVE, session_id=beat.session_id, lease_epoch=1)
        worker = self.worker
        assert beat.session_id == worker.session_id
        if beat.sequence <= worker.sequence:
            return beat.sequence == worker.sequence
        worker.sequence = beat.sequence
        worker.successes += beat.successes
        worker.errors += beat.errors
        if beat.labels:
            worker.labels.clear()
            worker.labels.update(beat.labels)
        return True


def row_of(heartbeats: int, totals: Totals) -> ProcessRow:
    return ProcessRow(
        id=ID,
        version="0.12.1",
        started_s=1.0,
        interval_ms=1_000,
        last_heartbeat_s=1.0,
        heartbeats=heartbeats,
        totals=totals,
        last_error="",
        said_goodbye=False,
    )


class Follower:
    """Takes the steps of the real one, one call after the other."""

    def __init__(self, liveness: Liveness) -> None:
        self._liveness = liveness
        self.worker = FollowedWorker(ID)
        self.prepared: WorkerHeartbeat | None = None

    def prepare(self, row: ProcessRow) -> None:
        """Ask liveness, and decide what to send. Anything may arrive there before it is sent."""
        if self.prepared is None:
            self.prepared = self._next_beat(row)

    def take_prepared(self, row: ProcessRow) -> WorkerHeartbeat | None:
        self.prepare(row)
        beat, self.prepared = self.prepared, None
        return beat

    def _next_beat(self, row: ProcessRow) -> WorkerHeartbeat | None:
        worker = self.worker
        worker.row = row
        if not worker.is_fenced:
            worker.adopt(self._liveness.worker)
            fence = None if worker.is_counted else worker.fence()
            if fence is not None:
                return fence
            worker.is_fenced = True
        return worker.next_count()[0] if worker.counting or not worker.is_counted else None

    def on_answer(self, is_ok: bool) -> None:
        worker = self.worker
        if not is_ok:
            worker.is_fenced, worker.counting = False, None
        elif worker.counting is None:
            worker.adopt(self._liveness.worker)
            worker.is_fenced = True
        else:
            worker.recorded, worker.counting = worker.counting[1].after, None


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("work"), st.integers(0, 5), st.integers(0, 2)),
        st.tuples(
            st.just("send"), st.sampled_from(["answered", "lost", "answer lost", "on its way"]), st.just(0)
        ),
        st.tuples(st.just("arrive"), st.integers(0, 10), st.just(0)),
        st.tuples(st.just("prepare"), st.just(0), st.just(0)),
        st.tuples(st.just("take over"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


LATE = [
    *[("send", "answered", 0)] * 2,  # the fence, and the count of no work
    ("work", 1, 0),
    ("send", "on its way", 0),
    ("take over", 0, 0),
    ("work", 1, 0),
    ("prepare", 0, 0),
    ("arrive", 0, 0),
    *[("send", "answered", 0)] * 3,
]


@given(STEPS)
@example(LATE)
@settings(max_examples=300)
def test_counts_equal_what_the_worker_counted(steps: list[tuple[str, object, int]]) -> None:
    liveness, row = Liveness(), row_of(0, NOTHING)
    follower = Follower(liveness)
    on_their_way: list[WorkerHeartbeat] = []
    for what, first, second in steps:
        if what == "work":
            assert isinstance(first, int)
            totals = Totals(row.totals.successes + first, row.totals.errors + second)
            row = row_of(row.heartbeats + 1, totals)
        elif what == "prepare":
            follower.prepare(row)
        elif what == "take over":
            follower = Follower(liveness)
        elif what == "arrive" and on_their_way:
            assert isinstance(first, int)
            liveness.apply(on_their_way.pop(first % len(on_their_way)))
        elif what == "send" and (beat := follower.take_prepared(row)) is not None:
            if first in ("answered", "answer lost"):
                is_ok = liveness.apply(beat)
                if first == "answered":
                    follower.on_answer(is_ok)
            elif first == "on its way":
                on_their_way.append(copy(beat))
        if liveness.worker is not None:
            assert liveness.worker.successes <= row.totals.successes, "counted twice"
            assert liveness.worker.errors <= row.totals.errors, "counted twice"
    for _ in range(10):
        if (beat := follower.take_prepared(row)) is None:
            break
        follower.on_answer(liveness.apply(beat))
    for beat in on_their_way:
        liveness.apply(beat)
    assert liveness.worker is not None
    assert (liveness.worker.successes, liveness.worker.errors) == row.totals


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)), max_size=20))
def test_totals_that_are_set_back_or_huge_never_give_negative_or_refused_counts(
    readings: list[tuple[int, int]],
) -> None:
    recorded = Recorded(ID)
    for heartbeats, reading in enumerate(readings):
        change = count(recorded, heartbeats, Totals(*reading))
        assert 0 <= change.successes <= COUNTER_MAX
        assert 0 <= change.errors <= COUNTER_MAX
        recorded = recorded_from_labels(ID, change.after.sequence, change.after.totals, change.after.labels)
        assert recorded == change.after


def test_a_total_that_was_set_back_is_counted_on_from_there() -> None:
    recorded = count(Recorded(ID), 1, Totals(100, 4)).after
    recorded = count(recorded, 2, Totals(10, 4)).after
    assert recorded.totals == (100, 4)
    recorded = count(recorded, 3, Totals(13, 5)).after
    assert recorded.totals == (103, 5)


def test_a_new_life_counts_only_what_came_since_the_last_one() -> None:
    recorded = new_life(Totals(100, 4), ID, 7)
    assert recorded.session_id == f"{ID}#7"
    assert count(recorded, 9, Totals(102, 4)).after.totals == (2, 0)


def test_labels_that_somebody_else_wrote_are_no_offsets() -> None:
    for text in ("", "x", "1", "1,2,3", "9" * 30 + ",1", "1, 2"):
        assert recorded_from_labels(ID, 1, Totals(5, 5), {"pgai-offsets": text}).offsets == (0, 0)
