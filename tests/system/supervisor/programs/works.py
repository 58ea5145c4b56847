"""A process that uses `liveness.sdk.health`, in threads or with asyncio, and finishes its job when its supervisor has died.

It takes its next job when the file that it is given exists, and writes down when a job has finished.
"""

import asyncio
import sys
import time
from pathlib import Path

from liveness.sdk import health

way, gate = sys.argv[1], Path(sys.argv[2])
health.start()


def wait_for_gate() -> None:
    while not gate.exists():
        time.sleep(0.01)


def work() -> None:
    while health.wait_while_paused():
        with health.job(f"{way}_job"):
            health.set(way=way)
            wait_for_gate()
        gate.with_name(f"{way}-finished").touch()


async def work_async() -> None:
    while await health.wait_while_paused_async():
        with health.job(f"{way}_job"):
            health.set(way=way)
            await asyncio.to_thread(wait_for_gate)
        gate.with_name(f"{way}-finished").touch()


if way == "threads":
    work()
else:
    asyncio.run(work_async())
gate.with_name(f"{way}-left").touch()
