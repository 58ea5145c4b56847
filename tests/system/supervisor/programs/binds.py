"""A program that knows nothing of its supervisor, but works with the SDK: it holds an activity of its own engine. Told to, it ends its
worker and goes on without."""

import asyncio
import os
import signal
import sys

from liveness import ActivityRef, Worker


async def main() -> None:
    loop, end_worker = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, end_worker.set)
    variables = os.environ
    async with Worker(variables["LIVENESS_ADDRESS"], namespace=variables["LIVENESS_NAMESPACE"]) as worker:
        print("key", worker.instance_key, flush=True)
        async with worker.bind(ActivityRef(sys.argv[1], "run", "step")):
            print("holds", sys.argv[1], flush=True)
            await end_worker.wait()
    print("without a worker", flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
