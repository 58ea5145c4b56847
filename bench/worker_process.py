"""A worker process that holds one activity until it is killed."""

from __future__ import annotations

import asyncio
import sys

from liveness.sdk import ActivityRef, Worker


async def hold(address, key, grace):
    worker = Worker(
        address, instance_key=key, task_queue="bench", disconnect_grace=float(grace) if grace else None
    )
    async with worker, worker.bind(ActivityRef(key, activity_id="hold")):
        print("holding", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(hold(*sys.argv[1:]))
