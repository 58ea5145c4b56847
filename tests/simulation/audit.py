"""Checks the log against the rules of the product, transaction by transaction.

The audit is written from the design's tables and invariants, and never calls the code that decides. It reads each row
the moment it becomes durable, and keeps its own record of every worker.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from liveness.domain import events as facts
from liveness.domain.worker import InactiveReason
from liveness.store.codec import LogEntry, LogRow, RenewalBatch, decode_bound_activity, decode_entry
from tests.simulation.audit_activities import CLOCKS_DIFFER, EARLY_MS, Activities, Name, name_of
from tests.simulation.labels import Key, worker_label
from tests.simulation.listening_time import ListeningTime
from tests.simulation.sometimes import Sometimes

ACTIVE, INACTIVE, CLEANED_UP = "ACTIVE", "INACTIVE", "CLEANED_UP"
TIE_MS = 100
PULSE_MS = 50

_LOG = f"SELECT id, {', '.join(LogRow._fields)} FROM log WHERE id > ? ORDER BY id"
_TASKS = "SELECT task_id, shard_id, namespace, worker_key, lease_epoch, activity FROM tasks WHERE task_id > ?"

Report = Callable[[str, str, tuple[str, ...]], None]
"""Called with the broken invariant, a description, and the labels of the workers, shards and nodes concerned."""
Note = Callable[..., None]
"""Adds a step to the history."""


@dataclass
class WorkerRecord:
    """The state of a worker according to the log."""

    shard_id: int
    state: str = ""
    session: str = ""
    sequence: int = 0
    epoch: int = 0
    granted_ms: int = 0
    grace_ms: int = 0
    """The granted disconnect grace."""
    renewed_ms: int = 0
    """On the shard's clock."""
    renewed_wall_ms: int = 0
    """The wall time that the log has for its last heartbeat."""
    heard: float = 0.0
    """The latest true time at which its last heartbeat was applied."""
    held: dict[Name, int] = field(default_factory=dict)
    handed: set[Name] = field(default_factory=set)
    replaced: set[str] = field(default_factory=set)
    deactivated_ms: int = 0
    died_with: str = ""
    dead_since: float = 0.0
    in_doubt: bool = False


@dataclass
class Shard:
    seq: int = 0
    epoch: int = 0
    owner: str = ""
    observed_ms: int = 0
    taken_at: float = 0.0
    taken_ms: int = 0
    """The same on the shard's own clock."""
    numbers: dict[int, Key] = field(default_factory=dict)
    checkpoint_seq: int = 0


