"""The effect of a heartbeat, a shutdown and an expiry on a worker in each state: the design's table, row by
row."""

import pytest

from liveness.domain.death_certificate import DeathCertificate
from liveness.domain.decider import check_worker_quota
from liveness.domain.errors import (
    SessionNotCurrent,
    SessionSuperseded,
    StaleHeartbeat,
    WorkerActive,
    WorkerCleanedUp,
    WorkerNotActive,
    WorkerQuotaExceeded,
)
from liveness.domain.events import (
    LeaseRenewed,
    SessionReplaced,
    WorkerDeactivated,
    WorkerEvent,
    WorkerForgotten,
    WorkerRegistered,
    WorkerResurrected,
)
from liveness.domain.events import WorkerCleanedUp as WorkerCleanedUpEvent
from liveness.domain.fold import evolve
from liveness.domain.policy import Policy
from liveness.domain.worker import (
    NO_PROFILE,
    NO_STANDING,
    SUPERSEDED_SESSIONS_MAX,
    InactiveReason,
    Profile,
    Worker,
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
    check_worker_quota("orders", Policy(max_workers=5), occupancy, inactive=0)


@pytest.mark.parametrize("occupancy", [5, 6])
def test_a_namespace_at_its_quota_refuses_a_worker(occupancy: int) -> None:
    with pytest.raises(WorkerQuotaExceeded) as refused:
        check_worker_quota("orders", Policy(max_workers=5), occupancy, inactive=3)
    assert str(refused.value) == (
        "Namespace orders has its 5 workers, 3 of them INACTIVE, which count until their cleanup_delay is over or "
        "`liveness workers forget` removes them; otherwise raise max_workers."
    )


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


@pytest.mark.parametrize("state", list(WorkerState))
def test_a_session_that_holds_an_earlier_lease_is_refused_although_nobody_remembers_it(
    state: WorkerState,
) -> None:
    """Its worker was forgotten, and the key has a new life."""
    scenario = registered(session_id="first")
    scenario.go_silent().forget_now()
    scenario.beat(session_id="second", sequence=1)
    assert (scenario.known.epoch, scenario.known.superseded) == (2, ())
    if state is not ACTIVE:
        scenario.go_silent()
    if state is CLEANED_UP:
        scenario.be_cleaned_up()
    before = scenario.known
    with pytest.raises(SessionSuperseded):
        scenario.beat(session_id="first", sequence=9, lease_epoch=1, new_incarnation=True)
    assert scenario.known == before
    scenario.beat(session_id="third", sequence=1, new_incarnation=True)
    assert scenario.known.epoch == 3, "a session without a lease is new"


def test_the_lease_epoch_of_the_current_session_decides_nothing() -> None:
    """The answer that told it the present one may have been lost."""
    scenario = registered().go_silent()
    scenario.beat(lease_epoch=1)
    assert scenario.known.epoch == 2
    scenario.beat(lease_epoch=1)
    scenario.beat(lease_epoch=99)
    assert scenario.known.epoch == 2


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
        at_ms=scenario.now_ms, tombstone_retention_ms=POLICY.tombstone_retention_ms, keeps_sessions=True
    )
    tombstone = scenario.known
    assert tombstone.state is CLEANED_UP
    assert tombstone.deadline_ms == scenario.now_ms + POLICY.tombstone_retention_ms
    assert (tombstone.profile, tombstone.last_error, scenario.lost) == (NO_PROFILE, "", set())
    assert (tombstone.epoch, tombstone.inactive_reason) == (1, InactiveReason.LEASE_EXPIRED)


@pytest.mark.parametrize("session_id", ["a", "b", "zombie", ""])
def test_every_plain_heartbeat_of_a_cleaned_up_worker_is_refused(session_id: str) -> None:
    scenario = registered(session_id="zombie")
    scenario.beat(session_id="a", sequence=1)
    scenario.go_silent().be_cleaned_up()
    before = scenario.known
    with pytest.raises(WorkerCleanedUp) as refused:
        scenario.beat(session_id=session_id, sequence=99)
    assert str(refused.value) == (
        "Worker worker-1 was cleaned up; a new session of its key must say new_incarnation in its first heartbeat."
    )
    assert scenario.known == before


def cleaned_up_after_a_session_change() -> WorkerScenario:
    scenario = registered(session_id="zombie", bound=(activity("x"),), successes=4, last_error="broken")
    scenario.beat(session_id="last", sequence=1)
    scenario.pause()
    return scenario.go_silent().be_cleaned_up()


def test_a_new_incarnation_begins_with_a_clean_slate_at_the_next_epoch() -> None:
    scenario = cleaned_up_after_a_session_change()
    tombstone, tasks = scenario.known, len(scenario.tasks)
    [event] = scenario.beat(session_id="new", sequence=1, bound=(activity("y"),), new_incarnation=True)
    assert isinstance(event, WorkerRegistered)
    worker = scenario.known
    assert (worker.state, worker.epoch, worker.session_id) == (ACTIVE, tombstone.epoch + 1, "new")
    assert worker.number == len(scenario.log), "renewals of the earlier life cannot be mistaken for its own"
    assert (scenario.held, scenario.lost, len(scenario.tasks)) == ({("y", 1)}, set(), tasks)
    assert (worker.successes, worker.last_error, worker.inactive_reason) == (0, "", None)
    assert worker.standing is NO_STANDING
    assert worker.superseded == ("zombie", "last")


