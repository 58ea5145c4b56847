"""Properties that hold for every sequence of commands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from hypothesis import given, settings

from liveness.domain.errors import LivenessError
from liveness.domain.events import (
    Activation,
    LeaseRenewed,
    SessionReplaced,
    WorkerDeactivated,
    WorkerEvent,
    WorkerForgotten,
    WorkerPaused,
    WorkerRegistered,
    WorkerResumed,
)
from liveness.domain.fold import evolve
from liveness.domain.keys import ActivityId
from liveness.domain.reactions import LeaseExpiryTask, WorkerCleanupTask, worker_timer
from liveness.domain.worker import NO_STANDING, InactiveReason, Worker, WorkerState
from tests.unit.domain.random_commands import POLICY, QUOTA, Beat, Command, EndBinding, HandOut, scenarios
from tests.unit.domain.worker_scenario import KEY, WorkerScenario

ACTIVE, INACTIVE, CLEANED_UP = WorkerState

LEGAL_EDGES = {
    (None, ACTIVE),
    (ACTIVE, ACTIVE),
    (ACTIVE, INACTIVE),
    (INACTIVE, ACTIVE),
    (INACTIVE, CLEANED_UP),
    (CLEANED_UP, None),
    (CLEANED_UP, ACTIVE),  # a new incarnation
}


def run_commands(commands: list[Command]) -> WorkerScenario:
    scenario = WorkerScenario()
    for command in commands:
        try:
            command.apply(scenario)
        except LivenessError:
            pass
    return scenario


@given(scenarios)
def test_folding_the_events_gives_the_state_at_every_prefix_and_from_every_snapshot(
    commands: list[Command],
) -> None:
    scenario = run_commands(commands)
    for start, snapshot in enumerate(scenario.states):
        worker = snapshot
        for seq in range(start + 1, len(scenario.log) + 1):
            worker = evolve(worker, scenario.log[seq - 1], seq, scenario.wall_times[seq - 1])
            assert worker == scenario.states[seq]


@given(scenarios)
def test_a_worker_takes_only_legal_state_transitions(commands: list[Command]) -> None:
    scenario = run_commands(commands)
    for before, event, after in zip(scenario.states, scenario.log, scenario.states[1:], strict=False):
        edge = (before.state if before else None, after.state if after else None)
        if edge == (INACTIVE, INACTIVE):
            assert isinstance(event, WorkerPaused | WorkerResumed), "a pause outlives the lease"
        else:
            assert edge in LEGAL_EDGES


@given(scenarios)
def test_the_epoch_rises_exactly_with_each_activation(commands: list[Command]) -> None:
    """Over all lives of the key, also after it was forgotten."""
    scenario = run_commands(commands)
    highest = 0
    for before, event, after in zip(scenario.states, scenario.log, scenario.states[1:], strict=False):
        if isinstance(event, Activation):
            assert after is not None
            assert after.epoch == highest + 1
            highest = after.epoch
        elif not isinstance(event, WorkerForgotten):
            assert before is not None
            assert after is not None
            assert after.epoch == before.epoch


@given(scenarios)
def test_a_new_incarnation_has_a_new_session_and_nothing_of_the_earlier_life(commands: list[Command]) -> None:
    scenario = run_commands(commands)
    for before, event, after in zip(scenario.states, scenario.log, scenario.states[1:], strict=False):
        if isinstance(event, WorkerRegistered) and before is not None:
            assert after is not None
            assert event.session_id not in ("", before.session_id, *before.superseded)
            assert {*before.superseded, before.session_id} - {""} == set(after.superseded)
            assert set(after.bindings.values()) == set(event.bindings)
            assert not after.lost
            assert not after.standing.paused
            assert after.number != before.number


@given(scenarios)
def test_no_worker_ever_holds_more_than_its_quota(commands: list[Command]) -> None:
    assert all(len(worker.bindings) <= QUOTA for worker in run_commands(commands).states if worker)


@given(scenarios)
def test_a_refused_command_changes_nothing(commands: list[Command]) -> None:
    scenario = WorkerScenario()
    for command in commands:
        before = (scenario.worker, len(scenario.log), len(scenario.tasks))
        try:
            command.apply(scenario)
        except LivenessError:
            assert (scenario.worker, len(scenario.log), len(scenario.tasks)) == before


ORDERLY = (InactiveReason.SHUTDOWN, InactiveReason.FORCED, InactiveReason.DRAINED)


class ClientView(NamedTuple):
    """The activities that the client believes it holds, and for each handed-out one whether it has confirmed
    it."""

    held: dict[ActivityId, int]
    handed: dict[ActivityId, bool]


@settings(max_examples=250)
@given(scenarios)
def test_bindings_follow_declarations_and_hand_outs_and_each_loss_is_rescheduled(
    commands: list[Command],
) -> None:
    """Compared with a model that knows no events."""
    scenario = WorkerScenario()
    believed = ClientView({}, {})
    for command in commands:
        known_events, known_tasks, before = len(scenario.log), len(scenario.tasks), scenario.worker
        try:
            command.apply(scenario)
        except LivenessError:
            continue
        events = scenario.log[known_events:]
        earlier = believed
        lost: Iterable[ActivityId] = ()
        died = False
        left = [event for event in events if isinstance(event, WorkerDeactivated)]
        if left:
            lost, believed = earlier.held, ClientView({}, {})
            died = left[0].reason not in ORDERLY
        elif events and isinstance(command, HandOut):
            believed = handed(earlier, command)
        elif events and isinstance(command, EndBinding):
            believed = without(earlier, {command.activity.id})
        elif events and isinstance(command, Beat):
            believed = after_heartbeat(earlier, events, command.fields)
            given_up = {id for id in earlier.handed if believed.held.get(id) != earlier.held[id]}
            died = isinstance(events[0], SessionReplaced)
            lost = given_up | (earlier.held.keys() - believed.held.keys() if died else set())
        tasks = scenario.tasks[known_tasks:]
        expected = {(id, earlier.held[id]) for id in lost}
        assert sorted((task.activity.id, task.activity.attempt) for task in tasks) == sorted(expected)
        assert all(before is not None and task.epoch == before.epoch for task in tasks)
        assert all(task.died is died for task in tasks)
        held = scenario.worker.bindings if scenario.worker else {}
        assert {id: activity.attempt for id, activity in held.items()} == believed.held
        assert (scenario.worker.standing.handed if scenario.worker else {}) == believed.handed


def handed(before: ClientView, command: HandOut) -> ClientView:
    id, attempt = command.activity.id, command.activity.attempt
    return ClientView({**before.held, id: attempt}, {**before.handed, id: False})


def without(before: ClientView, gone: set[ActivityId]) -> ClientView:
    return ClientView(
        {id: attempt for id, attempt in before.held.items() if id not in gone},
        {id: heard for id, heard in before.handed.items() if id not in gone},
    )


def after_heartbeat(before: ClientView, events: list[WorkerEvent], beat: dict[str, Any]) -> ClientView:
    unheard = {id for id, heard in before.handed.items() if not heard}
    taken_up = {activity.id: activity.attempt for activity in beat["bound"]}
    if isinstance(events[0], Activation):
        held = {}
    elif beat.get("full_bindings"):
        held = {id: before.held[id] for id in unheard}
    else:
        held = dict(before.held)
    if not isinstance(events[0], Activation):
        # The service decides which attempt is handed out, not the worker.
        for id in before.handed.keys() & taken_up.keys():
            if taken_up[id] != before.held[id]:
                del taken_up[id]
    for activity in beat["unbound"]:
        if held.get(activity.id) == activity.attempt:
            del held[activity.id]
    held |= taken_up
    for activity in beat["unbound"]:
        if taken_up.get(activity.id) == activity.attempt:
            held.pop(activity.id, None)
    replaced = isinstance(events[0], SessionReplaced)
    return ClientView(
        held,
        {
            id: heard or replaced or id in taken_up
            for id, heard in before.handed.items()
            if held.get(id) == before.held[id]
        },
    )


@given(scenarios)
def test_a_lost_activity_stays_listed_until_the_worker_unbinds_it(commands: list[Command]) -> None:
    scenario = WorkerScenario()
    for command in commands:
        before, known_events = scenario.worker, len(scenario.log)
        try:
            command.apply(scenario)
        except LivenessError:
            continue
        if before is None or scenario.worker is None or scenario.worker.state is CLEANED_UP:
            continue
        cleared = before.lost.keys() - scenario.worker.lost.keys()
        if cleared:
            assert isinstance(command, Beat)
            let_go = {(activity.id, activity.attempt) for activity in command.fields["unbound"]}
            # Unbinding the attempt that it holds, the worker gives up the activity and all its attempts.
            held = {**before.bindings, **{activity.id: activity for activity in command.fields["bound"]}}
            assert (
                all(
                    {(id, before.lost[id].attempt), (id, held.get(id, before.lost[id]).attempt)} & let_go
                    for id in cleared
                )
                or command.fields.get("full_bindings")
                or isinstance(scenario.log[known_events], SessionReplaced)
            )


@given(scenarios)
def test_a_lease_expires_only_after_its_full_duration(commands: list[Command]) -> None:
    scenario = run_commands(commands)
    for before, event in zip(scenario.states, scenario.log, strict=False):
        if isinstance(event, WorkerDeactivated) and event.reason is InactiveReason.LEASE_EXPIRED:
            assert before is not None
            assert event.at_ms - before.renewed_ms >= before.granted_ms


@settings(max_examples=50)
@given(scenarios)
def test_a_lease_ends_by_grace_or_drain_only_if_it_has_that_term(commands: list[Command]) -> None:
    scenario = run_commands(commands)
    for before, event in zip(scenario.states, scenario.log, strict=False):
        if isinstance(event, WorkerDeactivated) and event.reason is InactiveReason.DISCONNECTED:
            assert before is not None
            assert before.standing.grace_ms > 0
        if isinstance(event, WorkerDeactivated) and event.reason is InactiveReason.DRAINED:
            assert before is not None
            assert 0 < before.standing.drain_deadline_ms <= event.at_ms


@settings(max_examples=50)
@given(scenarios)
def test_a_pause_ends_only_by_a_resume_and_outlives_sessions(commands: list[Command]) -> None:
    scenario = run_commands(commands)
    paused = False
    for event, after in zip(scenario.log, scenario.states[1:], strict=True):
        if isinstance(event, WorkerPaused | WorkerResumed):
            paused = isinstance(event, WorkerPaused)
        if after is None or after.state is CLEANED_UP:
            paused = False
        else:
            assert after.standing.paused is paused


@settings(max_examples=50)
@given(scenarios)
def test_an_active_worker_has_the_loop_lag_of_its_last_heartbeat(commands: list[Command]) -> None:
    scenario = WorkerScenario()
    lag_ms = 0
    for command in commands:
        known_events = len(scenario.log)
        try:
            command.apply(scenario)
        except LivenessError:
            continue
        if isinstance(command, Beat) and len(scenario.log) > known_events:
            lag_ms = command.fields.get("loop_lag_ms", 0)
        if scenario.worker is None or scenario.worker.state is not ACTIVE:
            lag_ms = 0
        assert (scenario.worker.standing.loop_lag_ms if scenario.worker else 0) == lag_ms


@given(scenarios)
def test_every_state_is_consistent(commands: list[Command]) -> None:
    for worker in run_commands(commands).states:
        if worker is not None:
            check(worker)


def check(worker: Worker) -> None:
    if worker.state is ACTIVE:
        assert worker.deadline_ms == worker.renewed_ms + worker.granted_ms
        assert POLICY.min_lease_ms <= worker.granted_ms <= POLICY.max_lease_ms
        assert worker.inactive_reason is None
        assert worker_timer(KEY, worker) == LeaseExpiryTask(KEY)
    else:
        assert not worker.bindings
        assert not worker.resync
        assert worker.inactive_reason is not None
        assert not worker.standing.handed
        assert (worker.standing.loop_lag_ms, worker.standing.drain_deadline_ms) == (0, 0)
    if worker.state is INACTIVE:
        assert worker_timer(KEY, worker) == WorkerCleanupTask(KEY)
    if worker.state is CLEANED_UP:
        assert not worker.lost
        assert worker.standing == NO_STANDING
        assert worker_timer(KEY, worker) is None
    assert worker.standing.handed.keys() <= worker.bindings.keys()
    assert worker.standing is NO_STANDING or worker.standing != NO_STANDING, (
        "workers without orders share one value"
    )
    assert all(id == activity.id for id, activity in {**worker.bindings, **worker.lost}.items())
    assert worker.session_id not in worker.superseded


@given(scenarios)
def test_the_last_of_several_plain_renewals_gives_the_same_state_as_all(commands: list[Command]) -> None:
    """A checkpoint may therefore keep one renewal per worker; only the resync flag accumulates."""
    scenario = run_commands(commands)
    run: list[LeaseRenewed] = []
    start: Worker | None = None
    for before, event, after, wall_ms in zip(
        scenario.states, scenario.log, scenario.states[1:], scenario.wall_times, strict=False
    ):
        if not isinstance(event, LeaseRenewed):
            run = []
            continue
        if not run:
            start = before
        run.append(event)
        assert start is not None
        assert after is not None
        alone = evolve(start, event, 1, wall_ms)
        assert alone is not None
        assert alone._replace(resync=after.resync) == after
