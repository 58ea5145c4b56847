"""Heartbeats of ten thousand registered components: over HTTP, over gRPC, and as an UPDATE of a table in PostgreSQL each, which is
what systems with a table of components do.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from time import perf_counter

import grpc

from bench.rounds import alternate, row
from bench.servers import ServerProcess, Unavailable
from liveness.v1.registry_service_pb2 import HeartbeatRequest, RegisterRequest
from liveness.v1.registry_service_pb2_grpc import RegistryServiceStub
from tests.databases import PostgresFailed, PostgresServer
from tests.free_ports import free_port

COMPONENTS = 10_000
AT_ONCE = 64
CONNECTIONS = 8
LEASE_S = 3_600
NAMESPACE = "noetl"
HTTP, GRPC, UPDATE = "HTTP", "gRPC", "PostgreSQL, one UPDATE"
BY_GRPC, BY_UPDATE = "registry, HTTP against gRPC", "registry, HTTP against PostgreSQL"
NAMES = {
    BY_GRPC: "heartbeats of 10,000 registered components over HTTP, against the same over gRPC",
    BY_UPDATE: "heartbeats of 10,000 registered components over HTTP, against one UPDATE per heartbeat in PostgreSQL",
}
TABLE = """
CREATE TABLE runtime (
    runtime_id bigint PRIMARY KEY, name text NOT NULL, kind text NOT NULL, status text NOT NULL, runtime jsonb,
    heartbeat timestamptz NOT NULL DEFAULT now(), updated_at timestamptz NOT NULL DEFAULT now(), UNIQUE (kind, name)
) WITH (fillfactor = 50)
"""
FILL = f"""
INSERT INTO runtime SELECT n, 'pool-' || n, 'worker_pool', 'ready', '{{"type": "cpu"}}'
FROM generate_series(0, {COMPONENTS - 1}) AS n
"""
SCRIPT = f"""\\set n random(0, {COMPONENTS - 1})
UPDATE runtime SET heartbeat = now(), updated_at = now() WHERE kind = 'worker_pool' AND name = 'pool-' || :n;
"""
NOTES = (
    "ours: SQLite, synchronous=FULL; every answer is on disk, and each heartbeat renews a lease that a timer watches",
    (
        f"load: {AT_ONCE} requests at a time on {CONNECTIONS} connections (HTTP: {AT_ONCE}), from one Python process; UPDATE: 16 "
        "connections of pgbench, straight to the database without a service in front"
    ),
)


class Components:
    """A server with its registered components, and clients of both kinds."""

    def __init__(self, server, http_port):
        self._server, self._http_port = server, http_port

    async def register(self):
        async with AsyncExitStack() as stack:
            stubs = await self._stubs(stack)
            numbers = iter(range(COMPONENTS))

            async def send(stub):
                for number in numbers:
                    request = RegisterRequest(
                        namespace=NAMESPACE, worker_instance_key=f"worker_pool:pool-{number}", session_id=f"host:{number}"
                    )  # fmt: skip
                    request.lease_duration.FromSeconds(LEASE_S)
                    await stub.Register(request, timeout=60)

            await asyncio.gather(*(send(stubs[sender % CONNECTIONS]) for sender in range(AT_ONCE)))

    async def _stubs(self, stack):
        channels = [
            await stack.enter_async_context(
                grpc.aio.insecure_channel(
                    self._server.address, options=[("grpc.use_local_subchannel_pool", 1)]
                )
            )
            for _ in range(CONNECTIONS)
        ]
        return [RegistryServiceStub(channel) for channel in channels]

    async def by_grpc(self, beats):
        """Return heartbeats per second."""
        async with AsyncExitStack() as stack:
            stubs = await self._stubs(stack)
            numbers = iter(range(beats))

            async def send(stub):
                for number in numbers:
                    await stub.Heartbeat(
                        HeartbeatRequest(
                            namespace=NAMESPACE,
                            worker_instance_key=f"worker_pool:pool-{number % COMPONENTS}",
                        ),
                        timeout=60,
                    )

            began = perf_counter()
            await asyncio.gather(*(send(stubs[sender % CONNECTIONS]) for sender in range(AT_ONCE)))
            return beats / (perf_counter() - began)

    async def by_http(self, beats):
        numbers = iter(range(beats))

        async def send():
            reader, writer = await asyncio.open_connection("127.0.0.1", self._http_port)
            for number in numbers:
                body = f'{{"name":"pool-{number % COMPONENTS}"}}'
                writer.write(
                    f"POST /api/worker/pool/heartbeat HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                    f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
                )
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head)
                if b" 200 " not in head or length is None:
                    raise SystemExit(f"a heartbeat over HTTP failed: {head.splitlines()[0]!r}")
                await reader.readexactly(int(length[1]))
            writer.close()

        began = perf_counter()
        await asyncio.gather(*(send() for _ in range(AT_ONCE)))
        return beats / (perf_counter() - began)


@contextmanager
def components():
    with tempfile.TemporaryDirectory() as folder:
        port, http_port = free_port(), free_port()
        command = [
            sys.executable, "-m", "liveness", "serve", "--db", f"sqlite:///{folder}/bench.db", "--listen", f"127.0.0.1:{port}",
            "--http", f"127.0.0.1:{http_port}", "--door", "noetl", "--log-level", "error", "--log-format", "console",
        ]  # fmt: skip
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                if not process.stdout.readline().strip():
                    raise SystemExit("the server did not start")
                made = Components(ServerProcess("liveness", process, port), http_port)
                asyncio.run(made.register())
                yield made
            finally:
                process.terminate()
                process.wait(60)


def updates(postgres, folder, transactions):
    script = Path(folder, "script")
    script.write_text(SCRIPT, encoding="utf-8")
    options = ["-n", "-M", "prepared", "-c", "16", "-j", "1", "-t", str(transactions)]
    command = [postgres.programs / "pgbench", *options, "-f", script, postgres.url()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rate = re.search(r"tps = ([\d.]+)", done.stdout)
    if done.returncode or rate is None:
        raise SystemExit(f"pgbench failed: {(done.stderr.splitlines() or ['it said nothing'])[-1]}")
    return float(rate[1])


def measure(plan):
    beats = plan.sized(6_000, 200)
    with components() as ours:
        sides = {
            HTTP: lambda: asyncio.run(ours.by_http(beats)),
            GRPC: lambda: asyncio.run(ours.by_grpc(beats)),
        }
        found = alternate(BY_GRPC, sides, plan.few_rounds, warm=True)
        yield row(BY_GRPC, "heartbeats/s", found, HTTP, GRPC, notes=NOTES)
        try:
            postgres = PostgresServer(fsync=True)
        except PostgresFailed as error:
            raise Unavailable(str(error).splitlines()[0]) from error
        with postgres, tempfile.TemporaryDirectory() as folder:
            postgres.execute(TABLE)
            postgres.execute(FILL)
            sides = {
                HTTP: lambda: asyncio.run(ours.by_http(beats)),
                UPDATE: lambda: updates(postgres, folder, plan.sized(400, 20)),
            }
            found = alternate(BY_UPDATE, sides, plan.few_rounds, warm=True)
            yield row(BY_UPDATE, "heartbeats/s", found, HTTP, UPDATE, notes=NOTES)
