"""`liveness demo` as a process, and the processes that remain after it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from uuid import uuid4

import psutil

from liveness.clock import stopwatch
from tests.system.cli.server_processes import environment, liveness_command

SECONDS_MAX = 100
MARK = "DEMO_OF_TEST"


class DemoProcess:
    """All its processes carry the same mark in their environment."""

    def __init__(self, folder: Path, *flags: str, terminal: int | None = None) -> None:
        self._mark = uuid4().hex
        self.process = subprocess.Popen(
            liveness_command("demo", "--fast", *flags),
            env=environment(TMPDIR=str(folder), TERM="xterm-256color", **{MARK: self._mark}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if terminal is None else terminal,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def output(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def wait_for(self, text: str) -> None:
        lines = []
        for line in self.output:
            lines.append(line)
            if text in line:
                return
        raise AssertionError(f"it ended without saying {text!r}: {lines} {self.process.communicate()}")

    def others(self) -> list[psutil.Process]:
        """Return the demo's other processes, including dead ones that were not waited for."""
        return [
            process
            for process in psutil.process_iter()
            if process.pid != self.process.pid and self._is_ours(process)
        ]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == self._mark
        except psutil.Error:
            return False

    def clear(self) -> None:
        self.process.kill()
        self.process.wait()
        for process in self.others():
            process.kill()


@contextmanager
def demo_process(folder: Path, *flags: str, terminal: int | None = None) -> Iterator[DemoProcess]:
    played = DemoProcess(folder, *flags, terminal=terminal)
    with played.process:
        try:
            yield played
        finally:
            played.clear()


def wait_for_the_end_of(processes: list[psutil.Process]) -> None:
    """Wait until these processes have ended.

    A zombie counts as ended: in a container without an init, no process reaps it.
    """
    watch = stopwatch()
    while not all(_has_ended(process) for process in processes):
        assert watch() < SECONDS_MAX, f"these live on: {processes}"
        time.sleep(0.02)


def _has_ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def read_until(terminal: int, text: bytes) -> bytes:
    seen = b""
    while text not in seen:
        seen += os.read(terminal, 65_536)
    return seen


def read_to_the_end(terminal: int) -> bytes:
    seen = b""
    while True:
        try:
            part = os.read(terminal, 65_536)
        except OSError:  # Linux raises it once no process has the terminal open
            return seen
        if not part:
            return seen
        seen += part


def exit_code(number: signal.Signals) -> int:
    return 128 + number
