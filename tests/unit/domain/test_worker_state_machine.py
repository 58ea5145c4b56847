"""The effect of a heartbeat, a shutdown and an expiry on a worker in each state: the design's table, row by
row."""

import pytest

from liveness.domain.death_certificate import DeathCertificate
from liveness.domain.decider import check_worker_quota
from liveness.domain.errors import (
    SessionNotCurrent,
    SessionSuperseded,
    StaleHeartbeat,
    WorkerCleanedUp,
    WorkerNotActive,
    WorkerQuotaExceeded,
)
from liveness.domain.events import (
    LeaseRenewed,
    SessionReplaced,
    WorkerDeactivated,
    WorkerForgotten,
    WorkerRegistered,
    WorkerResurrected,
)
from liveness.domain.events import WorkerCleanedUp as WorkerCleanedUpEvent
from liveness.domain.policy import Policy
from liveness.domain.worker import (
    NO_PROFILE,
    SUPERSEDED_SESSIONS_MAX,
    InactiveReason,
    Profile,
    WorkerState,
    WorkerStatus,
)
from tests.unit.domain.worker_scenario import KEY, POLICY, WorkerScenario, activity, registered

ACTIVE, INACTIVE, CLEANED_UP = WorkerState


# -- no worker


def test_the_first_heartbeat_registers_the_worker() -> None:
    scenario = WorkerScenario().wait(5_000)
    [event] = scenario.beat(sequence=1)
    assert isinstance(event, WorkerRegistered)
    assert (
        scenario.known.state,
        scenario.known.epoch,
        scenario.known.session_id,
        scenario.known.sequence,
    ) == (
        ACTIVE,
        1,
        "a",
        1,
    )
    assert (scenario.known.renewed_ms, scenario.known.deadline_ms) == (5_000, 35_000)


def test_a_workers_number_is_the_sequence_of_its_registration() -> None:
    scenario = registered()
    scenario.beat()
    assert scenario.known.number == 1


@pytest.mark.parametrize("occupancy", [0, 4])
def test_a_namespace_below_its_quota_admits_a_worker(occupancy: int) -> None:
    check_worker_quota("orders", Policy(max_workers=5), occupancy)


@pytest.mark.parametrize("occupancy", [5, 6])
def test_a_namespace_at_its_quota_refuses_a_worker(occupancy: int) -> None:
    with pytest.raises(WorkerQuotaExceeded) as refused:
        check_worker_quota("orders", Policy(max_workers=5), occupancy)
    assert str(refused.value) == "Namespace orders has its 5 workers; remove some or raise max_workers."


# -- ACTIVE


def test_the_next_heartbeat_renews_the_lease() -> None:
    scenario = registered().wait(7_000)
    assert scenario.beat(sequence=2, successes=3, errors=1) == (LeaseRenewed(2, 7_000, 3, 1),)
    assert (scenario.known.deadline_ms, scenario.known.epoch, scenario.known.sequence) == (37_000, 1, 2)


def test_a_repeated_heartbeat_changes_nothing() -> None:
    scenario = registered(bound=(activity("x"),))
    scenario.beat(sequence=2, unbound=(activity("x"),), successes=1)
    before = scenario.known
    assert scenario.wait(5_000).beat(sequence=2, unbound=(activity("x"),), successes=1) == ()
    assert scenario.known == before


def test_a_heartbeat_that_was_overtaken_is_refused() -> None:
    scenario = registered()
    scenario.beat(sequence=5)
    before = scenario.known
    with pytest.raises(StaleHeartbeat) as refused:
        scenario.beat(sequence=4, bound=(activity("x"),))
    assert refused.value.fields == {"sequence": 4, "last_sequence": 5}
    assert scenario.known == before


def test_a_new_session_replaces_the_old_one() -> None:
    scenario = registered(bound=(activity("kept"), activity("dropped")))
    scenario.beat(sequence=9)
    [event] = scenario.beat(sequence=1, session_id="b", bound=(activity("kept"), activity("new")))
    assert isinstance(event, SessionReplaced)
    assert (scenario.known.epoch, scenario.known.session_id, scenario.known.sequence) == (2, "b", 1)
    assert scenario.held == {("kept", 1), ("new", 1)}
    assert scenario.rescheduled == [("dropped", 1, 1)]


