"""Arms a server that fails where it is told to."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

MODULE = "tests.crash.failing_server"
REACHED_SECONDS_MAX = 60
LOOK_SECONDS = 0.01


class NotReached(Exception):
    """Nobody came by, so that nothing was proved."""


class Failpoint:
    def __init__(self, control: Path) -> None:
        self._control = control
        self.environ = {"FAILPOINT": str(control)}

    def arm(self, point: str, how: str) -> None:
        # Put there as a whole, so that nobody reads half of it.
        new = self._control.with_suffix(".new")
        new.write_text(f"{point}|{how}")
        new.replace(self._control)

    async def wait_reached(self) -> None:
        """Until somebody came by and failed."""
        deadline = time.monotonic() + REACHED_SECONDS_MAX
        while self._control.exists():
            if time.monotonic() > deadline:
                raise NotReached(self._control.read_text())
            await asyncio.sleep(LOOK_SECONDS)
