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

    def stop_reading(self) -> bool:
        """Leave what arrives from now on unread. Returns whether this system can do so."""
        return self._set_low_water_mark(NEVER)

    def resume_reading(self) -> None:
        self._set_low_water_mark(AT_ONCE)

    def _set_low_water_mark(self, mark: int) -> bool:
        """Set it for listeners first: connections that are accepted meanwhile inherit it."""
        listening = set()
        for opened in self._sockets():
            if opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark)
                listening.add(opened.getsockname()[:2])
        for opened in self._sockets():
            name = opened.getsockname()[:2]
            # Another listener of this process may have the same port at another address.
            if name in listening or listening & {("0.0.0.0", self._port), ("::", self._port)}:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark)
        return bool(listening)

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
