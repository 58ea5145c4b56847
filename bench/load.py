"""Closed-loop load, from h2load where it is installed: a C client, so that the server is what is measured.

h2load sends one body per process, so several run at once, each as a worker (or a batch of workers) of its own. It
counts HTTP answers only; that each call was really applied is checked afterwards by the server's own counters.
Without h2load, a grpc.aio client sends the same; it needs about as much processor time as a server that does nothing,
and the result says so.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import struct
import subprocess
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc

SERVICE = "/liveness.v1.LivenessService/"


def driver():
    return "h2load" if shutil.which("h2load") else "grpc.aio client (itself the limit: see CPU per heartbeat)"


def run(address, method, bodies, calls, streams):
    """Send `calls` calls of each body, `streams` at a time each. Returns the seconds it took."""
    return run_at([(address, body) for body in bodies], method, calls, streams)


def run_at(targets, method, calls, streams):
    """The same with an address for each body."""
    if shutil.which("h2load"):
        return _h2load(targets, method, calls, streams)
    return asyncio.run(_python(targets, method, calls, streams))


def _h2load(targets, method, calls, streams):
    with tempfile.TemporaryDirectory() as folder:
        commands = []
        for number, (address, body) in enumerate(targets):
            file = Path(folder, str(number))
            file.write_bytes(b"\0" + struct.pack(">I", len(body)) + body)
            options = ["-n", str(calls), "-c", "1", "-m", str(streams), "-d", str(file)]
            headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
            commands.append(["h2load", *options, *headers, f"http://{address}{SERVICE}{method}"])
        start = time.perf_counter()
        children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
        outputs = [child.communicate()[0] for child in children]
        took = time.perf_counter() - start
    done = sum(int(count) for output in outputs for count in re.findall(r"(\d+) succeeded", output))
    if done != calls * len(targets):
        raise SystemExit(f"only {done} of {calls * len(targets)} calls were answered")
    return took


async def _python(targets, method, calls, streams):
    async with AsyncExitStack() as stack:
        ways: dict[str, Any] = {}
        for address in {address for address, _ in targets}:
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
            ways[address] = channel.unary_unary(SERVICE + method)

        async def stream(call, body, count):
            for _ in range(count):
                await call(body)

        start = time.perf_counter()
        shares = [calls // streams + (place < calls % streams) for place in range(streams)]
        await asyncio.gather(
            *(stream(ways[address], body, share) for address, body in targets for share in shares)
        )
        return time.perf_counter() - start
