"""One shard: its state in memory, and the operations that change it.

Everything here is synchronous. A method decides on the state as it is, changes it, and adds the events to `Pending`.
The committer makes them durable, and only then do replies leave. If the commit fails, the node discards this object.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import NamedTuple

from liveness.clock import Clock
from liveness.diagnostics.evidence import EvidenceCollector, EvidenceSources
from liveness.domain import activity_decider, component_decider, decider, registry_decider
from liveness.domain.activity import Activity
from liveness.domain.activity_decider import ActivityEvents
from liveness.domain.commands import Deactivate, Heartbeat
from liveness.domain.component_decider import ComponentReport
from liveness.domain.concurrency import ConcurrencyLimit, LimitKey
from liveness.domain.death_certificate import DeathEvidence
from liveness.domain.errors import WorkerNotFound
from liveness.domain.events import (
    ConcurrencyLimitEvent,
    ConfigChanged,
    LeaseRenewed,
    ReplicaSeen,
    SessionReplaced,
    WorkerDeactivated,
    WorkerEvent,
    WorkerForgotten,
    WorkerRegistered,
    WorkerResurrected,
)
from liveness.domain.fold import apply_renewal, evolve
from liveness.domain.keys import ActivityKey, WorkerKey
from liveness.domain.plain_renewal import renew_if_plain
from liveness.domain.policy import Policy
from liveness.domain.progress import ProgressReport, UnitKey
from liveness.domain.reactions import ActivityRescheduleTask, react
from liveness.domain.registry_decider import Registration
from liveness.domain.schedule import Schedule, ScheduleEvents, ScheduleKey
from liveness.domain.silences import SilenceKind, is_notable
from liveness.domain.verdicts import count_verdict, is_death, is_silent_death
from liveness.domain.worker import InactiveReason, Worker, WorkerState
from liveness.engine.activity_book import ActivityBook
from liveness.engine.census import Census
from liveness.engine.changes import (
    DEFERRED_ROW_EVENTS,
    Transition,
    earliest_deadline_ms,
    listing_fields,
    orders_of,
    transition_of,
)
from liveness.engine.observed_clock import ListeningTime, ObservedClock
from liveness.engine.pending import SAME_OFFSET_MS, Pending
from liveness.engine.progress_book import ProgressBook
from liveness.engine.recovery import RecoveredWorkers
from liveness.engine.shard_objects import ShardObjects
from liveness.engine.timers import Timers
from liveness.expiry.disconnects import DisconnectedWorkers
from liveness.expiry.lease_deadlines import LeaseDeadlines, LeaseEnd
from liveness.expiry.throttle import ExpiryThrottle
from liveness.store.api import FINISHED_TASK_STATES, NewTaskBatch, ShardCommit, ShardSnapshot, TaskUpdate
from liveness.store.codec import renewal_state_of

PLAIN_COUNTS_MAX = 2**40


class HeartbeatOutcome(IntEnum):
    REGISTERED = 1
    RENEWED = 2
    REPEATED = 3
    SESSION_REPLACED = 4
    RESURRECTED = 5


_OUTCOMES: dict[type, HeartbeatOutcome] = {
    WorkerRegistered: HeartbeatOutcome.REGISTERED,
    SessionReplaced: HeartbeatOutcome.SESSION_REPLACED,
    WorkerResurrected: HeartbeatOutcome.RESURRECTED,
}


class PreparedCommit(NamedTuple):
    """A shard's part of a group commit, and what listeners are told once it is durable."""

    shard: Shard
    commit: ShardCommit
    feed_seq: int
    """Sequence of the newest entry that is not a row of plain renewals; 0 if there is none."""
    listening_ms: int
    transitions: list[Transition]
    changed_orders: set[WorkerKey]
    """Workers whose next heartbeat reply carries other orders than the last one."""


AdmitWorker = Callable[["Shard", str, Policy], None]
"""Raises if a shard has no room for one more worker of a namespace."""
AdmitSession = Callable[[WorkerKey, Policy], None]
"""Raises if a known worker may not have one more session, or come back once more, now."""


