"""One running process: its pipes, its notify socket, its output, its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from liveness.clock import Clock
from liveness.domain.component import LAST_LINES_MAX, LINE_CHARS_MAX, ProcessExit
from liveness.supervisor.health_pipe import READ_BYTES_MAX, HealthFrame, HealthParser
from liveness.supervisor.launcher_client import (
    Descriptors,
    Ending,
    LaunchedProcess,
    Launcher,
    ProcessSpec,
    account_of,
)
from liveness.supervisor.notify_socket import NotifyMessage, NotifySocket
from liveness.supervisor.output_log import READ_BYTES_MAX as OUTPUT_BYTES_MAX
from liveness.supervisor.output_log import OutputLog

MARK = "LIVENESS_SESSION_ID"
HEALTH_DESCRIPTOR = 3
CONTROL_DESCRIPTOR = 4
CONTROL_BYTES_MAX = 4_096
"""PIPE_BUF: the kernel writes so many bytes at once or not at all."""
PIPE_BYTES_MAX = 1_048_576
"""No pipe holds more, unless root widened it."""
DRAIN_S = 0.1
"""How long the end of a process waits for output of what it left behind, which has been killed."""
CLOSED_S = 0.25
"""How long a closed health pipe waits for the news that the process has ended: an ending process closes its pipes first."""


class ChildListener(Protocol):
    """Called in the event loop. `on_exit` is the last call."""

    def on_frame(self, frame: HealthFrame) -> None: ...

    def on_malformed(self, reason: str, count: int) -> None:
        """`count`: how many lines, since the last call."""

    def on_health_closed(self) -> None:
        """The process closed a health pipe on which it had sent frames, and goes on."""

    def on_notify(self, message: NotifyMessage) -> None: ...

    def on_exit(self, ended: ProcessExit) -> None: ...


class ChildSpec(NamedTuple):
    component_id: str
    session_id: str
    """Must never be used again: what a process leaves behind is found by it."""
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """The whole environment, but for the variables that say how to reach the supervisor."""
    cwd: str = "/"
    user: str = ""
    umask: int = 0o022
    control: Mapping[str, object] | None = None
    """The state to tell it, before it runs."""
    watchdog_s: float = 0.0
    """If more than 0, the process is asked to send WATCHDOG=1 at least this often."""


class Child:
    def __init__(
        self, spec: ChildSpec, launcher: Launcher, output: OutputLog, listener: ChildListener, clock: Clock
    ) -> None:
        self.spec = spec
        self.started_ms = 0
        """Wall time."""
        self.control_dropped = 0
        """How many control lines were replaced by a newer one, or refused, before the process read them."""
        self.health_lines = 0
        self._launcher = launcher
        self._output = output
        self._listener = listener
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._process: LaunchedProcess | None = None
        self._parser = HealthParser(spec.component_id)
        self._has_sent_frames = False
        self._closed_timer: asyncio.TimerHandle | None = None
        self._notify = NotifySocket(account_of(spec.user).pw_uid if spec.user else os.getuid())
        self._health = self._control = -1
        self._streams: dict[int, str] = {}
        """The reading ends of stdout ("o") and stderr ("e")."""
        self._unsent = b""
        self._ending: Ending | None = None
        self._drain_timer: asyncio.TimerHandle | None = None
        self._ended: asyncio.Future[ProcessExit] = self._loop.create_future()

    @classmethod
    async def start(
        cls, spec: ChildSpec, launcher: Launcher, output: OutputLog, listener: ChildListener, clock: Clock
    ) -> Child:
        """Start the process. Raises CannotSpawn or LauncherLost; then the listener is never called."""
        child = cls(spec, launcher, output, listener, clock)
        try:
            await child._spawn()
        except BaseException:
            child._close()
            raise
        return child

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def start_ticks(self) -> int:
        """When it was started, in clock ticks since the machine was. With the process id it names the process for ever."""
        assert self._process is not None
        return self._process.start_ticks

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._ending is None

    def signal(self, number: int, *, whole_group: bool = True) -> None:
        """Does nothing after the process has ended."""
        if self.is_running:
            assert self._process is not None
            self._launcher.signal(self._process, number, whole_group=whole_group)

    def send_control(self, state: Mapping[str, object]) -> None:
        """Tell the process its whole state. If it does not read, only the newest state waits for it."""
        line = f"CONTROL|{json.dumps(state)}\n".encode()
        if len(line) > CONTROL_BYTES_MAX:
            raise ValueError(f"a control line has at most {CONTROL_BYTES_MAX} bytes")
        if self._control < 0:
            self.control_dropped += 1
            return
        if self._unsent:
            self.control_dropped += 1
        self._unsent = line
        self._write_control()

    async def wait(self) -> ProcessExit:
        """Wait until the listener was told of the end."""
        return await asyncio.shield(self._ended)

    async def _spawn(self) -> None:
        spec = self.spec
        given: list[int] = []
        try:
            for stream in ("o", "e"):
                reading, writing = os.pipe()
                self._streams[reading] = stream
                given.append(writing)
            self._health, health_end = os.pipe()
            given.append(health_end)
            control_end, self._control = os.pipe()
            given.append(control_end)
            for descriptor in (*self._streams, self._health, self._control):
                os.set_blocking(descriptor, False)
            if spec.control is not None:
                self.send_control(spec.control)
            env = {
                **spec.env,
                "LIVENESS_COMPONENT_ID": spec.component_id,
                MARK: spec.session_id,
                "LIVENESS_HEALTH_FD": str(HEALTH_DESCRIPTOR),
                "LIVENESS_CONTROL_FD": str(CONTROL_DESCRIPTOR),
                "NOTIFY_SOCKET": self._notify.address,
            }
            env.pop("WATCHDOG_USEC", None)  # the supervisor's own, if systemd watches it
            env.pop("WATCHDOG_PID", None)
            pid_variables: tuple[str, ...] = ()
            if spec.watchdog_s > 0:
                env["WATCHDOG_USEC"] = str(round(spec.watchdog_s * 1_000_000))
                pid_variables = ("WATCHDOG_PID",)
            process_spec = ProcessSpec(spec.argv, env, MARK, spec.cwd, spec.user, spec.umask, pid_variables)
            self._process = await self._launcher.spawn(process_spec, Descriptors(*given), self._on_end)
        finally:
            for descriptor in given:
                os.close(descriptor)
        self.started_ms = self._clock.wall_ms()
        for descriptor in self._streams:
            self._loop.add_reader(descriptor, self._read_output, descriptor)
        self._loop.add_reader(self._health, self._read_health)
        self._loop.add_reader(self._notify, self._read_notify)

    def _read_output(self, descriptor: int) -> int:
        """Return how many bytes there were."""
        data = _read(descriptor, OUTPUT_BYTES_MAX)
        if data:
            self._output.write(self._streams[descriptor], data)
        elif data is not None:
            del self._streams[descriptor]
            self._close_descriptor(descriptor)
            self._finish_if_drained()
        return len(data or b"")

    def _read_health(self) -> int:
        """Bounded, so that a process that floods its pipe has its turn like the others. Returns how many bytes there were."""
        parts = []
        room = READ_BYTES_MAX
        part: bytes | None = None
        while room > 0 and (part := _read(self._health, room)):
            parts.append(part)
            room -= len(part)
        parsed = self._parser.feed(b"".join(parts))
        self.health_lines += parsed.lines
        for reason, count in parsed.malformed.items():
            self._listener.on_malformed(reason, count)
        if parsed.frame is not None:
            if not self._has_sent_frames and self._process is not None:
                self._launcher.note_watching(self._process)
            self._has_sent_frames = True
            self._listener.on_frame(parsed.frame)
        if part == b"":
            self._close_descriptor(self._health)
            self._health = -1
            if self._has_sent_frames and self._ending is None:
                self._closed_timer = self._loop.call_later(CLOSED_S, self._listener.on_health_closed)
            self._finish_if_drained()
        return READ_BYTES_MAX - room

    def _read_notify(self) -> None:
        for message in self._notify.read(self.pid):
            self._listener.on_notify(message)

    def _write_control(self) -> None:
        try:
            os.write(self._control, self._unsent)
        except BlockingIOError:
            self._loop.add_writer(self._control, self._write_control)
            return
        except OSError:
            self.control_dropped += 1  # it has closed its end
        self._unsent = b""
        self._loop.remove_writer(self._control)

    def _on_end(self, ending: Ending) -> None:
        self._ending = ending
        if self._closed_timer is not None:
            self._closed_timer.cancel()
        self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        """Read what is left, and wait a moment for those who still hold a pipe."""
        self._drain_timer = self._loop.call_later(DRAIN_S, self._finish)
        self._read_notify()
        for descriptor in tuple(self._streams):
            left = PIPE_BYTES_MAX
            while left > 0 and (count := self._read_output(descriptor)):
                left -= count
        left = PIPE_BYTES_MAX
        while self._health >= 0 and left > 0 and (count := self._read_health()):
            left -= count
        self._finish_if_drained()

    def _finish_if_drained(self) -> None:
        if self._drain_timer is not None and not self._streams and self._health < 0:
            self._finish()

    def _finish(self) -> None:
        if self._ended.done():
            return
        assert self._ending is not None
        assert self._drain_timer is not None
        self._drain_timer.cancel()
        self._output.end_lines()
        self._close()
        lines = tuple(line[:LINE_CHARS_MAX] for line in self._output.tail(LAST_LINES_MAX))
        ended = ProcessExit(self._ending.code, signal_name(self._ending.signal), self._clock.wall_ms(), lines)
        self._ended.set_result(ended)
        self._listener.on_exit(ended)

    def _close(self) -> None:
        for descriptor in (*self._streams, self._health, self._control):
            if descriptor >= 0:
                self._close_descriptor(descriptor)
        self._streams.clear()
        self._health = self._control = -1
        self._loop.remove_reader(self._notify)
        self._notify.close()

    def _close_descriptor(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        self._loop.remove_writer(descriptor)
        os.close(descriptor)


def signal_name(number: int) -> str:
    """Such as SIGKILL; empty for none."""
    if number == 0:
        return ""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}" if number >= signal.SIGRTMIN else f"signal {number}"


def _read(descriptor: int, size: int) -> bytes | None:
    """None: nothing has arrived; empty: nothing will."""
    try:
        return os.read(descriptor, size)
    except BlockingIOError:
        return None
    except OSError:
        return b""
