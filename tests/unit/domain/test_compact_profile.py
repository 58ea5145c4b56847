"""The compact form of a profile in memory loses nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from liveness.domain.worker import NO_PROFILE, CompactProfile, Profile, compact_profile, full_profile

TEXTS = st.text(max_size=20)
PROFILES = st.builds(
    Profile,
    worker_identity=TEXTS,
    task_queue=TEXTS,
    build_id=TEXTS,
    sdk_name=TEXTS,
    sdk_version=TEXTS,
    host_name=TEXTS,
    process_id=TEXTS,
    start_time_ns=st.none() | st.integers(-(2**63), 2**63 - 1),
    labels=st.lists(st.tuples(TEXTS, TEXTS), max_size=3).map(tuple),
    capabilities=st.lists(TEXTS, max_size=3).map(tuple),
    current_job=TEXTS,
)


@given(PROFILES)
def test_expanding_a_compact_profile_gives_the_original(profile: Profile) -> None:
    assert full_profile(compact_profile(profile)) == profile


@given(PROFILES, PROFILES)
def test_compact_profiles_are_equal_exactly_when_the_profiles_are(one: Profile, other: Profile) -> None:
    assert (CompactProfile(one) == CompactProfile(other)) == (one == other)
    assert (CompactProfile(one) == other) == (one == other)
    assert (other == CompactProfile(one)) == (one == other)


def test_the_packed_fields_of_a_profile_stay_distinct() -> None:
    assert CompactProfile(Profile(worker_identity="ab", process_id="c")) != Profile(
        worker_identity="a", process_id="bc"
    )
    assert CompactProfile(Profile(process_id="1", current_job="")) != Profile(process_id="", current_job="1")
    assert CompactProfile(Profile(worker_identity="1,2,3:4", process_id=":")).expand().process_id == ":"


def test_compact_profiles_share_equal_strings() -> None:
    def compact(identity: str) -> CompactProfile:
        return CompactProfile(
            Profile(worker_identity=identity, task_queue="orders", host_name=b"host".decode())
        )

    assert compact("a").host_name is compact("b").host_name


def test_an_empty_profile_is_the_shared_one() -> None:
    assert compact_profile(Profile()) is NO_PROFILE
