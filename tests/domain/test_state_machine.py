"""What a heartbeat, a goodbye and silence do to a worker in each state: the table of the design, row by row."""

import pytest

from liveness.domain.death import Certificate
from liveness.domain.decider import admit
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
from tests.domain.story import KEY, POLICY, Story, activity, registered

ACTIVE, INACTIVE, CLEANED_UP = WorkerState


# -- no worker


def test_the_first_heartbeat_registers() -> None:
    story = Story().wait(5_000)
    [event] = story.beat(sequence=1)
    assert isinstance(event, WorkerRegistered)
    assert (story.known.state, story.known.epoch, story.known.session_id, story.known.sequence) == (
        ACTIVE,
        1,
        "a",
        1,
    )
    assert (story.known.renewed_ms, story.known.deadline_ms) == (5_000, 35_000)


def test_a_worker_is_numbered_by_the_place_of_its_registration() -> None:
    story = registered()
    story.beat()
    assert story.known.number == 1


@pytest.mark.parametrize("occupancy", [0, 4])
def test_a_namespace_with_room_admits_a_worker(occupancy: int) -> None:
    admit("orders", Policy(max_workers=5), occupancy)


@pytest.mark.parametrize("occupancy", [5, 6])
def test_a_full_namespace_admits_nobody(occupancy: int) -> None:
    with pytest.raises(WorkerQuotaExceeded) as refused:
        admit("orders", Policy(max_workers=5), occupancy)
    assert str(refused.value) == "Namespace orders has its 5 workers; remove some or raise max_workers."


# -- ACTIVE


def test_the_next_heartbeat_renews() -> None:
    story = registered().wait(7_000)
    assert story.beat(sequence=2, successes=3, errors=1) == (LeaseRenewed(2, 7_000, 3, 1),)
    assert (story.known.deadline_ms, story.known.epoch, story.known.sequence) == (37_000, 1, 2)


def test_a_repeated_heartbeat_changes_nothing() -> None:
    story = registered(bound=(activity("x"),))
    story.beat(sequence=2, unbound=(activity("x"),), successes=1)
    before = story.known
    assert story.wait(5_000).beat(sequence=2, unbound=(activity("x"),), successes=1) == ()
    assert story.known == before


def test_a_heartbeat_that_was_overtaken_is_refused() -> None:
    story = registered()
    story.beat(sequence=5)
    before = story.known
    with pytest.raises(StaleHeartbeat) as refused:
        story.beat(sequence=4, bound=(activity("x"),))
    assert refused.value.fields == {"sequence": 4, "last_sequence": 5}
    assert story.known == before


def test_a_new_session_replaces_the_old_one() -> None:
    story = registered(bound=(activity("kept"), activity("dropped")))
    story.beat(sequence=9)
    [event] = story.beat(sequence=1, session_id="b", bound=(activity("kept"), activity("new")))
    assert isinstance(event, SessionReplaced)
    assert (story.known.epoch, story.known.session_id, story.known.sequence) == (2, "b", 1)
    assert story.held == {("kept", 1), ("new", 1)}
    assert story.rescheduled == [("dropped", 1, 1)]


def test_a_replaced_session_leaves_nothing_to_cancel_to_its_successor() -> None:
    """Its process is gone; what it had lost before is no concern of the new one."""
    story = registered(bound=(activity("x"),)).go_silent()
    story.beat()
    assert story.lost == {("x", 1)}
    story.beat(session_id="b", sequence=1)
    assert story.lost == set()


@pytest.mark.parametrize("state", [ACTIVE, INACTIVE])
def test_a_session_that_was_replaced_is_a_zombie(state: WorkerState) -> None:
    story = registered(session_id="a")
    story.beat(session_id="b", sequence=1)
    if state is INACTIVE:
        story.go_silent()
    before = story.known
    with pytest.raises(SessionSuperseded) as refused:
        story.beat(session_id="a", sequence=99)
    assert refused.value.fields == {"session_id": "a", "worker": "worker-1"}
    assert story.known == before


def test_every_replaced_session_stays_a_zombie() -> None:
    story = Story()
    for name in "abcd":
        story.beat(session_id=name, sequence=1)
    for name in "abc":
        with pytest.raises(SessionSuperseded):
            story.beat(session_id=name, sequence=99)


def test_a_bounded_number_of_replaced_sessions_is_remembered() -> None:
    story = Story()
    for number in range(SUPERSEDED_SESSIONS_MAX + 2):
        story.beat(session_id=f"session-{number}", sequence=1)
    assert len(story.known.superseded) == SUPERSEDED_SESSIONS_MAX
    assert story.known.superseded[0] == "session-1"
    assert story.known.superseded[-1] == f"session-{SUPERSEDED_SESSIONS_MAX}"