def test_a_new_session_has_no_lost_activities_of_the_replaced_one() -> None:
    """The replaced process is gone; the new one never ran the activities it had lost."""
    scenario = registered(bound=(activity("x"),)).go_silent()
    scenario.beat()
    assert scenario.lost == {("x", 1)}
    scenario.beat(session_id="b", sequence=1)
    assert scenario.lost == set()


@pytest.mark.parametrize("state", [ACTIVE, INACTIVE])
def test_a_replaced_session_is_refused_in_every_state(state: WorkerState) -> None:
    scenario = registered(session_id="a")
    scenario.beat(session_id="b", sequence=1)
    if state is INACTIVE:
        scenario.go_silent()
    before = scenario.known
    with pytest.raises(SessionSuperseded) as refused:
        scenario.beat(session_id="a", sequence=99)
    assert refused.value.fields == {"session_id": "a", "worker": "worker-1"}
    assert scenario.known == before


def test_every_replaced_session_stays_refused() -> None:
    scenario = WorkerScenario()
    for name in "abcd":
        scenario.beat(session_id=name, sequence=1)
    for name in "abc":
        with pytest.raises(SessionSuperseded):
            scenario.beat(session_id=name, sequence=99)


def test_a_worker_remembers_a_bounded_number_of_replaced_sessions() -> None:
    scenario = WorkerScenario()
    for number in range(SUPERSEDED_SESSIONS_MAX + 2):
        scenario.beat(session_id=f"session-{number}", sequence=1)
    assert len(scenario.known.superseded) == SUPERSEDED_SESSIONS_MAX
    assert scenario.known.superseded[0] == "session-1"
    assert scenario.known.superseded[-1] == f"session-{SUPERSEDED_SESSIONS_MAX}"


def test_a_client_without_a_session_is_served_without_session_protection() -> None:
    scenario = registered(session_id="", sequence=7)
    [event] = scenario.beat(session_id="", sequence=1)
    assert isinstance(event, LeaseRenewed)
    assert (scenario.known.epoch, scenario.known.sequence) == (1, 1)


def test_a_client_without_a_sequence_is_served_without_sequence_protection() -> None:
    scenario = registered(sequence=0)
    for _ in range(3):
        [event] = scenario.beat(sequence=0)
        assert isinstance(event, LeaseRenewed)
    assert scenario.known.sequence == 0


def test_a_heartbeat_without_a_session_belongs_to_the_current_session() -> None:
    scenario = registered(session_id="a", sequence=5)
    scenario.beat(session_id="", sequence=0)
    assert (scenario.known.session_id, scenario.known.sequence, scenario.known.epoch) == ("a", 5, 1)


# -- lease expiry


def test_a_lease_expires_only_after_its_full_duration() -> None:
    scenario = registered().wait(29_999)
    assert scenario.expire() == ()
    [event] = scenario.wait(1).expire()
    assert event == WorkerDeactivated(
        reason=InactiveReason.LEASE_EXPIRED,
        detail="no heartbeat for 30000 ms of a 30000 ms lease",
        at_ms=30_000,
        cleanup_delay_ms=3_600_000,
        certificate=DeathCertificate(
            epoch=1, session_id="a", silence_ms=30_000, granted_ms=30_000, activities=0
        ),
    )
    assert scenario.known.state is INACTIVE


def test_a_heartbeat_restarts_the_lease_duration() -> None:
    scenario = registered().wait(29_999)
    scenario.beat()
    assert scenario.wait(29_999).expire() == ()


def test_expiry_reschedules_all_bindings_and_lists_them_as_lost() -> None:
    scenario = registered(bound=(activity("x"), activity("y", attempt=3))).go_silent()
    assert sorted(scenario.rescheduled) == [("x", 1, 1), ("y", 3, 1)]
    assert (scenario.held, scenario.lost) == (set(), {("x", 1), ("y", 3)})


