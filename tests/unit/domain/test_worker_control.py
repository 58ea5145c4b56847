"""Orders of operators to a worker, the disconnect grace of its stream, and whether it accepts work."""

from collections.abc import Callable

import pytest

from liveness.domain.death_certificate import DeathCertificate
from liveness.domain.errors import (
    BindingQuotaExceeded,
    LivenessError,
    SessionNotCurrent,
    SessionSuperseded,
    WorkerCleanedUp,
    WorkerDraining,
    WorkerNotActive,
    WorkerPaused,
)
from liveness.domain.events import (
    DisconnectGraceGranted,
    DrainBegun,
    LeaseRenewed,
    WorkerDeactivated,
    WorkerDescribed,
    WorkerResumed,
)
from liveness.domain.events import WorkerPaused as WorkerPausedEvent
from liveness.domain.policy import Policy
from liveness.domain.worker import NO_PROFILE, NO_STANDING, InactiveReason, WorkerState, WorkerStatus
from liveness.domain.worker_control import check_accepts_work, check_lease_is_live
from tests.unit.domain.worker_scenario import KEY, POLICY, WorkerScenario, activity, registered


def accepts_work(scenario: WorkerScenario, policy: Policy = POLICY) -> bool:
    try:
        check_accepts_work(KEY, scenario.known, policy)
    except LivenessError:
        return False
    return True


# -- pause and resume


def test_a_paused_worker_gets_no_new_work_and_keeps_its_lease_and_bindings() -> None:
    scenario = registered(bound=(activity("x"),))
    before = scenario.known
    assert scenario.pause("maintenance") == (WorkerPausedEvent(reason="maintenance"),)
    with pytest.raises(WorkerPaused) as refused:
        check_accepts_work(KEY, scenario.known, POLICY)
    assert refused.value.fields == {"worker": "worker-1"}
    assert scenario.known == before._replace(standing=NO_STANDING._replace(paused=True))
    assert scenario.tasks == []


def test_a_resumed_worker_accepts_work_again() -> None:
    scenario = registered()
    scenario.pause()
    assert not accepts_work(scenario)
    assert scenario.resume() == (WorkerResumed(),)
    assert accepts_work(scenario)


def test_repeated_pauses_and_resumes_write_no_events() -> None:
    scenario = registered()
    assert scenario.resume() == ()
    scenario.pause()
    assert scenario.pause("another reason") == ()
    scenario.resume()
    assert scenario.resume() == ()


def test_a_heartbeat_renews_the_lease_of_a_paused_worker() -> None:
    scenario = registered()
    scenario.pause()
    assert scenario.wait(10).beat(bound=(activity("x"),))[-1] == LeaseRenewed(2, 10, 0, 0)
    assert scenario.held == {("x", 1)}, "a paused worker may still bind by heartbeat"


@pytest.mark.parametrize("session_id", ["a", "b"])
@pytest.mark.parametrize("silent", [False, True])
def test_a_pause_outlives_expiry_and_session_changes(session_id: str, *, silent: bool) -> None:
    scenario = registered(session_id="a")
    scenario.pause()
    if silent:
        scenario.go_silent()
    scenario.beat(session_id=session_id, sequence=2)
    assert not accepts_work(scenario)


def test_an_inactive_worker_can_be_paused_and_resumed() -> None:
    scenario = registered().go_silent()
    scenario.pause()
    assert (scenario.known.state, scenario.known.standing.paused) == (WorkerState.INACTIVE, True)
    scenario.resume()
    assert not scenario.known.standing.paused


def test_a_cleaned_up_worker_is_neither_paused_nor_resumed() -> None:
    scenario = registered()
    scenario.pause()
    scenario.go_silent().be_cleaned_up()
    assert scenario.known.standing is NO_STANDING, (
        "a tombstone keeps only the fields needed to refuse heartbeats"
    )
    assert scenario.pause() == ()
    assert scenario.resume() == ()


def test_workers_of_a_paused_namespace_get_no_work() -> None:
    assert accepts_work(registered(), Policy(paused=0))
    with pytest.raises(WorkerPaused):
        check_accepts_work(KEY, registered().known, Policy(paused=1))


# -- drain


def test_a_draining_worker_gets_no_new_work_and_keeps_its_bindings() -> None:
    scenario = registered(bound=(activity("x"),))
    assert scenario.drain(60_000, "deploy") == (DrainBegun(reason="deploy", deadline_ms=60_000),)
    with pytest.raises(WorkerDraining) as refused:
        check_accepts_work(KEY, scenario.known, POLICY)
    assert refused.value.fields == {"worker": "worker-1"}
    assert (scenario.known.state, scenario.held, scenario.tasks) == (WorkerState.ACTIVE, {("x", 1)}, [])


def test_activities_left_at_the_drain_deadline_are_rescheduled_without_counting_deaths() -> None:
    scenario = registered(requested_ms=100_000, bound=(activity("x"), activity("y")))
    scenario.drain(60_000)
    assert scenario.wait(59_999).end_drain() == ()
    [event] = scenario.wait(1).end_drain()
    assert event == WorkerDeactivated(
        reason=InactiveReason.DRAINED,
        detail="drained; 2 activities were left at the limit",
        at_ms=60_000,
        cleanup_delay_ms=POLICY.cleanup_delay_ms,
    )
    assert sorted(scenario.rescheduled) == [("x", 1, 1), ("y", 1, 1)]
    assert not any(task.died for task in scenario.tasks)


