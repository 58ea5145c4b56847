"""One shard: its state in memory, and the rules for changing it.

Everything here is synchronous. A method decides on the state as it is, changes it, and leaves the facts in `Pending`;
the committer makes them durable and only then lets replies go. If that fails, this object is thrown away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import NamedTuple

from liveness.clock import Clock
from liveness.domain import activity_decider, decider
from liveness.domain.activity import Activity
from liveness.domain.activity_decider import Events
from liveness.domain.commands import Deactivate, Heartbeat
from liveness.domain.errors import WorkerNotFound
from liveness.domain.events import (
    ConfigChanged,
    LeaseRenewed,
    SessionReplaced,
    WorkerEvent,
    WorkerRegistered,
    WorkerResurrected,
)
from liveness.domain.fold import evolve, renewed
from liveness.domain.keys import ActivityKey, WorkerKey
from liveness.domain.plain import renew
from liveness.domain.policy import Policy
from liveness.domain.reactions import ActivityRescheduleTask, react
from liveness.domain.verdict import is_death, verdict_on
from liveness.domain.worker import Worker, WorkerState
from liveness.shard.activity_book import ActivityBook
from liveness.shard.census import Census
from liveness.shard.changes import LAZY, Transition, due, listed, ordered, transition
from liveness.shard.deadlines import Deadlines
from liveness.shard.endings import Endings
from liveness.shard.observed_clock import ListeningTime, ObservedClock
from liveness.shard.pending import Pending
from liveness.shard.recovery import Recovered, pulse_of
from liveness.shard.suspects import Suspects
from liveness.shard.witness import DRIFT_MS, Surroundings, Witness
from liveness.store.api import FINISHED_TASK_STATES, NewTasks, ShardCommit, ShardImage, TaskUpdate

PLAIN_COUNTS_MAX = 2**40


class Outcome(IntEnum):
    """What a heartbeat did."""

    REGISTERED = 1
    RENEWED = 2
    REPEATED = 3
    SESSION_REPLACED = 4
    RESURRECTED = 5


_OUTCOMES: dict[type, Outcome] = {
    WorkerRegistered: Outcome.REGISTERED,
    SessionReplaced: Outcome.SESSION_REPLACED,
    WorkerResurrected: Outcome.RESURRECTED,
}


class HandedOver(NamedTuple):
    """A shard's part of a group commit, with what becomes true when it is durable."""

    shard: Shard
    commit: ShardCommit
    notable_seq: int
    """Of its newest entry that is not plain renewals; 0 if there is none."""
    listening_ms: int
    transitions: list[Transition]
    orders: set[WorkerKey]
    """Workers to whom a heartbeat's answer would now say something else than before."""


Admit = Callable[["Shard", str, Policy], None]
"""Refuses one more worker of a namespace in a shard, if there is no room."""


