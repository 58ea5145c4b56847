"""A `liveness serve` process under more sockets than it has descriptors for: HTTP and gRPC go on, and the log stays short."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from liveness.v1.worker_pb2 import WorkerHeartbeat
from tests.integration.http.http_client import Client
from tests.system.cli.server_processes import child_process, first_address, heartbeat, liveness_command
from tests.system.http.test_process import BEAT

LOG_BYTES_MAX = 100_000
HALF = b"GET /healthz HTTP/1.1\r\nHost: a\r\n"


@contextmanager
def serving_with(folder: Path, soft: int, hard: int) -> Iterator[tuple[subprocess.Popen[str], str, Client]]:
    """Start a server with limits on its descriptors. Returns it with its gRPC address and its HTTP client."""
    flags = ("--listen", "127.0.0.1:0", "--shards", "2", "--http", "127.0.0.1:0")
    limits = f'ulimit -Sn {soft}; ulimit -Hn {hard}; exec "$@"'
    with child_process(
        ["/bin/sh", "-c", limits, "sh", *liveness_command("serve", *flags)], folder
    ) as process:
        assert process.stdout is not None
        address, _ = first_address(process.stdout)
        port = int(process.stdout.readline().strip().rstrip("/").rpartition(":")[2])
        yield process, address, Client(port)


def open_sockets(stack: ExitStack, port: int, count: int, data: bytes) -> None:
    for _ in range(count):
        opened = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
        opened.setblocking(False)
        try:
            opened.send(data)
        except OSError:
            pass  # closed already, which is the server's right


async def assert_serving(client: Client, address: str) -> None:
    for _ in range(3):
        assert (await client.ask("GET", "/healthz")).code == 200
        assert (await client.ask("GET", "/")).code == 200
        await client.post(BEAT.format("over-http"), {})
    await asyncio.to_thread(heartbeat, address, "orders", WorkerHeartbeat(worker_instance_key="over-grpc"))


def log_bytes(folder: Path) -> int:
    return (folder / "server.log").stat().st_size


async def test_thousands_of_half_requests_leave_the_server_usable(tmp_path: Path) -> None:
    with serving_with(tmp_path, 8_192, 8_192) as (_, address, client), ExitStack() as stack:
        await asyncio.to_thread(open_sockets, stack, client.port, 2_100, HALF)
        await assert_serving(client, address)
    assert log_bytes(tmp_path) < LOG_BYTES_MAX


async def test_more_sockets_than_descriptors_leave_the_server_usable(tmp_path: Path) -> None:
    with serving_with(tmp_path, 1_024, 1_024) as (_, address, client), ExitStack() as stack:
        await asyncio.to_thread(open_sockets, stack, client.port, 1_100, HALF)
        await assert_serving(client, address)
    assert log_bytes(tmp_path) < LOG_BYTES_MAX


async def refuses(client: Client) -> bool:
    try:
        await client.ask("GET", "/healthz")
    except (asyncio.IncompleteReadError, ConnectionError):
        return True
    return False


async def test_without_descriptors_connections_are_refused_and_the_log_stays_short(tmp_path: Path) -> None:
    """Sockets on the gRPC port take all descriptors; when they are closed, HTTP goes on."""
    with serving_with(tmp_path, 256, 256) as (_, address, client):
        port = int(address.rpartition(":")[2])
        was_refused = False
        for _ in range(10):
            # A busy server accepts them some time later, and gRPC closes connections on which nothing arrives: ask a few
            # times, and open them anew before this process has too many of its own.
            with ExitStack() as stack:
                await asyncio.to_thread(open_sockets, stack, port, 300, b"")
                await asyncio.to_thread(open_sockets, stack, client.port, 100, HALF)
                for _ in range(50):
                    if was_refused := await refuses(client):
                        break
                assert log_bytes(tmp_path) < LOG_BYTES_MAX
            if was_refused:
                break
        assert was_refused
        while await refuses(client):
            pass
        assert (await client.ask("GET", "/healthz")).code == 200
    assert "cannot accept an HTTP connection" in (tmp_path / "server.log").read_text()


async def test_the_server_raises_its_soft_limit_on_descriptors(tmp_path: Path) -> None:
    with serving_with(tmp_path, 300, 900) as (process, _, client):
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        [line] = [line for line in limits.splitlines() if line.startswith("Max open files")]
        assert line.split()[3:5] == ["900", "900"]
        assert (await client.ask("GET", "/healthz")).code == 200