def test_a_second_drain_replaces_the_deadline() -> None:
    scenario = registered()
    scenario.drain(10)
    scenario.drain(20)
    assert scenario.wait(10).end_drain() == ()
    assert len(scenario.wait(10).end_drain()) == 1


def test_a_drain_without_a_deadline_never_ends_the_lease() -> None:
    scenario = registered(bound=(activity("x"),))
    scenario.drain(0)
    assert scenario.wait(2**60).end_drain() == ()
    assert not accepts_work(scenario)


def test_a_worker_that_is_not_draining_has_no_drain_deadline() -> None:
    assert registered().wait(2**60).end_drain() == ()


def test_a_drain_ends_only_once() -> None:
    scenario = registered()
    scenario.drain(10)
    assert scenario.wait(10).end_drain()
    assert scenario.end_drain() == ()


def test_a_resurrected_session_stays_draining() -> None:
    scenario = registered()
    scenario.drain(10)
    scenario.wait(10).end_drain()
    scenario.beat()
    assert not accepts_work(scenario)
    assert scenario.wait(10**6).end_drain() == (), "its deadline has passed already"


@pytest.mark.parametrize("silent", [False, True])
def test_a_new_session_is_not_draining(*, silent: bool) -> None:
    scenario = registered(session_id="a")
    scenario.drain(10)
    if silent:
        scenario.go_silent()
    scenario.beat(session_id="b", sequence=1)
    assert accepts_work(scenario)
    assert scenario.wait(10**6).end_drain() == ()


def test_only_an_active_worker_can_be_drained() -> None:
    scenario = registered().go_silent()
    with pytest.raises(WorkerNotActive):
        scenario.drain(10)
    scenario.be_cleaned_up()
    with pytest.raises(WorkerCleanedUp):
        scenario.drain(10)


def test_resuming_cancels_a_drain() -> None:
    scenario = registered()
    scenario.drain(10)
    assert scenario.resume() == (WorkerResumed(),)
    assert accepts_work(scenario)
    assert scenario.wait(10**6).end_drain() == ()
    assert scenario.known.standing is NO_STANDING


def test_one_resume_ends_both_a_pause_and_a_drain() -> None:
    scenario = registered()
    scenario.pause()
    scenario.drain(10)
    assert scenario.resume() == (WorkerResumed(),)
    assert accepts_work(scenario)


@pytest.mark.parametrize("session_id", ["", "new"])
def test_the_successor_of_a_drained_client_without_a_session_is_not_draining(session_id: str) -> None:
    """The service cannot distinguish the drained client from a new one."""
    scenario = registered(session_id="")
    scenario.drain(10)
    scenario.attach(5)
    scenario.go_silent()
    scenario.beat(session_id=session_id)
    assert accepts_work(scenario)
    assert scenario.known.standing is NO_STANDING


# -- the binding quota of a poll


def test_a_worker_at_its_binding_quota_gets_no_more_work() -> None:
    scenario = registered(bound=(activity("x"), activity("y")))
    check_accepts_work(KEY, scenario.known, Policy(max_bindings_per_worker=3))
    with pytest.raises(BindingQuotaExceeded) as refused:
        check_accepts_work(KEY, scenario.known, Policy(max_bindings_per_worker=2))
    assert refused.value.fields == {"worker": "worker-1", "count": 3, "limit": 2}


# -- the calling session


def test_the_current_session_of_an_active_worker_is_accepted() -> None:
    scenario = registered(session_id="a")
    check_lease_is_live(KEY, scenario.known, "a")
    check_lease_is_live(KEY, scenario.known)


def test_superseded_and_unknown_sessions_are_refused_with_different_reasons() -> None:
    scenario = registered(session_id="a")
    scenario.beat(session_id="b", sequence=1)
    with pytest.raises(SessionSuperseded):
        check_lease_is_live(KEY, scenario.known, "a")
    with pytest.raises(SessionNotCurrent):
        check_lease_is_live(KEY, scenario.known, "never heard of")


def test_an_inactive_or_cleaned_up_worker_is_refused() -> None:
    scenario = registered(session_id="a").go_silent()
    with pytest.raises(WorkerNotActive) as refused:
        check_lease_is_live(KEY, scenario.known, "a")
    assert refused.value.fields == {"worker": "worker-1", "state": "INACTIVE"}
    scenario.be_cleaned_up()
    with pytest.raises(WorkerCleanedUp):
        check_lease_is_live(KEY, scenario.known, "a")


# -- streams


def attached(grace_ms: int = 5_000) -> WorkerScenario:
    scenario = registered(session_id="a", bound=(activity("x"),))
    scenario.attach(grace_ms, "a")
    return scenario