class Shard:
    # Heartbeats read a dozen of its attributes. With more than 30, Python keeps an instance's in a slower way.
    def __init__(
        self,
        image: ShardImage,
        *,
        clock: Clock,
        listening: ListeningTime,
        shard_count: int,
        grace_ms: int,
        deadlines: Deadlines,
        on_dirty: Callable[[Shard], None],
        surroundings: Surroundings,
    ) -> None:
        self.id = image.shard_id
        self.epoch = image.epoch
        self.durable_seq = image.last_seq
        """Of the newest entry known to be committed."""
        self.durable_notable_seq = image.last_seq
        """The same without plain renewals; what a feed may read up to."""
        self.checkpoint_seq = image.checkpoint_seq
        self.transitions: list[Transition] = []
        """Since the last commit was handed over, as are `orders`."""
        self.orders: set[WorkerKey] = set()
        self.suspects = Suspects()
        """Workers whose stream broke, and when. In memory only: a break that a restart of ours forgets counts for
        nothing."""
        self.doubts: set[tuple[str, str]] = set()
        """Whose next heartbeat changes more than their lease: suspects, and those whom a storm holds. One set for both,
        because every heartbeat asks whether there are any."""
        recovered = Recovered(image)
        self.workers = recovered.workers
        self.activities = ActivityBook(dict(image.activities), deadlines)
        self.census = Census((key.namespace, worker.state) for key, worker in self.workers.items())
        self.population = self.census.population
        """ACTIVE and INACTIVE workers per namespace."""
        self.slots = Counter(image.slots)
        """How many it may have, where several nodes share a namespace's quota."""
        self.departed = False
        """Handed over to another node: what it decided before is in its last commit, and nothing comes after that."""
        self._clock = clock
        self._listening = listening
        self._shard_count = shard_count
        self._deadlines = deadlines
        self._on_dirty = on_dirty
        self._observed = ObservedClock(image.observed_ms, listening.now_ms())
        self.endings = Endings(self.suspects, image.takeovers, image.observed_ms + grace_ms)
        self._brake = surroundings.brake
        self._forms: dict[int, int] = {}
        self._changed = recovered.changed
        self._witness = Witness(surroundings, image)
        self._pending = Pending(image.last_seq, self._witness.rhythms)
        self._handed_seq = image.last_seq
        self._dirty = False
        for key, worker in self.workers.items():
            self._arm(key, worker)

    # -- time

    def now_ms(self) -> int:
        return self._observed.now_ms(self._listening.now_ms())

    def at(self, listening_ms: int) -> int:
        """The observed time at a moment that the caller has read, for many commands at once."""
        return self._observed.now_ms(listening_ms)

    def clock_age_ms(self) -> int:
        """How long the durable observed time has not been written."""
        return self._observed.age_ms(self._listening.now_ms())

    # -- commands

    def renew_as_before(
        self, key: tuple[str, str], form: int, sequence: int, successes: int, errors: int, listening_ms: int
    ) -> Worker | None:
        """The short way for a heartbeat that, but for these numbers, equals the worker's last plain one; None if it
        is not one. Equality is judged by a keyed 64-bit hash of all else the heartbeat said."""
        worker = self.workers.get(key)  # type: ignore[call-overload]
        if worker is None or self._forms.get(worker.number) != form or successes + errors > PLAIN_COUNTS_MAX:
            return None
        renewal = renew(worker, sequence, successes, errors, self._observed.now_ms(listening_ms))
        if renewal is None:
            return None
        event, after = renewal
        self._keep_renewal(key, event, after)
        if self.doubts:
            self._dispel(key)
        return after

    def remember_form(self, worker: Worker, form: int | None) -> None:
        """Called after every heartbeat that took the long way, so that a form is always of the current session."""
        if form is None:
            self._forms.pop(worker.number, None)
        else:
            self._forms[worker.number] = form

    def forget_forms(self) -> None:
        """The policy changed: what a heartbeat asks for may be granted otherwise."""
        self._forms.clear()

    def heartbeat(self, key: WorkerKey, beat: Heartbeat, now_ms: int, admit: Admit) -> tuple[Outcome, Worker]:
        worker = self.workers.get(key)
        if worker is None:
            admit(self, key.namespace, beat.policy)
        events = decider.heartbeat(key, worker, beat, now_ms)
        if worker is not None and not events:
            return Outcome.REPEATED, worker
        was_held = key in self.doubts and self._dispel(key)
        if worker is not None and len(events) == 1 and type(event := events[0]) is LeaseRenewed:
            return Outcome.RENEWED, self._renew(key, worker, event)
        after = self._apply(key, worker, events, now_ms)
        assert after is not None
        if was_held:
            self._arm(key, after)  # its timer was put off by the terms it had before
        return _OUTCOMES.get(type(events[0]), Outcome.RENEWED), after

    def deactivate(self, key: WorkerKey, command: Deactivate) -> tuple[Worker, int]:
        """Returns the worker and how many activities were taken from it."""
        worker = self.describe(key)
        now_ms = self.now_ms()
        events = decider.deactivate(key, worker, command, now_ms)
        if not events:
            return worker, 0
        after = self._apply(key, worker, events, now_ms)
        assert after is not None
        return after, len(worker.bindings)

    def dying(self, key: WorkerKey) -> Worker | None:
        """A worker whose lease is over because nothing was heard of it."""
        worker = self.workers.get(key)
        if worker is None or worker.state is not WorkerState.ACTIVE:
            return None
        return worker if self.now_ms() >= self.endings.silence_ends_ms(key, worker) else None

    def foresee_death(self, key: WorkerKey, worker: Worker) -> None:
        """Told about all of them before any is ended, so that their certificates know of each other."""
        self._witness.enter(key, worker)

    def look_at(self, key: WorkerKey) -> None:
        """Let its timer fire at the next opportunity."""
        self._deadlines.arm(key, self.now_ms())

    def expire_lease(self, key: WorkerKey, policy: Policy) -> bool:
        """End a lease that is over by any of its terms."""
        worker, endings, hold = self.workers[key], self.endings, self._brake.hold_of(key)
        now_ms, due_ms = self.now_ms(), self.endings.ending_ms(key, worker)
        if now_ms < due_ms:
            return False
        events: tuple[WorkerEvent, ...] = ()
        if now_ms >= endings.silence_ends_ms(key, worker):
            known = self._witness.circumstances(key, worker, now_ms, self.endings.takeovers)
            if hold is not None:
                known = known._replace(held_ms=now_ms - hold.since_ms)
            if now_ms >= endings.expiry_ms(worker):
                events = decider.expire_lease(worker, policy, now_ms, known)
            if not events and key in self.suspects:
                events = decider.disconnect(worker, policy, now_ms, self.suspects[key], known)
        events = events or decider.end_drain(worker, policy, now_ms)
        ended = self._apply_if_any(key, worker, events, now_ms)
        if ended:
            # On purpose is not late.
            due_ms = due_ms if hold is None else min(now_ms, max(due_ms, hold.until_ms))
            self.transitions[-1] = self.transitions[-1]._replace(due_ms=due_ms)
        return ended

    def suspect(self, key: WorkerKey) -> None:
        """The worker's stream broke, and not because of us."""
        worker = self.workers.get(key)
        if worker is not None and worker.state is WorkerState.ACTIVE and worker.standing.grace_ms:
            self.suspects[key] = self.now_ms()
            self.doubts.add(key)
            self._arm(key, worker)

    def change_worker(self, key: WorkerKey, events: tuple[WorkerEvent, ...]) -> bool:
        """Apply what was decided about a worker that there is."""
        return self._apply_if_any(key, self.workers[key], events, self.now_ms())

    def change_activity(self, key: ActivityKey, events: Events) -> Activity | None:
        """Apply what was decided about an activity."""
        if events:
            self._touch()
        return self.activities.apply(key, events, self._pending, self._clock.wall_ms(), self.now_ms())

    def clean_up(self, key: WorkerKey, policy: Policy) -> bool:
        worker = self.workers[key]
        now_ms = self.now_ms()
        return self._apply_if_any(key, worker, decider.clean_up(worker, policy, now_ms), now_ms)

    def forget_tombstones(self, limit: int) -> int:
        """Let go of cleaned-up keys whose retention is over."""
        now_ms = self.now_ms()
        forgotten = 0
        for key, worker in list(self.workers.items()):
            if worker.state is WorkerState.CLEANED_UP and forgotten < limit:
                forgotten += self._apply_if_any(key, worker, decider.forget(worker, now_ms), now_ms)
        return forgotten

    def reschedule(
        self, task: ActivityRescheduleTask, policy: Policy, *, elsewhere: bool = False
    ) -> Activity:
        """Take an activity from the worker that lost it; the same task again changes nothing."""
        key = ActivityKey(task.namespace, *task.activity.id)
        events = activity_decider.reschedule(
            self.activities.get(key), task, policy, self.now_ms(), elsewhere=elsewhere
        )
        activity = self.change_activity(key, events)
        assert activity is not None
        return activity

    def update_task(self, update: TaskUpdate) -> None:
        known = self._pending.task_updates.get(update.task_id)
        if known is not None and known.state in FINISHED_TASK_STATES:
            return  # as the store would have it, were they committed one after the other
        self._pending.task_updates[update.task_id] = update
        self._touch()

    def change_config(self, namespace: str, change: ConfigChanged, overrides: Mapping[str, float]) -> None:
        self._pending.add(
            change, number=None, namespace=namespace, worker=None, workflow_id=None,
            wall_ms=self._clock.wall_ms(), observed_ms=self.now_ms(),
        )  # fmt: skip
        self._pending.config[namespace] = overrides
        self._touch()

    # -- queries

    def describe(self, key: WorkerKey) -> Worker:
        worker = self.workers.get(key)
        if worker is None:
            raise WorkerNotFound(worker=key.instance_key, namespace=key.namespace)
        return worker

    # -- the way to the store

    def hand_over(
        self, listening_ms: int, wall_ms: int, *, checkpoint: bool = False, release: bool = False
    ) -> HandedOver:
        """Everything decided so far, as one commit; without news it still carries the clock."""
        pending, transitions = self._pending, self.transitions
        now_ms = self._observed.now_ms(listening_ms)
        wall = self._witness.wall
        if abs(wall_ms - now_ms - wall.offset_ms) > DRIFT_MS:
            wall.note(now_ms, wall_ms)
        commit = pending.commit(self.id, self.epoch, self._handed_seq, now_ms, wall_ms)
        if checkpoint:
            active = (worker for worker in self.workers.values() if worker.state is WorkerState.ACTIVE)
            commit.checkpoint = (commit.last_seq, [pulse_of(worker) for worker in active])
            for key in self._changed:
                commit.workers[key] = (self.workers[key], commit.last_seq)
            self._changed = set()
        commit.release = release
        self._handed_seq = commit.last_seq
        self._pending = Pending(commit.last_seq, pending.rhythms)
        self._dirty = False
        self.transitions, orders, self.orders = [], self.orders, set()
        return HandedOver(self, commit, pending.notable_seq, listening_ms, transitions, orders)

    def committed(self, handed: HandedOver) -> None:
        """It is durable."""
        commit = handed.commit
        self.durable_seq = commit.last_seq
        self.durable_notable_seq = handed.notable_seq or self.durable_notable_seq
        if commit.checkpoint is not None:
            self.checkpoint_seq = commit.checkpoint[0]
        self._observed.committed(commit.observed_ms, handed.listening_ms)

    # -- inside

    def _dispel(self, key: tuple[str, str]) -> bool:
        """Something was heard of it. Returns whether a storm had held it."""
        self.doubts.discard(key)
        self.suspects.pop(key, None)
        return self._brake.heard(key)

    def _renew(self, key: WorkerKey, worker: Worker, event: LeaseRenewed) -> Worker:
        after = renewed(worker, event)
        self._keep_renewal(key, event, after)
        return after

    def _keep_renewal(self, key: tuple[str, str], event: LeaseRenewed, after: Worker) -> None:
        self.workers[key] = after  # type: ignore[index]  # the worker is there, and so is its key
        number, pending = after.number, self._pending
        if number in pending.renewals:
            pending.add_renewal(number, event, self._clock)
        else:
            pending.renewals[number] = event
        if not self._dirty:
            self._touch()

    def _apply_if_any(
        self, key: WorkerKey, worker: Worker, events: tuple[WorkerEvent, ...], now_ms: int
    ) -> bool:
        if events:
            self._apply(key, worker, events, now_ms)
        return bool(events)

    def _apply(
        self, key: WorkerKey, worker: Worker | None, events: tuple[WorkerEvent, ...], now_ms: int
    ) -> Worker | None:
        wall_ms = self._clock.wall_ms()
        for event in events:
            if isinstance(event, LeaseRenewed):
                assert worker is not None
                worker = self._renew(key, worker, event)
                continue
            seq = self._pending.add(
                event, number=worker.number if worker else None, namespace=key.namespace, worker=key.instance_key,
                workflow_id=None, wall_ms=wall_ms, observed_ms=now_ms,
            )  # fmt: skip
            before, worker = worker, evolve(worker, event, seq)
            self._note(key, before, event, worker, seq)
        self._touch()
        return worker

    def _note(
        self, key: WorkerKey, before: Worker | None, event: WorkerEvent, after: Worker | None, seq: int
    ) -> None:
        """Keep everything derived from workers in step with one event."""
        if after is None:
            del self.workers[key]
            self._forms.pop(before.number if before else 0, None)
            self._deadlines.disarm(key)
        else:
            self.workers[key] = after
            if before is None or after.state is not before.state or due(after) < due(before):
                self._arm(key, after)
        if before is not None and (
            after is None or after.state is not before.state or ordered(before) != ordered(after)
        ):
            self.orders.add(key)
        if isinstance(event, LAZY) and before and after and listed(before) == listed(after):
            self._changed.add(key)
        else:
            self._pending.workers[key] = (after, seq) if after else None
            self._changed.discard(key)
        fan_out = react(key, before, event)
        if fan_out is not None:
            self._pending.new_tasks.append(NewTasks.of(fan_out, self._shard_count))
        if isinstance(event, LAZY):
            return
        self.suspects.pop(key, None)
        self.doubts.discard(key)
        self._brake.ended(key, died=is_death(event))
        self._pending.add_verdict(key.namespace, verdict_on(before, event))
        self._witness.saw(before, event, after)
        self.census.move(key.namespace, before and before.state, after and after.state)
        taken = len(fan_out.activities) if fan_out is not None else 0
        self.transitions.append(transition(key, before, event, after, taken))

    def _arm(self, key: WorkerKey, worker: Worker) -> None:
        """For what `timer_of` says."""
        state = worker.state
        if state is WorkerState.ACTIVE:
            self._deadlines.arm(key, self.endings.ending_ms(key, worker))
        elif state is WorkerState.INACTIVE:
            self._deadlines.arm(key, worker.deadline_ms)
        else:
            self._deadlines.disarm(key)

    def _touch(self) -> None:
        if not self._dirty:
            self._dirty = True
            self._on_dirty(self)
