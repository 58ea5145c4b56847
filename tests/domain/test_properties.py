"""What holds for every story of a worker, however odd."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings

from liveness.domain.errors import LivenessError
from liveness.domain.events import (
    Activation,
    LeaseRenewed,
    SessionReplaced,
    WorkerDeactivated,
    WorkerEvent,
    WorkerForgotten,
    WorkerRegistered,
)
from liveness.domain.fold import evolve
from liveness.domain.keys import ActivityId
from liveness.domain.reactions import LeaseExpiryTask, WorkerCleanupTask, timer_of
from liveness.domain.worker import InactiveReason, Worker, WorkerState
from tests.domain.commands import POLICY, QUOTA, Beat, Command, stories
from tests.domain.story import KEY, Story

ACTIVE, INACTIVE, CLEANED_UP = WorkerState

LEGAL_EDGES = {
    (None, ACTIVE),
    (ACTIVE, ACTIVE),
    (ACTIVE, INACTIVE),
    (INACTIVE, ACTIVE),
    (INACTIVE, CLEANED_UP),
    (CLEANED_UP, None),
}


def told(commands: list[Command]) -> Story:
    story = Story()
    for command in commands:
        try:
            command.tell(story)
        except LivenessError:
            pass
    return story


@given(stories)
def test_folding_the_events_gives_the_state_at_every_prefix_and_from_every_snapshot(
    commands: list[Command],
) -> None:
    story = told(commands)
    for start, snapshot in enumerate(story.states):
        worker = snapshot
        for seq in range(start + 1, len(story.log) + 1):
            worker = evolve(worker, story.log[seq - 1], seq)
            assert worker == story.states[seq]


@given(stories)
def test_only_legal_edges_are_taken(commands: list[Command]) -> None:
    story = told(commands)
    for before, after in zip(story.states, story.states[1:], strict=False):
        edge = (before.state if before else None, after.state if after else None)
        assert edge in LEGAL_EDGES


@given(stories)
def test_the_epoch_rises_with_each_activation_and_only_then(commands: list[Command]) -> None:
    story = told(commands)
    for before, event, after in zip(story.states, story.log, story.states[1:], strict=False):
        if isinstance(event, WorkerRegistered):
            assert after is not None
            assert after.epoch == 1
        elif isinstance(event, Activation):
            assert before is not None
            assert after is not None
            assert after.epoch == before.epoch + 1
        elif not isinstance(event, WorkerForgotten):
            assert before is not None
            assert after is not None
            assert after.epoch == before.epoch


@given(stories)
def test_no_worker_ever_holds_more_than_its_quota(commands: list[Command]) -> None:
    assert all(len(worker.bindings) <= QUOTA for worker in told(commands).states if worker)


@given(stories)
def test_a_refused_command_leaves_no_trace(commands: list[Command]) -> None:
    story = Story()
    for command in commands:
        before = (story.worker, len(story.log), len(story.tasks))
        try:
            command.tell(story)
        except LivenessError:
            assert (story.worker, len(story.log), len(story.tasks)) == before


@settings(max_examples=400)
@given(stories)
def test_a_worker_holds_exactly_what_it_said_and_each_loss_is_rescheduled(commands: list[Command]) -> None:
    """Against a model that knows nothing of events: a dictionary of what the client would believe it holds."""
    story = Story()
    believed: dict[ActivityId, int] = {}
    for command in commands:
        known_events, known_tasks, before = len(story.log), len(story.tasks), story.worker
        try:
            command.tell(story)
        except LivenessError:
            continue
        events = story.log[known_events:]
        lost: list[tuple[ActivityId, int]] = []
        if any(isinstance(event, WorkerDeactivated) for event in events):
            lost, believed = list(believed.items()), {}
        elif events and isinstance(command, Beat):
            earlier, believed = believed, believed_after(believed, events, command.fields)
            if isinstance(events[0], SessionReplaced):
                lost = [(id, attempt) for id, attempt in earlier.items() if id not in believed]
        tasks = story.tasks[known_tasks:]
        assert sorted((task.activity.id, task.activity.attempt) for task in tasks) == sorted(lost)
        assert all(before is not None and task.epoch == before.epoch for task in tasks)
        held = story.worker.bindings if story.worker else {}
        assert {id: activity.attempt for id, activity in held.items()} == believed


def believed_after(
    held: dict[ActivityId, int], events: list[WorkerEvent], beat: dict[str, Any]
) -> dict[ActivityId, int]:
    clean_slate = isinstance(events[0], Activation) or beat.get("full_bindings")
    after = {} if clean_slate else dict(held)
    taken_up = {activity.id: activity.attempt for activity in beat["bound"]}
    for activity in beat["unbound"]:
        if after.get(activity.id) == activity.attempt:
            del after[activity.id]
    after |= taken_up
    for activity in beat["unbound"]:
        if taken_up.get(activity.id) == activity.attempt:
            after.pop(activity.id, None)
    return after


@given(stories)
def test_what_was_lost_stays_to_be_cancelled_until_the_worker_lets_go_of_it(commands: list[Command]) -> None:
    story = Story()
    for command in commands:
        before, known_events = story.worker, len(story.log)
        try:
            command.tell(story)
        except LivenessError:
            continue
        if before is None or story.worker is None or story.worker.state is CLEANED_UP:
            continue
        cleared = before.lost.keys() - story.worker.lost.keys()
        if cleared:
            assert isinstance(command, Beat)
            let_go = {activity.id for activity in command.fields["unbound"]}
            assert (
                cleared <= let_go
                or command.fields.get("full_bindings")
                or isinstance(story.log[known_events], SessionReplaced)
            )


@given(stories)
def test_a_lease_ends_by_silence_only_after_its_full_duration(commands: list[Command]) -> None:
    story = told(commands)
    for before, event in zip(story.states, story.log, strict=False):
        if isinstance(event, WorkerDeactivated) and event.reason is InactiveReason.LEASE_EXPIRED:
            assert before is not None
            assert event.at_ms - before.renewed_ms >= before.granted_ms


@given(stories)
def test_every_state_keeps_its_own_rules(commands: list[Command]) -> None:
    for worker in told(commands).states:
        if worker is not None:
            check(worker)


def check(worker: Worker) -> None:
    if worker.state is ACTIVE:
        assert worker.deadline_ms == worker.renewed_ms + worker.granted_ms
        assert POLICY.min_lease_ms <= worker.granted_ms <= POLICY.max_lease_ms
        assert worker.inactive_reason is None
        assert timer_of(KEY, worker) == LeaseExpiryTask(KEY, worker.epoch)
    else:
        assert not worker.bindings
        assert not worker.resync
        assert worker.inactive_reason is not None
    if worker.state is INACTIVE:
        assert timer_of(KEY, worker) == WorkerCleanupTask(KEY, worker.epoch)
    if worker.state is CLEANED_UP:
        assert not worker.lost
        assert timer_of(KEY, worker) is None
    assert all(id == activity.id for id, activity in {**worker.bindings, **worker.lost}.items())
    assert worker.session_id not in worker.superseded


@given(stories)
def test_the_last_plain_renewal_alone_gives_the_same_state_as_all_of_them(commands: list[Command]) -> None:
    """So a checkpoint may keep one pulse per worker; only the doubt about bindings adds up."""
    story = told(commands)
    run: list[LeaseRenewed] = []
    start: Worker | None = None
    for before, event, after in zip(story.states, story.log, story.states[1:], strict=False):
        if not isinstance(event, LeaseRenewed):
            run = []
            continue
        if not run:
            start = before
        run.append(event)
        assert start is not None
        assert after is not None
        alone = evolve(start, event, 1)
        assert alone is not None
        assert alone._replace(resync=after.resync) == after