def test_a_client_without_session_is_served_without_that_protection() -> None:
    story = registered(session_id="", sequence=7)
    [event] = story.beat(session_id="", sequence=1)
    assert isinstance(event, LeaseRenewed)
    assert (story.known.epoch, story.known.sequence) == (1, 1)


def test_a_client_without_sequence_is_served_without_that_protection() -> None:
    story = registered(sequence=0)
    for _ in range(3):
        [event] = story.beat(sequence=0)
        assert isinstance(event, LeaseRenewed)
    assert story.known.sequence == 0


def test_a_heartbeat_without_session_belongs_to_the_session_there_is() -> None:
    story = registered(session_id="a", sequence=5)
    story.beat(session_id="", sequence=0)
    assert (story.known.session_id, story.known.sequence, story.known.epoch) == ("a", 5, 1)


# -- silence


def test_a_lease_holds_until_its_last_millisecond() -> None:
    story = registered().wait(29_999)
    assert story.expire() == ()
    [event] = story.wait(1).expire()
    assert event == WorkerDeactivated(
        reason=InactiveReason.LEASE_EXPIRED,
        detail="no heartbeat for 30000 ms of a 30000 ms lease",
        at_ms=30_000,
        cleanup_delay_ms=3_600_000,
        certificate=Certificate(epoch=1, session_id="a", silence_ms=30_000, granted_ms=30_000, activities=0),
    )
    assert story.known.state is INACTIVE


def test_a_heartbeat_starts_the_lease_anew() -> None:
    story = registered().wait(29_999)
    story.beat()
    assert story.wait(29_999).expire() == ()


def test_what_a_silent_worker_held_is_rescheduled_and_lost() -> None:
    story = registered(bound=(activity("x"), activity("y", attempt=3))).go_silent()
    assert sorted(story.rescheduled) == [("x", 1, 1), ("y", 3, 1)]
    assert (story.held, story.lost) == (set(), {("x", 1), ("y", 3)})


def test_a_lease_ends_once() -> None:
    story = registered().go_silent()
    assert story.wait(99_999).expire() == ()


# -- INACTIVE


@pytest.mark.parametrize("session_id", ["a", "b", ""])
def test_a_heartbeat_resurrects_with_a_clean_slate(session_id: str) -> None:
    story = registered(session_id="a", bound=(activity("x"),)).go_silent()
    [event] = story.beat(session_id=session_id, sequence=2, bound=(activity("y"),))
    assert isinstance(event, WorkerResurrected)
    assert (story.known.state, story.known.epoch) == (ACTIVE, 2)
    assert (story.held, story.lost) == ({("y", 1)}, {("x", 1)})
    assert (story.known.inactive_reason, story.known.inactive_detail) == (None, "")
    assert story.rescheduled == [("x", 1, 1)], "reschedules stand, and resurrection adds none"


def test_the_session_before_a_resurrection_by_another_is_a_zombie() -> None:
    story = registered(session_id="a").go_silent()
    story.beat(session_id="b", sequence=1)
    with pytest.raises(SessionSuperseded):
        story.beat(session_id="a", sequence=2)


def test_a_copy_of_the_last_heartbeat_resurrects_nobody() -> None:
    """It was sent before the silence began; a worker that lives sends the next one."""
    story = registered(sequence=5).go_silent()
    assert story.beat(sequence=5) == ()
    with pytest.raises(StaleHeartbeat):
        story.beat(sequence=4)
    assert story.known.state is INACTIVE


def test_epochs_rise_with_every_activation() -> None:
    story = registered()
    for epoch in range(2, 6):
        story.go_silent()
        story.beat()
        assert story.known.epoch == epoch


def test_lost_activities_pile_up_over_several_silences_until_unbound() -> None:
    story = registered(bound=(activity("x"),)).go_silent()
    story.beat(bound=(activity("y"),))
    story.go_silent()
    story.beat()
    assert story.lost == {("x", 1), ("y", 1)}
    story.beat(unbound=(activity("x"),))
    assert story.lost == {("y", 1)}


def test_an_inactive_worker_may_come_back_until_its_cleanup() -> None:
    story = registered().go_silent().wait(3_599_999)
    assert story.clean_up() == ()
    story.beat()
    assert story.known.state is ACTIVE


def test_an_active_worker_is_not_cleaned_up() -> None:
    assert registered().wait(10**12).clean_up() == ()


def test_the_cleanup_delay_is_the_one_in_force_when_the_worker_left() -> None:
    story = registered()
    story.shut_down(policy=Policy(cleanup_delay_ms=5))
    assert story.wait(4).clean_up(Policy(cleanup_delay_ms=0)) == ()
    assert len(story.wait(1).clean_up(Policy(cleanup_delay_ms=10**9))) == 1


