"""A server that `liveness supervise --embedded` starts for itself, on the default database, and stops last."""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import signal
import sys
from collections.abc import Sequence

from liveness.clock import Clock
from liveness.supervisor.errors import SupervisorError

START_S = 30.0
STOP_S = 15.0
RELAUNCH_MS = 1_000
PR_SET_PDEATHSIG = 1

logger = logging.getLogger("liveness.supervisor")


class EmbeddedServerFailed(SupervisorError):
    template = "The embedded server did not start: {detail}"

    detail: str


def reason_in(lines: Sequence[str]) -> str:
    """What the last lines of a server's log say for people: the reason of the last that has one, or else all of them as they are."""
    for line in reversed(lines):
        try:
            logged = json.loads(line)
        except ValueError:
            continue
        if isinstance(logged, dict) and (why := logged.get("why")):
            return str(why).replace("--listen", "--address")  # as this command calls it
    return "; ".join(lines[-3:])


class EmbeddedServer:
    """A process of its own, so that neither a crash of it nor its work stops the supervisor."""

    def __init__(self, address: str, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None
        self._output: asyncio.Task[None] | None = None
        self._lines: list[str] = []
        self._is_ready = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises EmbeddedServerFailed."""
        await self._launch()
        self._keeper = asyncio.get_running_loop().create_task(self._keep_running())

    async def _launch(self) -> None:
        self._is_ready.clear()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "liveness", "serve", "--listen", self._address, "--log-format", "json",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # Ctrl-C in a terminal reaches the whole group: the supervisor decides when the server stops.
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )  # fmt: skip
        self._output = asyncio.get_running_loop().create_task(self._read_output())
        ready = asyncio.get_running_loop().create_task(self._is_ready.wait())
        try:
            async with asyncio.timeout(START_S):
                await asyncio.wait({ready, self._output}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            pass
        finally:
            ready.cancel()
        if not self._is_ready.is_set():
            raise EmbeddedServerFailed(detail=reason_in(self._lines) or "it gave no reason")
        logger.info("the embedded server listens on %s", self._address)

    async def _keep_running(self) -> None:
        while True:
            assert self._process is not None
            code = await self._process.wait()
            logger.error("the embedded server has ended with %s; starting another", code)
            try:
                await self._launch()
            except (EmbeddedServerFailed, OSError) as error:
                logger.error("%s", error)
                await self._clock.sleep(RELAUNCH_MS)

    async def _read_output(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            text = line.decode(errors="replace").rstrip()
            self._lines = [*self._lines[-19:], text]
            if '"serving"' in text:
                self._is_ready.set()
            logger.debug("server: %s", text)

    async def stop(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        if self._output is not None:
            await self._output


def _end_with_parent() -> None:
    """Runs in the forked process, while the supervisor has one thread only."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
