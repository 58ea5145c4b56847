"""The program that starts a supervisor's processes and is their parent. It uses the standard library only.

It has one thread, so a fork is safe in it, and knows nothing but process ids. `launcher_client.py` starts it and holds the
other end of its socket. Each packet is a JSON object; texts of the operating system travel as Latin-1, byte by byte.

    spawn    {"do": "spawn", "id": 1}, with descriptors: the specification (a file), stdout, stderr, health, control
    signal   {"do": "signal", "id": 1, "signal": 15, "group": true}
    watches  {"do": "watches", "id": 1}
    grace    {"do": "grace", "seconds": 10}
    end      {"do": "end"}
    spawned  {"event": "spawned", "id": 1, "pid": 77, "start_ticks": 123}
    failed   {"event": "spawn_failed", "id": 1, "errno": 2, "text": "..."}
    exited   {"event": "exited", "id": 1, "code": 3, "signal": 0}

Each process leads its own session. A process that ended keeps its id until its parent waits for it, so every id that is
signalled here is one of a child that was not waited for, and never another's.

What a process leaves behind is killed. The rest of its process group goes first, before the leader is waited for. Processes
that left the group are adopted by this program, because it is their nearest subreaper. They belong to the leader

- whose session they are in, or
- whose mark is in their environment, or
- whose pipes they hold open.

A process that has hidden all three (a daemon that cleared its environment and closed everything) might be of any leader that
ran when it was first seen and is not younger. It is killed when the last of these has ended.

When the supervisor dies, all groups get SIGTERM, after a limit SIGKILL, and this program ends. A leader that watches for the
supervisor's death itself has the limit to finish its work before SIGTERM, and once more before SIGKILL. If this program is
killed, the kernel sends SIGTERM to each leader that has not declined it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import select
import signal
import socket
import sys
from collections import deque

TYPE_CHECKING = False  # the module `typing` would cost a megabyte
if TYPE_CHECKING:
    from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

PACKET_BYTES_MAX = 65_536
DESCRIPTORS = 5
FIRST_FREE_DESCRIPTOR = 10
"""Above those that a child gets, so that none is overwritten before it was copied."""
REAPS_PER_TURN = 100
CHASES_MAX = 100
HISTORY_MAX = 1_000
FLUSH_S = 1.0
"""How long the last events may wait for a supervisor that does not read."""

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Leader:
    """A process that this program started, until it was waited for."""

    __slots__ = ("error", "error_pipe", "id", "mark", "pid", "pipes", "start_ticks", "watches")

    def __init__(self, id: int, pid: int, mark: bytes, pipes: frozenset[str], error_pipe: int) -> None:
        self.id = id
        self.pid = pid
        self.start_ticks = session_and_start_of(pid)[1]
        self.mark = mark
        self.pipes = pipes
        self.error_pipe = error_pipe
        """Its other end is closed by a successful exec. -1 after it was read."""
        self.error = b""
        self.watches = False
        """It notices the supervisor's death by itself."""


