"""Checks the log of activities: one holder at a time, rising attempts, and one effect per loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from liveness.domain import events as facts
from liveness.domain.keys import ActivityId
from tests.simulation.labels import worker_label
from tests.simulation.sometimes import Sometimes

CLOCKS_DIFFER = 0.002
"""The most by which a node's clock runs fast in a simulation."""
EARLY_MS = 5
Name = tuple[str, str, str]
Report = Callable[[str, str, tuple[str, ...]], None]


def name_of(id: ActivityId) -> Name:
    return (id.workflow_id, id.run_id, id.activity_id)


@dataclass
class ActivityRecord:
    """The state of one activity according to the log."""

    holder: tuple[str, int, int] | None = None
    """Worker, lease epoch and attempt."""
    attempt: int = 0
    finished: str = ""
    lost_by: str = ""
    """The worker that lost it last."""
    shard_id: int = 0
    limits: facts.TimeLimits = facts.NO_LIMITS
    since_ms: int = 0
    """When the attempt became available, or started, by its shard's clock."""
    since_at: float = 0.0
    """When that became durable."""
    heard_ms: int = 0
    heard_at: float = 0.0
    close_by_ms: int = 0
    details: set[bytes] = field(default_factory=set)
    answered_at: float = -1.0
    """When the last heartbeat of the present attempt was sent that the server answered; negative if none."""


