"""Whatever happens to the workers, each activity is completed exactly once, and no zombie's completion is accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.scale import seeds
from tests.system.server.crash_loop import ReportResult
from tests.system.server.server_process import ServerProcess
from tests.system.worker_processes.namespace_client import NamespaceClient
from tests.system.worker_processes.own_server import own_server
from tests.system.worker_processes.random_run import Plan, RandomRun
from tests.system.worker_processes.tcp_proxy import Proxy
from tests.system.worker_processes.worker_processes import WorkerGroup


async def test_a_short_random_run_completes_each_activity_once(
    server: ServerProcess,
    worker_group: WorkerGroup,
    namespace_client: NamespaceClient,
    proxy: Proxy,
    report_result: ReportResult,
) -> None:
    plan = Plan(seed=1, workers=6, activities=120, faults=16)
    await _run(plan, server, worker_group, namespace_client, proxy, report_result)


@pytest.mark.crash_long
@pytest.mark.parametrize("seed", seeds(300, 6))
async def test_a_long_random_run_with_server_kills_completes_each_activity_once(
    tmp_path: Path, report_result: ReportResult, seed: int
) -> None:
    plan = Plan(seed=seed, workers=10, activities=900, faults=150, server_kills=True)
    async with (
        own_server(tmp_path) as server,
        NamespaceClient(server.address, "namespace") as namespace_client,
        Proxy(server.address) as proxy,
    ):
        worker_group = WorkerGroup(tmp_path, namespace_client.namespace, server.address, [])
        try:
            await _run(plan, server, worker_group, namespace_client, proxy, report_result)
        finally:
            await worker_group.close()


async def _run(
    plan: Plan,
    server: ServerProcess,
    worker_group: WorkerGroup,
    namespace_client: NamespaceClient,
    proxy: Proxy,
    report_result: ReportResult,
) -> None:
    campaign = RandomRun(plan, server, worker_group, namespace_client, proxy)
    reckoning = await campaign.run()
    faults = ", ".join(f"{times} {blow}" for blow, times in sorted(campaign.faults.items()))
    report_result(f"seed {plan.seed}: {faults}; {reckoning}")
    assert reckoning.scheduled == plan.activities
