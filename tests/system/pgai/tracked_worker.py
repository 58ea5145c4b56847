"""pgai's own class WorkerTracking in a process of its own, and what it counted."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("tracking_program.py")
PGAI_FOLDER = Path(sys.prefix, "pgai")
"""Where `make` puts pgai, without what it depends on."""
WAIT_S = 60


class TrackedWorker:
    def __init__(self, dsn: str, interval_s: float) -> None:
        if not PGAI_FOLDER.is_dir():
            pytest.skip(f"pgai is not in {PGAI_FOLDER.name}/ of this environment, where `make` installs it")
        self.dsn = dsn
        self.interval_s = interval_s
        self.id = ""
        self.successes: Counter[int] = Counter()
        """By unit."""
        self.errors: Counter[int] = Counter()
        self.last_error = ""
        self._process: asyncio.subprocess.Process

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, str(PROGRAM), str(PGAI_FOLDER), self.dsn, str(self.interval_s),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self.id = await self._answer()

    async def succeed(self, unit: int, count: int) -> None:
        assert await self._tell(f"success {unit} {count}") == "done"
        self.successes[unit] += count

    async def fail(self, unit: int, message: str) -> None:
        assert await self._tell(f"error {unit} {message}") == "done"
        self.errors[unit] += 1
        self.last_error = message

    async def stop(self) -> None:
        """End in order, with a last heartbeat."""
        assert await self._tell("stop") == "done"
        await self.close()

    async def logged(self, words: str) -> None:
        """Wait until its log says so."""
        assert self._process.stderr is not None
        async with asyncio.timeout(WAIT_S):
            while line := (await self._process.stderr.readline()).decode():
                if words in line:
                    return
        raise AssertionError(f"it ended without saying {words!r}")

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await asyncio.wait_for(self._process.communicate(), WAIT_S)

    async def _tell(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        await self._process.stdin.drain()
        return await self._answer()

    async def _answer(self) -> str:
        assert self._process.stdout is not None
        return (await asyncio.wait_for(self._process.stdout.readline(), WAIT_S)).decode().strip()
