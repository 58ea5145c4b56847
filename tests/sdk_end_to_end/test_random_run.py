"""Whatever happens to the workers, in the end each activity was completed exactly once, and no zombie was believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.scale import seeds
from tests.end_to_end.campaign import Say
from tests.end_to_end.server_process import ServerProcess
from tests.sdk_end_to_end.campaign import Campaign, Plan
from tests.sdk_end_to_end.proxy import Proxy
from tests.sdk_end_to_end.record import Record
from tests.sdk_end_to_end.site import own_server
from tests.sdk_end_to_end.workers import Crew


async def test_a_short_run(server: ServerProcess, crew: Crew, record: Record, proxy: Proxy, say: Say) -> None:
    plan = Plan(seed=1, workers=6, activities=120, blows=16)
    await _run(plan, server, crew, record, proxy, say)


@pytest.mark.crash_long
@pytest.mark.parametrize("seed", seeds(300, 6))
async def test_a_long_run_with_server_kills(tmp_path: Path, say: Say, seed: int) -> None:
    plan = Plan(seed=seed, workers=10, activities=900, blows=150, server_kills=True)
    async with (
        own_server(tmp_path) as server,
        Record(server.address, "namespace") as record,
        Proxy(server.address) as proxy,
    ):
        crew = Crew(tmp_path, record.namespace, server.address, [])
        try:
            await _run(plan, server, crew, record, proxy, say)
        finally:
            await crew.dismiss()


async def _run(plan: Plan, server: ServerProcess, crew: Crew, record: Record, proxy: Proxy, say: Say) -> None:
    campaign = Campaign(plan, server, crew, record, proxy)
    reckoning = await campaign.run()
    blows = ", ".join(f"{times} {blow}" for blow, times in sorted(campaign.blows.items()))
    say(f"seed {plan.seed}: {blows}; {reckoning}")
    assert reckoning.scheduled == plan.activities
