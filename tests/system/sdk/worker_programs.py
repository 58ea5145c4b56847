"""Workers in their own processes, so that tests can stop and kill them. Each prints its actions, line by line."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.system.cli.server_processes import environment
from tests.system.sdk.server_process import SECONDS_MAX, Lines

ROOT = Path(__file__).resolve().parents[3]

# Holds one activity after another; prints when one is held and when it is lost.
HOLDER = """
import asyncio, json, sys
from liveness.sdk import LivenessSdkError, ActivityLost, Worker

def say(*words):
    print(*words, flush=True)

async def main():
    async with Worker(sys.argv[1], task_queue="queue", **json.loads(sys.argv[2])) as worker:
        for number in range(100):
            try:
                async with worker.bind(f"a{number}") as binding:
                    say("holding", f"a{number}", worker.instance_key, *binding.fencing_token)
                    try:
                        await asyncio.Event().wait()
                    finally:
                        try:
                            binding.check()
                            say("held to the end")
                        except ActivityLost as error:
                            say("check:", type(error).__name__)
            except ActivityLost as error:
                say("lost:", type(error).__name__)

try:
    asyncio.run(main())
except LivenessSdkError as error:
    say("ended:", type(error).__name__)
"""

# Runs activities: `quick` ends by itself, `slow` only when it is lost or told to stop.
RUNNER = """
import asyncio, json, sys
from liveness.sdk import Worker

def say(*words):
    print(*words, flush=True)

async def main():
    async with Worker(sys.argv[1], task_queue="queue", **json.loads(sys.argv[2])) as worker:
        @worker.activity("quick")
        async def quick(task):
            return task.input

        @worker.activity("slow")
        async def slow(task):
            say("begun", task.id, task.attempt)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                say("stopped", task.id)
                raise

        say("running", worker.instance_key)
        await worker.run()
        say("stats", worker.stats.completed, worker.stats.lost, worker.stats.released)

asyncio.run(main())
say("done")
"""


class Program:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines = Lines(process)

    def next_line(self, beginning: str) -> list[str]:
        """Return the words of the next line that begins like this."""
        seen = []
        while True:
            line = self._lines.next()
            if line.startswith(beginning):
                return line.split()
            seen.append(line)
            assert line != "(it has ended)", f"expected {beginning!r}, heard {seen}"

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS_MAX)
        self._lines.close()


@contextmanager
def program(source: str, address: str, options: str = "{}") -> Iterator[Program]:
    process = subprocess.Popen(
        [sys.executable, "-c", source, address, options],
        cwd=ROOT,
        env=environment(PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        running = Program(process)
        try:
            yield running
        finally:
            running.close()
