"""Runs NoETL's own client, unmodified: registers a server and a pool, heartbeats, reports metrics, and says goodbye on SIGTERM.

It needs a checkout of NoETL from October 2025 on its path."""

import asyncio
import os
import signal

import noetl.worker.worker as client  # type: ignore[import-not-found,unused-ignore]


async def main() -> None:
    pool = client.ScalableQueueWorkerPool(os.environ["NOETL_SERVER_URL"])
    running = asyncio.create_task(pool.run_forever())
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    running.cancel()


client.register_server_from_env()
asyncio.run(main())
client.deregister_worker_pool_from_env()
client.deregister_server_from_env()
os._exit(0)