class Audit:
    def __init__(
        self,
        report: Report,
        note: Note,
        sometimes: Sometimes,
        listening_time: ListeningTime,
        now: Callable[[], float],
    ) -> None:
        self.report = report
        self._note = note
        self.sometimes = sometimes
        self.workers: dict[Key, WorkerRecord] = {}
        self.shards: defaultdict[int, Shard] = defaultdict(Shard)
        self.epochs: Counter[Key] = Counter()
        """The highest epoch that each key ever had, whatever was forgotten."""
        self.former_sessions: defaultdict[Key, set[str]] = defaultdict(set)
        """The sessions of workers that were forgotten."""
        self.applied: defaultdict[Key, set[tuple[str, int]]] = defaultdict(set)
        """Heartbeats that the log has applied."""
        self.declared: dict[tuple[Key, str, int], frozenset[tuple[Name, int]]] = {}
        """The activities that each heartbeat declared, as recorded by the simulated workers."""
        self.sessions: dict[str, Key] = {}
        """The worker of each session, as recorded by the simulated workers."""
        self.arrived: dict[tuple[Key, str, int, str], float] = {}
        """The time at which a heartbeat first arrived at a host."""
        self.host_of: Callable[[str], str] = lambda owner: owner.partition(":")[0]
        self.on_taken: list[Callable[[int, str, str], None]] = []
        """Called with a shard, its former owner and its new owner."""
        self.on_silence_ended: list[Callable[[Key, WorkerRecord], None]] = []
        self.on_late_renewal: list[Callable[[Key], None]] = []
        """Called with the worker of a heartbeat that came after the end of the lease and before its expiry."""
        self.on_replaced: list[Callable[[Key, str], None]] = []
        self.rows = 0
        self.taken: Counter[tuple[str, str, int, Name, int]] = Counter()
        """Namespace, worker, epoch, activity and attempt of each lost binding."""
        self.quota: dict[str, int] = {}
        self.activities = Activities(report, sometimes, self.taken, now, listening_time.listened_s)
        self._listening_time = listening_time
        self._now = now
        self._log_id = 0
        self._task_id = 0
        self._population: Counter[str] = Counter()
        self._writer = ""

    # -- durable commits

    def after_commit(self, driver: sqlite3.Connection, writer: str) -> None:
        self._writer = writer
        expected: Counter[tuple[str, str, int, Name, int]] = Counter()
        for id, *row in driver.execute(_LOG, (self._log_id,)).fetchall():
            self._log_id = id
            self.rows += 1
            record = LogRow(*row)
            self._take_row(record.shard_id, decode_entry(record), expected)
        asked: Counter[tuple[str, str, int, Name, int]] = Counter()
        for id, _, namespace, worker, epoch, text in driver.execute(_TASKS, (self._task_id,)).fetchall():
            self._task_id = id
            bound = decode_bound_activity(text)
            asked[namespace, worker, epoch, name_of(bound.id), bound.attempt] += 1
        if asked != expected:
            missing, more = expected - asked, asked - expected
            about = tuple(worker_label(item[:2]) for item in (*missing, *more))
            self.report(
                "no lost reschedule",
                f"one transaction took {sorted(missing)} without a reschedule, and rescheduled {sorted(more)} that it did not take",
                about,
            )
        self.taken += asked
        for namespace, limit in self.quota.items():
            if self._population[namespace] > limit:
                self.report(
                    "hard quotas", f"{namespace} has {self._population[namespace]} workers, not {limit}", ()
                )

    def _take_row(self, shard_id: int, entry: LogEntry, expected: Counter[Any]) -> None:
        shard = self.shards[shard_id]
        if entry.seq != shard.seq + 1:
            self.report(
                "order", f"shard {shard_id}: sequence {entry.seq} follows {shard.seq}", (f"shard {shard_id}",)
            )
        shard.seq = entry.seq
        event = entry.event
        if isinstance(event, facts.ShardTaken):
            self._take_over(shard_id, shard, event, entry.observed_ms)
            return
        if self._writer != shard.owner:
            self.report(
                "one owner",
                f"{self._writer} wrote to shard {shard_id}, whose owner is {shard.owner or 'no node'}",
                (f"shard {shard_id}", self._writer),
            )
        if not isinstance(event, RenewalBatch):
            if entry.observed_ms < shard.observed_ms:
                self.report("time", f"the clock of shard {shard_id} went back", (f"shard {shard_id}",))
            shard.observed_ms = entry.observed_ms
        if isinstance(event, RenewalBatch):
            for number, renewal in zip(event.worker_numbers, event.renewals, strict=True):
                self._renew(shard_id, shard, number, renewal)
                if number in shard.numbers:
                    wall_ms = renewal.at_ms + entry.wall_ms - entry.observed_ms
                    self.workers[shard.numbers[number]].renewed_wall_ms = wall_ms
        elif entry.worker is not None:
            assert entry.namespace is not None
            self._take_fact(shard_id, (entry.namespace, entry.worker), entry, event, expected)
        elif entry.workflow_id is not None:
            assert entry.namespace is not None
            self.activities.take(entry.namespace, entry.workflow_id, event, self.workers, shard_id)

    def _take_over(self, shard_id: int, shard: Shard, event: facts.ShardTaken, observed_ms: int) -> None:
        if event.epoch != shard.epoch + 1:
            self.report(
                "one owner",
                f"shard {shard_id}: epoch {event.epoch} follows {shard.epoch}",
                (f"shard {shard_id}",),
            )
        for tell in self.on_taken:
            tell(shard_id, shard.owner, event.owner)
        shard.epoch, shard.owner = event.epoch, event.owner
        shard.taken_at, shard.taken_ms = self._now(), observed_ms
        self._listening_time.owned(shard_id, self.host_of(event.owner), self._now())

    # -- workers

    def _renew(self, shard_id: int, shard: Shard, number: int, renewal: facts.LeaseRenewed) -> None:
        key = shard.numbers.get(number)
        if key is None:
            self.report("fold", f"shard {shard_id} renews worker {number}, which it never registered", ())
            return
        worker = self.workers[key]
        about = (worker_label(key),)
        if worker.state != ACTIVE:
            self.report("legal edges", f"{worker_label(key)} was renewed while {worker.state}", about)
        if renewal.sequence <= worker.sequence:
            self.report(
                "idempotent heartbeats",
                f"{worker_label(key)} was renewed with {renewal.sequence} after {worker.sequence}",
                about,
            )
        deadline_ms = worker.renewed_ms + worker.granted_ms
        if 0 <= deadline_ms - renewal.at_ms <= TIE_MS:
            self.sometimes("heartbeat at the last moment")
        if renewal.at_ms > deadline_ms:
            for tell in self.on_late_renewal:
                tell(key)
        worker.sequence = renewal.sequence
        self._note(
            f"shard {shard_id} commits heartbeat {renewal.sequence} of {worker.session}",
            *about,
            alike=f"heartbeats of {worker_label(key)}",
        )
        self._heard(key, worker, renewal.at_ms)

    def _heard(self, key: Key, worker: WorkerRecord, at_ms: int) -> None:
        if at_ms < worker.renewed_ms:
            self.report(
                "time",
                f"{worker_label(key)} was heard at {at_ms} after {worker.renewed_ms}",
                (worker_label(key),),
            )
        worker.renewed_ms = at_ms
        host = self.host_of(self._writer)
        heartbeat = (key, worker.session, worker.sequence, host)
        arrived = self.arrived.get(heartbeat)
        if arrived is None:
            self.report(
                "durable ack",
                f"{worker_label(key)}: heartbeat {worker.sequence} of {worker.session} never came to {host}",
                (worker_label(key),),
            )
            arrived = self._now()
        worker.heard = arrived
        mark = (worker.session, worker.sequence)
        if mark in self.applied[key]:
            self.report(
                "idempotent heartbeats",
                f"{worker_label(key)}: {mark} was applied twice",
                (worker_label(key),),
            )
        self.applied[key].add(mark)

    def _take_fact(
        self, shard_id: int, key: Key, entry: LogEntry, event: Any, expected: Counter[Any]
    ) -> None:
        worker = self.workers.get(key)
        about = (worker_label(key),)
        if (
            worker is not None
            and worker.state == CLEANED_UP
            and not isinstance(event, facts.WorkerForgotten | facts.WorkerRegistered)
        ):
            self.report(
                "legal edges", f"{worker_label(key)} is CLEANED_UP, and then {type(event).__name__}", about
            )
        if isinstance(event, facts.Activation):
            self._activate(shard_id, key, worker, entry, event, expected)
            return
        if worker is None:
            self.report(
                "legal edges", f"{worker_label(key)} is unknown, and then {type(event).__name__}", about
            )
            return
        match event:
            case facts.WorkerDeactivated():
                self._deactivate(shard_id, key, worker, event, expected)
            case facts.WorkerCleanedUp():
                if worker.state != INACTIVE:
                    self.report(
                        "legal edges", f"{worker_label(key)} was cleaned up while {worker.state}", about
                    )
                worker.state = CLEANED_UP
                self._population[key[0]] -= 1
            case facts.WorkerForgotten():
                if worker.state != CLEANED_UP:
                    self.report(
                        "legal edges", f"{worker_label(key)} was forgotten while {worker.state}", about
                    )
                if event.epoch_floor <= worker.epoch:
                    self.report(
                        "one owner",
                        f"{worker_label(key)} of epoch {worker.epoch} left a floor of {event.epoch_floor}",
                        about,
                    )
                self.former_sessions[key] |= {*worker.replaced, worker.session}
                del self.workers[key]
                self.applied.pop(key, None)
                self.sometimes("worker forgotten by an operator")
            case facts.DisconnectGraceGranted():
                worker.grace_ms = event.grace_ms
            case facts.LeaseTermsChanged():
                worker.granted_ms = event.granted_ms
            case facts.BindingsChanged():
                self._rebind(key, worker, event, expected)
            case facts.ActivityHanded():
                if worker.state != ACTIVE:
                    self.report(
                        "exclusive claims", f"{worker_label(key)} was handed work while {worker.state}", about
                    )
                worker.held[name_of(event.activity.id)] = event.activity.attempt
                worker.handed.add(name_of(event.activity.id))
            case facts.BindingsEnded():
                for id in event.ids:
                    worker.held.pop(name_of(id), None)
                    worker.handed.discard(name_of(id))

    def _activate(
        self, shard_id: int, key: Key, worker: WorkerRecord | None, entry: LogEntry, event: facts.Activation,
        expected: Counter[Any],
    ) -> None:  # fmt: skip
        about = (worker_label(key),)
        if self.sessions.get(event.session_id) != key:
            self.report(
                "tenant isolation",
                f"{worker_label(key)} was activated by session {event.session_id}, which belongs to another worker",
                about,
            )
        declared = self.declared.get((key, event.session_id, event.sequence))
        holds = frozenset((name_of(activity.id), activity.attempt) for activity in event.bindings)
        if declared is not None and holds != declared:
            self.report(
                "clean slate",
                f"{worker_label(key)} declared {sorted(declared)} and holds {sorted(holds)}",
                about,
            )
        if isinstance(event, facts.WorkerRegistered):
            worker = self.workers[key] = self._begin_life(shard_id, key, worker, event)
            self.shards[shard_id].numbers[entry.seq] = key
            self._population[key[0]] += 1
        else:
            assert worker is not None
            resurrected = isinstance(event, facts.WorkerResurrected)
            if worker.state != (INACTIVE if resurrected else ACTIVE):
                self.report(
                    "legal edges",
                    f"{type(event).__name__} of {worker_label(key)}, which is {worker.state}",
                    about,
                )
            if event.epoch != worker.epoch + 1:
                self.report(
                    "one owner", f"{worker_label(key)}: epoch {event.epoch} follows {worker.epoch}", about
                )
            if event.session_id in worker.replaced:
                self.report(
                    "idempotent heartbeats",
                    f"{worker_label(key)}: the replaced session {event.session_id} was accepted again",
                    about,
                )
            if resurrected:
                self._note_return(worker, event)
            else:
                kept = {name_of(activity.id): activity.attempt for activity in event.bindings}
                for name, attempt in worker.held.items():
                    if name not in kept or (name in worker.handed and kept[name] != attempt):
                        expected[key[0], key[1], worker.epoch, name, attempt] += 1
                if worker.held:
                    self.sometimes("session replaced with work bound")
                for tell in self.on_replaced:
                    tell(key, worker.session)
            if event.session_id != worker.session:
                worker.replaced.add(worker.session)
        if event.session_id != worker.session:
            worker.grace_ms = 0
        worker.state, worker.session, worker.sequence = ACTIVE, event.session_id, event.sequence
        worker.epoch, worker.granted_ms = event.epoch, event.granted_ms
        self.epochs[key] = max(self.epochs[key], event.epoch)
        before = worker.held
        worker.held = {name_of(activity.id): activity.attempt for activity in event.bindings}
        if isinstance(event, facts.SessionReplaced):
            # The new session keeps some of these activities, but the server handed them out all the same.
            worker.handed = {name for name in worker.handed if worker.held.get(name) == before[name]}
        else:
            worker.handed = set()
        worker.in_doubt = event.resync
        self._note(
            f"shard {shard_id} commits {type(event).__name__} with heartbeat {event.sequence} of {event.session_id}, "
            f"epoch {event.epoch}",
            *about,
        )
        worker.renewed_wall_ms = entry.wall_ms
        self._heard(key, worker, event.at_ms)

    def _begin_life(
        self, shard_id: int, key: Key, earlier: WorkerRecord | None, event: facts.WorkerRegistered
    ) -> WorkerRecord:
        """A key that is not known, or a cleaned-up one for a session that it never had."""
        about = (worker_label(key),)
        worker = WorkerRecord(shard_id)
        if event.epoch <= self.epochs[key]:
            self.report(
                "one owner",
                f"{worker_label(key)} began anew at epoch {event.epoch} after {self.epochs[key]}",
                about,
            )
        if earlier is not None:
            worker.replaced = {*earlier.replaced, earlier.session}
            if earlier.state != CLEANED_UP:
                self.report("legal edges", f"{worker_label(key)} was registered while {earlier.state}", about)
            if event.session_id in worker.replaced:
                self.report(
                    "idempotent heartbeats",
                    f"{worker_label(key)}: {event.session_id} of an earlier life began another",
                    about,
                )
            self.sometimes("cleaned-up key began a new incarnation")
        elif self.epochs[key]:
            self.sometimes("forgotten key registered again")
        return worker

    def _note_return(self, worker: WorkerRecord, event: facts.Activation) -> None:
        late_ms = event.at_ms - worker.deactivated_ms
        if late_ms <= TIE_MS:
            self.sometimes("heartbeat just too late")
        if late_ms <= PULSE_MS:
            self.sometimes("worker resurrected by its next heartbeat")
        if worker.died_with == event.session_id:
            self.sometimes("live worker expired and came back with its session")

    def _rebind(
        self, key: Key, worker: WorkerRecord, event: facts.BindingsChanged, expected: Counter[Any]
    ) -> None:
        bound = {name_of(activity.id): activity.attempt for activity in event.bound}
        for id in event.unbound:
            name = name_of(id)
            attempt = worker.held.pop(name, None)
            if name in bound:
                continue  # an earlier attempt is over; the worker runs this one
            if attempt is not None and name in worker.handed:
                expected[key[0], key[1], worker.epoch, name, attempt] += 1
            worker.handed.discard(name)
        worker.held.update(bound)
        # An activity that the worker bound itself, with another attempt, belongs to its own engine.
        if event.resync and not worker.in_doubt:
            self.sometimes("server asked a worker for all its bindings")
        worker.in_doubt = event.resync

    def _deactivate(
        self,
        shard_id: int,
        key: Key,
        worker: WorkerRecord,
        event: facts.WorkerDeactivated,
        expected: Counter[Any],
    ) -> None:
        about = (worker_label(key),)
        if worker.state != ACTIVE:
            self.report("legal edges", f"{worker_label(key)} was deactivated while {worker.state}", about)
        for name, attempt in worker.held.items():
            expected[key[0], key[1], worker.epoch, name, attempt] += 1
        if event.reason is InactiveReason.LEASE_EXPIRED:
            self._check_not_early(shard_id, key, worker, event, worker.granted_ms)
            worker.died_with = worker.session
        elif event.reason is InactiveReason.DISCONNECTED:
            if not worker.grace_ms:
                self.report("no early expiry", f"{worker_label(key)} has no disconnect grace", about)
            # The break came after the last heartbeat; when exactly, the log does not say.
            self._check_not_early(shard_id, key, worker, event, worker.grace_ms)
            worker.died_with = worker.session
            self.sometimes("stream broke, and the lease ended after its grace")
        else:
            worker.died_with = ""
            if worker.held and event.reason is InactiveReason.SHUTDOWN:
                self.sometimes("shutdown with work bound")
        worker.state = INACTIVE
        self._note(
            f"shard {shard_id} commits the end of epoch {worker.epoch} of {worker_label(key)}: {event.reason.name}, "
            f"{len(worker.held)} activities lost",
            *about,
        )
        worker.deactivated_ms = event.at_ms
        worker.dead_since = self._now()
        worker.held, worker.handed = {}, set()
        for tell in self.on_silence_ended:
            tell(key, worker)

    def _check_not_early(
        self, shard_id: int, key: Key, worker: WorkerRecord, event: facts.WorkerDeactivated, term_ms: int
    ) -> None:
        if event.at_ms - worker.renewed_ms < term_ms:
            self.report(
                "no early expiry",
                f"{worker_label(key)}: a lease or grace of {term_ms} ms ended {event.at_ms - worker.renewed_ms} ms after its heartbeat, by its shard's clock",
                (worker_label(key),),
            )
        listened_ms = self._listening_time.listened_s(shard_id, worker.heard, self._now()) * 1_000
        if listened_ms * (1 + CLOCKS_DIFFER) + EARLY_MS < term_ms:
            self.report(
                "no early expiry",
                f"{worker_label(key)}: a lease or grace of {term_ms} ms ended after {listened_ms:.0f} ms in which a node listened",
                (worker_label(key), f"shard {shard_id}"),
            )

    # -- queries

    def held_by(self, key: Key) -> Mapping[Name, int]:
        worker = self.workers.get(key)
        return {} if worker is None else worker.held