class Program:
    def __init__(self, connection: socket.socket, grace_s: float, supervisor_pid: int) -> None:
        self._connection = connection
        self._grace_s = grace_s
        self._supervisor_pid = supervisor_pid
        self._leaders: dict[int, Leader] = {}
        """By process id."""
        self._by_id: dict[int, Leader] = {}
        self._starting: dict[int, Leader] = {}
        """By error pipe."""
        self._owners: dict[int, set[int]] = {}
        """For each adopted process the ids of the leaders that it may belong to."""
        self._history: deque[Leader] = deque(maxlen=HISTORY_MAX)
        """Leaders that ended. Their session ids may be in use again; their marks and pipes are not."""
        self._events: deque[bytes] = deque()
        self._poll = select.poll()
        self._is_ending = False
        self._is_overdue = False
        self._alarms_left = 1

    def run(self) -> None:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        woken, wake = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGALRM, self._on_alarm)
        self._poll.register(woken, select.POLLIN)
        self._poll.register(self._connection, select.POLLIN)
        supervisor = self._watch_supervisor()
        while not (self._is_ending and self._is_childless()):
            for descriptor, _ in self._poll.poll():
                if descriptor == woken:
                    os.read(woken, PACKET_BYTES_MAX)
                elif descriptor == self._connection.fileno():
                    self._exchange()
                elif descriptor == supervisor:
                    self._poll.unregister(supervisor)
                    self._end()
                elif descriptor in self._starting:
                    self._read_error(self._starting[descriptor])
            if self._is_overdue:
                self._signal_all(signal.SIGKILL if self._alarms_left == 0 else signal.SIGTERM)
            self._reap()
            self._send()
        self._connection.settimeout(FLUSH_S)
        self._send(0)

    def _watch_supervisor(self) -> int:
        """Notice its death even if another process holds a copy of its end of the socket."""
        try:
            supervisor = os.pidfd_open(self._supervisor_pid)
        except OSError:
            return -1
        if os.getppid() == self._supervisor_pid:
            self._poll.register(supervisor, select.POLLIN)
        return supervisor

    def _on_alarm(self, number: int, frame: object) -> None:
        self._is_overdue = True
        self._alarms_left -= 1
        if self._alarms_left:
            self._set_alarm()

    def _set_alarm(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, max(self._grace_s, 0.001))

    def _exchange(self) -> None:
        if self._is_ending:
            return
        try:
            packet, ancillary, _, _ = self._connection.recvmsg(
                PACKET_BYTES_MAX,
                socket.CMSG_SPACE(4 * DESCRIPTORS),
                socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT,
            )
        except BlockingIOError:
            return  # only the way out was ready; `_send` follows
        except ConnectionError:
            packet, ancillary = b"", []
        descriptors = [
            int.from_bytes(data[at : at + 4], sys.byteorder)
            for _, _, data in ancillary
            for at in range(0, len(data), 4)
        ]
        if not packet:
            self._end()
        else:
            request = json.loads(packet)
            if request["do"] == "spawn":
                self._spawn(request["id"], descriptors)
            elif request["do"] == "signal":
                self._signal(request["id"], request["signal"], request["group"])
            elif request["do"] == "watches":
                if (leader := self._by_id.get(request["id"])) is not None:
                    leader.watches = True
            elif request["do"] == "grace":
                self._grace_s = request["seconds"]
            elif request["do"] == "end":
                for leader in self._leaders.values():
                    leader.watches = False
                self._end()
        for descriptor in descriptors:
            os.close(descriptor)

    def _spawn(self, id: int, descriptors: list[int]) -> None:
        try:
            size = os.fstat(descriptors[0]).st_size
            specification = json.loads(os.pread(descriptors[0], size, 0))
            mark = specification["mark"].encode("latin-1")
            pipes = frozenset(os.readlink(f"/proc/self/fd/{number}") for number in descriptors[1:])
            error_pipe, error_end = os.pipe()
        except (OSError, ValueError, LookupError) as error:
            self._report_failure(id, error)
            return
        every_signal = signal.valid_signals()
        signal.pthread_sigmask(
            signal.SIG_BLOCK, every_signal
        )  # a child must not miss one while it ignores it
        parent = os.getpid()
        try:
            pid = os.fork()
            if pid == 0:
                become(specification, descriptors[1:], error_end, parent)
        except OSError as error:
            os.close(error_pipe)
            self._report_failure(id, error)
        else:
            leader = Leader(id, pid, mark, pipes, error_pipe)
            self._leaders[pid] = self._by_id[id] = self._starting[error_pipe] = leader
            self._poll.register(error_pipe, select.POLLIN)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, every_signal)
            os.close(error_end)

    def _report_failure(self, id: int, error: Exception) -> None:
        number = error.errno if isinstance(error, OSError) else errno.EINVAL
        self._report({"event": "spawn_failed", "id": id, "errno": number, "text": str(error)})

    def _read_error(self, leader: Leader) -> None:
        """The pipe ends with the exec that succeeded, or with the process that could not."""
        if not (part := os.read(leader.error_pipe, PACKET_BYTES_MAX)):
            self._poll.unregister(leader.error_pipe)
            del self._starting[leader.error_pipe]
            os.close(leader.error_pipe)
            leader.error_pipe = -1
            if not leader.error:
                ticks = leader.start_ticks
                self._report({"event": "spawned", "id": leader.id, "pid": leader.pid, "start_ticks": ticks})
        leader.error += part

    def _signal(self, id: int, number: int, is_for_group: bool) -> None:
        leader = self._by_id.get(id)
        if leader is not None:
            (kill_group if is_for_group else kill)(leader.pid, number)

    def _signal_all(self, number: int) -> None:
        for pid in self._leaders:
            kill_group(pid, number)

    def _end(self) -> None:
        if self._is_ending:
            return
        self._is_ending = True
        self._poll.unregister(self._connection)
        for pid, leader in self._leaders.items():
            if leader.watches:
                self._alarms_left = 2
            else:
                kill_group(pid, signal.SIGTERM)
        self._signal_all(signal.SIGCONT)  # a stopped process could not end
        self._set_alarm()

    def _is_childless(self) -> bool:
        """Also kills what nobody owns any more."""
        if not self._leaders:
            for pid in adopted(self._leaders):
                kill(pid, signal.SIGKILL)
            try:
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return True
        return False

    def _reap(self) -> None:
        ended: list[Leader] = []
        reaped = 0
        while reaped < REAPS_PER_TURN:
            try:
                seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if seen is None:
                break
            reaped += 1
            leader = self._leaders.pop(seen.si_pid, None)
            if leader is not None:
                kill_group(leader.pid, signal.SIGKILL)
            os.waitpid(seen.si_pid, 0)
            self._owners.pop(seen.si_pid, None)
            if leader is not None:
                ended.append(leader)
                del self._by_id[leader.id]
                self._report_end(leader, seen.si_status, seen.si_code == os.CLD_EXITED)
        if reaped:
            self._sweep(ended)
            self._send()
            self._history.extend(ended)
        if reaped == REAPS_PER_TURN:
            signal.raise_signal(signal.SIGCHLD)  # there may be more: look again after the other events

    def _report_end(self, leader: Leader, status: int, has_code: bool) -> None:
        while leader.error_pipe >= 0:
            self._read_error(leader)
        if leader.error:
            number, _, text = leader.error.decode(errors="replace").partition(" ")
            self._report({"event": "spawn_failed", "id": leader.id, "errno": int(number), "text": text})
        else:
            code, killer = (status, 0) if has_code else (None, status)
            self._report({"event": "exited", "id": leader.id, "code": code, "signal": killer})

    def _sweep(self, ended: list[Leader]) -> None:
        """Kill adopted processes whose leaders have all ended. What they adopted themselves comes here when they are reaped.

        A new one is frozen while it is looked at: a chain of processes, each of which starts the next and ends, would run away
        meanwhile."""
        for _ in range(CHASES_MAX):
            orphans = adopted(self._leaders)
            new = [pid for pid in orphans if pid not in self._owners]
            for pid in new:
                kill(pid, signal.SIGSTOP)
            for pid in new:
                self._owners[pid] = self._possible_owners(pid, ended)
            for pid in orphans:
                if not self._owners[pid] & self._by_id.keys():
                    kill_group(pid, signal.SIGKILL)
                elif pid in new:
                    kill(pid, signal.SIGCONT)
            if not new:
                return

    def _possible_owners(self, pid: int, ended: list[Leader]) -> set[int]:
        session, start_ticks = session_and_start_of(pid)
        running = [*self._leaders.values(), *ended]
        known = [*running, *self._history]
        environment = set(read(f"/proc/{pid}/environ").split(b"\0"))
        pipes = pipes_of(pid)
        return (
            {leader.id for leader in running if leader.pid == session}
            or {leader.id for leader in known if leader.mark in environment}
            or {leader.id for leader in known if leader.pipes & pipes}
            or {leader.id for leader in running if leader.start_ticks <= start_ticks}
        )

    def _report(self, event: dict[str, object]) -> None:
        self._events.append(json.dumps(event).encode())

    def _send(self, flags: int = socket.MSG_DONTWAIT) -> None:
        """Send what the socket takes, and wait for room for the rest: a supervisor that does not read must not stop us."""
        while self._events:
            try:
                self._connection.send(self._events[0], flags)
            except BlockingIOError:
                break
            except OSError:
                self._events.clear()
                self._end()
                return
            self._events.popleft()
        if not self._is_ending:
            self._poll.modify(self._connection, select.POLLIN | (select.POLLOUT if self._events else 0))