def test_an_expired_lease_does_not_expire_again() -> None:
    scenario = registered().go_silent()
    assert scenario.wait(99_999).expire() == ()


# -- INACTIVE


@pytest.mark.parametrize("session_id", ["a", "b", ""])
def test_a_heartbeat_resurrects_the_worker_with_only_the_bindings_it_declares(session_id: str) -> None:
    scenario = registered(session_id="a", bound=(activity("x"),)).go_silent()
    [event] = scenario.beat(session_id=session_id, sequence=2, bound=(activity("y"),))
    assert isinstance(event, WorkerResurrected)
    assert (scenario.known.state, scenario.known.epoch) == (ACTIVE, 2)
    assert (scenario.held, scenario.lost) == ({("y", 1)}, {("x", 1)})
    assert (scenario.known.inactive_reason, scenario.known.inactive_detail) == (None, "")
    assert scenario.rescheduled == [("x", 1, 1)], "reschedules stand, and resurrection adds none"


def test_a_resurrection_by_a_new_session_supersedes_the_old_one() -> None:
    scenario = registered(session_id="a").go_silent()
    scenario.beat(session_id="b", sequence=1)
    with pytest.raises(SessionSuperseded):
        scenario.beat(session_id="a", sequence=2)


def test_a_copy_of_the_last_heartbeat_does_not_resurrect_the_worker() -> None:
    """The copy was sent before the lease expired; a live worker sends the next sequence number."""
    scenario = registered(sequence=5).go_silent()
    assert scenario.beat(sequence=5) == ()
    with pytest.raises(StaleHeartbeat):
        scenario.beat(sequence=4)
    assert scenario.known.state is INACTIVE


def test_the_epoch_rises_with_every_resurrection() -> None:
    scenario = registered()
    for epoch in range(2, 6):
        scenario.go_silent()
        scenario.beat()
        assert scenario.known.epoch == epoch


def test_lost_activities_accumulate_over_expiries_until_unbound() -> None:
    scenario = registered(bound=(activity("x"),)).go_silent()
    scenario.beat(bound=(activity("y"),))
    scenario.go_silent()
    scenario.beat()
    assert scenario.lost == {("x", 1), ("y", 1)}
    scenario.beat(unbound=(activity("x"),))
    assert scenario.lost == {("y", 1)}


def test_an_inactive_worker_can_be_resurrected_until_its_cleanup() -> None:
    scenario = registered().go_silent().wait(3_599_999)
    assert scenario.clean_up() == ()
    scenario.beat()
    assert scenario.known.state is ACTIVE


def test_an_active_worker_is_not_cleaned_up() -> None:
    assert registered().wait(10**12).clean_up() == ()


def test_the_cleanup_delay_is_that_of_the_time_of_deactivation() -> None:
    scenario = registered()
    scenario.shut_down(policy=Policy(cleanup_delay_ms=5))
    assert scenario.wait(4).clean_up(Policy(cleanup_delay_ms=0)) == ()
    assert len(scenario.wait(1).clean_up(Policy(cleanup_delay_ms=10**9))) == 1


# -- CLEANED_UP


def test_cleanup_leaves_a_tombstone() -> None:
    profile = Profile(task_queue="queue", labels=(("zone", "a"),))
    scenario = registered(
        profile=profile, bound=(activity("x"),), last_error="broken", status=WorkerStatus.RUNNING
    )
    scenario.go_silent()
    [event] = scenario.wait(3_600_000).clean_up()
    assert event == WorkerCleanedUpEvent(
        at_ms=scenario.now_ms, tombstone_retention_ms=POLICY.tombstone_retention_ms
    )
    tombstone = scenario.known
    assert tombstone.state is CLEANED_UP
    assert tombstone.deadline_ms == scenario.now_ms + POLICY.tombstone_retention_ms
    assert (tombstone.profile, tombstone.last_error, scenario.lost) == (NO_PROFILE, "", set())
    assert (tombstone.epoch, tombstone.inactive_reason) == (1, InactiveReason.LEASE_EXPIRED)