class Activities:
    def __init__(
        self,
        report: Report,
        sometimes: Sometimes,
        taken: Counter[Any],
        now: Callable[[], float],
        listened_s: Callable[[int, float, float], float],
    ) -> None:
        self.activity_records: dict[tuple[str, Name], ActivityRecord] = {}
        self.ended: set[tuple[str, Name, str, int, int]] = set()
        """Completed attempts, with the worker that completed each."""
        self.on_started: list[Callable[[str, Name, str, ActivityRecord], None]] = []
        """Called with a new holder."""
        self._report = report
        self._sometimes = sometimes
        self._taken = taken
        self._now = now
        self._listened_s = listened_s
        self.effects: Counter[tuple[str, str, int, Name, int]] = Counter()

    def take(
        self,
        namespace: str,
        workflow_id: str,
        event: Any,
        workers: Mapping[tuple[str, str], Any],
        shard_id: int = 0,
    ) -> None:
        name = (workflow_id, event.run_id, event.activity_id)
        record = self.activity_records.setdefault((namespace, name), ActivityRecord())
        about = (workflow_id,)
        if record.finished and not isinstance(event, facts.ActivityMadeAvailable | facts.ActivityScheduled):
            self._report(
                "legal edges", f"{name} is {record.finished}, and then {type(event).__name__}", about
            )
        record.shard_id = shard_id
        match event:
            case facts.ActivityScheduled():
                record.limits = event.limits
                record.since_ms, record.since_at = event.due_ms, self._now()
                record.close_by_ms = event.due_ms + event.limits.schedule_to_close_ms
            case facts.ActivityStarted():
                self._start(namespace, name, record, event)
            case facts.ActivityHeartbeatRecorded():
                self._heard(name, record, event)
            case facts.ActivityTimedOut():
                self._time_out(namespace, name, record, event)
            case facts.AttemptEnded():
                self._end(namespace, name, record, event)
            case facts.ActivityCancelRequested():
                self._reschedule(namespace, name, record, event)
            case facts.ActivityCancelled():
                record.holder, record.finished = None, "CANCELLED"
            case facts.ActivityQuarantined():
                self._sometimes("work quarantined")
                record.holder = None
            case facts.ActivityMadeAvailable():
                if record.holder is not None:
                    self._report(
                        "exclusive claims", f"{name} was made available while {record.holder} holds it", about
                    )
                record.finished = ""
                record.since_ms, record.since_at = event.at_ms, self._now()
                if event.fresh:
                    record.close_by_ms = event.at_ms + record.limits.schedule_to_close_ms

    def _heard(self, name: Name, record: ActivityRecord, event: facts.ActivityHeartbeatRecorded) -> None:
        if record.holder is None or record.holder[2] != event.attempt:
            self._report(
                "legal edges", f"{name}, held by {record.holder}: a heartbeat of {event.attempt}", (name[0],)
            )
        if event.at_ms - record.since_ms > record.limits.heartbeat_ms > 0:
            self._sometimes("heartbeats kept an attempt beyond its heartbeat limit")
        record.heard_ms, record.heard_at = event.at_ms, self._now()
        record.details.add(event.heartbeat_details or b"")

    def heartbeat_answered(self, namespace: str, name: Name, attempt: int, sent_at: float) -> None:
        record = self.activity_records[namespace, name]
        if record.holder is not None and record.holder[2] == attempt:
            record.answered_at = max(record.answered_at, sent_at)

    def _time_out(
        self, namespace: str, name: Name, record: ActivityRecord, event: facts.ActivityTimedOut
    ) -> None:
        about = (name[0], f"shard {record.shard_id}")
        since_ms = {
            facts.TimeLimit.START_TO_CLOSE: record.since_ms,
            facts.TimeLimit.SCHEDULE_TO_START: record.since_ms,
            facts.TimeLimit.HEARTBEAT: record.heard_ms,
            facts.TimeLimit.SCHEDULE_TO_CLOSE: record.close_by_ms - event.limit_ms,
        }[event.limit]
        if (
            event.limit_ms != getattr(record.limits, f"{event.limit}_ms")
            or event.at_ms - since_ms < event.limit_ms
        ):
            self._report(
                "no early timeout",
                f"{name}: {event.limit} of {event.limit_ms} ms ended after {event.at_ms - since_ms} ms, by its shard's clock",
                about,
            )
        if event.limit is facts.TimeLimit.HEARTBEAT and record.answered_at >= 0:
            listened_ms = self._listened_s(record.shard_id, record.answered_at, self._now()) * 1_000
            if listened_ms * (1 + CLOCKS_DIFFER) + EARLY_MS < event.limit_ms:
                self._report(
                    "no early timeout",
                    f"{name}: {event.limit} of {event.limit_ms} ms ended after {listened_ms:.0f} ms in which a node listened",
                    about,
                )
        if (record.holder or ("", 0, event.attempt)) != (event.worker, event.epoch, event.attempt):
            self._report(
                "exclusive claims",
                f"{name}, held by {record.holder}, was taken from {event.worker}, attempt {event.attempt}",
                about,
            )
        if record.holder is None:
            self._sometimes("activity that no worker took in time failed")
        else:
            self._sometimes("stuck attempt taken from a live worker")
        record.holder, record.finished = None, "" if event.due_ms else "FAILED"

    def overdue(
        self, after: float, slack_s: float, taken: Callable[[int], tuple[float, int]], grace_s: float
    ) -> str:
        """Name an attempt whose limit was over before `after`, counted from when its beginning was durable; empty if there is
        none. `taken`: when a shard was taken, and its clock then."""
        for (_, name), record in self.activity_records.items():
            if record.holder is None or record.limits is facts.NO_LIMITS:
                continue
            for limit_ms, at in (
                (record.limits.start_to_close_ms, record.since_at),
                (record.limits.heartbeat_ms, record.heard_at),
            ):
                taken_at, taken_ms = taken(record.shard_id)
                due = max(at, after) + limit_ms * (1 + CLOCKS_DIFFER) / 1_000
                if max(record.heard_ms, record.since_ms) <= taken_ms:
                    due = max(due, taken_at + grace_s)
                due += slack_s
                if limit_ms and self._now() > due:
                    return f"{name}, held by {record.holder}, is {self._now() - due:.2f} s over its limit of {limit_ms} ms"
        return ""

    def _start(
        self, namespace: str, name: Name, record: ActivityRecord, event: facts.ActivityStarted
    ) -> None:
        about = (name[0], worker_label((namespace, event.worker)))
        if record.holder is not None:
            self._report(
                "exclusive claims",
                f"{name} is held by {record.holder}, and was handed to {event.worker}",
                about,
            )
        if event.attempt <= record.attempt:
            self._report(
                "exclusive claims", f"{name}: attempt {event.attempt} follows {record.attempt}", about
            )
        record.attempt = event.attempt
        record.since_ms = record.heard_ms = event.at_ms
        record.since_at = record.heard_at = self._now()
        record.answered_at = -1.0
        record.holder = (event.worker, event.epoch, event.attempt)
        for tell in self.on_started:
            tell(namespace, name, event.worker, record)

    def _end(self, namespace: str, name: Name, record: ActivityRecord, event: facts.AttemptEnded) -> None:
        about = (name[0], worker_label((namespace, event.worker)))
        if record.holder != (event.worker, event.epoch, event.attempt):
            self._report(
                "exclusive claims",
                f"{name}, held by {record.holder}, was ended by {(event.worker, event.epoch, event.attempt)}",
                about,
            )
        record.holder = None
        if isinstance(event, facts.ActivityCompleted):
            record.finished = "COMPLETED"
            self.ended.add((namespace, name, event.worker, event.epoch, event.attempt))
            if record.lost_by and record.lost_by != event.worker:
                self._sometimes("activity of a dead worker completed by another")
        elif isinstance(event, facts.ActivityFailed):
            record.finished = "FAILED"
        elif isinstance(event, facts.ActivityGivenBack):
            self._sometimes("hand-out never confirmed and taken back")

    def _reschedule(
        self, namespace: str, name: Name, record: ActivityRecord, event: facts.ActivityCancelRequested
    ) -> None:
        about = (name[0], worker_label((namespace, event.worker)))
        effect = (namespace, event.worker, event.epoch, name, event.attempt)
        self.effects[effect] += 1
        if self.effects[effect] > self._taken[effect]:
            self._report("one effect", f"{effect} was rescheduled {self.effects[effect]} times", about)
        if record.holder is not None and record.holder[1:] != (event.epoch, event.attempt):
            self._report("one effect", f"{name}, held by {record.holder}, was taken from {effect}", about)
        record.holder = None
        record.attempt = max(record.attempt, event.attempt)
        record.lost_by = event.worker