class Shard:
    # Keep it at 30 attributes or fewer: heartbeats read a dozen, and Python stores more than 30 in a slower way.
    def __init__(
        self,
        snapshot: ShardSnapshot,
        *,
        clock: Clock,
        listening: ListeningTime,
        shard_count: int,
        grace_ms: int,
        timers: Timers,
        on_dirty: Callable[[Shard], None],
        evidence_sources: EvidenceSources,
        throttle: ExpiryThrottle,
    ) -> None:
        self.id = snapshot.shard_id
        self.epoch = snapshot.epoch
        self.durable_seq = snapshot.last_seq
        """Sequence of the newest entry that is known to be committed."""
        self.durable_feed_seq = snapshot.last_seq
        """The same without plain renewals; event feeds read up to here."""
        self.checkpoint_seq = snapshot.checkpoint_seq
        self.transitions: list[Transition] = []
        """Since the last commit was prepared, like `changed_orders`."""
        self.changed_orders: set[WorkerKey] = set()
        self.disconnected = DisconnectedWorkers()
        """Workers whose stream broke, and when. In memory only: a restart of the server may forget a break, which then
        does not count."""
        self.needs_attention: set[tuple[str, str]] = set()
        """Workers whose next heartbeat changes more than their lease: disconnected workers, and those that a storm holds.
        One set for both, because every heartbeat checks whether it is empty."""
        recovered = RecoveredWorkers(snapshot)
        self.workers = recovered.workers
        self.activities = ActivityBook(
            dict(snapshot.activities), timers, snapshot.observed_ms, snapshot.taken_wall_ms
        )
        self.census = Census(self.workers)
        self.census.silences = recovered.silences
        self.objects = ShardObjects(snapshot)
        self.slots = Counter(snapshot.slots)
        """Workers per namespace that this shard may have, if several nodes share the namespace's quota."""
        self.epoch_floor = snapshot.epoch_floor
        """The lowest lease epoch of a worker that registers: above the epochs of every worker that was forgotten here."""
        self.is_handed_over = False
        """Whether the shard was handed over to another node. Its last commit contains every decision; none may follow."""
        self._clock = clock
        self._listening = listening
        self._shard_count = shard_count
        self._timers = timers
        self._on_dirty = on_dirty
        self._observed = ObservedClock(snapshot.observed_ms, listening.now_ms())
        self.lease_deadlines = LeaseDeadlines(
            self.disconnected, snapshot.takeovers, snapshot.observed_ms + grace_ms
        )
        self._throttle = throttle
        self._fingerprints: dict[int, int] = {}
        self._stale_rows = recovered.stale_rows
        self._evidence_collector = EvidenceCollector(evidence_sources, snapshot)
        self._pending = Pending(
            snapshot.last_seq,
            self._evidence_collector.heartbeat_history,
            snapshot.taken_wall_ms - snapshot.observed_ms,
        )
        self._prepared_seq = snapshot.last_seq
        self._dirty = False
        now_ms = self.now_ms()
        for key, worker in self.workers.items():
            self._arm(key, worker, now_ms)

    @property
    def population(self) -> Counter[str]:
        """ACTIVE and INACTIVE workers per namespace."""
        return self.census.population

    @property
    def progress(self) -> ProgressBook:
        return self.objects.progress

    # -- time

    def now_ms(self) -> int:
        return self._observed.now_ms(self._listening.now_ms())

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def observed_ms_at(self, listening_ms: int) -> int:
        """The observed time at a moment that the caller has read, for many commands at once."""
        return self._observed.now_ms(listening_ms)

    def clock_age_ms(self) -> int:
        """How long the durable observed time has not been written."""
        return self._observed.age_ms(self._listening.now_ms())

    # -- commands

    def renew_unchanged(
        self,
        key: tuple[str, str],
        fingerprint: int,
        sequence: int,
        successes: int,
        errors: int,
        listening_ms: int,
        wall_ms: int,
    ) -> Worker | None:
        """Renew the lease by the fast path if the heartbeat equals the worker's last plain one except for these numbers;
        otherwise return None. The fingerprint is a keyed 64-bit hash of everything else in the heartbeat."""
        worker = self.workers.get(key)  # type: ignore[call-overload]
        if (
            worker is None
            or self._fingerprints.get(worker.number) != fingerprint
            or successes + errors > PLAIN_COUNTS_MAX
        ):
            return None
        at_ms, pending = self._observed.now_ms(listening_ms), self._pending
        if not -SAME_OFFSET_MS <= wall_ms - at_ms - pending.wall_offset_ms <= SAME_OFFSET_MS:
            pending.wall_time(at_ms, wall_ms)
        renewal = renew_if_plain(worker, sequence, successes, errors, at_ms, pending.wall_offset_ms)
        if renewal is None:
            return None
        event, after = renewal
        if is_notable(at_ms - worker.renewed_ms, worker.shared.granted_ms):
            self._count_silence(key, worker, at_ms)
        self._store_renewal(key, event, after)
        applied = self.census.totals.applied[key[0]]
        applied[0] += 1
        if successes:
            applied[1] += successes
        if errors:
            applied[2] += errors
        if self.needs_attention:
            self._mark_alive(key)
        return after

    def remember_fingerprint(self, worker: Worker, fingerprint: int | None) -> None:
        """Store the fingerprint of a heartbeat. Called after every heartbeat that took the slow path, so that a
        fingerprint always belongs to the current session."""
        if fingerprint is None:
            self._fingerprints.pop(worker.number, None)
        else:
            self._fingerprints[worker.number] = fingerprint

    def clear_fingerprints(self) -> None:
        """Send all heartbeats through the slow path once, because a changed policy may grant them other terms."""
        self._fingerprints.clear()

    def heartbeat(
        self,
        key: WorkerKey,
        beat: Heartbeat,
        now_ms: int,
        wall_ms: int,
        admit: AdmitWorker,
        admit_session: AdmitSession = lambda key, policy: None,
    ) -> tuple[HeartbeatOutcome, Worker]:
        worker = self.workers.get(key)
        events = decider.heartbeat(key, worker, beat, now_ms, self.epoch_floor)
        return self._heard(key, worker, events, beat.policy, now_ms, wall_ms, admit, admit_session)

    def register_component(
        self, key: WorkerKey, registration: Registration, admit: AdmitWorker, admit_session: AdmitSession
    ) -> tuple[HeartbeatOutcome | None, Worker]:
        """The outcome is None if the process became a replica."""
        worker, now_ms, wall_ms = self.workers.get(key), self.now_ms(), self._clock.wall_ms()
        events = registry_decider.register(key, worker, registration, now_ms, wall_ms, self.epoch_floor)
        return self._heard_component(
            key, worker, events, registration.beat.policy, now_ms, wall_ms, admit, admit_session
        )

    def hear_component(
        self, key: WorkerKey, beat: Heartbeat, status: str, admit: AdmitWorker, admit_session: AdmitSession
    ) -> tuple[HeartbeatOutcome | None, Worker]:
        """A heartbeat of a registered component. The outcome is None if it came from a replica."""
        worker, now_ms, wall_ms = self.workers.get(key), self.now_ms(), self._clock.wall_ms()
        events = registry_decider.heartbeat(key, worker, beat, status, now_ms, wall_ms)
        return self._heard_component(key, worker, events, beat.policy, now_ms, wall_ms, admit, admit_session)

    def deregister_component(
        self, key: WorkerKey, session_id: str, reason: str, policy: Policy, principal: str
    ) -> int:
        """Return how many activities the worker lost."""
        worker, now_ms = self.workers.get(key), self.now_ms()
        events = registry_decider.deregister(key, worker, session_id, reason, policy, now_ms, principal)
        assert worker is not None
        self._apply_if_any(key, worker, events, now_ms)
        return len(worker.bindings) if events and type(events[0]) is WorkerDeactivated else 0

    def _heard_component(
        self,
        key: WorkerKey,
        worker: Worker | None,
        events: tuple[WorkerEvent, ...],
        policy: Policy,
        now_ms: int,
        wall_ms: int,
        admit: AdmitWorker,
        admit_session: AdmitSession,
    ) -> tuple[HeartbeatOutcome | None, Worker]:
        if worker is not None and events and type(events[0]) is ReplicaSeen:
            after = self._apply(key, worker, events, now_ms, wall_ms)
            assert after is not None
            return None, after
        outcome, worker = self._heard(key, worker, events, policy, now_ms, wall_ms, admit, admit_session)
        self.remember_fingerprint(worker, None)
        return outcome, worker

    def _heard(
        self,
        key: WorkerKey,
        worker: Worker | None,
        events: tuple[WorkerEvent, ...],
        policy: Policy,
        now_ms: int,
        wall_ms: int,
        admit: AdmitWorker,
        admit_session: AdmitSession,
    ) -> tuple[HeartbeatOutcome, Worker]:
        """Apply what a heartbeat of the worker caused, unless there is no room for it."""
        if events and type(events[0]) is WorkerRegistered:
            admit(self, key.namespace, policy)
        if worker is not None and events and type(events[0]) in _OUTCOMES:
            admit_session(key, policy)
        if worker is not None and not events:
            return HeartbeatOutcome.REPEATED, worker
        was_held = key in self.needs_attention and self._mark_alive(key)
        if worker is not None and len(events) == 1 and type(event := events[0]) is LeaseRenewed:
            self._pending.wall_time(now_ms, wall_ms)
            return HeartbeatOutcome.RENEWED, self._renew(key, worker, event)
        after = self._apply(key, worker, events, now_ms, wall_ms)
        assert after is not None
        if was_held:
            self._arm(key, after)  # the hold had set its timer by the previous terms
        return _OUTCOMES.get(type(events[0]), HeartbeatOutcome.RENEWED), after

    def deactivate(self, key: WorkerKey, command: Deactivate) -> tuple[Worker, int]:
        """Return the worker and how many activities it lost."""
        worker = self.describe(key)
        now_ms = self.now_ms()
        events = decider.deactivate(key, worker, command, now_ms)
        if not events:
            return worker, 0
        after = self._apply(key, worker, events, now_ms)
        assert after is not None
        return after, len(worker.bindings)

    def lease_ended_by(self, key: WorkerKey) -> LeaseEnd | None:
        """Return why the worker's lease is over; None while it goes on, or if the worker has none."""
        worker = self.workers.get(key)
        return None if worker is None else self.lease_deadlines.ended_by(key, worker, self.now_ms())

    def record_upcoming_death(self, key: WorkerKey, worker: Worker) -> None:
        """Record a death before the lease is ended. The timer runner does so for all deaths of a batch before it ends
        the first lease, so that each certificate counts the others."""
        self._evidence_collector.record_death(key, worker)

    def withdraw_upcoming_death(self, key: WorkerKey) -> None:
        """Forget a death that was recorded before its lease was ended: the worker was heard of in between."""
        self._evidence_collector.withdraw_death(key)

    def recheck(self, key: WorkerKey, at_ms: int | None = None) -> None:
        """Have the worker's timer fire at `at_ms`, or with the next tick."""
        self._timers.arm(key, self.now_ms() if at_ms is None else at_ms)

    def end_lease(self, key: WorkerKey, end: LeaseEnd, policy: Policy) -> None:
        """End a lease that is over. `end` is what `lease_ended_by` returned in this tick."""
        worker, now_ms, hold = self.workers[key], self.now_ms(), self._throttle.hold_of(key)
        events: tuple[WorkerEvent, ...]
        if end.is_death:
            evidence = self._collect_evidence(key, worker, now_ms)
            if hold is not None:
                evidence = evidence._replace(held_ms=now_ms - hold.since_ms)
            if end.reason is InactiveReason.LEASE_EXPIRED:
                events = decider.expire_lease(worker, policy, now_ms, evidence)
            else:
                events = decider.disconnect(worker, policy, now_ms, self.disconnected[key], evidence)
        else:
            events = decider.end_drain(worker, policy, now_ms)
        assert events, f"the decider refuses to end a lease that is over: {end}"
        self._apply(key, worker, events, now_ms)
        # Time that a storm held the lease is no lateness.
        due_ms = end.due_ms if hold is None else min(now_ms, max(end.due_ms, hold.until_ms))
        self.transitions[-1] = self.transitions[-1]._replace(due_ms=due_ms)

    def _collect_evidence(self, key: WorkerKey, worker: Worker, now_ms: int) -> DeathEvidence:
        return self._evidence_collector.collect(
            key, worker, self._wall_time(now_ms), self.lease_deadlines.takeovers
        )

    def mark_disconnected(self, key: WorkerKey) -> None:
        """Record that the worker's stream broke on the worker's side, and arm the end of its disconnect grace."""
        worker = self.workers.get(key)
        if worker is not None and worker.state is WorkerState.ACTIVE and worker.standing.grace_ms:
            self.disconnected[key] = self.now_ms()
            self.needs_attention.add(key)
            self._arm(key, worker)

    def mark_connected(self, key: tuple[str, str]) -> None:
        """Record that a heartbeat or a new stream ended the worker's disconnection. The next commit reports it as changed
        orders, because matching gives a disconnected worker no work."""
        broken_ms = self.disconnected.pop(key, None)
        if broken_ms is not None:
            worker, at_ms = self.workers.get(WorkerKey(*key)), self.now_ms()
            if worker is not None and (grace_ms := worker.standing.grace_ms):
                wall_ms = at_ms + self._pending.wall_offset_ms
                self.census.silences.record(key[0], SilenceKind.STREAM, wall_ms, grace_ms, at_ms - broken_ms)
            self.changed_orders.add(WorkerKey(*key))

    def change_worker(self, key: WorkerKey, events: tuple[WorkerEvent, ...]) -> bool:
        """Apply decided events to a known worker."""
        return self._apply_if_any(key, self.workers[key], events, self.now_ms())

    def report_component(self, key: WorkerKey, report: ComponentReport, policy: Policy) -> int:
        """Return how many activities the worker lost with its process."""
        worker, now_ms = self.describe(key), self.now_ms()
        events = component_decider.report(key, worker, report, policy, now_ms)
        if is_death(events[-1] if events else None):
            self.record_upcoming_death(key, worker)
            evidence = self._collect_evidence(key, worker, now_ms)
            events = component_decider.report(key, worker, report, policy, now_ms, evidence)
        self._apply_if_any(key, worker, events, now_ms)
        return len(worker.bindings) if len(events) > 1 else 0

    def change_activity(
        self, key: ActivityKey, events: ActivityEvents, now_ms: int | None = None
    ) -> Activity | None:
        """`now_ms`: the present time, if the caller has read it."""
        if events:
            self._mark_dirty()
        if now_ms is None:
            now_ms = self.now_ms()
        before = self.activities.get(key)
        after = self.activities.apply(key, events, self._pending, self._wall_time(now_ms), now_ms)
        if events:
            self.objects.limits.record_change(key, before, after)
        return after

    def change_limit(
        self, key: LimitKey, events: tuple[ConcurrencyLimitEvent, ...]
    ) -> ConcurrencyLimit | None:
        """Returns the limit, as it is afterwards."""
        now_ms = self.now_ms()
        limit = self.objects.limits.get(key)
        for event in events:
            self._mark_dirty()
            limit = self.objects.limits.apply(
                key, event, self.activities.items(), self._pending, self._wall_time(now_ms), now_ms
            )
        return limit

    def report_progress(self, key: UnitKey, report: ProgressReport) -> bool:
        """Returns whether the report counts; it does not if it was counted before."""
        now_ms = self.now_ms()
        is_counted = self.progress.report(key, report, self._pending, self._wall_time(now_ms), now_ms)
        if is_counted:
            self._mark_dirty()
        return is_counted

    def forget_progress(self, key: UnitKey, reason: str, by: str) -> None:
        now_ms = self.now_ms()
        self.progress.forget(key, reason, by, self._pending, self._wall_time(now_ms), now_ms)
        self._mark_dirty()

    def change_schedule(self, key: ScheduleKey, events: ScheduleEvents) -> Schedule | None:
        """Returns the schedule, as it is afterwards."""
        now_ms = self.now_ms()
        schedule = self.objects.schedules.get(key)
        for event in events:
            self._mark_dirty()
            schedule = self.objects.schedules.apply(
                key, event, self._pending, self._wall_time(now_ms), now_ms
            )
        return schedule

    def clean_up(self, key: WorkerKey, policy: Policy) -> bool:
        worker = self.workers[key]
        now_ms = self.now_ms()
        return self._apply_if_any(key, worker, decider.clean_up(worker, policy, now_ms), now_ms)

    def forget(self, key: WorkerKey, policy: Policy, reason: str, by: str = "") -> Worker:
        """Free the key of a worker that is not ACTIVE. Returns the worker as it was."""
        worker = self.describe(key)
        now_ms = self.now_ms()
        self._apply(key, worker, decider.forget_now(key, worker, policy, reason, now_ms, by), now_ms)
        return worker

    def forget_tombstones(self, limit: int) -> int:
        """Delete up to `limit` CLEANED_UP workers whose tombstone retention is over."""
        now_ms = self.now_ms()
        forgotten = 0
        for key, worker in list(self.workers.items()):
            if worker.state is WorkerState.CLEANED_UP and forgotten < limit:
                forgotten += self._apply_if_any(key, worker, decider.forget(worker, now_ms), now_ms)
        return forgotten

    def reschedule(
        self,
        key: ActivityKey,
        task: ActivityRescheduleTask,
        policy: Policy,
        *,
        to_other_engine: bool = False,
    ) -> Activity:
        """Take an activity from the worker that lost it. Repeating the same task changes nothing."""
        now_ms = self.now_ms()
        events = activity_decider.reschedule(
            self.activities.get(key), task, policy, now_ms, to_other_engine=to_other_engine
        )
        activity = self.change_activity(key, events, now_ms)
        assert activity is not None
        return activity

    def update_task(self, update: TaskUpdate) -> None:
        known = self._pending.task_updates.get(update.task_id)
        if known is not None and known.state in FINISHED_TASK_STATES:
            return  # the store too would refuse to change a finished task in a later commit
        self._pending.task_updates[update.task_id] = update
        self._mark_dirty()

    def change_config(self, namespace: str, change: ConfigChanged, overrides: Mapping[str, float]) -> None:
        now_ms = self.now_ms()
        self._pending.add(
            change, number=None, namespace=namespace, worker=None, workflow_id=None,
            wall_ms=self._wall_time(now_ms), observed_ms=now_ms,
        )  # fmt: skip
        self._pending.config[namespace] = overrides
        self._mark_dirty()

    # -- queries

    def describe(self, key: WorkerKey) -> Worker:
        worker = self.workers.get(key)
        if worker is None:
            raise WorkerNotFound(worker=key.instance_key, namespace=key.namespace)
        return worker

    # -- commits

    def prepare_commit(
        self, listening_ms: int, wall_ms: int, *, checkpoint: bool = False, is_hand_over: bool = False
    ) -> PreparedCommit:
        """Return all pending decisions as one commit. A commit without any still carries the observed clock."""
        pending, transitions = self._pending, self.transitions
        now_ms = self._observed.now_ms(listening_ms)
        commit = pending.commit(self.id, self.epoch, self._prepared_seq, now_ms, wall_ms)
        if checkpoint:
            active = [worker for worker in self.workers.values() if worker.shared.state is WorkerState.ACTIVE]
            commit.checkpoint = (commit.last_seq, [renewal_state_of(worker) for worker in active])
            for key in self._stale_rows:
                commit.workers[key] = (self.workers[key], commit.last_seq)
            self._stale_rows = set()
            commit.silences = self.census.silences.take(self.census.active(), now_ms, wall_ms)
        commit.is_hand_over = is_hand_over
        self._prepared_seq = commit.last_seq
        self._pending = Pending(commit.last_seq, pending.heartbeat_history, pending.wall_offset_ms)
        self._dirty = False
        self.transitions, changed_orders, self.changed_orders = [], self.changed_orders, set()
        return PreparedCommit(self, commit, pending.feed_seq, listening_ms, transitions, changed_orders)

    def mark_durable(self, prepared: PreparedCommit) -> None:
        """Advance to a commit that is now durable."""
        commit = prepared.commit
        self.durable_seq = commit.last_seq
        self.activities.open.mark_durable(commit.last_seq)
        self.durable_feed_seq = prepared.feed_seq or self.durable_feed_seq
        if commit.checkpoint is not None:
            self.checkpoint_seq = commit.checkpoint[0]
        self._observed.mark_durable(commit.observed_ms, prepared.listening_ms)

    # -- internals

    def _mark_alive(self, key: tuple[str, str]) -> bool:
        """Clear the worker's disconnect and hold because a heartbeat came. Returns whether a storm had held its lease."""
        self.needs_attention.discard(key)
        self.mark_connected(key)
        return self._throttle.on_heartbeat(key)

    def _renew(self, key: WorkerKey, worker: Worker, event: LeaseRenewed) -> Worker:
        after = apply_renewal(worker, event, self._pending.wall_offset_ms)
        if is_notable(event.at_ms - worker.renewed_ms, worker.granted_ms):
            self._count_silence(key, worker, event.at_ms)
        self._store_renewal(key, event, after)
        self.census.totals.record_change(key.namespace, worker, after)
        return after

    def _count_silence(self, key: tuple[str, str], worker: Worker, at_ms: int) -> None:
        wall_ms = at_ms + self._pending.wall_offset_ms
        self.census.silences.record(
            key[0], SilenceKind.HEARTBEATS, wall_ms, worker.granted_ms, at_ms - worker.renewed_ms
        )

    def _store_renewal(self, key: tuple[str, str], event: LeaseRenewed, after: Worker) -> None:
        self.workers[key] = after  # type: ignore[index]  # an equal key is present
        number, pending = after.number, self._pending
        if number in pending.renewals:
            pending.add_renewal(number, event)
        else:
            pending.renewals[number] = event
        if not self._dirty:
            self._mark_dirty()

    def _apply_if_any(
        self, key: WorkerKey, worker: Worker, events: tuple[WorkerEvent, ...], now_ms: int
    ) -> bool:
        if events:
            self._apply(key, worker, events, now_ms)
        return bool(events)

    def _apply(
        self,
        key: WorkerKey,
        worker: Worker | None,
        events: tuple[WorkerEvent, ...],
        now_ms: int,
        wall_ms: int | None = None,
    ) -> Worker | None:
        """`wall_ms`: the wall clock at `now_ms`, if the caller has read it."""
        wall_ms = self._wall_time(now_ms, wall_ms)
        for event in events:
            if isinstance(event, LeaseRenewed):
                assert worker is not None
                worker = self._renew(key, worker, event)
                continue
            seq = self._pending.add(
                event, number=worker.number if worker else None, namespace=key.namespace, worker=key.instance_key,
                workflow_id=None, wall_ms=wall_ms, observed_ms=now_ms,
            )  # fmt: skip
            before, worker = worker, evolve(worker, event, seq, wall_ms)
            self._update_derived(key, before, event, worker, seq)
        self._mark_dirty()
        return worker

    def _update_derived(
        self, key: WorkerKey, before: Worker | None, event: WorkerEvent, after: Worker | None, seq: int
    ) -> None:
        """Update everything that is derived from workers after one event."""
        self.census.totals.record_change(key.namespace, before, after)
        if before is not None and (after is None or after.number != before.number):
            self._fingerprints.pop(before.number, None)
        if after is None:
            del self.workers[key]
            self._timers.disarm(key)
            if isinstance(event, WorkerForgotten):
                self.epoch_floor = max(self.epoch_floor, event.epoch_floor)
                self._pending.epoch_floor = self.epoch_floor
        else:
            self.workers[key] = after
            if (
                before is None
                or after.state is not before.state
                or after.epoch != before.epoch  # the take-over grace may have delayed the timer
                or earliest_deadline_ms(after) < earliest_deadline_ms(before)
            ):
                self._arm(key, after)
        if before is not None and (
            after is None or after.state is not before.state or orders_of(before) != orders_of(after)
        ):
            self.changed_orders.add(key)
        if (
            isinstance(event, DEFERRED_ROW_EVENTS)
            and before
            and after
            and listing_fields(before) == listing_fields(after)
        ):
            self._stale_rows.add(key)
        else:
            self._pending.workers[key] = (after, seq) if after else None
            self._stale_rows.discard(key)
        batch = react(key, before, event)
        if batch is not None:
            self._pending.new_tasks.append(NewTaskBatch.of(batch, self._shard_count))
        if (before and before.standing.component) or (after and after.standing.component):
            self.census.components.record(key, after, self._clock.wall_ms())
        if (before and before.standing.entry) or (after and after.standing.entry):
            self.census.registry.record(key, after)
        if isinstance(event, DEFERRED_ROW_EVENTS):
            return
        self.disconnected.pop(key, None)
        self.needs_attention.discard(key)
        self._throttle.on_lease_ended(key, died=is_silent_death(event))
        self._pending.add_verdict(key.namespace, count_verdict(before, event))
        self._evidence_collector.observe(before, event, after)
        self.census.record_transition(key.namespace, before, after)
        taken = len(batch.activities) if batch is not None else 0
        self.transitions.append(transition_of(key, before, event, after, taken))

    def _arm(self, key: WorkerKey, worker: Worker, now_ms: int | None = None) -> None:
        """Arm the timer of the task that `worker_timer` derives from the state. `now_ms`: if the caller knows it."""
        state = worker.state
        if state is WorkerState.ACTIVE:
            if now_ms is None:
                now_ms = self.now_ms()
            self._timers.arm(key, self.lease_deadlines.next_check_ms(key, worker, now_ms))
        elif state is WorkerState.INACTIVE:
            self._timers.arm(key, worker.deadline_ms)
        else:
            self._timers.disarm(key)

    def _wall_time(self, now_ms: int, clock_ms: int | None = None) -> int:
        """Return the wall time to record for what happens now."""
        return self._pending.wall_time(now_ms, self._clock.wall_ms() if clock_ms is None else clock_ms)

    def _mark_dirty(self) -> None:
        if not self._dirty:
            self._dirty = True
            self._on_dirty(self)
