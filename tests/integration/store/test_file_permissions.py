"""No other user of the machine can read the files of a database, its lock or its backups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from liveness.store.backup import create_backup
from liveness.store.sql import SqlStore
from liveness.store.sqlite import SqliteDatabase


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    return {path.name: oct(path.stat().st_mode & 0o777) for path in sorted(folder.iterdir())}


async def open_store(path: Path) -> SqlStore:
    database = SqliteDatabase(path)
    database.lock()
    store = SqlStore(database)
    await store.open(8, "tests")
    return store


async def test_new_files_are_private(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "liveness.db")
    names = ("liveness.db", "liveness.db-shm", "liveness.db-wal", "liveness.db.lock")
    assert modes(tmp_path) == dict.fromkeys(names, "0o600")
    create_backup(tmp_path / "liveness.db", tmp_path / "copy.db", lambda *_: None)
    assert modes(tmp_path)["copy.db"] == "0o600"
    await store.close()


async def test_files_of_an_earlier_version_are_tightened_and_the_folder_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    path = folder / "liveness.db"
    await (await open_store(path)).close()
    for file in folder.iterdir():
        file.chmod(0o644)
    (folder / "copy.db.unfinished").touch(0o644)
    with capture_logs() as logs:
        store = await open_store(path)
    assert set(modes(folder).values()) == {"0o600", "0o644"}
    assert {name for name, mode in modes(folder).items() if mode == "0o644"} == {"copy.db.unfinished"}
    assert {log["path"] for log in logs if log["event"].startswith("took other users' access")} == {
        str(path),
        f"{path}.lock",
    }
    assert oct(folder.stat().st_mode & 0o777) == "0o755"
    create_backup(path, folder / "copy.db", lambda *_: None)
    assert modes(folder)["copy.db"] == "0o600"
    await store.close()
