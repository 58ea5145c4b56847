"""What a process tells through its health pipe: lines `HEALTH|{"component_id": …, "status": …, "current_job": …}`.

`HealthParser` takes the bytes as they come and trusts none of them. It remembers at most one line. Its time per call is
bounded by the size of the call: lines are counted and searched by the functions of `bytes`, and only the newest good frame of a
call is of use, so at most `ATTEMPTS_MAX` lines are decoded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from liveness.config.formats import is_name
from liveness.domain.activity import ATTEMPT_MAX
from liveness.domain.component import DETAILS_BYTES_MAX, STATUSES_WITH_PROCESS, ComponentStatus

LINE_BYTES_MAX = 65_536
READ_BYTES_MAX = 262_144
"""How much may be read from one pipe before the others have their turn."""
ATTEMPTS_MAX = 8
"""How many lines of one call may be decoded in search of a good one."""
ACTIVITIES_MAX = 1_000
TEXT_CHARS_MAX = 1_000

PREFIX = b"HEALTH|"
STATUSES = {status.name.lower(): status for status in STATUSES_WITH_PROCESS}
NOT_TELEMETRY = frozenset(("component_id", "status", "current_job", "activities", "sdk"))

NO_PREFIX = "does not begin with HEALTH|"
TOO_LONG = "longer than 64 KiB"
NOT_JSON = "no JSON in UTF-8"
NOT_AN_OBJECT = "no JSON object"
OTHER_COMPONENT = "component_id of another component"
UNKNOWN_STATUS = "unknown status"
BAD_JOB = "current_job is no short text, integer or null"
BAD_ACTIVITIES = "activities is no list of at most 1000 activities with names of at most 255 bytes"
TOO_MANY_DETAILS = "the other fields are more than 4096 bytes"


class BoundActivity(NamedTuple):
    """An attempt that the process works on."""

    workflow_id: str
    run_id: str
    activity_id: str
    attempt: int
    task_queue: str


class HealthFrame(NamedTuple):
    status: ComponentStatus
    current_job: str | int | None = None
    activities: tuple[BoundActivity, ...] | None = None
    """None if the process does not say."""
    telemetry: str = "{}"
    """Its other fields, as a JSON object."""
    is_telemetry_too_long: bool = False
    """They were left out. The rest of the frame counts: the process is alive."""
    sends_heartbeats: bool = False
    """The process sends the heartbeats of its session itself, through the SDK."""


class Parsed(NamedTuple):
    """What one call found."""

    frame: HealthFrame | None
    """The newest good one."""
    lines: int
    """How many lines ended, the malformed and the superseded ones included."""
    malformed: Counter[str]
    """How many lines were not good in all or in part, by reason. Lines older than the frame are only looked at for their prefix
    and length."""


class MalformedFrame(ValueError):
    """Its only argument is the reason."""


class HealthParser:
    def __init__(self, component_id: str) -> None:
        self._component_id = component_id
        self._partial = b""
        self._is_skipping = False
        """Whether the rest of a line that is too long is still to come."""

    def feed(self, data: bytes) -> Parsed:
        malformed: Counter[str] = Counter()
        lines = 0
        if self._is_skipping:
            end = data.find(b"\n")
            if end < 0:
                return Parsed(None, 0, malformed)
            self._is_skipping = False
            lines += 1
            data = data[end + 1 :]
        else:
            data = self._partial + data
        complete, _, self._partial = data.rpartition(b"\n")
        if len(data) > len(self._partial):
            lines += complete.count(b"\n") + 1
            frame = self._newest(complete, malformed)
        else:
            frame = None
        if len(self._partial) > LINE_BYTES_MAX:
            self._partial, self._is_skipping = b"", True
            malformed[TOO_LONG] += 1
        return Parsed(frame, lines, malformed)

    def _newest(self, complete: bytes, malformed: Counter[str]) -> HealthFrame | None:
        frame: HealthFrame | None = None
        attempts = 0
        for lines in reversed(tuple(_without_long_lines(complete, malformed))):
            with_prefix = lines.count(b"\n" + PREFIX) + lines.startswith(PREFIX)
            if without := lines.count(b"\n") + 1 - with_prefix:
                malformed[NO_PREFIX] += without
            if frame is not None:
                continue
            for line in _with_prefix_backwards(lines):
                if attempts == ATTEMPTS_MAX:
                    break
                attempts += 1
                try:
                    frame = parse_frame(line, self._component_id)
                    if frame.is_telemetry_too_long:
                        malformed[TOO_MANY_DETAILS] += 1
                    break
                except MalformedFrame as error:
                    malformed[str(error)] += 1
        return frame


def _without_long_lines(complete: bytes, malformed: Counter[str]) -> Iterator[bytes]:
    """Yield the stretches between lines that are too long. Steps from window to window, not from line to line."""
    start = at = 0
    while len(complete) - at > LINE_BYTES_MAX:
        end = complete.rfind(b"\n", at, at + LINE_BYTES_MAX + 1)
        if end < 0:
            malformed[TOO_LONG] += 1
            if at > start:
                yield complete[start : at - 1]
            end = complete.find(b"\n", at)
            if end < 0:
                return
            start = end + 1
        at = end + 1
    yield complete[start:]


def _with_prefix_backwards(lines: bytes) -> Iterator[bytes]:
    end = len(lines)
    while (start := lines.rfind(b"\n" + PREFIX, 0, end)) >= 0:
        yield lines[start + 1 + len(PREFIX) :].partition(b"\n")[0]
        end = start
    if lines.startswith(PREFIX):
        yield lines[len(PREFIX) :].partition(b"\n")[0]


def parse_frame(text: bytes, component_id: str) -> HealthFrame:
    """Decode what follows the prefix. Raises MalformedFrame."""
    try:
        frame = msgspec.json.decode(text)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        raise MalformedFrame(NOT_JSON) from None
    if not isinstance(frame, dict):
        raise MalformedFrame(NOT_AN_OBJECT)
    if frame.get("component_id") != component_id:
        raise MalformedFrame(OTHER_COMPONENT)
    name = frame.get("status")
    status = STATUSES.get(name) if isinstance(name, str) else None
    if status is None:
        raise MalformedFrame(UNKNOWN_STATUS)
    telemetry = {name: value for name, value in frame.items() if name not in NOT_TELEMETRY}
    encoded = msgspec.json.encode(telemetry)
    is_too_long = len(encoded) > DETAILS_BYTES_MAX
    return HealthFrame(
        status,
        _job(frame.get("current_job")),
        _activities(frame.get("activities")),
        "{}" if is_too_long else encoded.decode(),
        is_too_long,
        frame.get("sdk") is True,
    )


def _job(job: Any) -> str | int | None:
    if job is None or _is_integer(job) or _is_text(job):
        return job  # type: ignore[no-any-return]
    raise MalformedFrame(BAD_JOB)


def _activities(activities: Any) -> tuple[BoundActivity, ...] | None:
    if activities is None:
        return None
    if not isinstance(activities, list) or len(activities) > ACTIVITIES_MAX:
        raise MalformedFrame(BAD_ACTIVITIES)
    return tuple(_activity(activity) for activity in activities)


def _activity(activity: Any) -> BoundActivity:
    if not isinstance(activity, dict):
        raise MalformedFrame(BAD_ACTIVITIES)
    workflow_id, run_id, activity_id, task_queue = names = [
        activity.get(each, "") for each in ("workflow_id", "run_id", "activity_id", "task_queue")
    ]
    attempt = activity.get("attempt", 1)
    are_names = all(isinstance(name, str) and (not name or is_name(name)) for name in names)
    if not (activity_id and are_names and _is_integer(attempt) and 0 <= attempt <= ATTEMPT_MAX):
        raise MalformedFrame(BAD_ACTIVITIES)
    return BoundActivity(workflow_id, run_id, activity_id, attempt, task_queue)


def _is_text(value: Any) -> bool:
    """No database takes a zero character."""
    return isinstance(value, str) and len(value) <= TEXT_CHARS_MAX and "\0" not in value


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
