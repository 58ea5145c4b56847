"""What registering, heartbeats and goodbyes do to a component in each state: the table of the decision, row by row."""

from __future__ import annotations

import pytest

from liveness.domain.errors import (
    InvalidField,
    RegistryEntryNotFound,
    ReplicaQuotaExceeded,
    SessionNotCurrent,
    SessionSuperseded,
    StaleHeartbeat,
    WorkerKeyHeld,
    WorkerKeyOwned,
)
from liveness.domain.events import (
    EntryChanged,
    LeaseRenewed,
    ReplicaLeft,
    ReplicaSeen,
    WorkerDeactivated,
    WorkerRegistered,
    WorkerResurrected,
)
from liveness.domain.registry import REPLICAS_MAX, ReplicaPolicy, kind_of, name_of, numbered_key
from liveness.domain.registry_decider import current_status, is_stale
from liveness.domain.worker import InactiveReason, Profile, WorkerState
from tests.unit.domain.registry_scenario import RegistryScenario

ACTIVE, INACTIVE, CLEANED_UP = WorkerState


def kinds(events: tuple[object, ...]) -> list[type]:
    return [type(event) for event in events]


# -- registering


def test_registering_an_unknown_name_begins_a_lease_and_an_entry() -> None:
    scenario = RegistryScenario().wait(1_000)
    assert kinds(scenario.register(uri="nats://a", capacity=4)) == [WorkerRegistered, EntryChanged]
    assert (scenario.entry.uri, scenario.entry.capacity, scenario.entry.status) == ("nats://a", 4, "ready")
    assert scenario.known.state is ACTIVE


def test_registering_again_renews_the_lease_and_records_only_what_changed() -> None:
    scenario = RegistryScenario()
    scenario.register(uri="a")
    assert kinds(scenario.wait(5_000).register(uri="a")) == [LeaseRenewed]
    assert kinds(scenario.register(uri="b")) == [LeaseRenewed, EntryChanged]
    assert scenario.entry.uri == "b"
    first, *_ = (event for event in scenario.log if isinstance(event, EntryChanged))
    assert scenario.entry.first_seen_wall_ms == first.wall_ms


def test_the_same_registration_sent_twice_counts_once() -> None:
    scenario = RegistryScenario()
    scenario.register(sequence=1, uri="a")
    assert scenario.register(sequence=1, uri="a") == ()


def test_a_lease_is_three_expected_intervals_unless_another_is_asked_for() -> None:
    scenario = RegistryScenario()
    scenario.register(interval_ms=15_000)
    assert scenario.known.granted_ms == 45_000
    scenario.register(interval_ms=15_000, lease_ms=20_000)
    assert scenario.known.granted_ms == 20_000
    scenario.register()
    assert scenario.known.granted_ms == 30_000, "the namespace's default"


def test_heartbeats_keep_the_lease_that_the_component_asked_for() -> None:
    scenario = RegistryScenario()
    scenario.register(interval_ms=15_000)
    assert kinds(scenario.beat()) == [LeaseRenewed]
    assert scenario.known.granted_ms == 45_000


# -- coming back


def test_a_heartbeat_by_name_alone_brings_an_offline_component_back() -> None:
    scenario = RegistryScenario()
    scenario.register(uri="a")
    scenario.expire()
    assert current_status(scenario.known, scenario.entry) == "offline"
    assert kinds(scenario.beat()) == [WorkerResurrected]
    assert (scenario.known.state, scenario.known.epoch, scenario.known.session_id) == (ACTIVE, 2, "a")
    assert scenario.entry.uri == "a"


def test_another_process_takes_a_name_whose_lease_is_over() -> None:
    scenario = RegistryScenario()
    scenario.register("a", uri="a")
    scenario.expire()
    assert kinds(scenario.register("b", uri="b")) == [WorkerResurrected, EntryChanged]
    assert scenario.known.session_id == "b"
    with pytest.raises(SessionSuperseded):
        scenario.beat("a")


def test_a_cleaned_up_component_comes_back_by_name_under_a_session_that_it_never_had() -> None:
    scenario = RegistryScenario()
    profile = Profile(host_name="host", process_id="a", labels=(("zone", "b"),))
    scenario.register("a", uri="a", capacity=3, profile=profile)
    scenario.expire().clean_up()
    assert kinds(scenario.beat("a")) == [WorkerRegistered]
    assert (scenario.known.session_id, scenario.known.epoch) == ("a#2", 2)
    assert scenario.entry.capacity == 3
    assert scenario.known.profile == profile, "labels outlive the cleanup"
    assert kinds(scenario.beat("a")) == [LeaseRenewed], "it may go on under the session that it knows"
    scenario.expire().clean_up()
    scenario.beat()
    assert scenario.known.session_id == "a#3"


def test_a_component_without_a_session_comes_back_from_the_cleanup_too() -> None:
    scenario = RegistryScenario()
    scenario.register("")
    scenario.expire().clean_up()
    scenario.beat()
    assert scenario.known.session_id == "#2"
    assert kinds(scenario.beat()) == [LeaseRenewed]


