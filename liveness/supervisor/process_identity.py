"""Which process an id means. The kernel uses an id again after its process was waited for, so an id alone is never signalled."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from pathlib import Path


def start_ticks_of(pid: int) -> int | None:
    """Return when the process was started, in clock ticks since the machine was; None if there is none."""
    stat = _read(f"/proc/{pid}/stat")
    return int(stat.rpartition(b")")[2].split()[19]) if stat else None


def session_and_group_of(pid: int) -> tuple[int, int] | None:
    try:
        return os.getsid(pid), os.getpgid(pid)
    except OSError:
        return None


def parent_of(pid: int) -> int | None:
    stat = _read(f"/proc/{pid}/stat")
    return int(stat.rpartition(b")")[2].split()[1]) if stat else None


def open_process(pid: int, start_ticks: int) -> int | None:
    """Return a descriptor that means this process for ever, or None if it has ended.

    The start is compared after the descriptor was opened: if the process ended before, the id has no process or one with
    another start."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    if start_ticks_of(pid) == start_ticks:
        return descriptor
    os.close(descriptor)
    return None


def signal_marked(marks: Collection[bytes], number: int = signal.SIGKILL) -> int:
    """Send a signal (0: none) to every process that has one of these entries (`NAME=value`) in its environment. Returns how
    many there are.

    The environment is read after the descriptor was opened, so a process that ended in between is not confused with the
    next one of its id: a descriptor of an ended process takes no signals."""
    signalled = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        try:
            descriptor = os.pidfd_open(int(folder.name))
        except OSError:
            continue
        try:
            if not set(_read(f"{folder}/environ").split(b"\0")).isdisjoint(marks):
                signal.pidfd_send_signal(descriptor, number)
                signalled += 1
        except OSError:
            pass  # it has ended
        finally:
            os.close(descriptor)
    return signalled


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
