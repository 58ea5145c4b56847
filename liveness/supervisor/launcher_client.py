"""The supervisor's side of the launcher: starts it, sends requests, passes the ends of processes on.

If the launcher is lost, the kernel sends its children SIGTERM. From then on each is watched by a descriptor of its own; its exit
code cannot be known any more. What still runs after the limit is killed, found by the mark in its environment.
"""

from __future__ import annotations

import array
import asyncio
import errno
import json
import logging
import os
import pwd
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from liveness.supervisor.process_identity import open_process, signal_marked
from liveness.templated_error import TemplatedError

logger = logging.getLogger("liveness.supervisor")

PROGRAM = Path(__file__).with_name("launcher.py")
RUN_PROGRAM = "import sys; sys.path.append(sys.argv[1]); import launcher; launcher.main()"
"""Imported as a module of no package: compiled only once, which spares 20 ms and a megabyte, and without the rest of us."""
GRACE_S = 10.0
PACKET_BYTES_MAX = 65_536
PACKETS_PER_TURN = 64


class CannotSpawn(TemplatedError):
    template = "The process was not started: {text}."

    number: int
    """The operating system's error number, such as 2 for a command that does not exist."""
    text: str


class LauncherLost(TemplatedError):
    template = "The launcher has ended."


class ProcessSpec(NamedTuple):
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """The whole environment."""
    mark: str
    """The name of the variable by which descendants of the process are found. Its value must be the process's own."""
    cwd: str = "/"
    user: str = ""
    """Empty for the supervisor's own."""
    umask: int = 0o022
    pid_variables: tuple[str, ...] = ()
    """Variables that shall hold the id of the process."""


class Descriptors(NamedTuple):
    """What a process gets as 1, 2, 3 and 4."""

    stdout: int
    stderr: int
    health: int
    control: int


class Ending(NamedTuple):
    code: int | None
    """None if a signal ended it, or if nobody saw how it ended."""
    signal: int = 0


class LaunchedProcess(NamedTuple):
    id: int
    """The launcher's name for it. Never used again, unlike the process id."""
    pid: int
    start_ticks: int


class _Running(NamedTuple):
    process: LaunchedProcess
    mark: bytes
    on_exit: Callable[[Ending], None]


class _Spawn(NamedTuple):
    answer: asyncio.Future[LaunchedProcess]
    mark: bytes
    on_exit: Callable[[Ending], None]