def become(specification: dict[str, Any], descriptors: list[int], error_end: int, parent: int) -> None:
    """Turn this forked process into the wanted one. Never returns."""
    step = "start"
    try:
        os.setsid()
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        copies = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE_DESCRIPTOR) for number in descriptors]
        error_end = fcntl.fcntl(error_end, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE_DESCRIPTOR)
        for wanted, copy in enumerate(copies, start=1):  # 0 is /dev/null here, too
            os.dup2(copy, wanted)
        os.set_inheritable(0, True)
        step = "change the user"
        if specification["uid"] is not None:
            os.setgroups(specification["groups"])
            os.setgid(specification["gid"])
            os.setuid(specification["uid"])
        step = "change to the folder " + specification["cwd"]
        os.umask(specification["umask"])
        os.chdir(specification["cwd"].encode("latin-1"))
        step = "start"
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # a change of the user clears it
        if os.getppid() != parent:
            os._exit(127)
        environment = {
            name.encode("latin-1"): value.encode("latin-1") for name, value in specification["env"].items()
        }
        for name in specification["pid_variables"]:
            environment[name.encode("latin-1")] = str(os.getpid()).encode()
        arguments = [argument.encode("latin-1") for argument in specification["argv"]]
        step = "run " + specification["argv"][0]
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        execute(arguments, environment)
    except BaseException as error:  # noqa: BLE001 - whatever it is, this copy of the launcher must end
        cause = (isinstance(error, OSError) and error.errno) or errno.EINVAL
        text = error.strerror if isinstance(error, OSError) else str(error)
        os.write(error_end, f"{cause} cannot {step}: {text}".encode(errors="replace"))
    finally:
        os._exit(127)


