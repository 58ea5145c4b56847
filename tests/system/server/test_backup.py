"""`liveness backup` and `liveness restore` on a server under load: complete, killed half-way, and on a full disk."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from liveness.store.codec import decode_bound_activity
from liveness.v1 import service_pb2, worker_pb2
from tests.databases import sqlite_store_database
from tests.system.server.audit import audit_workers, describe
from tests.system.server.conftest import NO_TAKEOVER_GRACE, MakeServer
from tests.system.server.crash_loop import ReportResult, acknowledged, check, stop
from tests.system.server.ledger import INACTIVE, NAMESPACE, RESURRECTED, Beat, Ledger, View
from tests.system.server.load import Load
from tests.system.server.server_process import ROOT, command, environment, run_to_end

COMPACTING = NO_TAKEOVER_GRACE | {"LIVENESS_CHECKPOINT_INTERVAL_S": "0.2"}
PADDING_MB = 32
"""Large enough that a copy can be killed in the middle."""
WAIT_SECONDS_MAX = 60
SHARDS = 8
"""Of every server in this file."""


def progress(worker: View | worker_pb2.Worker) -> tuple[int, int, int]:
    """Return a number that rises with every call of this worker."""
    if isinstance(worker, View):
        return worker.epoch, _number(worker.session), worker.sequence
    return worker.lease_epoch, _number(worker.session_id), worker.sequence


def _number(session: str) -> int:
    return int(session.rpartition("-")[2])


async def make_large_database(path: Path) -> None:
    """Give the database the size of one in long use. Foreign tables are copied like the others."""
    store_database = sqlite_store_database(path.parent)
    await store_database.open(SHARDS)
    await store_database.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE padding (bytes BLOB)")
        connection.executemany("INSERT INTO padding VALUES (randomblob(1048576))", [()] * PADDING_MB)
        connection.commit()


async def test_a_restored_backup_contains_all_data_acknowledged_before_it(
    make_server: MakeServer, tmp_path: Path, report_result: ReportResult
) -> None:
    path, target = tmp_path / "liveness.db", tmp_path / "backup.db"
    server = make_server(f"sqlite:///{path}", environ=COMPACTING)
    ledger = Ledger(server)
    await make_large_database(path)
    await server.start()
    async with Load(server, ledger, Random(5)) as load:
        await acknowledged(ledger, 250)
        load.pause()
        await load.wait_idle()
        await audit_workers(server, ledger)
        before = {key: view for key in ledger.keys() if (view := ledger.view(key))}  # noqa: SIM118
        load.resume()
        answered = ledger.acked
        ended = await run_to_end("backup", "--db", server.db, str(target))
        meanwhile = ledger.acked - answered
        assert (ended.code, ended.stderr) == (0, "")
        await acknowledged(ledger, 100)
        load.pause()
        await load.wait_idle()
        await audit_workers(server, ledger)
        after = {key: view for key in ledger.keys() if (view := ledger.view(key))}  # noqa: SIM118
        await server.kill()
    await server.disconnect()
    report_result(f"{meanwhile} calls were acknowledged while the backup was made")
    assert meanwhile > 0, "the server went on"

    ended = await run_to_end("restore", str(target), "--db", server.db, "--force")
    assert ended.code == 0, ended.stderr
    assert "All leases have ended:" in ended.stderr
    await server.start()
    epochs = []
    for key, view in before.items():
        shown = await describe(server, key)
        assert shown is not None, f"{key} is gone"
        assert progress(view) <= progress(shown) <= progress(after[key])
        assert shown.state == INACTIVE
        request = service_pb2.RecordWorkerHeartbeatRequest(
            namespace=NAMESPACE, heartbeat=Beat(key, f"{key}-session-9999", 1, 10_000).message()
        )
        result = await server.liveness.RecordWorkerHeartbeat(request)
        assert result.outcome == RESURRECTED
        epochs.append(result.lease_epoch)
    assert min(epochs) > max(view.epoch for view in after.values())
    assert await stop(server) == 0
    _audit_losses(path, before)
    check(ledger)


def _audit_losses(path: Path, before: dict[str, View]) -> None:
    """Check that each activity that was lost or held before the backup was rescheduled, or unbound by its worker since."""
    with closing(sqlite3.connect(path)) as connection:
        found = {
            (key, epoch, decode_bound_activity(activity).workflow_id)
            for key, epoch, activity in connection.execute(
                "SELECT worker_key, lease_epoch, activity FROM tasks"
            )
        }
    lost = {
        (key, loss.epoch, name)
        for key, view in before.items()
        for loss in view.losses
        for name in loss.activities
    }
    assert lost
    assert lost <= found


async def test_a_killed_backup_leaves_no_file_that_looks_complete(
    make_server: MakeServer, tmp_path: Path
) -> None:
    path, target = tmp_path / "liveness.db", tmp_path / "backup.db"
    server = make_server(f"sqlite:///{path}")
    await make_large_database(path)
    await server.start()
    await _kill_when(target.with_name("backup.db.unfinished"), "backup", "--db", server.db, str(target))
    assert not target.exists()
    ended = await run_to_end("restore", f"{target}.unfinished", "--db", f"sqlite:///{tmp_path}/other.db")
    assert ended.code == 2
    assert "is not a complete backup" in ended.stderr
    assert (await run_to_end("backup", "--db", server.db, str(target))).code == 0
    assert not target.with_name("backup.db.unfinished").exists()
    await stop(server)
    ended = await run_to_end("restore", str(target), "--db", server.db, "--force")
    assert ended.code == 0, ended.stderr
    await server.start()


async def test_a_killed_restore_leaves_the_old_database(make_server: MakeServer, tmp_path: Path) -> None:
    path, target = tmp_path / "liveness.db", tmp_path / "backup.db"
    server = make_server(f"sqlite:///{path}")
    ledger = Ledger(server)
    await make_large_database(path)
    assert (await run_to_end("backup", "--db", server.db, str(target))).code == 0
    await server.start()
    async with Load(server, ledger, Random(6)) as load:
        await acknowledged(ledger, 100)
        load.pause()
        await load.wait_idle()
        await server.kill()
    await server.disconnect()
    await _kill_when(
        path.with_name("liveness.db.unfinished"), "restore", str(target), "--db", server.db, "--force"
    )
    await server.start()
    await audit_workers(server, ledger)
    check(ledger)
    await stop(server)
    assert (await run_to_end("restore", str(target), "--db", server.db, "--force")).code == 0
    await server.start()


async def _kill_when(grows: Path, *arguments: str) -> None:
    """Kill the command as soon as the file that it writes is not empty."""
    child = await asyncio.create_subprocess_exec(
        *command(*arguments),
        cwd=ROOT,
        env=environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not (grows.exists() and grows.stat().st_size):
        assert child.returncode is None, "the command ended before it could be killed"
        assert time.monotonic() < deadline
        await asyncio.sleep(0)
    child.send_signal(signal.SIGKILL)
    assert await child.wait() == -signal.SIGKILL


async def test_a_restore_refuses_to_replace_the_database_of_a_running_server(
    make_server: MakeServer, tmp_path: Path
) -> None:
    server = make_server(f"sqlite:///{tmp_path / 'liveness.db'}")
    await server.start()
    backup = str(tmp_path / "backup.db")
    assert (await run_to_end("backup", "--db", server.db, backup)).code == 0
    ended = await run_to_end("restore", backup, "--db", server.db, "--force")
    assert ended.code == 2
    assert "is in use by another liveness server" in ended.stderr
    assert await describe(server, "nobody") is None


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk to fill")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], check=False, capture_output=True
    )
    if made.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {made.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


async def test_a_full_disk_fails_the_backup_and_keeps_the_database(
    make_server: MakeServer, tmp_path: Path, small_disk: Path
) -> None:
    path = tmp_path / "liveness.db"
    server = make_server(f"sqlite:///{path}")
    await make_large_database(path)
    target = small_disk / "backup.db"
    ended = await run_to_end("backup", "--db", server.db, str(target))
    assert ended.code == 1
    assert "The backup was not made" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert list(small_disk.iterdir()) == []

    assert (await run_to_end("backup", "--db", server.db, str(tmp_path / "backup.db"))).code == 0
    (small_disk / "liveness.db").write_bytes(b"what was there")
    ended = await run_to_end(
        "restore", str(tmp_path / "backup.db"), "--db", f"sqlite:///{small_disk}/liveness.db", "--force"
    )
    assert ended.code == 1
    assert "Nothing was restored" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert (small_disk / "liveness.db").read_bytes() == b"what was there"