class Launcher:
    def __init__(
        self,
        connection: socket.socket,
        program: subprocess.Popen[bytes],
        grace_s: float,
        on_lost: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._program = program
        self._grace_s = grace_s
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._last_id = 0
        self._requests: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._spawns: dict[int, _Spawn] = {}
        self._running: dict[int, _Running] = {}
        self._orphans: dict[int, _Running] = {}
        """What a lost launcher left behind, by descriptor."""
        self._orphans_ended = asyncio.Event()
        self._orphans_ended.set()
        self._is_closing = False
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(connection, self._receive)

    @classmethod
    async def start(cls, grace_s: float = GRACE_S, on_lost: Callable[[], None] = lambda: None) -> Launcher:
        """Start the program. `grace_s`: how long processes may take to end after the supervisor has. `on_lost`: called if
        the program ends by itself."""
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own.setblocking(False)
        with other:
            program = _start_program(other.fileno(), grace_s)
        return cls(own, program, grace_s, on_lost)

    @property
    def pid(self) -> int:
        return self._program.pid

    @property
    def is_lost(self) -> bool:
        return self._ended.done() and not self._is_closing

    async def spawn(
        self, spec: ProcessSpec, descriptors: Descriptors, on_exit: Callable[[Ending], None]
    ) -> LaunchedProcess:
        """Start a process. The caller keeps its descriptors open until this returns. `on_exit` is called once, after this
        has returned, and never if this raises."""
        if self._is_closing or self._ended.done():
            raise LauncherLost
        specification = os.memfd_create("specification")
        self._last_id += 1
        id = self._last_id
        answer: asyncio.Future[LaunchedProcess] = self._loop.create_future()
        mark = os.fsencode(f"{spec.mark}={spec.env[spec.mark]}")
        try:
            os.write(specification, _encode(spec, mark))
            self._spawns[id] = _Spawn(answer, mark, on_exit)
            self._request({"do": "spawn", "id": id}, (specification, *descriptors))
            return await answer
        except asyncio.CancelledError:
            self._abandon(id)
            raise
        finally:
            os.close(specification)
            self._spawns.pop(id, None)

    def signal(self, process: LaunchedProcess, number: int, *, whole_group: bool = True) -> None:
        """Send a signal. Does nothing if the process has ended, even if its id is in use again."""
        if process.id in self._running and not self._ended.done():
            self._request({"do": "signal", "id": process.id, "signal": number, "group": whole_group})

    def note_watching(self, process: LaunchedProcess) -> None:
        """The process notices by itself when this one has died, and needs no signal then to end its work."""
        if process.id in self._running and not self._ended.done():
            self._request({"do": "watches", "id": process.id})

    def change_grace(self, grace_s: float) -> None:
        self._grace_s = grace_s
        if not self._ended.done():
            self._request({"do": "grace", "seconds": grace_s})

    async def close(self) -> None:
        """End all processes (SIGTERM, the limit, SIGKILL) and the program. Ends are still passed on."""
        if not self._is_closing:
            self._is_closing = True
            if not self._ended.done():
                self._request({"do": "end"})
        await asyncio.shield(self._ended)
        await self._orphans_ended.wait()
        await _wait_for(self._program)

    def _abandon(self, id: int) -> None:
        """Nobody waits for this process any more: it must not run."""
        waiting = [request for request in self._requests if json.loads(request[0]).get("id") == id]
        if waiting:
            self._requests.remove(waiting[0])
        elif not self._ended.done() and not self._is_closing:
            self._running.pop(id, None)
            self._request({"do": "signal", "id": id, "signal": 9, "group": True})

    def _request(self, request: Mapping[str, object], descriptors: Sequence[int] = ()) -> None:
        self._requests.append((json.dumps(request).encode(), tuple(descriptors)))
        if len(self._requests) == 1:
            self._send()

    def _send(self) -> None:
        while self._requests:
            packet, descriptors = self._requests[0]
            passed = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
            try:
                self._connection.sendmsg([packet], [passed] if descriptors else [])
            except BlockingIOError:
                self._loop.add_writer(self._connection, self._send)
                return
            except OSError:
                self._requests.clear()  # the program has ended; the reader notices, too
                break
            self._requests.popleft()
        self._loop.remove_writer(self._connection)

    def _receive(self) -> None:
        for _ in range(PACKETS_PER_TURN):
            try:
                packet = self._connection.recv(PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            except ConnectionError:
                packet = b""
            if not packet:
                self._on_end()
                return
            self._on_event(json.loads(packet))

    def _on_event(self, event: dict[str, Any]) -> None:
        id, kind = event["id"], event["event"]
        if kind == "exited":
            if (running := self._running.pop(id, None)) is not None:
                self._loop.call_soon(running.on_exit, Ending(event["code"], event["signal"]))
            return
        spawn = self._spawns.pop(id, None)
        if spawn is None or spawn.answer.done():
            return
        if kind == "spawned":
            process = LaunchedProcess(id, event["pid"], event["start_ticks"])
            self._running[id] = _Running(process, spawn.mark, spawn.on_exit)
            spawn.answer.set_result(process)
        else:
            spawn.answer.set_exception(CannotSpawn(number=event["errno"], text=event["text"]))

    def _on_end(self) -> None:
        self._loop.remove_reader(self._connection)
        self._loop.remove_writer(self._connection)
        self._connection.close()
        for spawn in self._spawns.values():
            if not spawn.answer.done():
                spawn.answer.set_exception(LauncherLost())
        self._ended.set_result(None)
        if not self._is_closing or self._running:
            self._watch_orphans()
        if not self._is_closing:
            logger.error("the launcher has ended; %s processes are ended, too", len(self._running))
            self._on_lost()

    def _watch_orphans(self) -> None:
        orphans, self._running = tuple(self._running.values()), {}
        for orphan in orphans:
            descriptor = open_process(orphan.process.pid, orphan.process.start_ticks)
            if descriptor is None:
                self._loop.call_soon(orphan.on_exit, Ending(None))
            else:
                signal.pidfd_send_signal(descriptor, signal.SIGTERM)  # not all get one from the kernel
                self._orphans[descriptor] = orphan
                self._orphans_ended.clear()
                self._loop.add_reader(descriptor, self._on_orphan_end, descriptor)
        marks = {orphan.mark for orphan in orphans}
        if self._orphans:
            self._loop.call_later(self._grace_s, signal_marked, marks)
        elif marks:
            signal_marked(marks)

    def _on_orphan_end(self, descriptor: int) -> None:
        orphan = self._orphans.pop(descriptor)
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
        signal_marked((orphan.mark,))
        self._loop.call_soon(orphan.on_exit, Ending(None))
        if not self._orphans:
            self._orphans_ended.set()


def account_of(user: str) -> pwd.struct_passwd:
    """Raises CannotSpawn if there is none."""
    try:
        return pwd.getpwnam(user)
    except KeyError:
        raise CannotSpawn(number=errno.EINVAL, text=f"there is no user {user}") from None


def account_variables(user: str) -> dict[str, str]:
    """Return the variables that a login would set for this user."""
    account = account_of(user)
    return {"HOME": account.pw_dir, "LOGNAME": user, "SHELL": account.pw_shell, "USER": user}


def _start_program(descriptor: int, grace_s: float) -> subprocess.Popen[bytes]:
    """In a session of its own: signals to the supervisor's group must not end the parent of all its processes."""
    arguments = (str(PROGRAM.parent), str(descriptor), str(grace_s), str(os.getpid()))
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", RUN_PROGRAM, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(descriptor,),
        start_new_session=True,
        cwd="/",
    )


async def _wait_for(program: subprocess.Popen[bytes]) -> None:
    try:
        descriptor = os.pidfd_open(program.pid)
    except ProcessLookupError:
        descriptor = -1
    if descriptor >= 0:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
    program.wait()


def _encode(spec: ProcessSpec, mark: bytes) -> bytes:
    uid = gid = None
    groups: list[int] = []
    if spec.user:
        account = account_of(spec.user)
        uid, gid = account.pw_uid, account.pw_gid
        groups = os.getgrouplist(spec.user, gid)
    return json.dumps(
        {
            "argv": [_latin(argument) for argument in spec.argv],
            "env": {_latin(name): _latin(value) for name, value in spec.env.items()},
            "cwd": _latin(spec.cwd),
            "umask": spec.umask,
            "uid": uid,
            "gid": gid,
            "groups": groups,
            "mark": mark.decode("latin-1"),
            "pid_variables": list(spec.pid_variables),
        }
    ).encode()


def _latin(text: str) -> str:
    """The bytes of `text` as characters: the launcher may use another encoding for names than this process."""
    return os.fsencode(text).decode("latin-1")
