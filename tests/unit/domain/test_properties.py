"""Properties that hold for every sequence of commands.

One test draws the sequences and checks all properties of each, because drawing takes longer than checking. The traceback of a
failure shows the property that does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
from liveness.domain.reactions import (
    ActivityRescheduleTask,
    LeaseExpiryTask,
    WorkerCleanupTask,
    worker_timer,
)
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


class Step(NamedTuple):
    """A command and its effects."""

    command: Command
    refused: bool
    before: Worker | None
    events: list[WorkerEvent]
    tasks: list[ActivityRescheduleTask]
    after: Worker | None


class History(NamedTuple):
    scenario: WorkerScenario
    steps: list[Step]


def run_commands(commands: list[Command]) -> History:
    scenario = WorkerScenario()
    steps = []
    for command in commands:
        before, known_events, known_tasks = scenario.worker, len(scenario.log), len(scenario.tasks)
        refused = False
        try:
            command.apply(scenario)
        except LivenessError:
            refused = True
        events, tasks = scenario.log[known_events:], scenario.tasks[known_tasks:]
        steps.append(Step(command, refused, before, events, tasks, scenario.worker))
    return History(scenario, steps)


Property = Callable[[History], None]
PROPERTIES: list[Property] = []


def always(prop: Property) -> Property:
    PROPERTIES.append(prop)
    return prop


@settings(max_examples=250)
@given(scenarios)
def test_every_property_holds_for_every_sequence_of_commands(commands: list[Command]) -> None:
    assert PROPERTIES
    history = run_commands(commands)
    for prop in PROPERTIES:
        prop(history)


@always
def folding_the_events_gives_the_state_at_every_prefix_and_from_every_snapshot(history: History) -> None:
    scenario = history.scenario
    for start, snapshot in enumerate(scenario.states):
        worker = snapshot
        for seq in range(start + 1, len(scenario.log) + 1):
            worker = evolve(worker, scenario.log[seq - 1], seq, scenario.wall_times[seq - 1])
            assert worker == scenario.states[seq]


@always
def a_worker_takes_only_legal_state_transitions(history: History) -> None:
    scenario = history.scenario
    for before, event, after in zip(scenario.states, scenario.log, scenario.states[1:], strict=False):
        edge = (before.state if before else None, after.state if after else None)
        if edge == (INACTIVE, INACTIVE):
            assert isinstance(event, WorkerPaused | WorkerResumed), "a pause outlives the lease"
        else:
            assert edge in LEGAL_EDGES


@always
def the_epoch_rises_exactly_with_each_activation(history: History) -> None:
    """Over all lives of the key, also after it was forgotten."""
    scenario = history.scenario
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


@always
def a_new_incarnation_has_a_new_session_and_nothing_of_the_earlier_life(history: History) -> None:
    scenario = history.scenario
    for before, event, after in zip(scenario.states, scenario.log, scenario.states[1:], strict=False):
        if isinstance(event, WorkerRegistered) and before is not None:
            assert after is not None
            assert event.session_id not in ("", before.session_id, *before.superseded)
            assert {*before.superseded, before.session_id} - {""} == set(after.superseded)
            assert set(after.bindings.values()) == set(event.bindings)
            assert not after.lost
            assert not after.standing.paused
            assert after.number != before.number


@always
def no_worker_ever_holds_more_than_its_quota(history: History) -> None:
    assert all(len(worker.bindings) <= QUOTA for worker in history.scenario.states if worker)


@always
def a_refused_command_changes_nothing(history: History) -> None:
    for step in history.steps:
        if step.refused:
            assert (step.after, step.events, step.tasks) == (step.before, [], [])


ORDERLY = (InactiveReason.SHUTDOWN, InactiveReason.FORCED, InactiveReason.DRAINED)


class ClientView(NamedTuple):
    """The activities that the client believes it holds, and for each handed-out one whether it has confirmed
    it."""

    held: dict[ActivityId, int]
    handed: dict[ActivityId, bool]


@always
def bindings_follow_declarations_and_hand_outs_and_each_loss_is_rescheduled(history: History) -> None:
    """Compared with a model that knows no events."""
    believed = ClientView({}, {})
    for command, refused, before, events, tasks, after in history.steps:
        if refused:
            continue
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
        expected = {(id, earlier.held[id]) for id in lost}
        assert sorted((task.activity.id, task.activity.attempt) for task in tasks) == sorted(expected)
        assert all(before is not None and task.epoch == before.epoch for task in tasks)
        assert all(task.died is died for task in tasks)
        held = after.bindings if after else {}
        assert {id: activity.attempt for id, activity in held.items()} == believed.held
        assert (after.standing.handed if after else {}) == believed.handed


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


@always
def a_lost_activity_stays_listed_until_the_worker_unbinds_it(history: History) -> None:
    for command, refused, before, events, _, after in history.steps:
        if refused or before is None or after is None or after.state is CLEANED_UP:
            continue
        cleared = before.lost.keys() - after.lost.keys()
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
                or isinstance(events[0], SessionReplaced)
            )


@always
def a_lease_expires_only_after_its_full_duration(history: History) -> None:
    scenario = history.scenario
    for before, event in zip(scenario.states, scenario.log, strict=False):
        if isinstance(event, WorkerDeactivated) and event.reason is InactiveReason.LEASE_EXPIRED:
            assert before is not None
            assert event.at_ms - before.renewed_ms >= before.granted_ms


@always
def a_lease_ends_by_grace_or_drain_only_if_it_has_that_term(history: History) -> None:
    scenario = history.scenario
    for before, event in zip(scenario.states, scenario.log, strict=False):
        if isinstance(event, WorkerDeactivated) and event.reason is InactiveReason.DISCONNECTED:
            assert before is not None
            assert before.standing.grace_ms > 0
        if isinstance(event, WorkerDeactivated) and event.reason is InactiveReason.DRAINED:
            assert before is not None
            assert 0 < before.standing.drain_deadline_ms <= event.at_ms


@always
def a_pause_ends_only_by_a_resume_and_outlives_sessions(history: History) -> None:
    scenario = history.scenario
    paused = False
    for event, after in zip(scenario.log, scenario.states[1:], strict=True):
        if isinstance(event, WorkerPaused | WorkerResumed):
            paused = isinstance(event, WorkerPaused)
        if after is None or after.state is CLEANED_UP:
            paused = False
        else:
            assert after.standing.paused is paused


@always
def an_active_worker_has_the_loop_lag_of_its_last_heartbeat(history: History) -> None:
    lag_ms = 0
    for command, refused, _, events, _, after in history.steps:
        if refused:
            continue
        if isinstance(command, Beat) and events:
            lag_ms = command.fields.get("loop_lag_ms", 0)
        if after is None or after.state is not ACTIVE:
            lag_ms = 0
        assert (after.standing.loop_lag_ms if after else 0) == lag_ms


@always
def every_state_is_consistent(history: History) -> None:
    for worker in history.scenario.states:
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


@always
def the_last_of_several_plain_renewals_gives_the_same_state_as_all(history: History) -> None:
    """Except for the resync flag and the count of heartbeats, which accumulate."""
    scenario = history.scenario
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
        assert alone._replace(resync=after.resync, heartbeats=start.heartbeats + len(run)) == after


@always
def a_worker_counts_the_heartbeats_that_were_applied_since_it_registered(history: History) -> None:
    applied = 0
    for command, refused, before, events, _, after in history.steps:
        if after is not None and before is not None and after.number != before.number:
            applied = 0
        if isinstance(command, Beat) and events and not refused:
            applied = 1 if before is None else applied + 1
        assert (after.heartbeats if after else 0) == (applied if after else 0)


@always
def the_time_of_the_last_error_is_that_of_the_heartbeat_that_reported_it(history: History) -> None:
    reported_ms = 0
    for before, event, after, wall_ms in zip(
        history.scenario.states,
        history.scenario.log,
        history.scenario.states[1:],
        history.scenario.wall_times,
        strict=False,
    ):
        if before is None or after is None or after.number != before.number or after.state is CLEANED_UP:
            reported_ms = 0
        if getattr(event, "error_reported", False):
            reported_ms = wall_ms
        assert (after.standing.last_error_wall_ms if after else 0) == reported_ms
