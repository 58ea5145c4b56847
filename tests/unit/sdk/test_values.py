"""The values that programs and the SDK hand each other."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.sdk import ActivityRef, ActivityState, FencingToken, InvalidArgument, RetryPolicy
from liveness.sdk.values import (
    duration_to_ms,
    encode_payload,
    ms_to_duration,
    ref_from_proto,
    ref_to_proto,
    retry_policy_to_proto,
    state_from_proto,
    to_activity_ref,
    to_duration,
)
from liveness.v1 import activity_pb2

names = st.text(min_size=1, max_size=20)
refs = st.builds(
    ActivityRef, names, names, names, st.integers(1, 2**31 - 1), names | st.just(""), st.binary(max_size=20)
)


@given(refs)
def test_a_reference_survives_the_wire(ref: ActivityRef) -> None:
    assert ref_from_proto(type(ref_to_proto(ref)).FromString(ref_to_proto(ref).SerializeToString())) == ref


def test_an_attempt_that_is_not_given_is_the_first() -> None:
    message = ref_to_proto(ActivityRef("a"))
    message.attempt = 0
    assert ref_from_proto(message).attempt == 1


@pytest.mark.parametrize("attempt", [0, -1, 2**31])
def test_attempts_are_counted_from_one(attempt: int) -> None:
    with pytest.raises(InvalidArgument):
        ActivityRef("a", attempt=attempt)


@given(st.integers(0, 10**12))
def test_milliseconds_survive_the_wire(ms: int) -> None:
    assert duration_to_ms(ms_to_duration(ms)) == ms


def test_seconds_may_come_as_numbers_and_as_timedeltas() -> None:
    assert (
        duration_to_ms(to_duration(1.25))
        == duration_to_ms(to_duration(timedelta(milliseconds=1_250)))
        == 1_250
    )


@pytest.mark.parametrize("span", [float("nan"), float("inf"), 1e300])
def test_what_is_no_time_span_is_refused(span: float) -> None:
    with pytest.raises(InvalidArgument):
        to_duration(span)


def test_a_part_of_a_millisecond_is_not_counted() -> None:
    """A lease must not seem longer than it is."""
    span = ms_to_duration(5)
    span.nanos += 999_999
    assert duration_to_ms(span) == 5


def test_a_later_attempt_has_the_greater_token() -> None:
    assert FencingToken(1, 9) < FencingToken(2, 1) < FencingToken(2, 2)


def test_an_id_alone_names_an_activity_by_its_type() -> None:
    assert to_activity_ref("photo-17", "resize") == ActivityRef("photo-17", "-", "resize")
    assert to_activity_ref("photo-17") == ActivityRef("photo-17", "-", "-")
    ref = ActivityRef("order", "run", "charge", 3)
    assert to_activity_ref(ref, "resize") is ref


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
    assert encode_payload(value) == expected


def test_what_json_cannot_tell_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match="Event"):
        encode_payload(Event())


class Event:
    pass


def test_every_state_has_a_name() -> None:
    numbers = [number for number in activity_pb2.ActivityState.values() if number]
    assert ActivityState.UNKNOWN not in {state_from_proto(number) for number in numbers}
    assert state_from_proto(10_000) is ActivityState.UNKNOWN


def test_zero_worker_deaths_are_not_the_same_as_none_said() -> None:
    unsaid, never = (
        retry_policy_to_proto(RetryPolicy()),
        retry_policy_to_proto(RetryPolicy(maximum_worker_deaths=0)),
    )
    assert unsaid is not None
    assert never is not None
    assert not unsaid.HasField("maximum_worker_deaths")
    assert never.HasField("maximum_worker_deaths")


def test_how_an_attempt_reads() -> None:
    assert str(ActivityRef("photo-17")) == "activity photo-17 (attempt 1)"
    assert str(ActivityRef("order", "run", "charge", 3)) == "activity order/run/charge (attempt 3)"
