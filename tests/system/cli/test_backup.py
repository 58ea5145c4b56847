"""`liveness backup` and `liveness restore` as commands; tests/integration/backup tests their effects."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.databases import PostgresServer
from tests.system.cli.server_processes import environment, liveness_command, running_server
from tests.system.cli.shell import Shell

POSTGRES = "postgresql://liveness:secret@db.example/liveness"


def liveness(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        liveness_command(*args), cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )


def test_a_running_server_is_backed_up_and_a_stopped_one_restored(tmp_path: Path) -> None:
    with running_server(tmp_path) as address:
        Shell(address).heartbeat("w")
        shown = Shell().json("backup", "--db", f"sqlite:///{tmp_path}/liveness.db", str(tmp_path / "copy.db"))
        assert (shown["target"], shown["workers"], shown["shards"]) == (str(tmp_path / "copy.db"), 1, 2)
        assert shown["bytes"] == (tmp_path / "copy.db").stat().st_size
    done = liveness(tmp_path, "restore", "copy.db", "--force")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["restored", "sqlite:///liveness.db"]
    assert "1 worker became inactive and 0 activities are rescheduled" in done.stderr
    with running_server(tmp_path) as address:
        assert Shell(address).heartbeat("w").lease_epoch > 1_000_000


def test_the_steps_after_a_foreign_restore_can_be_run_alone(tmp_path: Path) -> None:
    with running_server(tmp_path) as address:
        Shell(address).heartbeat("w")
    done = liveness(tmp_path, "restore", "--already-restored", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["workers"], facts["activities"]) == (1, 0)
    with running_server(tmp_path) as address:
        assert Shell(address).heartbeat("w").lease_epoch == facts["token_floor"]


def test_postgresql_is_refused_with_a_hint_to_its_own_tools(tmp_path: Path) -> None:
    assert Shell().sentence("backup", "--db", POSTGRES, str(tmp_path / "copy.db"), exit_code=2) == (
        "liveness backup copies SQLite files; back up PostgreSQL with pg_basebackup or pg_dump, "
        "as docs/operations.md says."
    )
    done = liveness(tmp_path, "restore", "copy.db", "--db", POSTGRES)
    assert done.returncode == 2
    assert done.stderr == (
        "error: liveness restore works on SQLite files; restore PostgreSQL by its own means and then call "
        "`liveness restore --already-restored`, as docs/operations.md says.\n"
    )


def test_errors_are_reported_in_one_sentence(tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path}/liveness.db"
    assert "does not exist" in Shell().sentence("backup", "--db", db, str(tmp_path / "copy.db"), exit_code=2)
    assert Shell().sentence("restore", "--db", db, exit_code=2).startswith("name a BACKUP to restore")
    assert (
        Shell()
        .sentence("restore", "x.db", "--already-restored", "--db", db, exit_code=2)
        .startswith("name a BACKUP")
    )
    done = liveness(tmp_path, "restore", "no.db")
    assert done.returncode == 2
    assert done.stderr.startswith("error: no.db is not a complete backup: ")
    assert len(done.stderr.splitlines()) == 1
    assert [found.name for found in tmp_path.iterdir()] == []
    assert (
        Shell().sentence("restore", "--moved", "--db", db, exit_code=2).startswith("--moved is for Postgre")
    )


def test_a_postgresql_that_is_served_is_not_touched_and_a_moved_one_is_served_as_it_is(
    tmp_path: Path, postgres: PostgresServer, postgres_database: str
) -> None:
    db = postgres.url(postgres_database)
    with running_server(tmp_path, "--db", db) as address:
        Shell(address).heartbeat("w")
        for flag in ("--already-restored", "--moved"):
            done = liveness(tmp_path, "restore", flag, "--db", db)
            assert done.returncode == 2
            assert done.stderr.startswith("error: Nothing was changed: node "), done.stderr
            assert "stop all nodes" in done.stderr
        assert Shell(address).heartbeat("w").lease_epoch == 1
    copy = postgres.create_database(postgres_database)
    served = liveness(
        tmp_path, "serve", "--db", postgres.url(copy), "--listen", "127.0.0.1:0", "--shards", "2"
    )
    assert served.returncode == 2
    assert "run `liveness restore --already-restored`" in served.stderr
    done = liveness(tmp_path, "restore", "--moved", "--db", postgres.url(copy))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["moved", postgres.url(copy)]
    with running_server(tmp_path, "--db", postgres.url(copy)) as address:
        assert Shell(address).heartbeat("w").lease_epoch == 1
    postgres.drop_database(copy)