# -- CLEANED_UP


def test_cleanup_leaves_a_tombstone() -> None:
    profile = Profile(task_queue="queue", labels=(("zone", "a"),))
    story = registered(
        profile=profile, bound=(activity("x"),), last_error="broken", status=WorkerStatus.RUNNING
    )
    story.go_silent()
    [event] = story.wait(3_600_000).clean_up()
    assert event == WorkerCleanedUpEvent(
        at_ms=story.now_ms, tombstone_retention_ms=POLICY.tombstone_retention_ms
    )
    tombstone = story.known
    assert tombstone.state is CLEANED_UP
    assert tombstone.deadline_ms == story.now_ms + POLICY.tombstone_retention_ms
    assert (tombstone.profile, tombstone.last_error, story.lost) == (NO_PROFILE, "", set())
    assert (tombstone.epoch, tombstone.inactive_reason) == (1, InactiveReason.LEASE_EXPIRED)


@pytest.mark.parametrize("session_id", ["a", "b", "zombie", ""])
def test_a_cleaned_up_worker_is_refused_for_good(session_id: str) -> None:
    story = registered(session_id="zombie")
    story.beat(session_id="a", sequence=1)
    story.go_silent().be_cleaned_up()
    before = story.known
    with pytest.raises(WorkerCleanedUp) as refused:
        story.beat(session_id=session_id, sequence=99)
    assert str(refused.value) == "Worker worker-1 was cleaned up; register under a new instance key."
    assert story.known == before


def test_nothing_else_moves_a_tombstone() -> None:
    story = registered().go_silent().be_cleaned_up()
    assert story.wait(1).expire() == ()
    assert story.clean_up() == ()
    with pytest.raises(WorkerCleanedUp):
        story.shut_down()
    with pytest.raises(WorkerCleanedUp):
        story.force_out()


def test_a_tombstone_is_forgotten_when_its_retention_ends() -> None:
    story = registered().go_silent().be_cleaned_up()
    assert story.wait(POLICY.tombstone_retention_ms - 1).forget() == ()
    assert story.wait(1).forget() == (WorkerForgotten(),)
    assert story.worker is None


def test_a_tombstone_without_retention_stays_for_ever() -> None:
    story = registered().go_silent().be_cleaned_up(Policy(tombstone_retention_ms=0))
    assert story.known.deadline_ms == 0
    assert story.wait(2**60).forget() == ()


def test_only_tombstones_are_forgotten() -> None:
    story = registered()
    assert story.wait(2**60).forget() == ()
    story.expire()
    assert story.wait(2**60).forget() == ()


def test_a_forgotten_key_registers_as_if_for_the_first_time() -> None:
    story = registered().go_silent().be_cleaned_up().wait(POLICY.tombstone_retention_ms)
    story.forget()
    [event] = story.beat(session_id="a", sequence=1)
    assert isinstance(event, WorkerRegistered)
    assert (story.known.epoch, story.known.number) == (1, len(story.log))


# -- goodbye and force


def test_a_goodbye_reschedules_what_is_still_bound_at_once() -> None:
    story = registered(bound=(activity("x"),)).wait(10)
    [event] = story.shut_down(session_id="a", detail="deploy")
    assert event == WorkerDeactivated(
        reason=InactiveReason.SHUTDOWN, detail="deploy", at_ms=10, cleanup_delay_ms=3_600_000
    )
    assert (story.known.state, story.known.inactive_reason) == (INACTIVE, InactiveReason.SHUTDOWN)
    assert story.rescheduled == [("x", 1, 1)]


def test_a_second_goodbye_changes_nothing() -> None:
    story = registered()
    story.shut_down()
    assert story.shut_down() == ()


def test_forcing_out_a_worker_that_is_not_active_is_refused() -> None:
    story = registered().go_silent()
    with pytest.raises(WorkerNotActive) as refused:
        story.force_out()
    assert str(refused.value) == "Worker worker-1 is INACTIVE, not ACTIVE."


def test_a_zombies_goodbye_does_not_end_its_successor() -> None:
    story = registered(session_id="a")
    story.beat(session_id="b", sequence=1)
    with pytest.raises(SessionSuperseded):
        story.shut_down(session_id="a")
    assert story.known.state is ACTIVE


def test_a_goodbye_of_a_session_never_heard_of_is_refused() -> None:
    story = registered()
    with pytest.raises(SessionNotCurrent):
        story.shut_down(session_id="other")
    assert story.known.state is ACTIVE


def test_the_key_is_in_the_tasks() -> None:
    story = registered(bound=(activity("x"),)).go_silent()
    [task] = story.tasks
    assert (task.namespace, task.worker, task.activity) == (KEY.namespace, KEY.instance_key, activity("x"))
