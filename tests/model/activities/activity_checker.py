"""Checks everything that becomes durable by its own rules: the holder of each attempt over time, and the
tokens that may end it.

It never asks the product: it derives holders, quotas, deaths and losses from the events in the log. In
addition it folds the log from its beginning with the domain's `evolve`, for comparison.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from liveness.clock import ManualClock
from liveness.domain import activity as activity_fold
from liveness.domain import events as ev
from liveness.domain.activity import FINISHED_ACTIVITY_STATES, Activity
from liveness.domain.keys import ActivityId, ActivityKey, WorkerKey, shard_of
from liveness.domain.worker import InactiveReason
from liveness.engine.recovery import RecoveredWorkers
from liveness.store.api import ShardCommit, ShardSnapshot, TaskState
from liveness.store.codec import LogEntry
from tests.databases import SHARD_COUNT
from tests.integration.store.faulty_store import CommitObserver
from tests.model.workers.commit_checker import ShardLog

DEATHS = (InactiveReason.LEASE_EXPIRED, InactiveReason.DISCONNECTED)
RELEASED_BY_WORKER = "released by its worker"
OPEN_STATES = ("AVAILABLE", "WAITING", "STARTED", "RELEASED", "BACK", "TAKEN")


class Token(NamedTuple):
    key: ActivityKey
    worker: str
    epoch: int
    attempt: int


class Loss(NamedTuple):
    """An attempt that a worker lost with its lease."""

    key: ActivityKey
    worker: str
    epoch: int
    attempt: int
    died: bool


@dataclass
class ActivityRecord:
    """The state of one activity according to the log."""

    state: str = "NONE"
    attempt: int = 0
    holder: Token | None = None
    last_started: int = 0
    failures: int = 0
    deaths: int = 0
    retry: ev.Retry | None = None
    queue: str = ""
    due_ms: int = 0
    completions: list[tuple[Token, bytes]] = field(default_factory=list)
    taken: set[tuple[str, int, int]] = field(default_factory=set)
    """Losses that had their effect."""
    verdict: str = ""
    """The name of the event that must follow a loss."""
    limits: ev.TimeLimits = ev.NO_LIMITS
    since_ms: int = 0
    """When it became available, or was handed out."""
    heard_ms: int = 0
    close_by_ms: int = 0
    details: list[bytes] = field(default_factory=list)


@dataclass
class WorkerRecord:
    """The state of one worker according to the log."""

    active: bool = False
    epoch: int = 0
    session: str = ""
    paused: bool = False
    draining: bool = False
    drain_ms: int = 0
    grace_ms: int = 0
    bound: dict[ActivityId, int] = field(default_factory=dict)
    handed: dict[ActivityId, bool] = field(default_factory=dict)


class Shard(ShardLog):
    def __init__(self) -> None:
        super().__init__()
        self.activities: dict[ActivityKey, Activity] = {}

    def add(self, entry: LogEntry) -> None:
        super().add(entry)
        if entry.workflow_id is not None:
            event: Any = entry.event
            key = ActivityKey(entry.namespace or "", entry.workflow_id, event.run_id, event.activity_id)
            self.activities[key] = activity_fold.evolve(
                self.activities.get(key), event, key.workflow_id, entry.wall_ms
            )

    def unfinished(self) -> dict[ActivityKey, Activity]:
        return {
            key: found
            for key, found in self.activities.items()
            if found.state not in FINISHED_ACTIVITY_STATES
        }


class ActivityChecker(CommitObserver):
    def __init__(self, clock: ManualClock, quota: int, max_deaths: int, seen: Counter[str]) -> None:
        self.clock = clock
        self.quota = quota
        self.max_deaths = max_deaths
        self.seen = seen
        self.shards = [Shard() for _ in range(SHARD_COUNT)]
        self.known: defaultdict[ActivityKey, ActivityRecord] = defaultdict(ActivityRecord)
        self.workers: defaultdict[WorkerKey, WorkerRecord] = defaultdict(WorkerRecord)
        self.losses: defaultdict[tuple[ActivityKey, str, int, int], set[bool]] = defaultdict(set)
        self.lost_parts: frozenset[int] = frozenset()
        """Shards whose part of the current commit was lost to another owner."""
        self.dropped: set[int] = set()
        """Shards lost since the last check, together with their uncommitted decisions."""
        self.split: set[ActivityKey] = set()
        """Activities of which at some time only one side became durable."""
        self.paused = False
        """Whether the whole namespace is paused since the last check."""
        self.broken_at: dict[str, tuple[int, int]] = {}
        """Workers whose stream broke and who were silent since: the time, and the incarnation of the engine."""
        self.incarnation = 0
        self.violation: AssertionError | None = None
        """A violation found during a commit."""
        self.delivered: Counter[tuple[ActivityKey, int]] = Counter()
        """The attempts that the sink accepted."""

    # -- commits

    def on_take_over(self, snapshot: ShardSnapshot, entry: LogEntry) -> None:
        shard = self.shards[snapshot.shard_id]
        shard.add(entry)
        copied = snapshot._replace(workers=dict(snapshot.workers))  # recovery changes them
        assert RecoveredWorkers(copied).workers == shard.workers, "recovered workers equal the folded log"
        assert dict(snapshot.activities) == shard.unfinished(), "recovered activities equal the folded log"

    def on_committed(self, commits: Sequence[ShardCommit]) -> None:
        commit_sides = CommitSides()
        for commit in commits:
            shard = self.shards[commit.shard_id]
            losses: list[Loss] = []
            for entry in commit.entries:
                if entry.worker is not None:
                    losses += self._about_worker(entry, shard, commit_sides)
                shard.add(entry)
                if entry.workflow_id is not None:
                    self._about_activity(entry, commit_sides)
            assert commit.last_seq == len(shard.entries)
            asked = [
                Loss(ActivityKey(t.namespace, *t.activity.id), t.worker, t.epoch, t.activity.attempt, t.died)
                for new in commit.new_tasks
                for t in new.batch.tasks()
            ]
            assert Counter(asked) == Counter(losses), (
                "each lost activity is rescheduled once, in the same transaction"
            )
            shard_ids = [shard_id for new in commit.new_tasks for shard_id in new.shard_ids]
            for shard_id, loss in zip(shard_ids, asked, strict=True):
                assert shard_id == shard_of(loss.key.namespace, loss.key.workflow_id, SHARD_COUNT)
                self.losses[loss[:4]].add(loss.died)
            for update in commit.task_updates.values():
                self.seen["dead-lettered"] += update.state is TaskState.DEAD_LETTERED
            for key, row in commit.activities.items():
                assert row == shard.activities[key], "the row of an activity equals the folded log"
        self._pair(commit_sides)
        self.lost_parts = frozenset()
        for known in self.known.values():
            assert known.state not in ("BACK", "TAKEN"), "no activity stays between two states"

    def _pair(self, commit_sides: CommitSides) -> None:
        """Changes with two sides became durable on both at once."""
        for token in (commit_sides.started - commit_sides.handed) + (
            commit_sides.handed - commit_sides.started
        ):
            assert self._was_split(token), f"a hand-out has two sides: {token}"
            self.seen["a hand-out on one side only"] += 1
        for token in commit_sides.ended - commit_sides.unbound:
            assert self._was_split(token), f"only the holder with a live lease ends it: {token}"

    def _was_split(self, token: Token) -> bool:
        sides = {
            shard_of(token.key.namespace, token.key.workflow_id, SHARD_COUNT),
            shard_of(token.key.namespace, token.worker, SHARD_COUNT),
        }
        was_split = bool(sides & (self.lost_parts | self.dropped))
        if was_split:
            self.split.add(token.key)
        return was_split

    # -- workers

    def _about_worker(self, entry: LogEntry, shard: Shard, commit_sides: CommitSides) -> list[Loss]:
        name, event = WorkerKey(entry.namespace or "", entry.worker or ""), entry.event
        worker = self.workers[name]
        before, epoch = dict(worker.bound), worker.epoch
        gone: dict[ActivityId, int] = {}
        died = False
        if isinstance(event, ev.Activation):
            declared = {activity.id: activity.attempt for activity in event.bindings}
            if isinstance(event, ev.SessionReplaced):
                handed = worker.handed
                gone = {
                    id: attempt
                    for id, attempt in before.items()
                    if id not in declared or (id in handed and declared[id] != attempt)
                }
                died = True
                worker.handed = {id: True for id in handed if declared.get(id) == before[id]}
                self.seen["a session replaced with bindings"] += bool(before)
            else:
                worker.handed = {}
            if not (event.session_id and event.session_id == worker.session):
                worker.draining, worker.grace_ms, worker.drain_ms = False, 0, 0
            worker.active, worker.epoch, worker.bound = True, event.epoch, declared
            worker.session = event.session_id
        elif isinstance(event, ev.BindingsChanged):
            rebound = {activity.id: activity.attempt for activity in event.bound}
            gone = {
                id: before[id]
                for id in event.unbound
                if id in before and id in worker.handed and id not in rebound
            }
            self.seen["handed-out work unbound"] += bool(gone)
            kept = {id: attempt for id, attempt in before.items() if id not in event.unbound}
            worker.bound = {**kept, **rebound}
            worker.handed = {
                id: heard or id in event.confirmed
                for id, heard in worker.handed.items()
                if id in worker.bound
            }
        elif isinstance(event, ev.ActivityHanded):
            self._handed(name, worker, event, commit_sides)
        elif isinstance(event, ev.BindingsEnded):
            for id in event.ids:
                token = Token(
                    ActivityKey(name.namespace, *id), name.instance_key, epoch, worker.bound.pop(id)
                )
                worker.handed.pop(id, None)
                commit_sides.unbound[token] += 1
                self._was_split(token)
        elif isinstance(event, ev.WorkerDeactivated):
            self._left(name, worker, event, shard)
            gone, died = before, event.reason in DEATHS
            worker.active, worker.bound, worker.handed, worker.drain_ms = False, {}, {}, 0
        elif isinstance(event, ev.WorkerPaused):
            worker.paused = True
        elif isinstance(event, ev.WorkerResumed):
            worker.paused, worker.draining, worker.drain_ms = False, False, 0
        elif isinstance(event, ev.DrainBegun):
            worker.draining, worker.drain_ms = True, event.deadline_ms
        elif isinstance(event, ev.DisconnectGraceGranted):
            worker.grace_ms = event.grace_ms
        elif isinstance(event, ev.WorkerCleanedUp | ev.WorkerForgotten):
            self.workers[name] = WorkerRecord(epoch=epoch if isinstance(event, ev.WorkerCleanedUp) else 0)
            self.seen["a worker cleaned up"] += 1
        return [
            Loss(ActivityKey(name.namespace, *id), name.instance_key, epoch, attempt, died)
            for id, attempt in gone.items()
        ]

    def _handed(
        self, name: WorkerKey, worker: WorkerRecord, event: ev.ActivityHanded, commit_sides: CommitSides
    ) -> None:
        id, attempt = event.activity.id, event.activity.attempt
        assert worker.active, "only a worker with a live lease gets work"
        assert not worker.paused, "a paused worker gets no work"
        assert not worker.draining, "a draining worker gets no work"
        assert not self.paused, "nothing is handed out in a paused namespace"
        assert id in worker.bound or len(worker.bound) < self.quota, "nothing is handed out beyond the quota"
        worker.bound = {**worker.bound, id: attempt}
        worker.handed = {**worker.handed, id: False}
        commit_sides.handed[
            Token(ActivityKey(name.namespace, *id), name.instance_key, worker.epoch, attempt)
        ] += 1

    def _left(self, name: WorkerKey, worker: WorkerRecord, event: ev.WorkerDeactivated, shard: Shard) -> None:
        assert worker.active
        self.seen[f"deactivated: {event.reason.name}"] += 1
        self.seen[f"deactivated with bindings: {event.reason.name}"] += bool(worker.bound)
        if event.reason is InactiveReason.LEASE_EXPIRED:
            assert event.at_ms >= shard.workers[name].deadline_ms, "no lease ends early"
        elif event.reason is InactiveReason.DRAINED:
            assert worker.drain_ms, "only a draining worker is drained"
            assert event.at_ms >= worker.drain_ms, "a drain lasts until its deadline"
        elif event.reason is InactiveReason.DISCONNECTED:
            broken_ms, incarnation = self.broken_at.get(name.instance_key, (0, -1))
            assert incarnation == self.incarnation, "a break before a restart of the engine does not count"
            assert worker.grace_ms, "only a lease with a grace ends by a broken stream"
            assert self.clock.monotonic_ms() - broken_ms >= worker.grace_ms, (
                "a grace lasts for its whole duration"
            )

    # -- activities

    def _about_activity(self, entry: LogEntry, commit_sides: CommitSides) -> None:
        event: Any = entry.event
        key = ActivityKey(entry.namespace or "", entry.workflow_id or "", event.run_id, event.activity_id)
        known = self.known[key]
        if known.holder is not None:
            self._was_split(known.holder)
        assert known.state not in ("COMPLETED", "CANCELLED"), f"{event} about what is {known.state}"
        if known.verdict and not isinstance(event, ev.ActivityReleased):
            assert type(event).__name__ == known.verdict, f"{event}, but the rules say {known.verdict}"
            known.verdict = ""
        if isinstance(event, ev.ActivityScheduled):
            assert known.state == "NONE", "scheduled once"
            known.state = "WAITING" if event.due_ms > event.at_ms else "AVAILABLE"
            known.attempt, known.queue, known.retry, known.due_ms = (
                1,
                event.task_queue,
                event.retry,
                event.due_ms,
            )
            known.limits, known.since_ms = event.limits, event.due_ms
            known.close_by_ms = event.due_ms + event.limits.schedule_to_close_ms
        elif isinstance(event, ev.ActivityHeartbeatRecorded):
            assert known.state == "STARTED", "only an attempt that is held has heartbeats"
            assert event.attempt == known.attempt
            known.heard_ms = event.at_ms
            if event.heartbeat_details is not None:
                known.details.append(event.heartbeat_details)
            self.seen["a heartbeat of an activity"] += 1
        elif isinstance(event, ev.ActivityTimedOut):
            self._timed_out(known, event)
        elif isinstance(event, ev.ActivityStarted):
            assert known.state == "AVAILABLE", "only available activities are handed out"
            known.since_ms = known.heard_ms = event.at_ms
            assert event.attempt == known.attempt
            assert event.attempt > known.last_started, "attempts only rise"
            known.holder = Token(key, event.worker, event.epoch, event.attempt)
            known.state, known.last_started = "STARTED", event.attempt
            known.retry = known.retry or ev.Retry()
            commit_sides.started[known.holder] += 1
        elif isinstance(event, ev.ActivityMadeAvailable):
            self._available(known, event)
        elif isinstance(event, ev.ActivityCancelRequested):
            self._taken(key, known, event)
        elif isinstance(event, ev.ActivityReleased):
            assert known.state == "TAKEN"
            if event.attempt:  # for another engine
                assert known.verdict == "ActivityMadeAvailable"
                known.state, known.attempt, known.verdict = "RELEASED", event.attempt, ""
        elif isinstance(event, ev.ActivityQuarantined):
            assert known.state == "TAKEN"
            assert event.deaths == known.deaths
            known.state = "QUARANTINED"
            self.seen["quarantined"] += 1
        elif isinstance(event, ev.ActivityHandedOn):
            assert known.state == "RELEASED"
            assert self.delivered[key, known.attempt], (
                "only attempts that the other engine accepted are handed on"
            )
            known.state = "HANDED_ON"
            self.seen["handed on"] += 1
        elif isinstance(event, ev.ActivityCancelled):
            assert known.state not in ("FAILED", "HANDED_ON")
            self.seen["cancelled while held"] += known.state == "STARTED"
            known.state, known.holder = "CANCELLED", None
        else:
            self._ended(key, known, event, commit_sides)

    def _timed_out(self, known: ActivityRecord, event: ev.ActivityTimedOut) -> None:
        limits, limit = known.limits, event.limit
        ends = {
            ev.TimeLimit.START_TO_CLOSE: ("STARTED", known.since_ms + limits.start_to_close_ms),
            ev.TimeLimit.HEARTBEAT: ("STARTED", known.heard_ms + limits.heartbeat_ms),
            ev.TimeLimit.SCHEDULE_TO_START: ("AVAILABLE", known.since_ms + limits.schedule_to_start_ms),
            ev.TimeLimit.SCHEDULE_TO_CLOSE: (known.state, known.close_by_ms),
        }
        state, end_ms = ends[limit]
        assert getattr(limits, f"{limit}_ms") == event.limit_ms > 0, "only a limit that was asked for counts"
        assert known.state == state, f"{limit} is over while {known.state}"
        assert event.at_ms >= end_ms, "no limit ends early"
        if known.state == "STARTED":
            assert known.holder is not None
            assert (event.worker, event.attempt) == (known.holder.worker, known.holder.attempt)
            known.failures += 1
        known.holder, known.deaths = None, 0
        known.state, known.due_ms = ("WAITING", event.due_ms) if event.due_ms else ("FAILED", 0)
        if event.due_ms:
            known.attempt += 1
        self.seen[f"timed out: {limit}"] += 1

    def _available(self, known: ActivityRecord, event: ev.ActivityMadeAvailable) -> None:
        if event.fresh:
            assert known.state in ("QUARANTINED", "FAILED"), (
                "only failed or quarantined activities are retried"
            )
            known.failures = known.deaths = 0
            known.close_by_ms = event.at_ms + known.limits.schedule_to_close_ms
            self.seen["retried by an operator"] += 1
        elif known.state == "WAITING":
            assert event.at_ms >= known.due_ms, "a waiting activity is not available early"
            assert event.attempt == known.attempt
        else:
            assert known.state in ("BACK", "TAKEN", "RELEASED"), f"made available while {known.state}"
            self.seen["hand-on cancelled"] += known.state == "RELEASED"
        assert event.attempt > known.last_started, "the next attempt is a new one"
        known.state, known.attempt, known.since_ms = "AVAILABLE", event.attempt, event.at_ms

    def _taken(self, key: ActivityKey, known: ActivityRecord, event: ev.ActivityCancelRequested) -> None:
        loss = (event.worker, event.epoch, event.attempt)
        died = self.losses[key, *loss]
        assert died, "an attempt is taken only after a loss"
        assert loss not in known.taken, "each loss has one effect"
        assert known.state not in ("FAILED", "QUARANTINED"), f"taken while {known.state}"
        known.taken.add(loss)
        if known.state == "STARTED":
            assert known.holder is not None
            assert (event.worker, event.attempt) == (known.holder.worker, known.holder.attempt)
            assert event.epoch >= known.holder.epoch, "a loss in an earlier lease takes nothing from this one"
        managed = known.retry is not None
        if managed:
            assert event.attempt >= known.attempt, "a loss of an earlier attempt has no effect"
            assert event.task_queue == known.queue, "a rescheduled activity stays in its task queue"
        row = known.deaths if event.attempt == known.attempt else 0
        outcomes = {(known.failures + d, row + 1 if d else 0, d) for d in died}
        assert (event.failures, event.deaths) in {outcome[:2] for outcome in outcomes}, "deaths are counted"
        really_died = any((event.failures, event.deaths, d) in outcomes and d for d in died)
        retry = known.retry or ev.Retry()
        limit = self.max_deaths if retry.max_deaths is None else retry.max_deaths
        if 0 < limit <= event.deaths:
            known.verdict = "ActivityQuarantined"
        elif really_died and 0 < retry.max_attempts <= event.failures:
            known.verdict = "ActivityFailed"
            self.seen["failed by the last allowed death"] += 1
        else:
            known.verdict = "ActivityMadeAvailable"
        known.failures, known.deaths, known.queue = event.failures, event.deaths, event.task_queue
        known.attempt = max(known.attempt, event.attempt)
        known.state, known.holder = "TAKEN", None
        self.seen["rescheduled"] += 1

    def _ended(self, key: ActivityKey, known: ActivityRecord, event: Any, commit_sides: CommitSides) -> None:
        token = Token(key, event.worker, event.epoch, event.attempt)
        if known.state == "TAKEN":
            assert isinstance(event, ev.ActivityFailed)
            known.state, known.deaths = "FAILED", 0
            return
        assert known.state == "STARTED", f"{event} about what is {known.state}"
        assert known.holder is not None
        assert (token.worker, token.attempt) == (known.holder.worker, known.holder.attempt)
        known.holder, known.deaths = None, 0
        retry = known.retry or ev.Retry()
        if isinstance(event, ev.ActivityGivenBack):
            known.state = "BACK"
            if event.reason == RELEASED_BY_WORKER:
                commit_sides.ended[token] += 1
            self.seen[f"given back: {event.reason}"] += 1
            return
        commit_sides.ended[token] += 1
        if isinstance(event, ev.ActivityCompleted):
            known.completions.append((token, event.result))
            assert len(known.completions) == 1, "completed exactly once"
            known.state = "COMPLETED"
            return
        known.failures += 1
        exhausted = 0 < retry.max_attempts <= known.failures
        if isinstance(event, ev.ActivityAttemptFailed):
            assert not exhausted, "no more attempts than allowed"
            known.state, known.attempt, known.due_ms = "WAITING", event.attempt + 1, event.due_ms
        else:
            assert isinstance(event, ev.ActivityFailed)
            no_time_left = 0 < known.limits.schedule_to_close_ms <= known.close_by_ms
            wait_ms = min(retry.initial_ms * retry.coefficient ** (known.failures - 1), retry.max_ms)
            no_time_left = no_time_left and event.at_ms + wait_ms >= known.close_by_ms
            assert exhausted or no_time_left or event.message == "for good", (
                "an activity fails finally only by rule"
            )
            known.state = "FAILED"

    # -- checks between steps

    def check_at_rest(self) -> None:
        """Compare the records with the folded log between two steps, when no call is in progress."""
        for shard in self.shards:
            for name, worker in shard.workers.items():
                holding = self.workers[name]
                assert {id: a.attempt for id, a in worker.bindings.items()} == holding.bound
                assert dict(worker.standing.handed) == holding.handed
                standing = (worker.standing.paused, worker.standing.draining)
                assert standing == (holding.paused, holding.draining)
                for id in holding.handed:
                    key = ActivityKey(name.namespace, *id)
                    held = self.known[key].holder
                    mine = held and (held.worker, held.attempt) == (name.instance_key, holding.bound[id])
                    if self.dropped and not mine:
                        self.split.add(key)  # its shard was dropped; the reconciler removes the binding later
                    assert mine or key in self.split, f"{name.instance_key} is left with {key}"
            for key, activity in shard.activities.items():
                known = self.known[key]
                assert activity.state.name == known.state
                assert (activity.failures, activity.deaths) == (known.failures, known.deaths), key
                assert activity.attempt == known.attempt or known.state in ("COMPLETED", "CANCELLED")
        self.dropped.clear()


class CommitSides:
    """The activity and worker sides of one commit."""

    def __init__(self) -> None:
        self.started: Counter[Token] = Counter()
        self.handed: Counter[Token] = Counter()
        self.ended: Counter[Token] = Counter()
        self.unbound: Counter[Token] = Counter()
