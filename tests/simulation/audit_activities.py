"""Checks the log of activities: one holder at a time, rising attempts, and one effect per loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from liveness.domain import events as facts
from liveness.domain.keys import ActivityId
from tests.simulation.labels import worker_label
from tests.simulation.sometimes import Sometimes

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


class Activities:
    def __init__(
        self, report: Report, sometimes: Sometimes, taken: Counter[Any], now: Callable[[], float]
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
        self.effects: Counter[tuple[str, str, int, Name, int]] = Counter()

    def take(
        self, namespace: str, workflow_id: str, event: Any, workers: Mapping[tuple[str, str], Any]
    ) -> None:
        name = (workflow_id, event.run_id, event.activity_id)
        record = self.activity_records.setdefault((namespace, name), ActivityRecord())
        about = (workflow_id,)
        if record.finished and not isinstance(event, facts.ActivityMadeAvailable | facts.ActivityScheduled):
            self._report(
                "legal edges", f"{name} is {record.finished}, and then {type(event).__name__}", about
            )
        match event:
            case facts.ActivityStarted():
                self._start(namespace, name, record, event)
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