@pytest.mark.parametrize("session_id", ["a", "b", "zombie", ""])
def test_every_heartbeat_of_a_cleaned_up_worker_is_refused(session_id: str) -> None:
    scenario = registered(session_id="zombie")
    scenario.beat(session_id="a", sequence=1)
    scenario.go_silent().be_cleaned_up()
    before = scenario.known
    with pytest.raises(WorkerCleanedUp) as refused:
        scenario.beat(session_id=session_id, sequence=99)
    assert str(refused.value) == "Worker worker-1 was cleaned up; register under a new instance key."
    assert scenario.known == before


def test_no_other_command_changes_a_tombstone() -> None:
    scenario = registered().go_silent().be_cleaned_up()
    assert scenario.wait(1).expire() == ()
    assert scenario.clean_up() == ()
    with pytest.raises(WorkerCleanedUp):
        scenario.shut_down()
    with pytest.raises(WorkerCleanedUp):
        scenario.force_out()


def test_a_tombstone_is_forgotten_when_its_retention_ends() -> None:
    scenario = registered().go_silent().be_cleaned_up()
    assert scenario.wait(POLICY.tombstone_retention_ms - 1).forget() == ()
    assert scenario.wait(1).forget() == (WorkerForgotten(),)
    assert scenario.worker is None


def test_a_tombstone_without_retention_stays_for_ever() -> None:
    scenario = registered().go_silent().be_cleaned_up(Policy(tombstone_retention_ms=0))
    assert scenario.known.deadline_ms == 0
    assert scenario.wait(2**60).forget() == ()


def test_only_tombstones_are_forgotten() -> None:
    scenario = registered()
    assert scenario.wait(2**60).forget() == ()
    scenario.expire()
    assert scenario.wait(2**60).forget() == ()


def test_a_forgotten_key_registers_at_epoch_one() -> None:
    scenario = registered().go_silent().be_cleaned_up().wait(POLICY.tombstone_retention_ms)
    scenario.forget()
    [event] = scenario.beat(session_id="a", sequence=1)
    assert isinstance(event, WorkerRegistered)
    assert (scenario.known.epoch, scenario.known.number) == (1, len(scenario.log))


# -- shutdown and forced deactivation


def test_a_shutdown_reschedules_the_remaining_bindings_at_once() -> None:
    scenario = registered(bound=(activity("x"),)).wait(10)
    [event] = scenario.shut_down(session_id="a", detail="deploy")
    assert event == WorkerDeactivated(
        reason=InactiveReason.SHUTDOWN, detail="deploy", at_ms=10, cleanup_delay_ms=3_600_000
    )
    assert (scenario.known.state, scenario.known.inactive_reason) == (INACTIVE, InactiveReason.SHUTDOWN)
    assert scenario.rescheduled == [("x", 1, 1)]


def test_a_second_shutdown_changes_nothing() -> None:
    scenario = registered()
    scenario.shut_down()
    assert scenario.shut_down() == ()


def test_forced_deactivation_of_an_inactive_worker_is_refused() -> None:
    scenario = registered().go_silent()
    with pytest.raises(WorkerNotActive) as refused:
        scenario.force_out()
    assert str(refused.value) == "Worker worker-1 is INACTIVE, not ACTIVE."


def test_the_shutdown_of_a_replaced_session_is_refused() -> None:
    scenario = registered(session_id="a")
    scenario.beat(session_id="b", sequence=1)
    with pytest.raises(SessionSuperseded):
        scenario.shut_down(session_id="a")
    assert scenario.known.state is ACTIVE


def test_the_shutdown_of_an_unknown_session_is_refused() -> None:
    scenario = registered()
    with pytest.raises(SessionNotCurrent):
        scenario.shut_down(session_id="other")
    assert scenario.known.state is ACTIVE


def test_a_reschedule_task_names_namespace_worker_and_activity() -> None:
    scenario = registered(bound=(activity("x"),)).go_silent()
    [task] = scenario.tasks
    assert (task.namespace, task.worker, task.activity) == (KEY.namespace, KEY.instance_key, activity("x"))
