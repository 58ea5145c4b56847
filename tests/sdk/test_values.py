"""The values that programs and the SDK hand each other."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.sdk import ActivityRef, ActivityState, FencingToken, InvalidArgument, RetryPolicy
from liveness.sdk.values import (
    duration,
    duration_of_ms,
    ms_of,
    named,
    payload,
    ref_message,
    ref_of,
    retry_message,
    state_of,
)
from liveness.v1 import activity_pb2

names = st.text(min_size=1, max_size=20)
refs = st.builds(
    ActivityRef, names, names, names, st.integers(1, 2**31 - 1), names | st.just(""), st.binary(max_size=20)
)


@given(refs)
def test_a_reference_survives_the_wire(ref: ActivityRef) -> None:
    assert ref_of(type(ref_message(ref)).FromString(ref_message(ref).SerializeToString())) == ref


def test_an_attempt_that_is_not_given_is_the_first() -> None:
    message = ref_message(ActivityRef("a"))
    message.attempt = 0
    assert ref_of(message).attempt == 1


@pytest.mark.parametrize("attempt", [0, -1, 2**31])
def test_attempts_are_counted_from_one(attempt: int) -> None:
    with pytest.raises(InvalidArgument):
        ActivityRef("a", attempt=attempt)


@given(st.integers(0, 10**12))
def test_milliseconds_survive_the_wire(ms: int) -> None:
    assert ms_of(duration_of_ms(ms)) == ms


def test_seconds_may_come_as_numbers_and_as_timedeltas() -> None:
    assert ms_of(duration(1.25)) == ms_of(duration(timedelta(milliseconds=1_250))) == 1_250


@pytest.mark.parametrize("span", [float("nan"), float("inf"), 1e300])
def test_what_is_no_time_span_is_refused(span: float) -> None:
    with pytest.raises(InvalidArgument):
        duration(span)


def test_a_part_of_a_millisecond_is_not_counted() -> None:
    """A lease must not seem longer than it is."""
    span = duration_of_ms(5)
    span.nanos += 999_999
    assert ms_of(span) == 5


def test_a_later_attempt_has_the_greater_token() -> None:
    assert FencingToken(1, 9) < FencingToken(2, 1) < FencingToken(2, 2)


def test_an_id_alone_names_an_activity_by_its_type() -> None:
    assert named("photo-17", "resize") == ActivityRef("photo-17", "-", "resize")
    assert named("photo-17") == ActivityRef("photo-17", "-", "-")
    ref = ActivityRef("order", "run", "charge", 3)
    assert named(ref, "resize") is ref


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, b""),
        (b"\xff\x00", b"\xff\x00"),
        (bytearray(b"ab"), b"ab"),
        ("grün", "grün".encode()),
        ({"width": 200}, b'{"width": 200}'),
        ([1, None], b"[1, null]"),
        (7, b"7"),
        (False, b"false"),
    ],
)
def test_what_a_handler_may_return(value: object, expected: bytes) -> None:
    assert payload(value) == expected


def test_what_json_cannot_tell_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match="Event"):
        payload(Event())


class Event:
    pass


def test_every_state_has_a_name() -> None:
    numbers = [number for number in activity_pb2.ActivityState.values() if number]
    assert ActivityState.UNKNOWN not in {state_of(number) for number in numbers}
    assert state_of(10_000) is ActivityState.UNKNOWN


def test_zero_worker_deaths_are_not_the_same_as_none_said() -> None:
    unsaid, never = retry_message(RetryPolicy()), retry_message(RetryPolicy(maximum_worker_deaths=0))
    assert unsaid is not None
    assert never is not None
    assert not unsaid.HasField("maximum_worker_deaths")
    assert never.HasField("maximum_worker_deaths")


def test_how_an_attempt_reads() -> None:
    assert str(ActivityRef("photo-17")) == "activity photo-17 (attempt 1)"
    assert str(ActivityRef("order", "run", "charge", 3)) == "activity order/run/charge (attempt 3)"
