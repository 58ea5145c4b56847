"""The values that the golden rows of version 7 decode to: those of version 6 with the encodings of inputs and results."""

from __future__ import annotations

from dataclasses import replace

from liveness.domain.activity import Activity
from liveness.domain.events import ActivityCompleted, ActivityScheduled
from liveness.store.codec import LogEntry
from tests.unit.store import golden_v6
from tests.unit.store.golden_v6 import (
    DEATHS,
    FINAL_WORKERS,
    PULSES,
    SETTINGS,
    STORED_BINDING,
    STORED_WORKERS,
    TAKE_OVERS,
)

__all__ = [
    "DEATHS", "FINAL_ACTIVITIES", "FINAL_WORKERS", "MEANING", "PULSES", "SETTINGS", "STORED_ACTIVITIES", "STORED_BINDING",
    "STORED_WORKERS", "TAKE_OVERS",
]  # fmt: skip


def _input_encoding(content: bytes) -> str:
    return "binary/plain" if content else "binary/null"


def _encoded(entry: LogEntry) -> LogEntry:
    if isinstance(entry.event, ActivityScheduled):
        return entry._replace(event=replace(entry.event, input_encoding=_input_encoding(entry.event.input)))
    if isinstance(entry.event, ActivityCompleted):
        return entry._replace(event=replace(entry.event, result_encoding="größe/eigen"))
    return entry


MEANING = [_encoded(entry) for entry in golden_v6.MEANING]
_SCHEDULED = {
    (entry.workflow_id, entry.event.activity_id)
    for entry in MEANING
    if isinstance(entry.event, ActivityScheduled)
}


def _with_encodings(activity: Activity) -> Activity:
    if (activity.id.workflow_id, activity.id.activity_id) not in _SCHEDULED:
        return activity
    return activity._replace(
        input_encoding=_input_encoding(activity.input),
        result_encoding="größe/eigen" if activity.result else "",
    )


FINAL_ACTIVITIES = {id: _with_encodings(activity) for id, activity in golden_v6.FINAL_ACTIVITIES.items()}
STORED_ACTIVITIES = {
    name: _with_encodings(activity) for name, activity in golden_v6.STORED_ACTIVITIES.items()
}
