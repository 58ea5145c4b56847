"""Load from h2load where it is installed: a C client, so that the server is what is measured.

h2load sends one body per process, so several run at once, each as its own worker (or batch of workers). It counts
HTTP answers, not gRPC statuses. But an error carries no message, so where all answers are equally long, their bytes
prove that every call succeeded (`reply_bytes`); for our own server, its counters do.

Where many different bodies have to be sent, and where h2load is missing, a grpc.aio client sends them. It sees every
status. It needs about as much processor time for a single heartbeat as a server that does nothing, so with it the
ratio to a faster server understates that server.
"""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import struct
import subprocess
import tempfile
import time
from contextlib import AsyncExitStack
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import grpc

SERVICE = "/liveness.v1.LivenessService/"
IN_FLIGHT_MAX = 200
"""Of one h2load at a fixed rate: far more than are ever in flight, because it would otherwise wait for answers."""


def driver():
    return "h2load" if shutil.which("h2load") else "grpc.aio client (itself the limit: see CPU per heartbeat)"


def framed(*messages):
    """Return the bodies framed as gRPC sends them."""
    return b"".join(b"\0" + struct.pack(">I", len(message)) + message for message in messages)


def reply_bytes_of(address, method, body):
    """Return the size of one answer with its frame, from a client that checks the status."""
    with grpc.insecure_channel(address) as channel:
        call: Any = channel.unary_unary(method if method.startswith("/") else SERVICE + method)
        return len(framed(call(body, timeout=20)))


def run(address, method, bodies, calls, streams, reply_bytes=None, headers=()):
    """Send `calls` calls of each body, `streams` at a time each. Returns the seconds."""
    return run_at([(address, body) for body in bodies], method, calls, streams, reply_bytes, headers)


def run_at(targets, method, calls, streams, reply_bytes=None, headers=()):
    """The same with an address for each body. `reply_bytes`: of each answer, with its frame. `headers`: of each call, as pairs."""
    if not shutil.which("h2load"):
        return asyncio.run(_python(targets, method, calls, streams, headers))
    return run_frames(
        [(address, framed(body)) for address, body in targets], method, calls, streams, reply_bytes, headers
    )


def run_frames(targets, method, calls, streams, reply_bytes=None, headers=()):
    """The same with several messages in each call, as streams have them; only h2load can do it."""
    options = ["-n", str(calls), "-c", "1", "-m", str(streams)]
    for name, value in headers:
        options += ["-H", f"{name}: {value}"]
    with tempfile.TemporaryDirectory() as folder:
        took, outputs = _h2load(folder, targets, method, [options] * len(targets))
    wanted = calls * len(targets)
    done = sum(int(count) for output in outputs for count in re.findall(r"(\d+) succeeded", output))
    if done != wanted:
        raise SystemExit(f"only {done} of {wanted} calls were answered")
    if reply_bytes is not None:
        size = sum(int(count) for output in outputs for count in re.findall(r"\((\d+)\) data", output))
        if size != wanted * reply_bytes:
            raise SystemExit(
                f"{wanted} calls had {size} bytes of answers, not {reply_bytes} each: some failed"
            )
    return took


def _h2load(folder, targets, method, options):
    """Run one process per target; return the seconds and the outputs."""
    commands = []
    path = method if method.startswith("/") else SERVICE + method
    for number, ((address, frames), own) in enumerate(zip(targets, options, strict=True)):
        file = Path(folder, f"body-{number}")
        file.write_bytes(frames)
        headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        commands.append(["h2load", *own, "-d", str(file), *headers, f"http://{address}{path}"])
    start = time.perf_counter()
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    outputs = [child.communicate()[0] for child in children]
    return time.perf_counter() - start, outputs


async def _python(targets, method, calls, streams, headers=()):
    async with AsyncExitStack() as stack:
        unary_calls: dict[str, Any] = {}
        for address in {address for address, _ in targets}:
            unary_calls[address] = await _unary_call(stack, address, method)

        async def stream(call, body, count):
            for _ in range(count):
                await call(body, metadata=tuple(headers))

        start = time.perf_counter()
        shares = [calls // streams + (index < calls % streams) for index in range(streams)]
        await asyncio.gather(
            *(stream(unary_calls[address], body, share) for address, body in targets for share in shares)
        )
        return time.perf_counter() - start


async def _unary_call(stack, address, method) -> Any:
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
    return channel.unary_unary(method if method.startswith("/") else SERVICE + method)


# -- many bodies


def send_all(address, method, bodies, calls, at_once, on_answer=None):
    """Send `calls` calls, cycling through the bodies, `at_once` at a time; None sends each body once.

    Returns the seconds, and the milliseconds of each call. `on_answer` is called with some of the answers.
    """
    return asyncio.run(_send_all(address, method, bodies, calls, at_once, on_answer))


async def _send_all(address, method, bodies, calls, at_once, on_answer):
    async with AsyncExitStack() as stack:
        call = await _unary_call(stack, address, method)
        took_ms: list[float] = []
        # One iterator for all tasks: each free task takes the next body.
        left = iter(bodies) if calls is None else islice(cycle(bodies), calls)

        async def send():
            for body in left:
                start = time.perf_counter()
                answer = await call(body)
                took_ms.append((time.perf_counter() - start) * 1_000)
                if on_answer is not None and len(took_ms) % 50 == 1:
                    on_answer(answer)

        start = time.perf_counter()
        await asyncio.gather(*(send() for _ in range(at_once)))
        return time.perf_counter() - start, took_ms


# -- fixed rate


def at_rate(address, method, bodies, rate, seconds):
    """Send at a rate that does not wait for answers. Returns the milliseconds of each call."""
    if shutil.which("h2load"):
        return _h2load_at_rate(address, method, bodies, rate, seconds)
    return asyncio.run(_python_at_rate(address, method, bodies, rate, seconds))


def _h2load_at_rate(address, method, bodies, rate, seconds):
    each = rate / len(bodies)
    calls = max(1, round(each * seconds))
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder, f"log-{number}") for number in range(len(bodies))]
        options = [
            ["-n", str(calls), "-c", "1", "-m", str(IN_FLIGHT_MAX), f"--rps={each:.3f}", f"--log-file={log}"]
            for log in logs
        ]
        _h2load(folder, [(address, framed(body)) for body in bodies], method, options)
        lines = [line.split("\t") for log in logs for line in log.read_text().splitlines()]
    if len(lines) != calls * len(bodies) or any(status != "200" for _, status, *_ in lines):
        raise SystemExit(f"only {len(lines)} of {calls * len(bodies)} calls were answered")
    return [int(micros) / 1_000 for _, _, micros, *_ in lines]


async def _python_at_rate(address, method, bodies, rate, seconds):
    """Count each call's time from when it was due, however late the client itself was."""
    async with AsyncExitStack() as stack:
        call = await _unary_call(stack, address, method)
        took_ms: list[float] = []
        drawn = random.Random(1)

        async def send(body, due):
            await call(body)
            took_ms.append((time.perf_counter() - due) * 1_000)

        start = due = time.perf_counter()
        pending = []
        for body in cycle(bodies):
            due += drawn.expovariate(rate)
            if due > start + seconds:
                break
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            pending.append(asyncio.ensure_future(send(body, due)))
        await asyncio.gather(*pending)
        return took_ms
