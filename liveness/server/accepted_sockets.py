"""Stops gRPC from reading the connections of a listener, which gRPC itself cannot do.

A socket wakes its reader only when as many bytes wait as its low-water mark (SO_RCVLOWAT) says. Linux honours the mark in
epoll, and accepted connections inherit it from their listener. The sockets are gRPC's own, so they are found among the
open files of this process. On other systems nothing is found, and gRPC goes on reading.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

OPEN_FILES = Path("/proc/self/fd")
NEVER = 1 << 30
"""More bytes than a socket's buffer holds. Linux lowers the mark to half of the largest buffer (3 MiB by default)."""
AT_ONCE = 1


class AcceptedSockets:
    """The listening sockets at a port of this process, and the connections that they accepted."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._names: set[tuple[str, int]] = set()
        """The addresses of the listening sockets. They are closed before reading resumes."""

    def stop_reading(self) -> bool:
        """Leave what arrives from now on unread. Returns whether this system can do so."""
        # Listeners first: connections that are accepted meanwhile inherit the mark.
        for opened in self._sockets():
            if opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, NEVER)
                self._names.add(opened.getsockname()[:2])
        self._set_low_water_mark(NEVER)
        return bool(self._names)

    def resume_reading(self) -> None:
        self._set_low_water_mark(AT_ONCE)

    def _set_low_water_mark(self, mark: int) -> None:
        # Another listener of this process may have the same port at another address.
        is_wildcard = bool(self._names & {("0.0.0.0", self._port), ("::", self._port)})
        for opened in self._sockets():
            if is_wildcard or opened.getsockname()[:2] in self._names:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark)

    def _sockets(self) -> Iterator[socket.socket]:
        """Each socket with this port at its own end.

        Each is a duplicate that is closed again at once: gRPC may close the original at any time, and its number may
        then mean another file.
        """
        try:
            descriptors = [int(entry.name) for entry in OPEN_FILES.iterdir()]
        except OSError:
            return
        for descriptor in descriptors:
            duplicate = _duplicate_socket(descriptor)
            if duplicate is None:
                continue
            with duplicate:
                is_tcp = duplicate.family in (socket.AF_INET, socket.AF_INET6)
                if is_tcp and duplicate.getsockname()[1] == self._port:
                    yield duplicate


def _duplicate_socket(descriptor: int) -> socket.socket | None:
    try:
        duplicate = os.dup(descriptor)
    except OSError:
        return None  # closed meanwhile
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        return None
