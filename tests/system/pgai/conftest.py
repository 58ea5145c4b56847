"""A server process with the door pgai, and the real pgai where an environment variable names a Python that has it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from liveness.doors.pgai import installation
from liveness.v1 import service_pb2, worker_pb2
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
    def __init__(self, dsn: str, db: str) -> None:
        self.dsn = dsn
        self.flags = ["--door", f"pgai={dsn}"]
        self.server = ServerProcess(db, flags=self.flags)
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

    async def start_pgai(self, *arguments: str) -> asyncio.subprocess.Process:
        child = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "OPENAI_API_KEY": "none"},
        )
        self._children.append(child)
        return child

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
    stage = Stage(dsn, f"sqlite:///{tmp_path / 'liveness.db'}")
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
