"""What a worker counts is counted once, however followers take over and whatever of their heartbeats is lost, late or repeated.

The model of liveness below is the rule of the worker's state machine about sequence numbers. A heartbeat on its way may arrive at any
later time, or never.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from liveness.doors.pgai.counting import (
    COUNTER_MAX,
    Recorded,
    Totals,
    count,
    count_sequence,
    fence_sequence,
    new_life,
    new_session,
    recorded_from_labels,
)

NOTHING = Totals()
ID = "6f1d9ea2-1111-2222-3333-444455556666"


class Beat(NamedTuple):
    session_id: str
    sequence: int
    successes: int
    errors: int
    labels: dict[str, str] | None


@dataclass
class Liveness:
    session_id: str = ""
    sequence: int = 0
    totals: Totals = NOTHING
    labels: dict[str, str] = field(default_factory=dict)
    superseded: set[str] = field(default_factory=set)

    def apply(self, beat: Beat) -> bool:
        """Returns whether it is answered with OK."""
        if beat.session_id in self.superseded:
            return False
        if beat.session_id != self.session_id:
            if self.session_id:
                self.superseded.add(self.session_id)
            self.session_id, self.sequence = beat.session_id, 0
        if beat.sequence <= self.sequence:
            return beat.sequence == self.sequence
        self.sequence = beat.sequence
        self.totals = Totals(self.totals.successes + beat.successes, self.totals.errors + beat.errors)
        if beat.labels is not None:
            self.labels = beat.labels
        return True


@dataclass
class Row:
    heartbeats: int = 0
    totals: Totals = NOTHING


@dataclass
class Follower:
    """Sends one heartbeat after the other, as the real one does."""

    liveness: Liveness
    recorded: Recorded | None = None
    is_fenced: bool = False
    pending: tuple[Beat, Recorded | None] | None = None

    def next_beat(self, row: Row) -> Beat | None:
        if self.pending is not None:
            return self.pending[0]
        if self.recorded is None:
            self._load(row)
        recorded = self.recorded
        assert recorded is not None
        if recorded.sequence >= count_sequence(row.heartbeats):
            self.is_fenced = True
            return None
        if not self.is_fenced and recorded.sequence < fence_sequence(row.heartbeats):
            is_new = self.liveness.session_id != recorded.session_id
            labels = recorded.labels if is_new else None
            self.pending = Beat(recorded.session_id, fence_sequence(row.heartbeats), 0, 0, labels), None
            return self.pending[0]
        change = count(recorded, row.heartbeats, row.totals)
        beat = Beat(
            recorded.session_id, change.after.sequence, change.successes, change.errors, change.after.labels
        )
        self.pending = beat, change.after
        return beat

    def on_answer(self, is_ok: bool) -> None:
        assert self.pending is not None
        _, after = self.pending
        self.pending = None
        if not is_ok:
            self.recorded, self.is_fenced = None, False
        elif after is None:
            self.recorded, self.is_fenced = None, True
        else:
            self.recorded = after

    def _load(self, row: Row) -> None:
        liveness = self.liveness
        if not liveness.session_id:
            self.recorded = Recorded(ID)
            return
        self.recorded = recorded_from_labels(ID, liveness.sequence, liveness.totals, liveness.labels)
        if liveness.sequence > count_sequence(row.heartbeats):
            self.recorded = new_session(self.recorded, ID, len(liveness.superseded) + 1)
            self.is_fenced = False


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("work"), st.integers(0, 5), st.integers(0, 2)),
        st.tuples(
            st.just("send"), st.sampled_from(["answered", "lost", "answer lost", "on its way"]), st.just(0)
        ),
        st.tuples(st.just("arrive"), st.integers(0, 10), st.just(0)),
        st.tuples(st.just("take over"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS)
def test_counts_equal_what_the_worker_counted(steps: list[tuple[str, object, int]]) -> None:
    liveness, row = Liveness(), Row()
    follower = Follower(liveness)
    on_their_way: list[Beat] = []
    for what, first, second in steps:
        if what == "work":
            assert isinstance(first, int)
            row = Row(row.heartbeats + 1, Totals(row.totals.successes + first, row.totals.errors + second))
        elif what == "take over":
            follower = Follower(liveness)
        elif what == "arrive" and on_their_way:
            assert isinstance(first, int)
            liveness.apply(on_their_way.pop(first % len(on_their_way)))
        elif what == "send" and (beat := follower.next_beat(row)) is not None:
            if first in ("answered", "answer lost"):
                is_ok = liveness.apply(beat)
                if first == "answered":
                    follower.on_answer(is_ok)
            elif first == "on its way":
                on_their_way.append(beat)
        assert liveness.totals.successes <= row.totals.successes, "counted twice"
        assert liveness.totals.errors <= row.totals.errors, "counted twice"
    for _ in range(10):
        if (beat := follower.next_beat(row)) is None:
            break
        follower.on_answer(liveness.apply(beat))
    for beat in on_their_way:
        liveness.apply(beat)
    assert liveness.totals == row.totals


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
