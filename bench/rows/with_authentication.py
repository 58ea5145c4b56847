"""Single heartbeats with a token at a server that asks who calls, against the same without both."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import grpc

from bench import load
from bench.messages import NAMESPACE, unary_request
from bench.rounds import AT_LEAST, Bar, alternate, row
from bench.servers import liveness, server_process
from liveness.v1.admin_pb2_grpc import AdminServiceStub
from liveness.v1.token_pb2 import CreateTokenRequest

UNARY = "unary with a token"
NAMES = {UNARY: "one heartbeat per call, durable, with a token against without authentication"}
BODIES = 8
STREAMS = 16
CALLS_PER_S = 1_000_000_000
"""A principal may make so many: what the limit costs is measured, and nothing is refused."""
ASKED, NOT_ASKED = "with a token", "without authentication"


def measure(plan):
    with liveness(name=NOT_ASKED) as plain, _liveness_with_tokens() as asking:
        calls, bodies = plan.sized(1_000, 20), [unary_request(index) for index in range(BODIES)]
        cpu: dict[str, list[float]] = {ASKED: [], NOT_ASKED: []}

        def side(server, headers):
            def once():
                before = server.cpu_s()
                took = load.run(
                    server.address, "RecordWorkerHeartbeat", bodies, calls, STREAMS, headers=headers
                )
                cpu[server.name].append((server.cpu_s() - before) / (calls * BODIES) * 1e6)
                return calls * BODIES / took

            return once

        headers = (("authorization", f"Bearer {asking.token}"),)
        found = alternate(
            UNARY,
            {NOT_ASKED: side(plain, ()), ASKED: side(asking.server, headers)},
            plan.rounds,
            warm=True,
        )
        used = {name: round(statistics.median(values[1:]), 1) for name, values in cpu.items()}
        yield row(
            UNARY,
            "heartbeats/s",
            found,
            ASKED,
            NOT_ASKED,
            Bar(sense=AT_LEAST, value=0.95),
            [f"load: {load.driver()}", "SQLite, synchronous=FULL: every answer is on disk"],
            {"CPU µs per heartbeat": used},
        )


@contextmanager
def _liveness_with_tokens():
    """Run the product with authentication on, and create the token of a worker."""
    with tempfile.TemporaryDirectory() as folder:
        url, token_file = f"sqlite:///{Path(folder, 'bench.db')}", Path(folder, "admin-token")
        command = [sys.executable, "-m", "liveness.cli", "auth", "init", str(token_file), "--db", url]
        subprocess.run(command, check=True, capture_output=True)
        settings = (
            f"token_file={token_file}",
            f"principal_calls_per_s={CALLS_PER_S}",
            f"principal_calls_burst={CALLS_PER_S}",
        )
        with server_process(ASKED, "bench.liveness_server", url, *settings) as server:
            with grpc.insecure_channel(server.address) as channel:
                created = AdminServiceStub(channel).CreateToken(
                    CreateTokenRequest(principal="bench", grants=[f"worker:{NAMESPACE}"]),
                    metadata=(("authorization", f"Bearer {token_file.read_text().strip()}"),),
                    timeout=30,
                )
            yield SimpleNamespace(server=server, token=created.secret)
