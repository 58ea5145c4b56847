"""A stopping server leaves what arrives on its connections unread."""

from __future__ import annotations

import select
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from liveness.server.accepted_sockets import AcceptedSockets

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux lists open files and honours the mark"
)


class Listener:
    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._socket = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.port: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()

    def connection(self) -> Connection:
        client = self._stack.enter_context(socket.create_connection(("127.0.0.1", self.port)))
        accepted, _ = self._socket.accept()
        return Connection(client, self._stack.enter_context(accepted))


class Connection:
    def __init__(self, client: socket.socket, accepted: socket.socket) -> None:
        self._client = client
        self._accepted = accepted
        self._epoll = select.epoll()
        self._epoll.register(accepted, select.EPOLLIN)

    def send(self) -> None:
        """Return when the bytes have arrived."""
        self._client.sendall(b"a call")
        while True:
            # A receive that may block waits for the mark as well.
            with suppress(BlockingIOError):
                self._accepted.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
                return

    @property
    def wakes_its_reader(self) -> bool:
        return bool(self._epoll.poll(0))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_connections_old_and_new_are_not_read_until_reading_resumes(stack: ExitStack) -> None:
    listener = Listener(stack)
    old = listener.connection()
    sockets = AcceptedSockets(listener.port)

    assert sockets.stop_reading()

    new = listener.connection()
    for connection in (old, new):
        connection.send()
        assert not connection.wakes_its_reader
    listener.close()  # as gRPC does when it stops
    sockets.resume_reading()
    assert old.wakes_its_reader
    assert new.wakes_its_reader


def test_other_listeners_of_the_process_go_on(stack: ExitStack) -> None:
    stopping, other = Listener(stack), Listener(stack)
    connection = other.connection()

    assert AcceptedSockets(stopping.port).stop_reading()

    connection.send()
    assert connection.wakes_its_reader


def test_a_port_without_listener_is_reported(stack: ExitStack) -> None:
    listener = Listener(stack)
    connection = listener.connection()

    assert not AcceptedSockets(1).stop_reading()

    connection.send()
    assert connection.wakes_its_reader
