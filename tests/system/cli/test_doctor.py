"""`liveness doctor` examines real databases without changing them."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from liveness.app import open_store
from liveness.clock import SystemClock
from liveness.config.settings import Settings
from liveness.server.edge_listener import edge_is_installed
from tests.databases import PostgresServer
from tests.system.cli.server_processes import running_server
from tests.system.cli.shell import UNUSED_ADDRESS, Shell


def examine(db: str, shell: Shell | None = None, **variables: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the exit code, and the findings by check."""
    result = (shell or Shell()).run("doctor", "--db", db, "--json", LIVENESS_SHARDS="2", **variables)
    assert result.stderr == ""
    return result.exit_code, {finding["check"]: finding for finding in json.loads(result.stdout)}


def sqlite(path: Path) -> str:
    return f"sqlite:///{path}"


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def stopped_server_database(folder: Path) -> Path:
    async def open_and_close() -> None:
        await (await open_store(Settings(db=sqlite(path), shards=2))).close()

    path = folder / "liveness.db"
    asyncio.run(open_and_close())
    return path


def test_a_missing_database_is_fine_and_is_not_created(tmp_path: Path) -> None:
    code, found = examine(sqlite(tmp_path / "new.db"))
    assert code == 0
    assert found["database"]["saw"].endswith("does not exist yet")
    assert found["durability"]["saw"].startswith("journal_mode=wal, synchronous=FULL")
    assert "durable commit takes" in found["commits"]["saw"]
    assert found["server"]["verdict"] == "warning"
    assert {"Python", "liveness", "grpcio", "protobuf", "SQLAlchemy", "asyncpg", "SQLite library"} <= set(
        found
    )
    assert files(tmp_path) == {}


def test_a_closed_database_is_examined_and_unchanged(tmp_path: Path) -> None:
    path = stopped_server_database(tmp_path)
    before = files(tmp_path)
    code, found = examine(sqlite(path))
    assert code == 0
    assert found["journal mode"]["saw"] == "wal"
    assert found["tables"]["saw"].endswith("up to date")
    assert found["shards"]["saw"] == "2"
    assert files(tmp_path) == before


def test_the_growth_of_a_database_is_shown(tmp_path: Path) -> None:
    path = stopped_server_database(tmp_path)
    assert "not known yet" in examine(sqlite(path))[1]["growth"]["saw"]
    half_a_day_ago_ms = SystemClock().wall_ms() - 12 * 3_600_000
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO sizes VALUES (?, 0)", [half_a_day_ago_ms])
        connection.commit()
    growth = examine(sqlite(path))[1]["growth"]
    assert growth["verdict"] == "ok"
    assert re.fullmatch(
        r"\d+ KiB of content; it grows by \d+ KiB a day, so the disk is full in [\d,]+ days", growth["saw"]
    )


def test_a_database_is_examined_while_the_server_runs(tmp_path: Path) -> None:
    with running_server(tmp_path) as address:
        code, found = examine(sqlite(tmp_path / "liveness.db"), Shell(address))
        assert code == 0
        listener = "edge" if edge_is_installed() else "python"
        assert found["server"]["saw"] == f"{address} serves; listener: {listener}"
        assert found["tables"]["verdict"] == "ok"
        Shell(address).heartbeat("w")


def test_a_database_after_a_crash_keeps_its_write_ahead_log(tmp_path: Path) -> None:
    running, crashed = tmp_path / "running", tmp_path / "crashed"
    running.mkdir()
    crashed.mkdir()
    with running_server(running) as address:
        Shell(address).heartbeat("w")
        for name in ("liveness.db", "liveness.db-wal"):
            shutil.copy(running / name, crashed)
    before = files(crashed)
    code, found = examine(sqlite(crashed / "liveness.db"))
    assert code == 0
    assert found["tables"]["saw"].endswith("up to date")
    after = files(crashed)
    assert {name: after[name] for name in before} == before


