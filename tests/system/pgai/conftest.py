"""A server process with the door pgai, and the real pgai where an environment variable names a Python that has it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from liveness.doors.pgai import installation
from liveness.v1 import service_pb2, worker_pb2
from liveness.v1.progress_service_pb2 import ListProgressRequest, UnitProgress
from tests.databases import PostgresServer
from tests.system.server.server_process import ServerProcess

PGAI_PYTHON = "LIVENESS_TEST_PGAI_PYTHON"
"""A Python with: pip install pgai==0.12.1 tiktoken pgvector ijson filetype==1.2.0 tokenizers"""
NAMESPACE = "pgai"
WAIT_S = 60
# What the worker looks for before it begins.
PGAI_TABLES = """
CREATE SCHEMA ai;
CREATE TABLE ai.pgai_lib_version (name text PRIMARY KEY, version text);
INSERT INTO ai.pgai_lib_version VALUES ('ai', '0.12.1');
CREATE TABLE ai.vectorizer (id int PRIMARY KEY);
"""


class Stage:
    def __init__(self, dsn: str, folder: Path) -> None:
        self.dsn = dsn
        self.pgai_log = folder / "pgai.log"
        self.flags = ["--door", f"pgai={dsn}"]
        self.server = ServerProcess(f"sqlite:///{folder / 'liveness.db'}", flags=self.flags)
        self._children: list[asyncio.subprocess.Process] = []

    async def close(self) -> None:
        for child in self._children:
            if child.returncode is None:
                child.kill()
            await child.wait()
        await self.server.close()

    async def run(self, statement: str, *values: object) -> Any:
        connection = await asyncpg.connect(self.dsn)
        try:
            return await connection.fetchval(statement, *values)
        finally:
            await connection.close()

    async def workers(self, server: ServerProcess | None = None) -> dict[str, worker_pb2.Worker]:
        """All but the door itself."""
        liveness = (server or self.server).liveness
        answer = await liveness.ListWorkers(service_pb2.ListWorkersRequest(namespace=NAMESPACE))
        return {
            worker.worker_instance_key: worker
            for worker in answer.workers
            if worker.worker_instance_key != "door:pgai"
        }

    async def eventually(
        self, is_so: Callable[[dict[str, worker_pb2.Worker]], bool], server: ServerProcess | None = None
    ) -> dict[str, worker_pb2.Worker]:
        """Wait until the workers of liveness are so."""
        found: dict[str, worker_pb2.Worker] = {}
        try:
            async with asyncio.timeout(WAIT_S):
                while not is_so(found := await self.workers(server)):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(
                f"liveness never saw that; it has {found}\n{self.server.log_text()}"
            ) from None
        return found

    async def units(self) -> dict[str, UnitProgress]:
        answer = await self.server.progress.ListProgress(ListProgressRequest(namespace=NAMESPACE))
        return {unit.unit: unit for unit in answer.units}

    async def eventually_progress(self, counted: Mapping[str, tuple[int, int]]) -> dict[str, UnitProgress]:
        """Wait until liveness has these successes and errors by unit."""
        units: dict[str, UnitProgress] = {}
        try:
            async with asyncio.timeout(WAIT_S):
                while {unit: (each.successes, each.errors) for unit, each in units.items()} != counted:
                    await asyncio.sleep(0.05)
                    units = await self.units()
        except TimeoutError:
            raise AssertionError(
                f"progress is {units} instead of {counted}\n{self.server.log_text()}"
            ) from None
        return units

    async def view_says(self, id: str, state: str, verdict: str) -> None:
        """Wait until the view in the workers' database says so."""
        statement = "SELECT state || ': ' || verdict FROM ai.liveness_workers WHERE id = $1"
        said = None
        try:
            async with asyncio.timeout(WAIT_S):
                while (said := await self.run(statement, id)) != f"{state}: {verdict}":
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"the view says {said!r}\n{self.server.log_text()}") from None

    async def start_pgai(self, *arguments: str) -> asyncio.subprocess.Process:
        with self.pgai_log.open("wb") as log:
            child = await asyncio.create_subprocess_exec(
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "OPENAI_API_KEY": "none"},
            )
        self._children.append(child)
        return child

    async def pgai_logs(self, words: str) -> None:
        """Wait until pgai's log says so."""
        try:
            async with asyncio.timeout(WAIT_S):
                while words not in self.pgai_log.read_text():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"pgai never said {words!r}:\n{self.pgai_log.read_text()}") from None

    async def end(self, child: asyncio.subprocess.Process, how: signal.Signals) -> int:
        child.send_signal(how)
        return await asyncio.wait_for(child.wait(), WAIT_S)


@pytest.fixture
def pgai_python() -> Path:
    named = os.environ.get(PGAI_PYTHON)
    if not named:
        pytest.skip(f"{PGAI_PYTHON} names no Python with pgai installed")
    return Path(named)


@pytest.fixture
async def stage(postgres: PostgresServer, postgres_database: str, tmp_path: Path) -> AsyncIterator[Stage]:
    dsn = postgres.url(postgres_database)
    stage = Stage(dsn, tmp_path)
    await _execute(dsn, PGAI_TABLES)
    await installation.install(dsn)
    try:
        yield stage
    finally:
        await stage.close()


async def _execute(dsn: str, script: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(script)
    finally:
        await connection.close()
