"""A server that restarts under load: workers continue, and nothing that was acknowledged is lost."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

import pytest

from tests.system.server.crash_loop import ReportResult
from tests.system.worker_processes.activity_totals import check_totals
from tests.system.worker_processes.namespace_client import NamespaceClient, names
from tests.system.worker_processes.own_server import own_server, restart
from tests.system.worker_processes.worker_notes import Action
from tests.system.worker_processes.worker_processes import WorkerGroup, until

WORKERS = 3
ACTIVITIES = 90
RESTARTS = 2
PORTION = 15
"""Activities finished between restarts, at least."""


@pytest.mark.parametrize("how", [SIGTERM, SIGKILL], ids=["SIGTERM", "SIGKILL"])
async def test_workers_survive_restarts_and_complete_everything_once(
    tmp_path: Path, report_result: ReportResult, how: Signals
) -> None:
    """Their leases outlast the restarts, so no activity runs twice."""
    async with (
        own_server(tmp_path) as server,
        NamespaceClient(server.address, "namespace") as namespace_client,
    ):
        # A hand-out that was lost with the killed server is taken back after this time.
        await namespace_client.configure(dispatch_timeout={"seconds": 3})
        worker_group = WorkerGroup(tmp_path, namespace_client.namespace, server.address, [])
        try:
            for number in range(WORKERS):
                await worker_group.join(f"worker-{number}", lease=300.0, grace=60.0, slots=3)
            jobs = dict.fromkeys(names("job", ACTIVITIES), "quick")
            scheduling = asyncio.create_task(_schedule(namespace_client, list(jobs)))
            for number in range(1, RESTARTS + 1):
                await until(partial(_finished, worker_group, number * PORTION), worker_group.recent_notes)
                await restart(server, how)
            await scheduling
            reckoning = await check_totals(worker_group, namespace_client, jobs)
            report_result(str(reckoning))
            assert (reckoning.begun, reckoning.acknowledged, reckoning.lost) == (ACTIVITIES, ACTIVITIES, 0)
            assert all(worker.alive for worker in worker_group.members)
            assert server.starts == RESTARTS + 1
        finally:
            await worker_group.close()


def _finished(worker_group: WorkerGroup, wanted: int) -> bool:
    return len(worker_group.noted(Action.FINISHED)) >= wanted


async def _schedule(namespace_client: NamespaceClient, jobs: list[str]) -> None:
    """Schedule some activities at once and the others gradually, also while the server is down."""
    for number, name in enumerate(jobs):
        await namespace_client.schedule(name, "quick", ms=60 + number % 5 * 20)
        if number > len(jobs) // 3:
            await asyncio.sleep(0.02)
