"""A worker that runs during a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from liveness.sdk import ActivityInfo, Client, Worker
from tests.system.sdk.server_process import SECONDS_MAX


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[Worker]:
    """Run the worker while the body runs, then stop it and wait for its end."""
    run = asyncio.create_task(worker.run(handle_signals=False))
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(run, SECONDS_MAX)


async def wait_finished(client: Client, activity_type: str, id: str) -> ActivityInfo:
    async with asyncio.timeout(SECONDS_MAX):
        return await client.wait(id, type=activity_type)