def test_a_process_that_lost_its_name_can_take_it_again_by_registering() -> None:
    scenario = RegistryScenario()
    scenario.register("a")
    scenario.expire()
    scenario.register("b")
    assert kinds(scenario.register("a")) == [ReplicaSeen]
    scenario.expire()
    assert kinds(scenario.register("a"))[0] is WorkerResurrected
    assert scenario.known.session_id == "a#3", "a session that was replaced never comes back"


def test_an_unknown_name_must_be_registered_first() -> None:
    with pytest.raises(RegistryEntryNotFound):
        RegistryScenario().beat()
    with pytest.raises(RegistryEntryNotFound):
        RegistryScenario().deregister()


# -- replicas


def test_a_second_process_is_shown_as_a_replica_and_renews_nothing() -> None:
    scenario = RegistryScenario()
    scenario.register("a")
    deadline_ms = scenario.known.deadline_ms
    [seen] = scenario.wait(1_000).register("b", uri="nats://b")
    assert isinstance(seen, ReplicaSeen)
    [replica] = scenario.entry.replicas
    assert (replica.session_id, replica.uri, replica.host_name, replica.process_id) == (
        "b",
        "nats://b",
        "host",
        "b",
    )
    assert (scenario.known.session_id, scenario.known.deadline_ms) == ("a", deadline_ms)
    scenario.wait(1_000).beat("b")
    [again] = scenario.entry.replicas
    assert again.first_seen_wall_ms == replica.first_seen_wall_ms
    assert again.last_seen_wall_ms == replica.last_seen_wall_ms + 1_000
    assert scenario.known.deadline_ms == deadline_ms


def test_a_replica_that_is_not_heard_of_for_a_lease_is_shown_no_more() -> None:
    scenario = RegistryScenario()
    scenario.register("a")
    scenario.register("b")
    scenario.wait(29_999).register("a")
    assert scenario.replicas == ["b"]
    scenario.wait(1)
    assert scenario.replicas == []
    scenario.register("c")
    assert [replica.session_id for replica in scenario.entry.replicas] == ["c"]


def test_a_replica_takes_the_name_with_its_next_heartbeat_once_the_lease_is_over() -> None:
    scenario = RegistryScenario()
    scenario.register("a", uri="a")
    scenario.register("b", uri="b")
    scenario.expire()
    assert kinds(scenario.beat("b")) == [WorkerResurrected, ReplicaLeft, EntryChanged]
    assert (scenario.known.session_id, scenario.entry.uri, scenario.replicas) == ("b", "b", [])
    assert scenario.known.profile.process_id == "b"


def test_a_replica_takes_the_name_by_registering_and_is_no_replica_any_more() -> None:
    scenario = RegistryScenario()
    scenario.register("a")
    scenario.register("b")
    scenario.deregister("a")
    assert kinds(scenario.register("b")) == [WorkerResurrected, ReplicaLeft]
    assert scenario.replicas == []


@pytest.mark.parametrize("policy", [ReplicaPolicy.REFUSE, ReplicaPolicy.NUMBER])
def test_a_registration_can_ask_not_to_become_a_replica(policy: ReplicaPolicy) -> None:
    scenario = RegistryScenario()
    scenario.register("a")
    with pytest.raises(WorkerKeyHeld):
        scenario.register("b", on_replica=policy)
    assert scenario.replicas == []


def test_an_entry_shows_a_bounded_number_of_replicas() -> None:
    scenario = RegistryScenario()
    scenario.register("a")
    for number in range(REPLICAS_MAX):
        scenario.register(f"replica {number}")
    with pytest.raises(ReplicaQuotaExceeded):
        scenario.register("one too many")
    scenario.register("replica 0")
    assert len(scenario.entry.replicas) == REPLICAS_MAX


def test_a_worker_that_is_no_component_keeps_its_key() -> None:
    scenario = RegistryScenario()
    scenario.register("a")
    assert scenario.worker is not None
    scenario.worker = scenario.worker._replace(standing=scenario.worker.standing._replace(entry=None))
    with pytest.raises(WorkerKeyHeld):
        scenario.register("b")


# -- goodbyes


def test_deregistering_is_a_goodbye() -> None:
    scenario = RegistryScenario()
    scenario.register("a")
    [event] = scenario.deregister("a")
    assert isinstance(event, WorkerDeactivated)
    assert event.reason is InactiveReason.SHUTDOWN
    assert scenario.deregister("a") == ()
    scenario.clean_up()
    assert scenario.deregister("a") == ()


def test_the_goodbye_of_a_replica_ends_no_lease() -> None:
    scenario = RegistryScenario()
    scenario.register("a")
    scenario.register("b")
    assert kinds(scenario.deregister("b")) == [ReplicaLeft]
    assert (scenario.known.state, scenario.replicas) == (ACTIVE, [])


def test_a_session_that_never_registered_is_refused() -> None:
    scenario = RegistryScenario()
    scenario.register("a")
    with pytest.raises(SessionNotCurrent):
        scenario.beat("stranger")
    with pytest.raises(SessionNotCurrent):
        scenario.deregister("stranger")