def test_tables_of_a_newer_version_fail(tmp_path: Path) -> None:
    path = stopped_server_database(tmp_path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.execute("UPDATE meta SET value = '9999' WHERE name = 'oldest_writer'")
    code, found = examine(sqlite(path))
    assert code == 1
    assert found["tables"]["verdict"] == "failed"
    assert "9999" in found["tables"]["saw"]


def test_another_shard_count_fails(tmp_path: Path) -> None:
    path = stopped_server_database(tmp_path)
    result = Shell().run("doctor", "--db", sqlite(path), LIVENESS_SHARDS="3")
    assert result.exit_code == 1
    assert "Start with --shards 2." in result.stdout


@pytest.mark.parametrize("journal_mode", ["delete", "wal"])
def test_tables_of_another_program_fail(tmp_path: Path, journal_mode: str) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode={journal_mode}")
        connection.execute("CREATE TABLE theirs (n)")
    code, found = examine(sqlite(path))
    assert code == 1
    assert found["tables"]["saw"] == "those of another program"
    assert found["journal mode"]["verdict"] == ("ok" if journal_mode == "wal" else "warning")


def test_a_file_that_is_no_database_fails_and_is_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear all, this is not a database at all.")
    before = files(tmp_path)
    code, found = examine(sqlite(path))
    assert code == 1
    assert found["database"]["saw"].endswith("is not a SQLite database")
    assert files(tmp_path) == before


def test_a_damaged_database_fails(tmp_path: Path) -> None:
    path = tmp_path / "damaged.db"
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 4_080)
    code, found = examine(sqlite(path))
    assert code == 1
    assert found["database"]["verdict"] == "failed"


def test_a_missing_folder_fails(tmp_path: Path) -> None:
    code, found = examine(sqlite(tmp_path / "missing" / "x.db"))
    assert code == 1
    assert found["folder"]["advice"] == f"Create it: mkdir -p {tmp_path / 'missing'}"


def test_a_path_may_contain_special_characters(tmp_path: Path) -> None:
    folder = tmp_path / "a b#c"
    folder.mkdir()
    path = stopped_server_database(folder)
    assert examine(sqlite(path))[0] == 0


def test_a_bad_setting_is_reported_in_one_sentence() -> None:
    assert Shell().sentence("doctor", "--db", "mysql://x", exit_code=2).startswith("flag --db is 'mysql://x'")
    assert (
        Shell().sentence("doctor", exit_code=2, LIVENESS_ADDRESS="x").startswith("variable LIVENESS_ADDRESS")
    )


def test_the_table_says_what_to_do(tmp_path: Path) -> None:
    out = Shell().ok("doctor", "--db", sqlite(tmp_path / "new.db"))
    assert f"none answers at {UNUSED_ADDRESS}" in out
    assert "Start one with `liveness serve`." in out


def test_a_postgresql_that_may_lose_data_fails(postgres: PostgresServer, postgres_database: str) -> None:
    """The tests' own server runs without fsync."""
    code, found = examine(postgres.url(postgres_database))
    assert code == 1
    assert {name for name, finding in found.items() if finding["verdict"] == "failed"} == {"fsync"}
    assert found["full_page_writes"]["verdict"] == "warning"
    assert found["synchronous_commit"]["saw"] == "on"
    assert "PostgreSQL 1" in found["database"]["saw"]
    assert "durable commit takes" in found["commits"]["saw"]
    assert found["tables"]["saw"] == "none yet"
    tables = postgres.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", postgres_database)
    assert tables == "0"


def test_a_durable_postgresql_passes(tmp_path: Path) -> None:
    with PostgresServer(fsync=True) as durable:
        url = durable.url(durable.create_database())
        with running_server(tmp_path, "--db", url) as address:
            code, found = examine(url, Shell(address))
    assert code == 0
    assert {finding["verdict"] for finding in found.values()} == {"ok"}
    assert found["shards"]["saw"] == "2"


def test_an_unreachable_postgresql_fails_without_showing_the_password() -> None:
    code, found = examine("postgresql://u:hunter2@127.0.0.1:1/x")
    assert code == 1
    assert "hunter2" not in found["database"]["saw"]