def test_attaching_adds_the_disconnect_grace_to_the_lease() -> None:
    scenario = registered(session_id="a")
    assert scenario.attach(5_000, "a") == (DisconnectGraceGranted(grace_ms=5_000),)
    assert scenario.known.standing.grace_ms == 5_000


def test_an_unchanged_grace_is_not_written_again() -> None:
    assert attached(5_000).attach(5_000) == ()
    assert registered().attach(0) == ()


def test_a_grace_is_never_longer_than_the_lease() -> None:
    scenario = registered(requested_ms=3_000)
    scenario.attach(5_000)
    assert scenario.known.standing.grace_ms == 3_000


def test_attaching_without_a_grace_removes_the_grace() -> None:
    scenario = attached()
    assert scenario.attach(0) == (DisconnectGraceGranted(grace_ms=0),)
    assert scenario.wait(29_999).disconnect(broken_ms=0) == ()


@pytest.mark.parametrize(
    ("refused", "prepare"),
    [
        (SessionNotCurrent, lambda scenario: None),
        (SessionSuperseded, lambda scenario: scenario.beat(session_id="other", sequence=1) and scenario.beat(session_id="new", sequence=1)),
        (WorkerCleanedUp, lambda scenario: scenario.go_silent().be_cleaned_up()),
    ],
)  # fmt: skip
def test_a_stream_of_another_session_does_not_change_the_grace(
    refused: type[LivenessError], prepare: Callable[[WorkerScenario], object]
) -> None:
    scenario = attached()
    prepare(scenario)
    before = scenario.known
    with pytest.raises(refused):
        scenario.attach(1_000, "other")
    assert scenario.known == before


def test_a_lease_ends_when_the_grace_after_a_broken_stream_is_over() -> None:
    scenario = attached(5_000).wait(1_000)
    assert scenario.wait(4_999).disconnect(broken_ms=1_000) == ()
    [event] = scenario.wait(1).disconnect(broken_ms=1_000)
    assert event == WorkerDeactivated(
        reason=InactiveReason.DISCONNECTED,
        detail="its stream broke and nothing was heard of it for 5000 ms of a 5000 ms grace",
        at_ms=6_000,
        cleanup_delay_ms=POLICY.cleanup_delay_ms,
        certificate=DeathCertificate(
            epoch=1, session_id="a", silence_ms=6_000, granted_ms=30_000, activities=1
        ),
    )
    assert scenario.rescheduled == [("x", 1, 1)]
    assert all(task.died for task in scenario.tasks), "the process counts as dead"


def test_a_broken_stream_does_not_end_a_lease_without_a_grace() -> None:
    scenario = registered()
    assert scenario.wait(29_999).disconnect(broken_ms=0) == ()


def test_a_lease_ends_only_once_by_a_broken_stream() -> None:
    scenario = attached().wait(5_000)
    assert scenario.disconnect(broken_ms=0)
    assert scenario.disconnect(broken_ms=0) == ()


def test_a_resurrected_session_keeps_its_grace() -> None:
    """Its stream may have stayed open, and both sides keep the granted terms."""
    scenario = attached(5_000).go_silent()
    scenario.beat()
    assert scenario.known.standing.grace_ms == 5_000


@pytest.mark.parametrize("silent", [False, True])
def test_a_new_session_does_not_inherit_the_grace(*, silent: bool) -> None:
    scenario = attached(5_000)
    if silent:
        scenario.go_silent()
    scenario.beat(session_id="b", sequence=1)
    assert scenario.known.standing.grace_ms == 0
    assert scenario.wait(5_000).disconnect(broken_ms=0) == ()


# -- loop lag


def test_a_changed_loop_lag_is_written_beside_the_renewal() -> None:
    scenario = registered(status=WorkerStatus.RUNNING)
    assert scenario.beat(status=WorkerStatus.RUNNING, loop_lag_ms=1_500) == (
        WorkerDescribed(profile=NO_PROFILE, status=WorkerStatus.RUNNING, last_error="", loop_lag_ms=1_500),
        LeaseRenewed(2, 0, 0, 0),
    )
    assert scenario.known.standing.loop_lag_ms == 1_500


def test_the_same_loop_lag_is_not_written_again() -> None:
    scenario = registered(loop_lag_ms=1_500)
    assert scenario.known.standing.loop_lag_ms == 1_500
    assert scenario.beat(loop_lag_ms=1_500) == (LeaseRenewed(2, 0, 0, 0),)


def test_a_loop_lag_that_returns_to_zero_is_written() -> None:
    scenario = registered(loop_lag_ms=1_500)
    scenario.beat(loop_lag_ms=0)
    assert scenario.known.standing is NO_STANDING


@pytest.mark.parametrize("session_id", ["a", "b"])
@pytest.mark.parametrize("silent", [False, True])
def test_an_activation_replaces_the_loop_lag(session_id: str, *, silent: bool) -> None:
    scenario = registered(session_id="a", loop_lag_ms=1_500)
    if silent:
        scenario.go_silent()
        assert scenario.known.standing.loop_lag_ms == 0, "an inactive worker has no loop lag"
    scenario.beat(session_id=session_id, sequence=2, loop_lag_ms=7)
    assert scenario.known.standing.loop_lag_ms == 7
