"""The first process of a container: it starts the real program as its child, passes signals on, and reaps.

The kernel gives orphans to process 1 and expects it to wait for them. A program that has children of its own must not wait for any
child, so this is a process apart.
"""

from __future__ import annotations

import os
import signal
import sys

from liveness.clock import SystemClock

PASSED_ON = frozenset(
    (
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGWINCH,
        signal.SIGCONT,
    )
)
LEFT_MS = 60_000
"""How long to wait for what the program leaves behind if it is killed. Then the kernel kills the rest."""
POLL_S = 1.0


def fork_from_init() -> None:
    """Return in a child. As process 1, stay until it has ended, and end with its exit code. Call this before there are threads."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {*PASSED_ON, signal.SIGCHLD})
    pid = os.fork()
    if pid:
        os._exit(_stay(pid))
    _lead_terminal()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*PASSED_ON, signal.SIGCHLD})


def _lead_terminal() -> None:
    """Ctrl-C shall reach the program once, from the terminal, and not again through process 1."""
    os.setpgid(0, 0)
    if sys.stdin is not None and sys.stdin.isatty():
        before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        os.tcsetpgrp(sys.stdin.fileno(), os.getpgrp())
        signal.signal(signal.SIGTTOU, before)


def _stay(pid: int) -> int:
    """Return the exit code: 128 and the signal if one ended the program, as shells say it."""
    clock = SystemClock()
    deadline_ms: int | None = None
    code = 0
    while True:
        status = _reap(pid)
        if status is not None:
            code = os.waitstatus_to_exitcode(status)
            if code >= 0:
                return code
            code, deadline_ms = 128 - code, clock.monotonic_ms() + LEFT_MS
        if deadline_ms is not None and (_is_childless() or clock.monotonic_ms() > deadline_ms):
            return code
        caught = signal.sigtimedwait({*PASSED_ON, signal.SIGCHLD}, POLL_S)
        if caught is None or caught.si_signo == signal.SIGCHLD:
            continue
        if deadline_ms is not None:
            return code
        os.kill(pid, caught.si_signo)


def _reap(pid: int) -> int | None:
    """Wait for all that have ended. Returns the status of the program if it is among them."""
    found = None
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if ended == 0:
            return found
        if ended == pid:
            found = status


def _is_childless() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False
