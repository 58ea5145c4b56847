"""Lease terms, worker descriptions and the policy of a namespace."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.domain.errors import InvalidField
from liveness.domain.events import LeaseRenewed, LeaseTermsChanged, WorkerDescribed
from liveness.domain.policy import DEFAULT_POLICY, DURATION_MS_MAX, POLICY_FIELDS, Policy, override_policy
from liveness.domain.worker import NO_PROFILE, Profile, WorkerStatus
from tests.unit.domain.worker_scenario import registered

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
    scenario = registered(requested_ms=requested_ms)
    assert (scenario.known.granted_ms, scenario.known.deadline_ms) == (granted_ms, granted_ms)


def test_new_lease_terms_take_effect_with_the_heartbeat_that_requests_them() -> None:
    scenario = registered(requested_ms=30_000).wait(1_000)
    assert scenario.beat(requested_ms=5_000) == (
        LeaseTermsChanged(granted_ms=5_000),
        LeaseRenewed(2, 1_000, 0, 0),
    )
    assert scenario.known.deadline_ms == 6_000


def test_unchanged_lease_terms_are_not_written_again() -> None:
    scenario = registered(requested_ms=5_000)
    assert len(scenario.beat(requested_ms=5_000)) == 1


def test_changed_lease_bounds_take_effect_at_the_next_heartbeat() -> None:
    scenario = registered(requested_ms=60_000)
    scenario.beat(requested_ms=60_000, policy=Policy(max_lease_ms=40_000))
    assert scenario.known.granted_ms == 40_000


def test_a_new_session_does_not_inherit_lease_terms() -> None:
    scenario = registered(requested_ms=60_000)
    scenario.beat(session_id="b", sequence=1)
    assert scenario.known.granted_ms == 30_000


# -- descriptions

PROFILE = Profile(task_queue="queue", host_name="host-1")


def test_a_description_is_written_only_when_it_changes() -> None:
    scenario = registered(profile=PROFILE, status=WorkerStatus.RUNNING)
    assert len(scenario.beat(profile=PROFILE, status=WorkerStatus.RUNNING)) == 1
    events = scenario.beat(profile=PROFILE, status=WorkerStatus.STOPPING)
    assert events[0] == WorkerDescribed(profile=PROFILE, status=WorkerStatus.STOPPING, last_error="")
    assert scenario.known.status is WorkerStatus.STOPPING


@pytest.mark.parametrize("session_id", ["a", "b"])
def test_a_heartbeat_without_a_description_keeps_the_known_one(session_id: str) -> None:
    scenario = registered(profile=PROFILE, last_error="broken")
    scenario.beat(sequence=2, session_id=session_id, profile=NO_PROFILE)
    assert (scenario.known.profile, scenario.known.last_error) == (PROFILE, "broken")


def test_a_resurrected_worker_keeps_its_description() -> None:
    scenario = registered(profile=PROFILE, last_error="broken").go_silent()
    scenario.beat()
    assert (scenario.known.profile, scenario.known.last_error) == (PROFILE, "broken")


def test_a_changed_description_replaces_the_whole_description() -> None:
    scenario = registered(profile=PROFILE)
    scenario.beat(profile=Profile(build_id="2"))
    assert scenario.known.profile == Profile(build_id="2")


def test_successes_and_errors_accumulate_over_sessions() -> None:
    scenario = registered(successes=1, errors=10)
    scenario.beat(successes=2, errors=20)
    scenario.beat(session_id="b", sequence=1, successes=3, errors=30)
    scenario.go_silent()
    scenario.beat(session_id="b", successes=4, errors=40)
    assert (scenario.known.successes, scenario.known.errors) == (10, 100)


# -- the policy of a namespace


def test_overrides_replace_only_the_fields_they_name() -> None:
    policy = override_policy(DEFAULT_POLICY, {"cleanup_delay_ms": 5, "worker_heartbeat_rate": 0.5})
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
def test_integer_settings_stay_integers_when_stored_as_floats(overrides: dict[str, float]) -> None:
    """An event that contains a float could not be read back as an integer."""
    policy = override_policy(Policy(min_lease_ms=1), overrides)
    for name in POLICY_FIELDS:
        assert type(getattr(policy, name)) is type(getattr(DEFAULT_POLICY, name))
    assert type(policy.granted_ms(None)) is int


def is_refused(name: str, value: float) -> bool:
    try:
        override_policy(DEFAULT_POLICY, {name: value})
    except InvalidField:
        return True
    return False


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), -0.001])
def test_negative_and_non_finite_settings_are_refused(value: float) -> None:
    assert [name for name in sorted(POLICY_FIELDS) if not is_refused(name, value)] == []


def test_fractions_are_refused_where_an_integer_is_needed() -> None:
    integers = {field for field in POLICY_FIELDS if not field.endswith(("_rate", "_per_minute"))}
    assert [name for name in sorted(integers) if not is_refused(name, 2_000.5)] == []


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
def test_leases_the_binding_quota_and_the_confirmation_time_cannot_be_zero(name: str) -> None:
    with pytest.raises(InvalidField, match="must be more than 0"):
        override_policy(DEFAULT_POLICY, {name: 0})


def test_settings_that_zero_disables_accept_zero() -> None:
    for name in (
        "cleanup_delay_ms",
        "tombstone_retention_ms",
        "event_retention_ms",
        "binding_retention_ms",
        "activity_retention_ms",
        "max_workers",
        "max_worker_deaths",
        "paused",
    ):
        assert getattr(override_policy(DEFAULT_POLICY, {name: 0}), name) == 0


def test_paused_is_either_zero_or_one() -> None:
    assert override_policy(DEFAULT_POLICY, {"paused": 1}).paused == 1
    with pytest.raises(InvalidField, match="paused must be 0 or 1"):
        override_policy(DEFAULT_POLICY, {"paused": 2})


def test_a_duration_beyond_a_century_is_refused() -> None:
    override_policy(DEFAULT_POLICY, {"cleanup_delay_ms": DURATION_MS_MAX})
    with pytest.raises(InvalidField, match="at most 100 years"):
        override_policy(DEFAULT_POLICY, {"cleanup_delay_ms": DURATION_MS_MAX + 1})


def test_the_refusal_of_an_unknown_setting_lists_the_known_ones() -> None:
    with pytest.raises(InvalidField, match=r"is not a setting; there are: .*cleanup_delay"):
        override_policy(DEFAULT_POLICY, {"cleanup": 5})


@pytest.mark.parametrize(
    "overrides",
    [
        {"min_lease_ms": 31_000},
        {"max_lease_ms": 29_000},
        {"default_lease_ms": 999},
        {"default_lease_ms": 3_600_001},
    ],
)
def test_lease_bounds_that_exclude_the_default_are_refused(overrides: dict[str, float]) -> None:
    with pytest.raises(InvalidField, match="must lie between min_lease and max_lease"):
        override_policy(DEFAULT_POLICY, overrides)
