"""A worker reports numbers about itself, and they are there, whatever happens to the server."""

from __future__ import annotations

import asyncio
import signal
from datetime import UTC, datetime, timedelta

import pytest

from liveness.sdk import Client, InvalidArgument, QuotaReached, ServerAway
from tests.system.sdk.conftest import Make
from tests.system.sdk.server_process import LivenessServer, free_address


async def test_a_worker_reports_and_a_client_queries(make: Make, client: Client) -> None:
    async with make(instance_key="w") as worker:
        await worker.metrics({"queue_depth": 17}, counters={"rows_total": 3}, labels={"table": "orders"})
    await client.report_metrics("another", {"queue_depth": 0.5})
    other, depth, rows = await client.query_metrics()
    assert (other.worker, other.name, other.points[-1].value) == ("another", "queue_depth", 0.5)
    assert (depth.worker, depth.is_counter, depth.labels) == ("w", False, {"table": "orders"})
    assert (rows.name, rows.is_counter, rows.points[-1].value) == ("rows_total", True, 3)
    [found] = await client.query_metrics(
        worker="w",
        name="rows_total",
        labels={"table": "orders"},
        start=datetime.now(UTC) - timedelta(minutes=30),
        step=timedelta(minutes=1),
    )
    assert found.name == "rows_total"
    assert await client.query_metrics(end=datetime.now(UTC) - timedelta(minutes=1)) == []


def test_a_program_without_an_event_loop_reports_too(make: Make, client: Client) -> None:
    with make(instance_key="w") as worker:
        worker.metrics_blocking({"queue_depth": 1})
    [series] = client.blocking.query_metrics(worker="w")
    assert series.points[-1].value == 1


async def test_errors_say_what_is_wrong(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="must be a letter or _"):
        await client.report_metrics("w", {"a b": 1})
    with pytest.raises(QuotaReached, match="Component w has its 200 series"):
        await client.report_metrics("w", {f"m{number}": 1 for number in range(201)})
    with pytest.raises(ServerAway):
        await Client(free_address(), timeout=0.5).report_metrics("w", {"a": 1})


async def test_what_was_reported_survives_a_killed_server(own_server: LivenessServer) -> None:
    async with Client(own_server.address) as client:
        await asyncio.gather(*(client.report_metrics(f"w{number}", {"a": number}) for number in range(50)))
        own_server.end(signal.SIGKILL)
        own_server.start()
        found = await client.query_metrics()
    assert {series.worker: series.points[-1].value for series in found} == {
        f"w{number}": number for number in range(50)
    }
