"""Arm a failpoint in `tests.crash.failing_server`."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

MODULE = "tests.crash.failing_server"
REACHED_SECONDS_MAX = 60
LOOK_SECONDS = 0.01


class NotReached(Exception):
    """The server never reached the failpoint, so the test proves nothing."""


class Failpoint:
    def __init__(self, control: Path) -> None:
        self._control = control
        self.environ = {"FAILPOINT": str(control)}

    def arm(self, point: str, how: str) -> None:
        # Renamed into place, so that the server never reads half of it.
        new = self._control.with_suffix(".new")
        new.write_text(f"{point}|{how}")
        new.replace(self._control)

    async def wait_reached(self) -> None:
        """Wait until the server has reached the failpoint and failed."""
        deadline = time.monotonic() + REACHED_SECONDS_MAX
        while self._control.exists():
            if time.monotonic() > deadline:
                raise NotReached(self._control.read_text())
            await asyncio.sleep(LOOK_SECONDS)
