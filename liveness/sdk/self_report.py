"""What a worker says about itself, checked before it is sent: the server ends a worker whose heartbeat is invalid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from liveness.sdk.errors import InvalidArgument
from liveness.sdk.worker_info import WorkerStatus
from liveness.v1.worker_pb2 import WorkerHeartbeat
from liveness.v1.worker_pb2 import WorkerStatus as WorkerStatusMessage

COUNT_MAX = 2**31
LABELS_MAX = 1_000
PROFILE_BYTES_MAX = 12 * 1024
"""The server allows 16 KiB, with the last error, which may have 4 bytes per character."""

Change: TypeAlias = Callable[[WorkerHeartbeat], None]


def check_report(
    profile: WorkerHeartbeat,
    successes: int,
    errors: int,
    last_error: str,
    *,
    status: WorkerStatus | None,
    current_job: str | None,
    labels: Mapping[str, str] | None,
) -> Change | None:
    """The change to the worker's heartbeats; None if the report has counters only. Raises InvalidArgument, and changes nothing.

    `profile`: the fields that the worker's heartbeats share."""
    for name, count in (("successes", successes), ("errors", errors)):
        if not 0 <= count <= COUNT_MAX:
            raise InvalidArgument(
                detail=f"{name} must be a whole number from 0 to {COUNT_MAX}, not {count!r}."
            )
    _check_text("last_error", last_error)
    if status is None and current_job is None and labels is None:
        return None
    number = None if status is None else _status_number(status)
    copied = None if labels is None else dict(labels)
    for label in (copied or {}).items():
        for text in label:
            _check_text("a label", text)
    if current_job is not None:
        _check_text("current_job", current_job)
    if copied is not None and len(copied) > LABELS_MAX:
        raise InvalidArgument(detail=f"a worker has at most {LABELS_MAX} labels, not {len(copied)}.")

    def change(heartbeat: WorkerHeartbeat) -> None:
        if number is not None:
            heartbeat.status = number
        if current_job is not None:
            heartbeat.current_job = current_job
        if copied is not None:
            heartbeat.labels.clear()
            heartbeat.labels.update(copied)

    trial = WorkerHeartbeat()
    trial.CopyFrom(profile)
    change(trial)
    if trial.ByteSize() > PROFILE_BYTES_MAX:
        raise InvalidArgument(
            detail=f"what a worker says about itself has at most {PROFILE_BYTES_MAX} bytes, not {trial.ByteSize()}."
        )
    return change


def _status_number(status: WorkerStatus) -> WorkerStatusMessage.ValueType:
    name = f"WORKER_STATUS_{status}"
    if status in (WorkerStatus.UNSPECIFIED, WorkerStatus.UNKNOWN) or name not in WorkerStatusMessage.keys():  # noqa: SIM118
        known = ", ".join(WorkerStatus)
        raise InvalidArgument(detail=f"{status!r} is no status that a worker can report; there are {known}.")
    return WorkerStatusMessage.Value(name)


def _check_text(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(detail=f"{name} must be valid Unicode, not {text!r}.") from None
