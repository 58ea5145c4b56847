"""Checks from outside: is a process ready, and does it still serve? By HTTP, by a connection, or by a command."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import Callable, Mapping
from secrets import token_hex
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from liveness.clock import Clock, wait_or_timeout
from liveness.supervisor.launcher_client import (
    CannotSpawn,
    Descriptors,
    Ending,
    Launcher,
    LauncherLost,
    ProcessSpec,
)

STATUS_LINE_BYTES_MAX = 1_024
HTTP_ERROR = 400
MARK = "LIVENESS_CHECK_ID"
DEFAULT_PORTS = {"http": 80}


class Check(Protocol):
    """Does one check. Returns why it failed; empty if it succeeded. May raise OSError, and may be cancelled."""

    async def __call__(self) -> str: ...


class HttpCheck(NamedTuple):
    """A GET that is answered with a status below 400. Redirections are not followed."""

    url: str

    async def __call__(self) -> str:
        parts = urlsplit(self.url)
        host, port = parts.hostname or "localhost", parts.port or DEFAULT_PORTS[parts.scheme]
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        reader, writer = await asyncio.open_connection(host, port, limit=STATUS_LINE_BYTES_MAX)
        try:
            writer.write(
                f"GET {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nUser-Agent: liveness\r\n"
                "Accept: */*\r\nConnection: close\r\n\r\n".encode()
            )
            try:
                line = await reader.readline()
            except ValueError:
                return "the answer is no HTTP"
        finally:
            writer.transport.abort()
        words = line.split(maxsplit=2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
            return "the answer is no HTTP"
        return "" if int(words[1]) < HTTP_ERROR else f"HTTP status {int(words[1])}"


class TcpCheck(NamedTuple):
    """A connection that is accepted."""

    host: str
    port: int

    async def __call__(self) -> str:
        _, writer = await asyncio.open_connection(self.host, self.port)
        writer.transport.abort()
        return ""


class CommandCheck:
    """A command that ends with exit code 0. The launcher starts it, so whatever it started is killed with it, also when the
    supervisor dies."""

    def __init__(
        self,
        launcher: Launcher,
        argv: tuple[str, ...],
        env: Mapping[str, str],
        cwd: str = "/",
        user: str = "",
    ) -> None:
        self._launcher = launcher
        self._argv = argv
        self._env = env
        self._cwd = cwd
        self._user = user

    async def __call__(self) -> str:
        ended: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        spec = ProcessSpec(self._argv, {**self._env, MARK: token_hex(16)}, MARK, self._cwd, self._user)
        nowhere = os.open(os.devnull, os.O_RDWR)
        try:
            process = await self._launcher.spawn(spec, Descriptors(*(nowhere,) * 4), ended.set_result)
        except (CannotSpawn, LauncherLost) as error:
            return str(error)
        finally:
            os.close(nowhere)
        try:
            ending = await asyncio.shield(ended)
        except asyncio.CancelledError:
            self._launcher.signal(process, signal.SIGKILL)
            await ended
            raise
        how = f"signal {ending.signal}" if ending.signal else ending.code
        return "" if ending.code == 0 else f"{shlex.join(self._argv)} ended with {how}"


class ProbeSettings(NamedTuple):
    interval_s: float = 10.0
    timeout_s: float = 1.0
    failures_max: int = 3
    """So many failures in a row make a process unhealthy."""
    successes_min: int = 1
    """So many successes in a row make it healthy."""


class ProbeResult(NamedTuple):
    is_healthy: bool
    reason: str
    """Why the last check failed; empty if it succeeded."""


class Probe:
    """Repeats a check and reports when its result changes, the first one included."""

    def __init__(
        self, check: Check, settings: ProbeSettings, on_change: Callable[[ProbeResult], None], clock: Clock
    ) -> None:
        self._check = check
        self._settings = settings
        self._on_change = on_change
        self._clock = clock
        self._is_healthy: bool | None = None
        self._failures = self._successes = 0

    @property
    def is_healthy(self) -> bool | None:
        """None before enough checks were made."""
        return self._is_healthy

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            self.count(await self.check_once())
            await self._clock.sleep(self._settings.interval_s * 1_000)

    async def check_once(self) -> str:
        """Return why the check failed; empty if it succeeded in time."""
        check = asyncio.ensure_future(self._check())
        try:
            if not await wait_or_timeout(check, self._clock, self._settings.timeout_s * 1_000):
                return f"no answer within {self._settings.timeout_s:g} s"
            return check.result()
        except OSError as error:
            return error.strerror or str(error)
        finally:
            if not check.done():
                check.cancel()
                await asyncio.wait((check,))

    def count(self, reason: str) -> None:
        """Take the result of one check into account."""
        if reason:
            self._failures, self._successes = self._failures + 1, 0
        else:
            self._failures, self._successes = 0, self._successes + 1
        has_failed = self._failures >= self._settings.failures_max
        if (has_failed or self._successes >= self._settings.successes_min) and self._is_healthy != (
            not has_failed
        ):
            self._is_healthy = not has_failed
            self._on_change(ProbeResult(self._is_healthy, reason))
