"""`liveness watch` as a process whose lines are read one by one."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.system.cli.server_processes import environment, liveness_command

END_SECONDS_MAX = 30


class WatchProcess:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def line(self) -> str:
        """Return the next line of the output."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the watch ended: {self.process.stderr and self.process.stderr.read()}"
        return line.rstrip("\n")

    def record(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(self.line())
        return record

    def records(self, how_many: int) -> list[dict[str, Any]]:
        return [self.record() for _ in range(how_many)]

    def next_error_line(self) -> str:
        """Return the next line of stderr."""
        assert self.process.stderr is not None
        return self.process.stderr.readline().rstrip("\n")

    def end(self, how: signal.Signals = signal.SIGINT) -> tuple[int, str, str]:
        """End the process; return its exit code and the rest of its output."""
        self.process.send_signal(how)
        out, err = self.process.communicate(timeout=END_SECONDS_MAX)
        return self.process.returncode, out, err


@contextmanager
def watch_process(address: str, namespace: str, *flags: str) -> Iterator[WatchProcess]:
    """Start a watch. With --json, the watch has begun when the context is entered."""
    with subprocess.Popen(
        liveness_command("watch", "--address", address, "--namespace", namespace, *flags),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            watch = WatchProcess(process)
            if "--json" in flags:
                first = watch.record()
                assert list(first) == ["resume_token"]
            yield watch
        finally:
            process.kill()
