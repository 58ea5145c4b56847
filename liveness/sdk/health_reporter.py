"""Tells a supervisor over a pipe how its child is, and hears over another what it shall do.

One thread per process does all of it. The program changes the state from any thread, also from a signal handler, and wakes the
thread; the thread writes the state as one line. No clock is read: every wait ends with a line.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import logging
import os
import select
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from threading import Condition, Thread
from typing import Any, Final, NamedTuple, TypeAlias

FRAME_PREFIX: Final = b"HEALTH|"
CONTROL_PREFIX: Final = b"CONTROL|"
FRAME_BYTES_MAX: Final = 64 * 1024
JOB_CHARS_MAX: Final = 1_000
ACTIVITIES_MAX: Final = 100
CONTROL_LINE_BYTES_MAX: Final = 1024 * 1024
READ_BYTES: Final = 64 * 1024
GAP_MS: Final = 50
"""The least time between two lines, so that a program with thousands of jobs a second does not flood its supervisor."""
LOST_EXIT_CODE: Final = 1
LEAVE_S: Final = 1.0
"""How long a program without a job may take to see that it shall end."""
LAST_LINE_S: Final = 1.0
"""How long a program that ends waits until its last line is written."""
RESERVED: Final = frozenset(("component_id", "status", "current_job", "activities", "sdk"))

PR_SET_PDEATHSIG: Final = 1

_GONE: Final = select.POLLERR | select.POLLHUP | select.POLLNVAL

log = logging.getLogger("liveness.sdk.health")

JobId: TypeAlias = str | int
OnPause: TypeAlias = Callable[[bool], object]


class Activity(NamedTuple):
    """One attempt of one activity, which the supervisor shall bind for its child. The names are those of `ActivityRef`."""

    workflow_id: str
    run_id: str = "-"
    activity_id: str = "-"
    attempt: int = 1
    task_queue: str = ""


class Job:
    """What the program does now. Returned by `with health.job(…)`."""

    __slots__ = ("_cancelled", "activity", "id")

    def __init__(self, id: JobId, activity: Activity | None) -> None:
        self.id = id
        self.activity = activity
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Whether the server has given the job's activity to another worker. Its result would come too late."""
        return self._cancelled

    def cancel(self) -> None:
        self._cancelled = True


def encode_frame(fields: Mapping[str, Any], telemetry: Mapping[str, Any]) -> bytes:
    """One line for the supervisor. What makes it longer than the supervisor reads is left out: first the telemetry."""
    line = _encode({**telemetry, **fields})
    if len(line) > FRAME_BYTES_MAX:
        line = _encode(fields)
    if len(line) > FRAME_BYTES_MAX:
        line = _encode({name: value for name, value in fields.items() if name != "activities"})
    return line


def _encode(values: Mapping[str, Any]) -> bytes:
    return FRAME_PREFIX + json.dumps(values, separators=(",", ":")).encode("ascii") + b"\n"


def parse_control(line: bytes) -> Mapping[str, Any] | None:
    """The orders in a line of the supervisor; None if it is no such line."""
    if not line.startswith(CONTROL_PREFIX):
        return None
    try:
        orders = json.loads(line.removeprefix(CONTROL_PREFIX))
    except ValueError:
        return None
    return orders if isinstance(orders, dict) else None


def decline_parent_death_signal() -> None:
    """Without it the kernel ends this process in the middle of its job when the supervisor dies. The broken pipe tells it, too."""
    if sys.platform == "linux":
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)
        except (OSError, AttributeError):
            pass  # a system without it has sent none


