"""Impossible event sequences stop the fold, so that a broken log is detected."""

import pytest

from liveness.domain.events import (
    ActivityHanded,
    BindingsChanged,
    BindingsEnded,
    DisconnectGraceGranted,
    DrainBegun,
    LeaseRenewed,
    LeaseTermsChanged,
    ShardTaken,
    WorkerCleanedUp,
    WorkerDeactivated,
    WorkerDescribed,
    WorkerEvent,
    WorkerForgotten,
    WorkerPaused,
    WorkerRegistered,
    WorkerResumed,
)
from liveness.domain.fold import ImpossibleEvent, evolve
from liveness.domain.reactions import react
from liveness.domain.worker import (
    NO_BINDINGS,
    NO_PROFILE,
    NO_STANDING,
    InactiveReason,
    WorkerState,
    WorkerStatus,
)
from tests.unit.domain.worker_scenario import KEY, WorkerScenario, activity, registered


def in_state(state: WorkerState | None) -> WorkerScenario:
    scenario = WorkerScenario()
    if state is not None:
        scenario.beat(bound=(activity("x"),))
        if state > WorkerState.ACTIVE:
            scenario.go_silent()
        if state > WorkerState.INACTIVE:
            scenario.be_cleaned_up()
    return scenario


RENEWED = LeaseRenewed(2, 0, 0, 0)
DEACTIVATED = WorkerDeactivated(reason=InactiveReason.FORCED, detail="", at_ms=0, cleanup_delay_ms=0)
CLEANED_UP = WorkerCleanedUp(at_ms=0, tombstone_retention_ms=0)
FORGOTTEN = WorkerForgotten()
[REGISTERED] = in_state(WorkerState.ACTIVE).log
[REPLACED] = registered().beat(session_id="b", sequence=1)
[RESURRECTED] = in_state(WorkerState.INACTIVE).beat()

ALLOWED: dict[str, tuple[WorkerEvent, set[WorkerState | None]]] = {
    "registered": (REGISTERED, {None, WorkerState.CLEANED_UP}),
    "renewed": (RENEWED, {WorkerState.ACTIVE}),
    "replaced": (REPLACED, {WorkerState.ACTIVE}),
    "deactivated": (DEACTIVATED, {WorkerState.ACTIVE}),
    "resurrected": (RESURRECTED, {WorkerState.INACTIVE}),
    "cleaned up": (CLEANED_UP, {WorkerState.INACTIVE}),
    "forgotten": (FORGOTTEN, {WorkerState.CLEANED_UP}),
}


@pytest.mark.parametrize("state", [None, *WorkerState])
@pytest.mark.parametrize("name", ALLOWED)
def test_evolve_accepts_each_event_only_in_its_allowed_states(name: str, state: WorkerState | None) -> None:
    event, allowed = ALLOWED[name]
    worker = in_state(state).worker
    if state in allowed:
        evolve(worker, event, 9, 0)
    else:
        with pytest.raises(ImpossibleEvent):
            evolve(worker, event, 9, 0)


@pytest.mark.parametrize(
    "event",
    [
        LeaseTermsChanged(granted_ms=1),
        BindingsChanged(bound=(), unbound=(), resync=False),
        WorkerDescribed(profile=NO_PROFILE, status=WorkerStatus.RUNNING, last_error=""),
        ActivityHanded(activity=activity("x")),
        BindingsEnded(ids=(), taken=True),
        WorkerPaused(reason=""),
        WorkerResumed(),
        DrainBegun(reason="", deadline_ms=1),
        DisconnectGraceGranted(grace_ms=1),
    ],
)
def test_events_that_change_a_worker_need_an_existing_worker(event: WorkerEvent) -> None:
    with pytest.raises(ImpossibleEvent):
        evolve(None, event, 1, 0)


def test_an_event_that_is_not_about_a_worker_is_refused() -> None:
    with pytest.raises(ImpossibleEvent, match="ShardTaken is not about a worker"):
        evolve(registered().known, ShardTaken(epoch=1, owner=""), 2, 0)  # type: ignore[arg-type]


def test_evolve_never_mutates_the_previous_state() -> None:
    scenario = registered(bound=(activity("x"),))
    before = scenario.known
    scenario.beat(unbound=(activity("x"),), bound=(activity("y"),))
    assert set(before.bindings.values()) == {activity("x")}
    with pytest.raises(TypeError):
        before.bindings[activity("z").id] = activity("z")  # type: ignore[index]


def test_workers_without_bindings_share_one_empty_set() -> None:
    """A service tracks a million workers; an empty dictionary each would take a tenth of their memory."""
    scenario = registered(bound=(activity("x"),))
    scenario.beat(unbound=(activity("x"),))
    assert scenario.known.bindings is NO_BINDINGS
    assert scenario.known.lost is NO_BINDINGS


def test_workers_without_orders_share_one_standing() -> None:
    scenario = registered(loop_lag_ms=5)
    scenario.pause()
    scenario.drain(9)
    scenario.attach(5)
    scenario.resume()
    scenario.go_silent()
    scenario.beat(session_id="b", sequence=1)
    assert scenario.known.standing is NO_STANDING


def test_a_registration_causes_no_reschedule() -> None:
    assert isinstance(REGISTERED, WorkerRegistered)
    assert react(KEY, None, REGISTERED) is None
