"""A Celery broker and Celery workers, as processes that a test or a benchmark controls."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import redis

from tests.system.cli.server_processes import environment
from tests.system.sdk.server_process import SECONDS_MAX
from tests.unit.architecture.source_files import ROOT

PROGRAM = "tests.system.contrib.celery_program"


class Broker:
    def __init__(self, url: str, client: redis.Redis) -> None:
        self.url = url
        self.client = client

    def send(self, *names: str) -> None:
        script = f"import sys\nfrom {PROGRAM} import work\nfor name in sys.argv[1:]: work.delay(name)"
        variables = environment(BROKER=self.url, WORKER_NAME="sender")
        subprocess.run([sys.executable, "-c", script, *names], cwd=ROOT, env=variables, check=True)

    def begun(self) -> list[str]:
        return sorted(str(text) for text in self.client.lrange("begun", 0, -1))

    def finish(self, *names: str) -> None:
        for name in names:
            self.client.rpush(f"finish {name}", "now")

    def results(self) -> int:
        return len(self.client.keys("celery-task-meta-*"))

    def unacknowledged(self) -> int:
        return int(self.client.hlen("unacked"))


class CeleryWorker:
    """A Celery worker with its processes in a group of their own."""

    def __init__(self, name: str, broker: Broker, log: Path, **variables: str) -> None:
        own = {"BROKER": broker.url, "WORKER_NAME": name}
        command = [sys.executable, "-m", "celery", "-A", PROGRAM, "worker", "-n", f"{name}@host", "-c", "1"]
        with log.open("w") as output:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment(**(own | variables)),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def kill(self) -> None:
        """As if its machine were gone: no process of it does anything any more."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        self.wait()

    def wait(self) -> None:
        try:
            self._process.wait(SECONDS_MAX)
        finally:
            if self._process.poll() is None:
                self.kill()
