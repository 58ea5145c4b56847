"""NoETL's own clients at the door of a real server: the one of October 2025, and the one of July 2026."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.http.http_client import Client
from tests.system.cli.server_processes import child_process, liveness_command
from tests.system.http.test_process import port_in
from tests.system.integrations.relay.nats_servers import NatsServer

CHECKOUT = os.environ.get("LIVENESS_NOETL_CHECKOUT", "")
PYTHON = os.environ.get("LIVENESS_NOETL_PYTHON", sys.executable)
LATER_CHECKOUT = os.environ.get("LIVENESS_NOETL_LATER_CHECKOUT", "")
LATER_PYTHON = os.environ.get("LIVENESS_NOETL_LATER_PYTHON", sys.executable)
LIMIT_S = 60.0
PROGRAM = Path(__file__).parent / "noetl_worker.py"
LATER_PROGRAM = "from noetl.worker.nats_worker import run_worker_sync; run_worker_sync()"

needs_checkout = pytest.mark.skipif(
    not CHECKOUT,
    reason="LIVENESS_NOETL_CHECKOUT names no checkout of NoETL (with noetl/worker/worker.py of October 2025)",
)
needs_later_checkout = pytest.mark.skipif(
    not LATER_CHECKOUT,
    reason="LIVENESS_NOETL_LATER_CHECKOUT names no checkout of NoETL (with noetl/worker/nats_worker.py of 2026)",
)


async def pool_when(client: Client, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    async with asyncio.timeout(LIMIT_S):
        while True:
            for row in (await client.get("/api/worker/pools"))["items"]:
                if wanted(row):
                    return row
            await asyncio.sleep(0.1)


@contextmanager
def serving(folder: Path, **variables: str) -> Iterator[Client]:
    flags = ("--listen", "127.0.0.1:0", "--shards", "2", "--http", "127.0.0.1:0", "--door", "noetl")
    settings = {"LIVENESS_TAKEOVER_GRACE_MS": "0", **variables}
    with child_process(liveness_command("serve", *flags), folder, settings) as process:
        assert process.stdout is not None
        yield Client(port_in(process.stdout))


def start_client(
    port: int, folder: Path, command: list[str], checkout: str, **variables: str
) -> subprocess.Popen[bytes]:
    settings = {"NOETL_SERVER_URL": f"http://127.0.0.1:{port}", "PYTHONPATH": checkout, **variables}
    with (folder / "client.log").open("ab") as log:
        return subprocess.Popen(command, cwd=folder, env={**os.environ, **settings}, stdout=log, stderr=log)


def start_pool(port: int, folder: Path) -> subprocess.Popen[bytes]:
    return start_client(
        port, folder, [PYTHON, str(PROGRAM)], CHECKOUT,
        NOETL_WORKER_POOL_RUNTIME="cpu", NOETL_WORKER_POOL_NAME="pool-a", NOETL_WORKER_HEARTBEAT_INTERVAL="0.5",
        NOETL_SERVER_NAME="server-x", NOETL_DISABLE_METRICS="false",
    )  # fmt: skip


@needs_checkout
async def test_the_client_registers_dies_comes_back_and_leaves(tmp_path: Path) -> None:
    with serving(tmp_path, NOETL_SERVER_OFFLINE_AFTER="2") as client:
        first = start_pool(client.port, tmp_path)
        try:
            row = await pool_when(client, lambda row: row["status"] == "ready")
            assert (row["name"], row["runtime"], row["pid"]) == ("pool-a", "cpu", first.pid)
            await metrics(client)
            first.kill()
            await pool_when(client, lambda row: row["status"] == "offline")
        finally:
            first.kill()
            first.wait()
        second = start_pool(client.port, tmp_path)
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


@needs_checkout
async def test_of_two_clients_with_one_name_both_are_shown_and_a_death_is_seen(tmp_path: Path) -> None:
    with serving(tmp_path, NOETL_SERVER_OFFLINE_AFTER="4", NOETL_WORKER_HEARTBEAT_INTERVAL="1") as client:
        pools = [start_pool(client.port, tmp_path) for _ in range(2)]
        try:
            row = await pool_when(client, lambda row: len(row["replicas"]) == 1)
            (victim,) = (pool for pool in pools if pool.pid == row["pid"])
            (other,) = set(pools) - {victim}
            victim.kill()
            await pool_when(client, lambda row: row["pid"] == other.pid and not row["replicas"])
        finally:
            for pool in pools:
                pool.kill()
                pool.wait()


@needs_later_checkout
async def test_the_later_client_registers_again_and_again_and_leaves(tmp_path: Path) -> None:
    """It registers every 15 s."""
    nats = NatsServer(tmp_path, "nats")
    await nats.start()
    with serving(tmp_path, NOETL_SERVER_OFFLINE_AFTER="17") as client:
        worker = start_client(
            client.port, tmp_path, [LATER_PYTHON, "-c", LATER_PROGRAM], LATER_CHECKOUT, NATS_URL=nats.url
        )
        try:
            first = await pool_when(client, lambda row: row["status"] == "ready")
            assert (first["runtime"], first["pid"], first["capacity"]) == ("python", worker.pid, 1)
            assert first["labels"] == {"nats_consumer": "noetl_worker_pool"}
            await pool_when(client, lambda row: row["heartbeat"] > first["heartbeat"])
            worker.send_signal(signal.SIGINT)
            await pool_when(client, lambda row: row["status"] == "offline")
        finally:
            worker.kill()
            worker.wait()
            await nats.stop()
