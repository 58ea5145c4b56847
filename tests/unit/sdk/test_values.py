"""The values that programs and the SDK exchange."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.sdk import ActivityRef, ActivityState, FencingToken, InvalidArgument, RetryPolicy
from liveness.sdk.values import (
    duration_to_ms,
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
    ActivityRef,
    names,
    names,
    names,
    st.integers(1, 2_000_000_000),
    names | st.just(""),
    st.binary(max_size=20),
)


@given(refs)
def test_an_activity_reference_round_trips_through_proto(ref: ActivityRef) -> None:
    assert ref_from_proto(type(ref_to_proto(ref)).FromString(ref_to_proto(ref).SerializeToString())) == ref


def test_a_missing_attempt_number_means_the_first_attempt() -> None:
    message = ref_to_proto(ActivityRef("a"))
    message.attempt = 0
    assert ref_from_proto(message).attempt == 1


@pytest.mark.parametrize("attempt", [0, -1, 2**31])
def test_attempt_numbers_outside_their_range_are_refused(attempt: int) -> None:
    with pytest.raises(InvalidArgument):
        ActivityRef("a", attempt=attempt)


@given(st.integers(0, 10**12))
def test_milliseconds_round_trip_through_proto_durations(ms: int) -> None:
    assert duration_to_ms(ms_to_duration(ms)) == ms


def test_a_duration_may_be_a_number_of_seconds_or_a_timedelta() -> None:
    assert (
        duration_to_ms(to_duration(1.25))
        == duration_to_ms(to_duration(timedelta(milliseconds=1_250)))
        == 1_250
    )


@pytest.mark.parametrize("span", [float("nan"), float("inf"), 1e300])
def test_a_duration_that_is_not_finite_or_too_long_is_refused(span: float) -> None:
    with pytest.raises(InvalidArgument):
        to_duration(span)


def test_durations_are_rounded_down_to_milliseconds() -> None:
    """A lease must not appear longer than it is."""
    span = ms_to_duration(5)
    span.nanos += 999_999
    assert duration_to_ms(span) == 5


def test_a_later_attempt_or_epoch_has_the_greater_fencing_token() -> None:
    assert FencingToken(1, 9) < FencingToken(2, 1) < FencingToken(2, 2)


def test_a_plain_id_becomes_a_reference_named_after_the_activity_type() -> None:
    assert to_activity_ref("photo-17", "resize") == ActivityRef("photo-17", "-", "resize")
    assert to_activity_ref("photo-17") == ActivityRef("photo-17", "-", "-")
    ref = ActivityRef("order", "run", "charge", 3)
    assert to_activity_ref(ref, "resize") is ref


def test_every_proto_activity_state_has_an_sdk_state() -> None:
    numbers = [number for number in activity_pb2.ActivityState.values() if number]
    assert ActivityState.UNKNOWN not in {state_from_proto(number) for number in numbers}
    assert state_from_proto(10_000) is ActivityState.UNKNOWN


def test_zero_maximum_worker_deaths_differs_from_an_unset_value() -> None:
    unset, zero = (
        retry_policy_to_proto(RetryPolicy()),
        retry_policy_to_proto(RetryPolicy(maximum_worker_deaths=0)),
    )
    assert unset is not None
    assert zero is not None
    assert not unset.HasField("maximum_worker_deaths")
    assert zero.HasField("maximum_worker_deaths")


def test_an_activity_reference_formats_as_readable_text() -> None:
    assert str(ActivityRef("photo-17")) == "activity photo-17 (attempt 1)"
    assert str(ActivityRef("order", "run", "charge", 3)) == "activity order/run/charge (attempt 3)"