def test_a_repeated_first_heartbeat_begins_no_second_incarnation() -> None:
    scenario = cleaned_up_after_a_session_change()
    scenario.beat(session_id="new", sequence=1, new_incarnation=True)
    before = scenario.known
    assert scenario.beat(session_id="new", sequence=1, new_incarnation=True) == ()
    assert scenario.known == before


@pytest.mark.parametrize("session_id", ["last", ""])
def test_no_new_incarnation_begins_without_a_new_session(session_id: str) -> None:
    scenario = cleaned_up_after_a_session_change()
    before = scenario.known
    with pytest.raises(WorkerCleanedUp):
        scenario.beat(session_id=session_id, sequence=99, new_incarnation=True)
    assert scenario.known == before


def test_a_replaced_session_begins_no_new_incarnation() -> None:
    scenario = cleaned_up_after_a_session_change()
    before = scenario.known
    with pytest.raises(SessionSuperseded):
        scenario.beat(session_id="zombie", sequence=99, new_incarnation=True)
    assert scenario.known == before


def test_sessions_of_earlier_incarnations_stay_refused() -> None:
    scenario = cleaned_up_after_a_session_change()
    scenario.beat(session_id="new", sequence=1, new_incarnation=True)
    for state in (ACTIVE, INACTIVE, CLEANED_UP):
        assert scenario.known.state is state
        for session_id in ("zombie", "last"):
            with pytest.raises(SessionSuperseded):
                scenario.beat(session_id=session_id, sequence=99, new_incarnation=True)
        if state is not CLEANED_UP:
            scenario.go_silent() if state is ACTIVE else scenario.be_cleaned_up()
    scenario.beat(session_id="newest", sequence=1, new_incarnation=True)
    assert (scenario.known.epoch, scenario.known.superseded) == (4, ("zombie", "last", "new"))


def test_a_tombstone_of_an_early_version_remembers_no_replaced_sessions() -> None:
    scenario = registered(session_id="zombie")
    scenario.beat(session_id="last", sequence=1)
    scenario.go_silent()
    tombstone = evolve(scenario.known, WorkerCleanedUpEvent(at_ms=0, tombstone_retention_ms=0), 9, wall_ms=0)
    assert tombstone is not None
    assert tombstone.superseded == ()


@pytest.mark.parametrize("state", [ACTIVE, INACTIVE])
@pytest.mark.parametrize(("session_id", "sequence"), [("a", 2), ("a", 1), ("b", 1), ("", 0)])
def test_new_incarnation_changes_nothing_unless_the_worker_was_cleaned_up(
    state: WorkerState, session_id: str, sequence: int
) -> None:
    def after(*, new_incarnation: bool) -> tuple[tuple[WorkerEvent, ...], Worker | None]:
        scenario = registered(bound=(activity("x"),))
        if state is INACTIVE:
            scenario.go_silent()
        events = scenario.beat(
            session_id=session_id,
            sequence=sequence,
            bound=(activity("y"),),
            new_incarnation=new_incarnation,
        )
        return events, scenario.worker

    assert after(new_incarnation=True) == after(new_incarnation=False)


def test_new_incarnation_registers_a_key_that_is_not_known_as_usual() -> None:
    scenario = registered(new_incarnation=True)
    assert (scenario.known.epoch, scenario.known.number) == (1, 1)


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
    assert scenario.wait(1).forget() == (WorkerForgotten(epoch_floor=2),)
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


def test_a_forgotten_key_registers_above_all_its_earlier_epochs() -> None:
    scenario = registered()
    scenario.beat(session_id="b", sequence=1)
    scenario.go_silent().be_cleaned_up().wait(POLICY.tombstone_retention_ms).forget()
    [event] = scenario.beat(session_id="c", sequence=1)
    assert isinstance(event, WorkerRegistered)
    assert (scenario.known.epoch, scenario.known.number) == (3, len(scenario.log))


def test_an_operator_frees_the_key_of_an_inactive_worker_by_way_of_its_cleanup() -> None:
    scenario = registered(bound=(activity("x"),)).go_silent()
    tasks = list(scenario.tasks)
    assert scenario.forget_now("host is gone") == (
        WorkerCleanedUpEvent(
            at_ms=scenario.now_ms,
            tombstone_retention_ms=POLICY.tombstone_retention_ms,
            keeps_sessions=True,
        ),
        WorkerForgotten(epoch_floor=2, reason="host is gone"),
    )
    assert (scenario.worker, scenario.tasks) == (None, tasks)


def test_an_operator_frees_the_key_of_a_tombstone_before_its_retention_ends() -> None:
    scenario = registered().go_silent().be_cleaned_up(Policy(tombstone_retention_ms=0))
    assert scenario.forget_now() == (WorkerForgotten(epoch_floor=2),)
    assert scenario.worker is None


def test_an_active_worker_is_not_forgotten() -> None:
    scenario = registered()
    with pytest.raises(WorkerActive) as refused:
        scenario.forget_now()
    assert str(refused.value) == (
        "Worker worker-1 is ACTIVE and is not forgotten; end its lease first, with `liveness workers drain` or "
        "`liveness workers expire`."
    )
    assert scenario.known.state is ACTIVE


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
