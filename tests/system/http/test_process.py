"""The HTTP listener of a `liveness serve` process: its address, conflicts over the address, and its end."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.integration.http.http_client import JSON, Client
from tests.integration.http.test_event_streams import watching
from tests.system.cli.server_processes import child_process, environment, first_address, liveness_command

BEAT = "/v1/namespaces/orders/workers/{}/heartbeat"


def port_in(output: IO[str]) -> int:
    """Return the port of the dashboard from the output of a starting server."""
    first_address(output)
    match = re.fullmatch(r"  dashboard     http://127\.0\.0\.1:([0-9]+)/\n", output.readline())
    assert match is not None
    return int(match[1])


@contextmanager
def serving(folder: Path, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], Client]]:
    flags = ("--listen", "127.0.0.1:0", "--shards", "2", "--http", f"127.0.0.1:{port}")
    with child_process(liveness_command("serve", *flags), folder) as process:
        assert process.stdout is not None
        yield process, Client(port_in(process.stdout))


async def test_a_server_with_open_streams_and_waiting_polls_stops_at_once(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, client):
        await client.post(BEAT.format("w"), {"task_queue": "q"})
        async with client.connect() as poll, watching(client, "/v1/events") as source:
            body = json.dumps({"worker_instance_key": "w", "wait": "60s"}).encode()
            await poll.send("POST", "/v1/namespaces/orders/activities/poll", JSON, body)
            await client.post(BEAT.format("v"), {})  # answered after the poll has begun
            process.send_signal(signal.SIGTERM)
            await source.ended()
            answer = await poll.answer()
            assert (answer.code, answer.error["reason"]) == (503, "SHUTTING_DOWN")
        assert await asyncio.to_thread(process.wait) == 0
    assert "Traceback" not in (tmp_path / "server.log").read_text()


async def test_a_watcher_sees_every_event_once_across_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, client):
        async with watching(client) as source:
            await client.post(BEAT.format("a"), {})
            await source.until(1)
            process.send_signal(signal.SIGTERM)
            await source.ended()
    with serving(tmp_path, client.port) as (process, client):
        await client.post(BEAT.format("b"), {})
        async with watching(client, last_id=source.last_id) as source:
            await client.post(BEAT.format("c"), {})
            assert sorted(await source.until(2)) == [("b", "WorkerRegistered"), ("c", "WorkerRegistered")]
            process.kill()
            process.wait()
    with serving(tmp_path, client.port) as (process, client):
        async with watching(client, last_id=source.last_id) as source:
            await client.post(BEAT.format("d"), {})
            assert await source.until(1) == [("d", "WorkerRegistered")]


def refused(folder: Path, *flags: str) -> str:
    result = subprocess.run(
        liveness_command("serve", "--listen", "127.0.0.1:0", *flags),
        cwd=folder, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    return line


def test_an_address_in_use_is_reported_in_one_sentence_that_names_the_flag(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = refused(tmp_path, "--http", address)
    assert line.startswith(
        f"error: Cannot listen for HTTP on {address}: it is in use; choose another address with --http"
    )
    assert not (tmp_path / "liveness.db").exists(), "nothing was opened"


def test_a_foreign_address_is_reported_in_one_sentence(tmp_path: Path) -> None:
    assert "--http" in refused(tmp_path, "--http", "192.0.2.1:7480", "--insecure")
    assert "--http" in refused(tmp_path, "--http", "nowhere.invalid:7480", "--insecure")


@pytest.mark.parametrize(
    "flags",
    [("--http", "no"), ("--http", "7480"), ("--http-hosts", "http://a.example"), ("--http-hosts", "a:1")],
)
def test_a_malformed_address_is_reported_in_one_sentence(tmp_path: Path, flags: tuple[str, str]) -> None:
    assert refused(tmp_path, *flags).startswith(f"error: flag {flags[0]} is ")


def test_the_http_listener_can_be_turned_off(tmp_path: Path) -> None:
    with child_process(
        liveness_command("serve", "--listen", "127.0.0.1:0", "--shards", "1", "--http", "off"), tmp_path
    ) as process:
        assert process.stdout is not None
        first_address(process.stdout)
        assert "database" in process.stdout.readline()