def execute(arguments: list[bytes], environment: dict[bytes, bytes]) -> None:
    """Like execvp: a name without a slash is looked for in the folders of PATH."""
    name = arguments[0]
    if b"/" in name:
        os.execve(name, arguments, environment)
    refused: OSError | None = None
    for folder in environment.get(b"PATH", os.defpath.encode()).split(b":"):
        try:
            os.execve(folder + b"/" + name, arguments, environment)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            refused = error
    raise refused or FileNotFoundError(errno.ENOENT, "command not found")


def kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass  # it is gone, or became another user's


def kill_group(pid: int, number: int) -> None:
    """Signal the group that the process leads; only the process if it leads none (yet)."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        kill(pid, number)
    except OSError:
        pass


def adopted(leaders: dict[int, Leader]) -> list[int]:
    """Return the children of this program that it did not start. None leaves the list while it is read, because nobody else
    waits for them."""
    own = os.getpid()
    children = read(f"/proc/self/task/{own}/children").split()
    return [pid for pid in map(int, children) if pid not in leaders]


def session_and_start_of(pid: int) -> tuple[int, int]:
    """Return its session, and when it was started, in clock ticks since the machine was."""
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return (int(fields[3]), int(fields[19])) if fields else (0, 0)


def pipes_of(pid: int | str) -> set[str]:
    """Return what its descriptors mean; empty if it is another user's."""
    links = set()
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            links.add(os.readlink(f"/proc/{pid}/fd/{number}"))
    except OSError:
        pass
    return {link for link in links if link.startswith("pipe:")}


def read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def main() -> None:
    descriptor, grace_s, supervisor_pid = sys.argv[-3:]
    connection = socket.socket(fileno=int(descriptor))
    connection.set_inheritable(False)
    Program(connection, float(grace_s), int(supervisor_pid)).run()


if __name__ == "__main__":
    main()
