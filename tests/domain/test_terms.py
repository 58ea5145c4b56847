"""Lease terms, descriptions and what a namespace allows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.domain.errors import InvalidField
from liveness.domain.events import LeaseRenewed, LeaseTermsChanged, WorkerDescribed
from liveness.domain.policy import BUILT_IN, DURATION_MS_MAX, POLICY_FIELDS, Policy, policy_with
from liveness.domain.worker import NO_PROFILE, Profile, WorkerStatus
from tests.domain.story import registered

# -- lease terms


@pytest.mark.parametrize(
    ("requested_ms", "granted_ms"),
    [
        (None, 30_000),
        (1, 1_000),
        (999, 1_000),
        (1_000, 1_000),
        (5_000, 5_000),
        (3_600_000, 3_600_000),
        (2**62, 3_600_000),
    ],
)
def test_a_lease_is_granted_within_bounds(requested_ms: int | None, granted_ms: int) -> None:
    story = registered(requested_ms=requested_ms)
    assert (story.known.granted_ms, story.known.deadline_ms) == (granted_ms, granted_ms)


def test_other_terms_take_effect_with_the_heartbeat_that_asks_for_them() -> None:
    story = registered(requested_ms=30_000).wait(1_000)
    assert story.beat(requested_ms=5_000) == (
        LeaseTermsChanged(granted_ms=5_000),
        LeaseRenewed(2, 1_000, 0, 0),
    )
    assert story.known.deadline_ms == 6_000


def test_the_same_terms_are_not_written_again() -> None:
    story = registered(requested_ms=5_000)
    assert len(story.beat(requested_ms=5_000)) == 1


def test_changed_bounds_take_effect_at_the_next_heartbeat() -> None:
    story = registered(requested_ms=60_000)
    story.beat(requested_ms=60_000, policy=Policy(max_lease_ms=40_000))
    assert story.known.granted_ms == 40_000


def test_a_new_session_gets_terms_of_its_own() -> None:
    story = registered(requested_ms=60_000)
    story.beat(session_id="b", sequence=1)
    assert story.known.granted_ms == 30_000


# -- descriptions

PROFILE = Profile(task_queue="queue", host_name="host-1")


def test_a_description_is_written_only_when_it_changes() -> None:
    story = registered(profile=PROFILE, status=WorkerStatus.RUNNING)
    assert len(story.beat(profile=PROFILE, status=WorkerStatus.RUNNING)) == 1
    events = story.beat(profile=PROFILE, status=WorkerStatus.STOPPING)
    assert events[0] == WorkerDescribed(profile=PROFILE, status=WorkerStatus.STOPPING, last_error="")
    assert story.known.status is WorkerStatus.STOPPING


@pytest.mark.parametrize("session_id", ["a", "b"])
def test_a_heartbeat_without_a_description_keeps_the_known_one(session_id: str) -> None:
    story = registered(profile=PROFILE, last_error="broken")
    story.beat(sequence=2, session_id=session_id, profile=NO_PROFILE)
    assert (story.known.profile, story.known.last_error) == (PROFILE, "broken")


def test_a_resurrected_worker_keeps_its_description() -> None:
    story = registered(profile=PROFILE, last_error="broken").go_silent()
    story.beat()
    assert (story.known.profile, story.known.last_error) == (PROFILE, "broken")


def test_a_changed_description_replaces_the_whole() -> None:
    story = registered(profile=PROFILE)
    story.beat(profile=Profile(build_id="2"))
    assert story.known.profile == Profile(build_id="2")


def test_successes_and_errors_add_up_over_sessions() -> None:
    story = registered(successes=1, errors=10)
    story.beat(successes=2, errors=20)
    story.beat(session_id="b", sequence=1, successes=3, errors=30)
    story.go_silent()
    story.beat(session_id="b", successes=4, errors=40)
    assert (story.known.successes, story.known.errors) == (10, 100)


# -- what a namespace allows


def test_overrides_replace_only_what_they_name() -> None:
    policy = policy_with(BUILT_IN, {"cleanup_delay_ms": 5, "worker_heartbeat_rate": 0.5})
    assert policy == Policy(cleanup_delay_ms=5, worker_heartbeat_rate=0.5)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            **{name: st.integers(1, 30_000).map(float) for name in POLICY_FIELDS - {"max_lease_ms"}},
            "paused": st.sampled_from([0.0, 1.0]),
            "storm_share": st.floats(0, 1),
        },
    ).filter(lambda overrides: overrides.get("min_lease_ms", 0) <= overrides.get("default_lease_ms", 1))
)
def test_whole_numbers_stay_whole_numbers_however_they_were_stored(overrides: dict[str, float]) -> None:
    """A float in an event could not be read back as the integer it is."""
    policy = policy_with(Policy(min_lease_ms=1), overrides)
    for name in POLICY_FIELDS:
        assert type(getattr(policy, name)) is type(getattr(BUILT_IN, name))
    assert type(policy.granted_ms(None)) is int


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), -0.001])
@pytest.mark.parametrize("name", sorted(POLICY_FIELDS))
def test_numbers_that_make_no_sense_are_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidField):
        policy_with(BUILT_IN, {name: value})


@pytest.mark.parametrize(
    "name", sorted(POLICY_FIELDS - {"namespace_heartbeat_rate", "worker_heartbeat_rate"})
)
def test_half_a_millisecond_or_worker_is_refused(name: str) -> None:
    with pytest.raises(InvalidField):
        policy_with(BUILT_IN, {name: 2_000.5})


@pytest.mark.parametrize(
    "name",
    [
        "default_lease_ms",
        "min_lease_ms",
        "max_lease_ms",
        "max_bindings_per_worker",
        "dispatch_timeout_ms",
    ],
)
def test_a_lease_a_binding_quota_and_the_time_to_confirm_cannot_be_zero(name: str) -> None:
    with pytest.raises(InvalidField, match="must be more than 0"):
        policy_with(BUILT_IN, {name: 0})


def test_what_zero_switches_off_can_be_zero() -> None:
    for name in (
        "cleanup_delay_ms",
        "tombstone_retention_ms",
        "event_retention_ms",
        "activity_retention_ms",
        "max_workers",
        "max_worker_deaths",
        "paused",
    ):
        assert getattr(policy_with(BUILT_IN, {name: 0}), name) == 0


def test_a_namespace_is_paused_or_not() -> None:
    assert policy_with(BUILT_IN, {"paused": 1}).paused == 1
    with pytest.raises(InvalidField, match="paused must be 0 or 1"):
        policy_with(BUILT_IN, {"paused": 2})


def test_a_duration_beyond_a_century_is_refused() -> None:
    policy_with(BUILT_IN, {"cleanup_delay_ms": DURATION_MS_MAX})
    with pytest.raises(InvalidField, match="at most 100 years"):
        policy_with(BUILT_IN, {"cleanup_delay_ms": DURATION_MS_MAX + 1})


def test_an_unknown_setting_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidField, match=r"is not a setting; there are: .*cleanup_delay"):
        policy_with(BUILT_IN, {"cleanup": 5})


@pytest.mark.parametrize(
    "overrides",
    [
        {"min_lease_ms": 31_000},
        {"max_lease_ms": 29_000},
        {"default_lease_ms": 999},
        {"default_lease_ms": 3_600_001},
    ],
)
def test_bounds_that_exclude_the_default_are_refused(overrides: dict[str, float]) -> None:
    with pytest.raises(InvalidField, match="must lie between min_lease and max_lease"):
        policy_with(BUILT_IN, overrides)
