"""A liveness server as a child process, as an operator runs it, and the faults of such a process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from liveness.v1 import admin_pb2_grpc, progress_service_pb2_grpc, service_pb2_grpc

ROOT = Path(__file__).parents[3]
READY_SECONDS_MAX = 60
END_SECONDS_MAX = 60
ROUNDING_MS = 5
"""Clocks in whole milliseconds can differ by one each time they are read."""
STEP_MS_MAX = 1_000
"""The most that an observed clock may count of a time in which its process or its database was stopped."""

# The kernel kills the server when its parent ends, even if the parent is killed.
_GUARDED = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]): sys.exit("orphaned")
os.execv(sys.argv[2], sys.argv[2:])
"""


class ServerFailed(Exception):
    pass


class Outage(NamedTuple):
    """A time in which the server certainly did not listen."""

    began: float
    ended: float
    counted_ms_max: float
    """The most that its observed clock may count of the outage."""


class ExitResult(NamedTuple):
    code: int
    stderr: str


class ServerLike(Protocol):
    """What a ledger and a load need of a server: one process, or many nodes behind one interface."""

    @property
    def liveness(self) -> service_pb2_grpc.LivenessServiceAsyncStub: ...
    @property
    def admin(self) -> admin_pb2_grpc.AdminServiceAsyncStub: ...
    @property
    def running(self) -> bool: ...
    @property
    def repeats_calls(self) -> bool:
        """Whether it sends a call again whose answer it lost, as nodes do that forward calls to each other."""

    def listening_ms(self, since: float, until: float) -> float:
        """Return the most of this time that can have passed on an observed clock."""


def command(*arguments: str, module: str = "liveness.cli") -> list[str]:
    run = [sys.executable, "-m", module, *arguments]
    return [sys.executable, "-I", "-S", "-c", _GUARDED, str(os.getpid()), *run]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this environment without LIVENESS_ settings of the developer, which would give all servers one HTTP port. Servers
    do not register themselves: tests count workers and events."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LIVENESS_")}
    quiet = {"PYTHONUNBUFFERED": "1", "LIVENESS_HTTP": "off", "LIVENESS_REGISTER_SELF": "off"}
    return {**clean, **quiet, **(extra or {})}


async def run_to_end(*arguments: str, environ: Mapping[str, str] | None = None) -> ExitResult:
    """Run a command that is expected to end by itself."""
    child = await asyncio.create_subprocess_exec(
        *command(*arguments),
        cwd=ROOT,
        env=environment(environ),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, stderr = await asyncio.wait_for(child.communicate(), END_SECONDS_MAX)
    except BaseException:
        child.kill()
        await child.communicate()
        raise
    assert child.returncode is not None
    return ExitResult(child.returncode, stderr.decode())


class ServerProcess:
    """One database, and one server process after another on it."""

    def __init__(
        self,
        db: str,
        *,
        shards: int = 8,
        flags: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        module: str = "liveness.cli",
    ) -> None:
        """`module`: the program to run instead of the product's own; it takes the same arguments."""
        self.db = db
        self.module = module
        self.shards = shards
        self.flags = list(flags)
        self.environ = dict(environ or {})
        self.starts = 0
        self.address = ""
        self.outages: list[Outage] = []
        self.down_since: float | None = None
        self.log: list[str] = []
        """The stderr of the process that runs now, or ran last."""
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    # -- lifecycle

    async def start(self) -> None:
        """Start the process, and return when its health service says SERVING."""
        assert self._process is None, "it runs already"
        began = time.monotonic()
        self.log = []
        address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        arguments = ["serve", "--db", self.db, "--listen", "127.0.0.1:0", "--shards", str(self.shards)]
        self._process = await asyncio.create_subprocess_exec(
            *command(*arguments, "--log-format", "json", *self.flags, module=self.module),
            cwd=ROOT,
            env=environment(self.environ),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        self._reader = asyncio.create_task(self._read(self._process, address))
        if self.down_since is not None:
            self.outages.append(Outage(self.down_since, began, 0))
            self.down_since = None
        try:
            self.address = await asyncio.wait_for(address, READY_SECONDS_MAX)
            self._connect()
            health = health_pb2_grpc.HealthStub(self.channel)
            answer = await health.Check(  # type: ignore[attr-defined]  # the stubs lack it
                health_pb2.HealthCheckRequest(), timeout=READY_SECONDS_MAX, wait_for_ready=True
            )
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        except BaseException:
            await self.kill()
            raise
        self.starts += 1

    async def kill(self) -> None:
        """`kill -9`."""
        await self.end(signal.SIGKILL)

    async def end(self, how: signal.Signals) -> int:
        """Send the signal and wait for the end. Returns the exit code, or minus the signal's number."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(how)
        return await self.ended()

    async def ended(self) -> int:
        """Wait until the process has ended."""
        process, reader = self._process, self._reader
        assert process is not None
        assert reader is not None
        try:
            code = await asyncio.wait_for(process.wait(), END_SECONDS_MAX)
        except TimeoutError as error:
            process.kill()
            await process.wait()
            raise ServerFailed(
                f"the server did not end within {END_SECONDS_MAX} s:\n{self.log_text()}"
            ) from error
        self.down_since = time.monotonic()
        self._process = None
        await reader
        return code

    async def freeze(self, seconds: float) -> None:
        """Send SIGSTOP, and SIGCONT after `seconds`."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)
        began = time.monotonic()
        await asyncio.sleep(seconds)
        self.outages.append(Outage(began, time.monotonic(), STEP_MS_MAX))
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def close(self) -> None:
        """Kill the process, however the test ended."""
        if self._process is not None:
            await self.kill()
        await self.disconnect()

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server does not run"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def log_text(self) -> str:
        return "\n".join(self.log)

    # -- use

    async def disconnect(self) -> None:
        """Close the channel, because another process may get the port of one that has ended."""
        if self.address:
            self.address = ""
            await self.channel.close()

    repeats_calls = False

    def listening_ms(self, since: float, until: float) -> float:
        """Return the most of this time that can have passed on the server's observed clock."""
        passed_ms = (until - since) * 1_000 + ROUNDING_MS
        for outage in self.outages:
            lost_ms = (min(until, outage.ended) - max(since, outage.began)) * 1_000
            passed_ms -= max(0, lost_ms - outage.counted_ms_max)
        return passed_ms

    def make_channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self.address)

    def _connect(self) -> None:
        self.channel = self.make_channel()
        self.liveness = service_pb2_grpc.LivenessServiceStub(self.channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self.channel)
        self.progress = progress_service_pb2_grpc.ProgressServiceStub(self.channel)

    async def _read(self, process: asyncio.subprocess.Process, address: asyncio.Future[str]) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            text = line.decode(errors="replace").rstrip()
            self.log.append(text)
            if '"serving"' in text and not address.done():
                address.set_result(json.loads(text)["address"])
        if not address.done():
            address.set_exception(ServerFailed(f"the server ended before it served:\n{self.log_text()}"))