# -- status and counters


def test_a_heartbeat_can_change_the_status() -> None:
    scenario = RegistryScenario()
    scenario.register("a")
    assert kinds(scenario.beat("a", status="draining")) == [LeaseRenewed, EntryChanged]
    assert kinds(scenario.beat("a")) == [LeaseRenewed]
    assert scenario.entry.status == "draining"


def test_counters_of_a_repeated_heartbeat_are_not_added_again() -> None:
    scenario = RegistryScenario()
    scenario.register("a")
    scenario.beat("a", sequence=1, successes=5)
    assert scenario.beat("", sequence=1, successes=5) == (), "by name alone, too"
    assert scenario.known.successes == 5
    scenario.beat("a", sequence=2, successes=1)
    with pytest.raises(StaleHeartbeat):
        scenario.beat("a", sequence=1)
    assert scenario.known.successes == 6


def test_a_heartbeat_that_counted_before_its_process_lost_the_name_is_not_added_again() -> None:
    """Its answer was lost, and the process sends it again when it has the name again."""
    scenario = RegistryScenario()
    scenario.register("a")
    scenario.beat("a", sequence=1, successes=1)
    scenario.beat("a", sequence=2, successes=3, errors=1, last_error="broken")
    scenario.expire()
    scenario.register("b")
    scenario.beat("b", sequence=1, successes=10)
    scenario.deregister("b")
    scenario.register("a")
    for _ in range(2):
        assert scenario.beat("a", sequence=2, successes=3, errors=1) == ()
    with pytest.raises(StaleHeartbeat):
        scenario.beat("a", sequence=1, successes=1)
    scenario.beat("a", sequence=3, successes=100)
    assert (scenario.known.successes, scenario.known.errors) == (114, 1)


def test_a_replica_that_takes_the_name_with_a_repeated_heartbeat_adds_nothing() -> None:
    scenario = RegistryScenario()
    scenario.register("a")
    scenario.beat("a", sequence=5, successes=3)
    scenario.expire()
    scenario.register("b")
    scenario.register("a")
    scenario.expire()
    assert kinds(scenario.beat("a", sequence=5, successes=3))[0] is WorkerResurrected
    scenario.beat("a", sequence=6, successes=4)
    assert scenario.known.successes == 7


def test_a_replica_adds_with_its_first_heartbeat_that_has_the_name() -> None:
    """What it counted meanwhile is told again until it is added."""
    scenario = RegistryScenario()
    scenario.register("a")
    scenario.register("b")
    scenario.beat("b", sequence=1, successes=3)
    assert scenario.known.successes == 0
    scenario.expire()
    scenario.beat("b", sequence=1, successes=3)
    assert scenario.beat("b", sequence=1, successes=3) == ()
    assert scenario.known.successes == 3


def test_a_heartbeat_that_counted_before_the_cleanup_is_not_added_to_the_next_life() -> None:
    scenario = RegistryScenario()
    scenario.register("a")
    scenario.beat("a", sequence=1, successes=3)
    scenario.expire().clean_up()
    assert kinds(scenario.beat("a", sequence=1, successes=3)) == [WorkerRegistered]
    assert scenario.beat("a", sequence=1, successes=3) == ()
    scenario.beat("a", sequence=2, successes=4)
    assert scenario.known.successes == 4


def test_an_entry_is_stale_after_two_expected_intervals() -> None:
    scenario = RegistryScenario()
    scenario.register(interval_ms=10_000)
    assert not is_stale(scenario.known, scenario.entry, 20_000)
    assert is_stale(scenario.known, scenario.entry, 20_001)
    scenario.register(interval_ms=0)
    assert not is_stale(scenario.known, scenario.entry, 29_999)
    scenario.deregister()
    assert is_stale(scenario.known, scenario.entry, scenario.now_ms)


# -- who calls


def test_a_name_belongs_to_the_principal_that_registered_it() -> None:
    scenario = RegistryScenario()
    scenario.register("a", principal="anna")
    with pytest.raises(WorkerKeyOwned):
        scenario.register("b", principal="bob")
    with pytest.raises(WorkerKeyOwned):
        scenario.beat("a", principal="bob")
    with pytest.raises(WorkerKeyOwned):
        scenario.deregister("a", principal="bob")


def test_where_callers_are_asked_a_name_alone_is_not_enough() -> None:
    scenario = RegistryScenario()
    scenario.register("a", principal="anna")
    for refused in (scenario.beat, scenario.deregister):
        with pytest.raises(InvalidField):
            refused(principal="anna")
    scenario.beat("a", principal="anna")


def test_a_stranger_becomes_no_replica_of_a_name_without_owner() -> None:
    scenario = RegistryScenario()
    scenario.register("a")
    with pytest.raises(WorkerKeyOwned):
        scenario.register("b", principal="bob")


def test_a_key_is_its_kind_and_its_name() -> None:
    assert (kind_of("broker:host:4222"), name_of("broker:host:4222")) == ("broker", "host:4222")
    assert [numbered_key("broker:n", number) for number in (1, 2)] == ["broker:n", "broker:n-2"]
