"""A Temporal worker without any trace of liveness: it only connects to another address.

worker.py ADDRESS
"""

import asyncio
import os
import sys
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

TASK_QUEUE = "resize"


@activity.defn
async def resize(photo: str) -> str:
    """Take ten minutes in the first attempt, as work does that hangs on a machine about to die."""
    attempt = activity.info().attempt
    print(f"process {os.getpid()} resizes {photo}, attempt {attempt}", flush=True)
    if attempt == 1:
        await asyncio.sleep(600)
    return f"{photo} resized by process {os.getpid()} in attempt {attempt}"


@workflow.defn
class Resize:
    @workflow.run
    async def run(self, photo: str) -> str:
        # No heartbeats: without the bridge, a lost worker is noticed after ten minutes.
        return await workflow.execute_activity(resize, photo, start_to_close_timeout=timedelta(minutes=10))


async def main() -> None:
    # Every second instead of every minute, so that the bridge soon knows how often it should hear of this process.
    runtime = Runtime(telemetry=TelemetryConfig(), worker_heartbeat_interval=timedelta(seconds=1))
    client = await Client.connect(sys.argv[1], runtime=runtime)
    worker = Worker(
        client,
        task_queue=TASK_QUEUE,
        workflows=[Resize],
        activities=[resize],
        workflow_runner=UnsandboxedWorkflowRunner(),
    )
    print(f"process {os.getpid()} polls", flush=True)
    await worker.run()


if __name__ == "__main__":
    asyncio.run(main())