class HealthReporter:
    """The state of one process. Without a pipe it is kept all the same, so that a program runs alike without a supervisor."""

    def __init__(self) -> None:
        # Reentrant, because a signal handler may interrupt its own thread inside.
        self._changed = Condition()
        self._jobs: list[Job] = []
        self._aborted: list[Job] = []
        """Jobs that an exception ended, as long as the process may yet die of it."""
        self._telemetry: dict[str, Any] = {}
        self._is_ready = True
        self._is_paused = False
        self._is_stopping = False
        self._supervisor_is_lost = False
        self._is_leaving = False
        self._thread: Thread | None = None
        self._sdk: bool | None = None
        self._listeners: list[Callable[[], None]] = []
        self._component_id = ""
        self._is_attached = False
        self._health_fd = self._control_fd = self._wake_read_fd = self._wake_write_fd = -1
        self._interval_ms = 0
        self._job_limit_s = 0.0
        self._on_pause: OnPause | None = None
        self._unwritten = b""
        self._unread = b""
        self._skips_line = False
        self._has_warned: set[str] = set()

    # -- from any thread

    @property
    def is_attached(self) -> bool:
        """Whether there is a supervisor to report to."""
        return self._is_attached

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    @property
    def is_ending(self) -> bool:
        """Whether the program shall take no other job, for ever."""
        return self._is_stopping or self._supervisor_is_lost

    @property
    def has_job(self) -> bool:
        return bool(self._jobs)

    @property
    def may_take_job(self) -> bool:
        return not (self._is_paused or self.is_ending)

    def attach(
        self,
        component_id: str,
        health_fd: int,
        control_fd: int | None,
        *,
        interval_s: float,
        job_limit_s: float,
        is_ready: bool,
        on_pause: OnPause | None,
    ) -> None:
        self._component_id = component_id
        self._health_fd, self._control_fd = health_fd, -1 if control_fd is None else control_fd
        self._wake_read_fd, self._wake_write_fd = os.pipe()
        for descriptor in (health_fd, control_fd, self._wake_read_fd, self._wake_write_fd):
            if descriptor is not None:
                os.set_blocking(descriptor, False)
        self._interval_ms = max(int(interval_s * 1_000), GAP_MS)
        self._job_limit_s = job_limit_s
        self._is_ready = is_ready
        self._on_pause = on_pause
        self._is_attached = True
        if control_fd is not None:
            self._read_control()  # what was paused before this process began must take no job now
        decline_parent_death_signal()
        self._thread = Thread(target=self._run, name="liveness-health", daemon=True)
        self._thread.start()
        atexit.register(self._leave)

    def set_ready(self) -> None:
        self._is_ready = True
        self._announce()

    def set_stopping(self) -> None:
        self._is_stopping = True
        self._announce()

    def set_sdk(self, sends_heartbeats: bool) -> None:
        """Say whether the SDK of this process sends the heartbeats of the component's session."""
        self._sdk = sends_heartbeats
        self._announce()

    def set_telemetry(self, values: Mapping[str, Any]) -> None:
        reserved = RESERVED & values.keys()
        if reserved:
            raise ValueError(f"{', '.join(sorted(reserved))} has a meaning of its own.")
        # A copy, because the program may change its values. What is no JSON raises here, where the program can see why.
        copied = json.loads(json.dumps(values, allow_nan=False))
        with self._changed:
            self._telemetry |= copied
            for name in [name for name, value in copied.items() if value is None]:
                del self._telemetry[name]
        self._wake()

    def begin_job(self, id: object, activity: Activity | None) -> Job:
        job = Job(id if isinstance(id, int) else str(id)[:JOB_CHARS_MAX], activity)
        with self._changed:
            self._aborted.clear()
            self._jobs.append(job)
        self._wake()
        return job

    def end_job(self, job: Job, *, aborted: bool = False) -> None:
        """`aborted`: an exception ended it. If the process dies of it, the job is not done; if it does anything else, it is."""
        with self._changed:
            if job in self._jobs:  # unless the process was forked meanwhile
                self._jobs.remove(job)
                if aborted:
                    self._aborted.append(job)
        self._announce()

    def wait_while_paused(self, timeout_s: float | None = None) -> bool:
        """Returns whether the program may take a job."""
        self.go_on()
        with self._changed:
            self._changed.wait_for(lambda: not self._is_paused or self.is_ending, timeout_s)
        return self.may_take_job

    def go_on(self) -> None:
        """The program lives on after exceptions that ended jobs: it has dealt with them."""
        with self._changed:
            self._aborted.clear()

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after each change of what the program may do, in any thread. Returns a function that unsubscribes."""
        with self._changed:
            self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def frame(self) -> bytes:
        with self._changed:
            jobs = [*self._aborted, *self._jobs]
            activities = [job.activity._asdict() for job in jobs if job.activity is not None]
            fields: dict[str, Any] = {
                "component_id": self._component_id,
                "status": self._status(),
                "current_job": jobs[-1].id if jobs else None,
            }
            if activities:
                fields["activities"] = activities[:ACTIVITIES_MAX]
            if self._sdk is not None:
                fields["sdk"] = self._sdk
            return encode_frame(fields, self._telemetry)

    def close_in_forked_process(self) -> None:
        """A forked process is no component: it must neither write lines nor keep the pipes open."""
        self._is_attached = False
        for descriptor in (self._health_fd, self._control_fd, self._wake_read_fd, self._wake_write_fd):
            if descriptor >= 0:
                try:
                    os.close(descriptor)
                except OSError:
                    pass

    def _status(self) -> str:
        if self._is_stopping or self._supervisor_is_lost:
            return "stopping"
        if not self._is_ready:
            return "starting"
        return "paused" if self._is_paused else "healthy"

    def _announce(self) -> None:
        """Something that others wait for has changed."""
        with self._changed:
            self._changed.notify_all()
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener()
        self._wake()

    def _wake(self) -> None:
        if self._is_attached:
            try:
                os.write(self._wake_write_fd, b"!")
            except OSError:
                pass  # so many wakes wait already that there is no room for one more

    def _leave(self) -> None:
        """The interpreter ends: write a last line, because what this process works on when it has ended is given to another."""
        if self._is_attached and self._thread is not None:
            self._is_stopping = self._is_leaving = True
            self._wake()
            self._thread.join(LAST_LINE_S)

    # -- the thread

    def _run(self) -> None:
        try:
            is_lost = self._report()
        except OSError:
            # A program that closes all descriptors, as daemons do, closes ours.
            log.exception("health is no longer reported")
            return
        if is_lost:
            self._end_without_supervisor()

    def _report(self) -> bool:
        """Write lines until the pipe breaks or the process ends. Returns whether the pipe has broken."""
        waiting = select.poll()
        resting = select.poll()  # between two lines; orders are heard meanwhile
        for poller in (waiting, resting):
            poller.register(self._health_fd, 0)  # a broken pipe is always reported
            if self._control_fd >= 0:
                poller.register(self._control_fd, select.POLLIN)
        waiting.register(self._wake_read_fd, select.POLLIN)
        is_last = False
        while True:
            is_leaving = self._is_leaving
            if not self._unwritten:
                self._drain_wakes()
                self._unwritten, is_last = self.frame(), is_leaving
            if not self._write():
                return True
            if is_last and not self._unwritten:
                return False
            # With a full pipe the rest of the line follows when there is room: a half line would garble the next one.
            waiting.modify(self._health_fd, select.POLLOUT if self._unwritten else 0)
            is_changed = False
            for poller, timeout_ms in ((resting, GAP_MS), (waiting, self._interval_ms)):
                events = dict(poller.poll(timeout_ms))
                is_changed = bool(events)
                if events.get(self._health_fd, 0) & _GONE:
                    return True
                if self._control_fd in events and not self._read_control():
                    waiting.unregister(self._control_fd)
                    resting.unregister(self._control_fd)
                    self._control_fd = -1
            if not is_changed:
                self.go_on()  # an exception that ended a job long ago has not ended the process

    def _drain_wakes(self) -> None:
        try:
            while len(os.read(self._wake_read_fd, READ_BYTES)) == READ_BYTES:
                pass
        except BlockingIOError:
            pass

    def _write(self) -> bool:
        """Write as much as there is room for. Returns False if nobody can read it any more."""
        try:
            written = os.write(self._health_fd, self._unwritten)
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False
        self._unwritten = self._unwritten[written:]
        return True

    def _read_control(self) -> bool:
        """Obey the lines that have arrived. Returns False at the end of the pipe."""
        try:
            data = os.read(self._control_fd, READ_BYTES)
        except BlockingIOError:
            return True
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            if self._skips_line:
                self._skips_line = False  # this is the end of a line that was too long
            else:
                self._obey(line)
        if len(self._unread) > CONTROL_LINE_BYTES_MAX:
            self._unread, self._skips_line = b"", True
        return bool(data)

    def _obey(self, line: bytes) -> None:
        orders = parse_control(line)
        if orders is None:
            self._warn_once("control", "a line of the supervisor was not understood: %.200r", line)
            return
        cancelled = orders.get("cancel")
        if isinstance(cancelled, list):
            self._cancel(cancelled)
        paused = orders.get("paused")
        if isinstance(paused, bool) and paused != self._is_paused:
            self._is_paused = paused
            self._announce()
            self._call_on_pause(paused)

    def _cancel(self, activities: Iterable[Any]) -> None:
        names = ("workflow_id", "run_id", "activity_id", "attempt")
        lost = [
            tuple(activity.get(name) for name in names)
            for activity in activities
            if isinstance(activity, dict)
        ]
        with self._changed:
            for job in self._jobs:
                if job.activity is not None and job.activity[: len(names)] in lost:
                    job.cancel()

    def _call_on_pause(self, paused: bool) -> None:
        if self._on_pause is not None:
            try:
                self._on_pause(paused)
            except Exception:  # it is the program's code, and health must still be reported
                log.exception("on_pause failed")

    def _warn_once(self, about: str, message: str, *values: object) -> None:
        if about not in self._has_warned:
            self._has_warned.add(about)
            log.warning(message, *values)

    def _end_without_supervisor(self) -> None:
        """Let the current job finish and the program end by itself. If it does not, end it: by its own handler of SIGTERM if it
        has one."""
        log.warning("the supervisor of %s has ended, and this process ends, too", self._component_id)
        self._supervisor_is_lost = True
        self._announce()
        with self._changed:
            self._changed.wait_for(lambda: not self._jobs, self._job_limit_s)
            self._changed.wait_for(lambda: False, min(LEAVE_S, self._job_limit_s))
        os.kill(os.getpid(), signal.SIGTERM)
        with self._changed:
            self._changed.wait_for(lambda: False, self._job_limit_s)
        os._exit(LOST_EXIT_CODE)
