"""A worker that runs while a test does, and waiting for what it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from liveness.sdk import ActivityInfo, Client, Worker
from tests.system.sdk.server_process import SECONDS_MAX


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[Worker]:
    """It runs while the body does, and its end is awaited."""
    run = asyncio.create_task(worker.run(handle_signals=False))
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(run, SECONDS_MAX)


async def wait_finished(client: Client, activity_type: str, id: str) -> ActivityInfo:
    async with asyncio.timeout(SECONDS_MAX):
        return await client.wait(id, type=activity_type)
