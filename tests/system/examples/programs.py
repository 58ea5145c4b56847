"""Example programs as real processes, and a server with short leases for them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

from tests.system.cli.server_processes import environment, running_server
from tests.system.cli.shell import Shell

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SECONDS_MAX = 60
"""Much more than any step takes, because a loaded machine is slow."""
FOR_EVER = "3600"


@contextmanager
def server_with_short_leases(folder: Path) -> Iterator[str]:
    """Start a server and return its address. Leases last 2 s by default, and a fresh server grants no grace."""
    config = folder / "liveness.toml"
    config.write_text("takeover_grace_ms = 0\n")
    with running_server(folder, "--config", str(config)) as address:
        Shell(address).ok("config", "set", "default_lease=2s")
        yield address


class Program:
    """A running example. Tests wait for its output, line by line."""

    def __init__(self, name: str, *arguments: str, folder: Path) -> None:
        self.name = name
        self.seen: list[str] = []
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self.process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / name), *arguments],
            cwd=folder,
            env=environment(PYTHONUNBUFFERED="1"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        Thread(target=self._read, daemon=True).start()

    def line_with(self, text: str) -> str:
        """Return the next line that contains `text`."""
        while (line := self._next()) is not None:
            if text in line:
                return line
        raise AssertionError(f"{self.name} ended without saying {text!r}: {self.seen}")

    def wait_success(self) -> list[str]:
        """Wait for the successful end, and return all output."""
        while self._next() is not None:
            pass
        assert self.process.wait(SECONDS_MAX) == 0, self.seen
        return self.seen

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def _next(self) -> str | None:
        try:
            line = self._lines.get(timeout=SECONDS_MAX)
        except Empty:
            raise AssertionError(f"{self.name} says nothing more: {self.seen}") from None
        if line is not None:
            self.seen.append(line)
        return line

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)
