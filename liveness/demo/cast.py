"""The processes of the demo: started, killed, frozen, continued, and all ended when the demo ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from liveness.clock import Clock
from liveness.demo.plan import DemoFailed, Plan

START_SECONDS = 60
LOOK_MS = 20
GOODBYE_MS = 5_000
"""For a process that was asked to end, before it is made to."""
MARK = "listening on"


class Condition(StrEnum):
    """Of a process, as the demo knows it; the server has to find out."""

    STARTING = "starting"
    RUNNING = "running"
    KILLED = "killed"
    FROZEN = "frozen"
    ENDED = "ended"
    """Or asked to."""


@dataclass(slots=True)
class Actor:
    name: str
    process: subprocess.Popen[bytes]
    log: Path
    condition: Condition = Condition.STARTING
    struck_ms: int = 0
    """When it was killed or frozen last."""
    was_frozen: bool = False


class Cast:
    def __init__(self, plan: Plan, folder: Path, environment: Mapping[str, str], clock: Clock) -> None:
        self._plan = plan
        self._folder = folder
        # What somebody has set for a server of theirs is not for this one.
        # And a server that starts for the first time owes no grace to workers of an earlier run.
        self._environment = {
            **{name: value for name, value in environment.items() if not name.startswith("LIVENESS_")},
            "LIVENESS_TAKEOVER_GRACE_MS": "0",
        }
        self._clock = clock
        self._server: Actor | None = None
        self.address = ""
        self.workers: dict[str, Actor] = {}

    async def start_server(self) -> None:
        database = f"sqlite:///{self._folder / 'liveness.db'}"
        server = self._server = self._start(
            "server",
            *("liveness.cli", "serve", "--db", database, "--listen", "127.0.0.1:0", "--shards", "4"),
            *("--http", "off"),
            *("--log-level", "warning", "--log-format", "console"),
        )
        until_ms = self._clock.monotonic_ms() + START_SECONDS * 1_000
        while True:
            ended = server.process.poll() is not None
            for line in server.log.read_text(errors="replace").splitlines():
                if MARK in line:
                    self.address = line.split()[-1]
                    server.condition = Condition.RUNNING
                    return
            if ended or self._clock.monotonic_ms() > until_ms:
                raise DemoFailed(f"the server did not start{_last_words(server)}")
            await self._clock.sleep(LOOK_MS)

    def start_worker(self) -> Actor:
        name = f"worker-{len(self.workers) + 1}"
        plan = self._plan
        actor = self._start(
            name,
            *("liveness.demo.worker", "--address", self.address, "--name", name),
            *("--folder", str(self._folder), "--slots", str(plan.slots)),
            *("--lease", str(plan.lease_s), "--grace", str(plan.grace_s)),
        )
        self.workers[name] = actor
        return actor

    def kill(self, actor: Actor) -> None:
        """kill -9: the process learns nothing of it."""
        actor.process.kill()
        actor.condition, actor.struck_ms = Condition.KILLED, self._clock.monotonic_ms()

    def freeze(self, actor: Actor) -> None:
        actor.process.send_signal(signal.SIGSTOP)
        actor.condition, actor.struck_ms = Condition.FROZEN, self._clock.monotonic_ms()
        actor.was_frozen = True

    def thaw(self, actor: Actor) -> None:
        actor.process.send_signal(signal.SIGCONT)
        actor.condition = Condition.RUNNING

    def spare(self, actor: Actor) -> None:
        """As if it had not been frozen."""
        self.thaw(actor)
        actor.struck_ms, actor.was_frozen = 0, False

    def check(self) -> None:
        """Nobody dies here unless it is in the plot."""
        for actor in self._everybody():
            expected = actor.condition in (Condition.KILLED, Condition.ENDED)
            if actor.process.poll() is not None and not expected:
                raise DemoFailed(f"{actor.name} ended by itself{_last_words(actor)}")

    async def dismiss_workers(self) -> None:
        await self._end([actor for actor in self.workers.values() if actor.process.poll() is None])

    async def end(self) -> None:
        """Whatever happened before, nobody is left afterwards."""
        try:
            await self.dismiss_workers()
            if self._server is not None:
                await self._end([self._server])
        finally:
            for actor in self._everybody():
                actor.process.kill()
                actor.process.wait()
                if actor.process.stdin is not None:
                    actor.process.stdin.close()

    def _start(self, name: str, *command: str) -> Actor:
        log = self._folder / f"{name}.log"
        try:
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "liveness.demo.tether", *command],
                    cwd=self._folder,
                    env=self._environment,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # so that Ctrl-C reaches the demo alone, which then ends the others
                )
        except OSError as error:
            raise DemoFailed(f"{name} could not be started: {error}") from error
        return Actor(name, process, log)

    async def _end(self, actors: list[Actor]) -> None:
        for actor in actors:
            actor.condition = Condition.ENDED
            actor.process.terminate()
            actor.process.send_signal(signal.SIGCONT)
        until_ms = self._clock.monotonic_ms() + GOODBYE_MS
        while any(actor.process.poll() is None for actor in actors):
            if self._clock.monotonic_ms() > until_ms:
                break
            await self._clock.sleep(LOOK_MS)
        for actor in actors:
            if actor.process.poll() is None:
                actor.process.kill()

    def _everybody(self) -> list[Actor]:
        return [*self.workers.values(), *([self._server] if self._server is not None else [])]


def _last_words(actor: Actor) -> str:
    lines = [line for line in actor.log.read_text(errors="replace").splitlines() if line.strip()]
    return f": {lines[-1].removeprefix('error: ')}" if lines else ""
