"""systemd's notification protocol: datagrams of lines `NAME=value`, sent to the socket that NOTIFY_SOCKET names.

Each process has its own socket with an abstract address, so that a process of another user reaches it as well and nothing is
left on disk. Everybody in the network namespace can send to such an address. A datagram counts only if the kernel says that it
comes from the user of the process or from root, and, as long as its sender lives, from the session, the group or a descendant of
the process. A sender that has already ended (`systemd-notify` in a script) cannot be looked up any more and counts by its user
alone: who has the user of a process could also end it.
"""

from __future__ import annotations

import array
import os
import secrets
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

from liveness.supervisor.process_identity import parent_of, session_and_group_of

DATAGRAM_BYTES_MAX = 4_096
DATAGRAMS_PER_TURN = 64
DESCRIPTORS_MAX = 64
ANCESTORS_MAX = 64
STATUS_CHARS_MAX = 1_000

_CREDENTIALS = struct.Struct("iII")


class NotifyMessage(NamedTuple):
    pid: int = 0
    """Who sent it."""
    ready: bool = False
    watchdog: bool = False
    """It is alive, and wants to be watched from now on."""
    watchdog_failed: bool = False
    """It asks to be treated as if its watchdog had run out."""
    stopping: bool = False
    reloading: bool = False
    status: str | None = None
    main_pid: int | None = None
    errno: int | None = None
    extend_timeout_usec: int | None = None


class NotifySocket:
    def __init__(self, uid: int) -> None:
        """`uid`: the user of the process."""
        self._uid = uid
        self._name = f"liveness-notify-{secrets.token_hex(16)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(f"\0{self._name}")
        self.refused = 0
        """How many datagrams did not count."""

    @property
    def address(self) -> str:
        """For NOTIFY_SOCKET."""
        return f"@{self._name}"

    def fileno(self) -> int:
        return self._socket.fileno()

    def read(self, pid: int) -> Iterator[NotifyMessage]:
        """Yield what has arrived from the process `pid` and its descendants, up to a limit per call."""
        for _ in range(DATAGRAMS_PER_TURN):
            try:
                data, ancillary, flags, _ = self._socket.recvmsg(
                    DATAGRAM_BYTES_MAX,
                    socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(4 * DESCRIPTORS_MAX),
                    socket.MSG_CMSG_CLOEXEC,
                )
            except OSError:
                return
            sender = _sender_of(ancillary)
            if sender is None or flags & socket.MSG_TRUNC or not self._counts(*sender, pid):
                self.refused += 1
            else:
                yield parse_message(data, sender[0])

    def close(self) -> None:
        self._socket.close()

    def _counts(self, sender: int, uid: int, pid: int) -> bool:
        if uid not in (self._uid, 0):
            return False
        belongs = session_and_group_of(sender)
        return belongs is None or pid in belongs or _is_descendant(sender, pid)


def parse_message(data: bytes, pid: int = 0) -> NotifyMessage:
    """Unknown names and values that are none are left out, as systemd does."""
    fields: dict[str, str] = {}
    for line in data.decode(errors="replace").splitlines():
        name, equals, value = line.partition("=")
        if equals:
            fields[name] = value
    status = fields.get("STATUS")
    return NotifyMessage(
        pid=pid,
        ready=fields.get("READY") == "1",
        watchdog=fields.get("WATCHDOG") == "1",
        watchdog_failed=fields.get("WATCHDOG") == "trigger",
        stopping=fields.get("STOPPING") == "1",
        reloading=fields.get("RELOADING") == "1",
        status=None if status is None else status.replace("\0", "")[:STATUS_CHARS_MAX],
        main_pid=_number(fields.get("MAINPID")),
        errno=_number(fields.get("ERRNO")),
        extend_timeout_usec=_number(fields.get("EXTEND_TIMEOUT_USEC")),
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 19 else None


def _sender_of(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, int] | None:
    """Return process and user of the sender. Closes descriptors that came along: the sender of BARRIER=1 waits for that."""
    sender = None
    for level, kind, data in ancillary:
        if level != socket.SOL_SOCKET:
            continue
        if kind == socket.SCM_RIGHTS:
            descriptors = array.array("i")
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
            for descriptor in descriptors:
                os.close(descriptor)
        elif kind == socket.SCM_CREDENTIALS and len(data) >= _CREDENTIALS.size:
            pid, uid, _ = _CREDENTIALS.unpack_from(data)
            sender = (pid, uid)
    return sender


def _is_descendant(pid: int, ancestor: int) -> bool:
    current: int | None = pid
    for _ in range(ANCESTORS_MAX):
        if current == ancestor:
            return True
        if not current:
            return False
        current = parent_of(current)
    return False
