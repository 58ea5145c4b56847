"""A server that cannot start says why in one sentence and exits with 2."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.databases import PostgresServer, StoreDatabase
from tests.system.server.conftest import MakeServer
from tests.system.server.server_process import run_to_end


async def refused(*arguments: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the sentence with which `liveness serve` refuses to start."""
    code, stderr = await run_to_end("serve", "--listen", "127.0.0.1:0", *arguments, environ=environ)
    assert (code, "Traceback" in stderr) == (2, False), f"exit code {code}:\n{stderr}"
    lines = [line for line in stderr.splitlines() if not line.startswith(("Usage:", "Try ")) and line]
    assert len(lines) == 1, stderr
    return lines[0]


@pytest.fixture
async def database(sqlite_database: StoreDatabase) -> None:
    """A database with eight shards, all of which were served before."""
    store = await sqlite_database.open(8)
    await store.take_over(range(8), "tests", 1_750_000_000_000)
    await sqlite_database.close()


@pytest.mark.usefixtures("database")
async def test_serve_refuses_another_shard_count(sqlite_url: str) -> None:
    sentence = await refused("--db", sqlite_url, "--shards", "16")
    assert "created with 8 shards, not 16" in sentence


@pytest.mark.usefixtures("database")
async def test_serve_refuses_a_newer_revision(sqlite_url: str, sqlite_database: StoreDatabase) -> None:
    await sqlite_database.execute("UPDATE alembic_version SET version_num = '9999'")
    await sqlite_database.execute("UPDATE meta SET value = '9999' WHERE name = 'oldest_writer'")
    sentence = await refused("--db", sqlite_url, "--shards", "8")
    assert "revision 9999" in sentence
    assert "newer" in sentence


async def test_serve_refuses_a_database_file_in_use(make_server: MakeServer, sqlite_url: str) -> None:
    server = make_server(sqlite_url)
    await server.start()
    sentence = await refused("--db", sqlite_url, "--shards", "8")
    assert "in use by another liveness server" in sentence
    assert f"process {server.pid}" in sentence
    assert server.running


async def test_serve_refuses_a_port_in_use(sqlite_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        sentence = await refused("--db", sqlite_url, "--listen", address)
    assert f"Cannot listen on {address}" in sentence


async def test_serve_refuses_a_bad_flag() -> None:
    sentence = await refused("--shards", "0")
    assert "flag --shards is '0', but must be a whole number from 1 to 4096" in sentence


async def test_serve_refuses_a_bad_variable() -> None:
    sentence = await refused(environ={"LIVENESS_SHARDS": "many"})
    assert "variable LIVENESS_SHARDS is 'many'" in sentence


@pytest.mark.parametrize("folder", ["/proc", "no-folder", "a-file"])
async def test_serve_refuses_a_folder_that_it_cannot_write(folder: str, tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    path = tmp_path / folder / "liveness.db"
    assert str(path) in await refused("--db", f"sqlite:///{path}")


async def test_serve_refuses_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "liveness.db"
    path.write_bytes(b"this was never a database\n" * 1_000)
    sentence = await refused("--db", f"sqlite:///{path}")
    assert f"{path} is not a SQLite file" in sentence
    assert path.read_bytes() == b"this was never a database\n" * 1_000


@pytest.mark.usefixtures("database")
async def test_serve_refuses_a_damaged_database(sqlite_url: str, tmp_path: Path) -> None:
    path = tmp_path / "liveness.db"
    pages = bytearray(path.read_bytes())
    pages[4_096:] = b"\xa5" * (len(pages) - 4_096)
    path.write_bytes(pages)
    sentence = await refused("--db", sqlite_url, "--shards", "8")
    assert "malformed" in sentence
    assert str(path) in sentence


@pytest.mark.usefixtures("database")
async def test_serve_refuses_a_changed_row(sqlite_url: str, tmp_path: Path) -> None:
    """The server finds one flipped bit at the start, and does not serve it."""
    with sqlite3.connect(tmp_path / "liveness.db") as database:
        database.execute("UPDATE log SET wall_ms = wall_ms + 1 WHERE shard_id = 3")
    database.close()
    sentence = await refused("--db", sqlite_url, "--shards", "8")
    assert "shard 3" in sentence
    assert "checksum" in sentence


async def test_serve_refuses_an_unreachable_postgres() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"postgresql://postgres:secret@127.0.0.1:{probe.getsockname()[1]}/liveness"
        sentence = await refused("--db", url)
    assert "Connect call failed" in sentence
    assert "secret" not in sentence


async def test_serve_refuses_a_missing_postgres_database(durable_postgres: PostgresServer) -> None:
    sentence = await refused("--db", durable_postgres.url("no_such_database"))
    assert 'database "no_such_database" does not exist' in sentence
