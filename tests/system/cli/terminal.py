"""A pseudo-terminal for one command: the test reads what the command draws, and presses keys."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.system.cli.server_processes import environment

SECONDS_MAX = 60
ALTERNATE_SCREEN = ("\x1b[?1049h", "\x1b[?1049l")
CURSOR = ("\x1b[?25l", "\x1b[?25h")
HOME = "\x1b[H"
_CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
# A session leader that opens a terminal gets it as its controlling terminal, with its signals.
_IN_TERMINAL = 'exec "$@" < "$0" > "$0" 2>&1'


class Terminal:
    def __init__(self, master: int, slave: int, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.said = ""
        """The output since the test read it last."""
        self._master = master
        self._slave = slave
        self.before = self.modes()

    @property
    def text(self) -> str:
        return _CODES.sub("", self.said)

    def modes(self) -> list[Any]:
        return termios.tcgetattr(self._slave)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def see(self, wanted: Callable[[str], object] | str) -> str:
        """Return the next complete frame that satisfies `wanted` or contains the text; earlier frames are dropped."""
        while True:
            *frames, rest = self.said.split(HOME)
            for index, frame in enumerate(frames):
                shown = _CODES.sub("", frame)
                if wanted in shown if isinstance(wanted, str) else wanted(shown):
                    self.said = HOME.join([*frames[index + 1 :], rest])
                    return shown
            self.said = rest
            self._read()

    def ended(self) -> int:
        """Wait for the end, read all output, and return the exit code."""
        while self.process.poll() is None or self._more(0):
            if self._more(0.05):
                self._read()
        return self.process.returncode

    def is_as_before(self) -> bool:
        """Return whether modes, screen and cursor are restored, judged by the latest output."""
        return self.modes() == self.before and all(
            self.said.rfind(off) > self.said.rfind(on) for on, off in (ALTERNATE_SCREEN, CURSOR)
        )

    def stopped(self) -> None:
        """Wait until Ctrl-Z has stopped the command."""
        flags = os.WSTOPPED | os.WNOWAIT | os.WNOHANG
        while os.waitid(os.P_PID, self.process.pid, flags) is None:
            if self._more(0.05):
                self._read()
        while self._more(0):
            self._read()

    def close_connection(self) -> None:
        """Close the terminal, as a lost connection does."""
        os.close(self._slave)
        os.close(self._master)
        self._slave, self._master = os.openpty()  # so that there is something to close at the end

    def close(self) -> None:
        os.close(self._slave)
        os.close(self._master)

    def _more(self, seconds: float) -> bool:
        return bool(select.select([self._master], [], [], seconds)[0])

    def _read(self) -> None:
        assert self._more(SECONDS_MAX), f"nothing more came after {self.said!r}"
        self.said += os.read(self._master, 100_000).decode(errors="replace")


@contextmanager
def terminal(command: list[str], columns: int = 80, rows: int = 24) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    variables = environment(TERM="xterm-256color")
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        variables.pop(name, None)
    with subprocess.Popen(
        ["sh", "-c", _IN_TERMINAL, os.ttyname(slave), *command],
        env=variables,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        screen = Terminal(master, slave, process)
        try:
            yield screen
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
            screen.close()
