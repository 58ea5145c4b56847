"""A server process for each test, with a database that survives kills."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.databases import PostgresServer, StoreDatabase, sqlite_store_database
from tests.system.server.crash_loop import ReportResult
from tests.system.server.faulty_disk import FaultyDisk, compile_library
from tests.system.server.server_process import ServerProcess

MakeServer = Callable[..., ServerProcess]

NO_TAKEOVER_GRACE = {"LIVENESS_TAKEOVER_GRACE_MS": "0"}
"""Without the grace after a start, leases are most exposed to early expiry."""
NO_CHECKPOINTS = {"LIVENESS_CHECKPOINT_INTERVAL_S": "3600"}
"""Checkpoints would delete renewals, and the audit reads every row."""


@pytest.fixture
def report_result(capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> ReportResult:
    """Report figures of a test on the terminal, past pytest's capture."""

    def report_result(
        text: str, *, tried: int = 0, violated: int = 0, row: str = "", seconds: float | None = None
    ) -> None:
        told = {"tried": tried, "violated": violated, "row": row, "seconds": seconds, "text": text}
        request.node.user_properties.append(("told", json.dumps(told)))
        with capsys.disabled():
            print(f"\n{request.node.name}: {text}", file=sys.stderr, flush=True)

    return report_result


@pytest.fixture
async def make_server() -> AsyncIterator[MakeServer]:
    """Make servers, and kill them when the test is over."""
    async with AsyncExitStack() as stack:

        def make(db: str, *, environ: Mapping[str, str] | None = None, **options: object) -> ServerProcess:
            server = ServerProcess(db, environ=environ, **options)  # type: ignore[arg-type]
            stack.push_async_callback(server.close)
            return server

        yield make


@pytest.fixture
def sqlite_database(tmp_path: Path) -> StoreDatabase:
    """The database of `sqlite_url`."""
    return sqlite_store_database(tmp_path)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'liveness.db'}"


@pytest.fixture(scope="session")
def durable_postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL that syncs its commits to disk, unlike the one that other tests share."""
    with PostgresServer(fsync=True) as server:
        yield server


@pytest.fixture(scope="session")
def faulty_disk_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp("faults"))


@pytest.fixture
def disk(faulty_disk_library: Path, tmp_path: Path) -> FaultyDisk:
    return FaultyDisk(faulty_disk_library, tmp_path / "disk")
