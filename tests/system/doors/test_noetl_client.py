"""NoETL's own client at the door of a real server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.http.http_client import Client
from tests.system.cli.server_processes import child_process, liveness_command
from tests.system.http.test_process import port_in

CHECKOUT = os.environ.get("LIVENESS_NOETL_CHECKOUT", "")
PYTHON = os.environ.get("LIVENESS_NOETL_PYTHON", sys.executable)
LIMIT_S = 30.0
PROGRAM = Path(__file__).parent / "noetl_worker.py"

pytestmark = pytest.mark.skipif(
    not CHECKOUT,
    reason="LIVENESS_NOETL_CHECKOUT names no checkout of NoETL (with noetl/worker/worker.py of October 2025)",
)


async def pool_when(client: Client, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    async with asyncio.timeout(LIMIT_S):
        while True:
            for row in (await client.get("/api/worker/pools"))["items"]:
                if wanted(row):
                    return row
            await asyncio.sleep(0.1)


def start_client(port: int, folder: Path) -> subprocess.Popen[bytes]:
    variables = {
        "NOETL_SERVER_URL": f"http://127.0.0.1:{port}", "NOETL_WORKER_POOL_RUNTIME": "cpu", "NOETL_WORKER_POOL_NAME": "pool-a",
        "NOETL_WORKER_HEARTBEAT_INTERVAL": "0.5", "NOETL_SERVER_NAME": "server-x", "PYTHONPATH": CHECKOUT,
    }  # fmt: skip
    with (folder / "client.log").open("wb") as log:
        return subprocess.Popen(
            [PYTHON, str(PROGRAM)], cwd=folder, env={**os.environ, **variables}, stdout=log, stderr=log
        )


async def test_the_real_client_registers_dies_comes_back_and_leaves(tmp_path: Path) -> None:
    flags = (
        "--listen", "127.0.0.1:0", "--shards", "2", "--http", "127.0.0.1:0", "--door", "noetl",
    )  # fmt: skip
    variables = {"NOETL_SERVER_OFFLINE_AFTER": "2", "LIVENESS_TAKEOVER_GRACE_MS": "0"}
    with child_process(liveness_command("serve", *flags), tmp_path, variables) as process:
        assert process.stdout is not None
        client = Client(port_in(process.stdout))
        first = start_client(client.port, tmp_path)
        try:
            row = await pool_when(client, lambda row: row["status"] == "ready")
            assert (row["name"], row["runtime"], row["pid"]) == ("pool-a", "cpu", first.pid)
            await metrics(client)
            first.kill()
            await pool_when(client, lambda row: row["status"] == "offline")
        finally:
            first.kill()
            first.wait()
        second = start_client(client.port, tmp_path)
        try:
            await pool_when(client, lambda row: row["status"] == "ready" and row["pid"] == second.pid)
            second.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(second.wait, LIMIT_S) == 0
        finally:
            second.kill()
            second.wait()
        row = await pool_when(client, lambda row: row["status"] == "offline")
        servers = await client.get("/v1/namespaces/noetl/registry?kind=server_api")
        assert [(entry["name"], entry["status"]) for entry in servers["entries"]] == [("server-x", "offline")]


async def metrics(client: Client) -> None:
    path = "/api/metrics/query?component_name=pool-a&metric_name=noetl_worker_max_workers"
    async with asyncio.timeout(LIMIT_S):
        while not (await client.get(path))["metrics"]:
            await asyncio.sleep(0.1)
