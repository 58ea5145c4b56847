"""A server that ends and comes back under load: workers go on, and nothing that was acknowledged is lost."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

import pytest

from tests.end_to_end.campaign import Say
from tests.sdk_end_to_end.notes import Deed
from tests.sdk_end_to_end.reckoning import reckon
from tests.sdk_end_to_end.record import Record, names
from tests.sdk_end_to_end.site import own_server, restart
from tests.sdk_end_to_end.workers import Crew, until

WORKERS = 3
ACTIVITIES = 90
RESTARTS = 2
PORTION = 15
"""Finished between restarts, at least."""


@pytest.mark.parametrize("how", [SIGTERM, SIGKILL], ids=["SIGTERM", "SIGKILL"])
async def test_workers_go_on_and_everything_is_completed_once(tmp_path: Path, say: Say, how: Signals) -> None:
    """And since their leases outlast it, nobody has to do anything twice."""
    async with own_server(tmp_path) as server, Record(server.address, "namespace") as record:
        # What was handed out when the server was killed, and not received, is found after this time.
        await record.configure(dispatch_timeout={"seconds": 3})
        crew = Crew(tmp_path, record.namespace, server.address, [])
        try:
            for number in range(WORKERS):
                await crew.join(f"worker-{number}", lease=300.0, grace=60.0, slots=3)
            jobs = dict.fromkeys(names("job", ACTIVITIES), "quick")
            scheduling = asyncio.create_task(_schedule(record, list(jobs)))
            for number in range(1, RESTARTS + 1):
                await until(partial(_finished, crew, number * PORTION), crew.story)
                await restart(server, how)
            await scheduling
            reckoning = await reckon(crew, record, jobs)
            say(str(reckoning))
            assert (reckoning.begun, reckoning.acknowledged, reckoning.lost) == (ACTIVITIES, ACTIVITIES, 0)
            assert all(worker.alive for worker in crew.members)
            assert server.starts == RESTARTS + 1
        finally:
            await crew.dismiss()


def _finished(crew: Crew, wanted: int) -> bool:
    return len(crew.noted(Deed.FINISHED)) >= wanted


async def _schedule(record: Record, jobs: list[str]) -> None:
    """Some at once, the others by and by, while the server is away too."""
    for number, name in enumerate(jobs):
        await record.schedule(name, "quick", ms=60 + number % 5 * 20)
        if number > len(jobs) // 3:
            await asyncio.sleep(0.02)
