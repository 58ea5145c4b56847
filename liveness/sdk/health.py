"""Health of a supervised program, in two lines:

    from liveness.sdk import health
    health.start()

    while health.wait_while_paused():
        with health.job("file_123"):
            ...
        health.set(files_processed=3)

A thread tells the supervisor every few seconds how the process is, and at each change. Without a supervisor nothing is
reported, and the program runs unchanged. All functions may be called from any thread and from coroutines.

Call `start` in the one process that the supervisor shall watch. What this process forks or starts reports nothing.
"""

from __future__ import annotations

import logging
import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, current_thread, main_thread
from types import FrameType
from typing import Any

from liveness.sdk.component_environment import component_environment
from liveness.sdk.health_reporter import Activity, HealthReporter, Job, JobId

__all__ = [
    "Activity",
    "Job",
    "component_id",
    "install_signal_handler",
    "job",
    "on_pause",
    "paused",
    "ready",
    "report_sdk",
    "set",
    "start",
    "stopping",
    "supervised",
    "wait_while_paused",
    "wait_while_paused_async",
]

INTERVAL_SECONDS = 5.0
JOB_LIMIT_SECONDS = 10.0

log = logging.getLogger("liveness.sdk.health")

_reporter = HealthReporter()
_start_lock = Lock()
_start_was_tried = False
_pause_listeners: list[Callable[[bool], object]] = []
_ends_after_job = False


def start(
    *,
    ready: bool = True,
    on_pause: Callable[[bool], object] | None = None,
    interval: float = INTERVAL_SECONDS,
    job_limit: float = JOB_LIMIT_SECONDS,
) -> bool:
    """Begin to report. Returns whether there is a supervisor; later calls change nothing but may add an `on_pause`.

    `ready`: False if the program has to prepare itself; it calls `health.ready()` then. `on_pause`: called in the reporting
    thread with True when the component is paused, and with False when it is resumed. `interval`: seconds between two reports.
    `job_limit`: when the supervisor has died, seconds for the current job to finish, and again for the program to end after
    SIGTERM."""
    global _start_was_tried
    if on_pause is not None:
        _pause_listeners.append(on_pause)
    with _start_lock:
        if not _start_was_tried:
            _start_was_tried = True
            _attach(ready=ready, interval=interval, job_limit=job_limit)
    return _reporter.is_attached


def _attach(*, ready: bool, interval: float, job_limit: float) -> None:
    environment = component_environment()
    if environment is None or environment.health_fd is None:
        log.debug("there is no supervisor to report to")
        return
    control_fd = environment.control_fd
    if not _is_pipe(environment.health_fd):
        log.warning(
            "descriptor %d is not the supervisor's pipe; health is not reported", environment.health_fd
        )
        return
    _reporter.attach(
        environment.component_id,
        environment.health_fd,
        control_fd if control_fd is not None and _is_pipe(control_fd) else None,
        interval_s=interval,
        job_limit_s=job_limit,
        is_ready=ready,
        on_pause=_tell_pause_listeners,
    )


def _is_pipe(descriptor: int) -> bool:
    """The program may have closed it, and got its number for another file."""
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _tell_pause_listeners(paused: bool) -> None:
    for listener in tuple(_pause_listeners):
        listener(paused)


def ready() -> None:
    """Say that the program is ready, after `start(ready=False)`."""
    _reporter.set_ready()


def supervised() -> bool:
    """Whether this process reports to a supervisor."""
    return _reporter.is_attached


def component_id() -> str:
    """Such as worker:discovery:0; empty without a supervisor."""
    environment = component_environment()
    return "" if environment is None else environment.component_id


@contextmanager
def job(id: JobId, *, activity: Activity | None = None) -> Iterator[Job]:
    """Say what the program does now. Jobs may be nested and may run side by side: the one that began last is shown.

    `activity`: the supervisor binds it, so that it is rescheduled at once if the process dies; `job.cancelled` says when it was
    given to another worker. A job that an exception ends counts as unfinished if the process dies of it. A program that claims
    or binds its activities with the SDK's `Worker` does not need this."""
    running = _reporter.begin_job(id, activity)
    aborted = True
    try:
        yield running
        aborted = False
    finally:
        _reporter.end_job(running, aborted=aborted)
        if _ends_after_job and not _reporter.has_job:
            os.kill(os.getpid(), signal.SIGTERM)


def set(**values: Any) -> None:  # noqa: A001  # programs write health.set(…)
    """Report further values: numbers, texts, lists and objects, as JSON has them. None removes one. If they are longer than
    4 KiB, none of them is reported."""
    _reporter.set_telemetry(values)


def paused() -> bool:
    """Whether the program shall take no job for now."""
    return _reporter.is_paused


def on_pause(listener: Callable[[bool], object]) -> None:
    """Call `listener` like the `on_pause` of `start`."""
    _pause_listeners.append(listener)


def wait_while_paused(timeout: float | None = None) -> bool:
    """Wait until the component is resumed. Returns whether the program may take a job: False when it shall end, because it is
    stopping or its supervisor has died, and when `timeout` seconds are over."""
    return _reporter.wait_while_paused(timeout)


async def wait_while_paused_async() -> bool:
    """`wait_while_paused` for coroutines."""
    import asyncio  # here, because a program without an event loop starts faster without it

    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        try:
            loop.call_soon_threadsafe(changed.set)
        except RuntimeError:
            pass  # the loop is closed, so nobody waits

    _reporter.go_on()
    unsubscribe = _reporter.subscribe(wake)
    try:
        while _reporter.is_paused and not _reporter.is_ending:
            await changed.wait()
            changed.clear()
    finally:
        unsubscribe()
    return _reporter.may_take_job


def stopping() -> None:
    """Say that the program ends. It may take as long as the supervisor allows for a stop."""
    _reporter.set_stopping()


def install_signal_handler() -> None:
    """End the program on SIGTERM and SIGINT when its current job is finished, by SystemExit in the main thread; at once if it has
    no job, and on a second signal. Only the main thread may call this."""
    if current_thread() is not main_thread():
        raise RuntimeError("Only the main thread can handle signals.")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _on_signal)


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    global _ends_after_job
    is_repeated, _ends_after_job = _ends_after_job, True
    stopping()
    if is_repeated or not _reporter.has_job:
        raise SystemExit(0)


def report_sdk(sends_heartbeats: bool) -> None:
    """For the SDK's `Worker`: say whether it sends the heartbeats of the component's session, so that the supervisor does not."""
    _reporter.set_sdk(sends_heartbeats)


def _forget_after_fork() -> None:
    global _reporter, _start_lock, _start_was_tried, _ends_after_job
    _reporter.close_in_forked_process()
    _reporter = HealthReporter()
    _start_lock, _start_was_tried, _ends_after_job = Lock(), True, False
    _pause_listeners.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
