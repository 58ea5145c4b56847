"""On a slow, full or broken disk, acknowledged data is kept, and data that cannot be kept is not acknowledged."""

from __future__ import annotations

import asyncio
import resource
import time
from pathlib import Path
from random import Random

from tests.databases import StoreDatabase
from tests.system.server.audit import audit_workers
from tests.system.server.conftest import NO_TAKEOVER_GRACE, MakeServer
from tests.system.server.crash_loop import acknowledged, check, final_audit
from tests.system.server.faulty_disk import FaultyDisk
from tests.system.server.ledger import Ledger
from tests.system.server.load import Load
from tests.system.server.server_process import ServerProcess, run_to_end

EXIT_DISK_BROKEN = 74
LOAD_SECONDS = 0.5


async def test_slow_syncs_cost_no_worker_its_lease(
    make_server: MakeServer, sqlite_url: str, sqlite_database: StoreDatabase, disk: FaultyDisk
) -> None:
    """The commits take longer than the leases."""
    server = make_server(sqlite_url, environ=disk.environ | NO_TAKEOVER_GRACE)
    ledger = Ledger(server)
    await server.start()
    async with Load(server, ledger, Random(7), leases_ms=[1_000, 2_000], pace_s=0.1) as load:
        await acknowledged(ledger, 100)
        disk.sync_slowly(2_000)
        await acknowledged(ledger, 30)
        disk.repair()
        await acknowledged(ledger, 80)
        turn_s = load.slowest_turn_s
        load.pause()
        await load.wait_idle()
    await audit_workers(server, ledger)
    # Unless this process itself stalled, each worker sent its next heartbeat right after the last answer.
    if turn_s < 0.4:
        assert ledger.lapsed("unary") + ledger.lapsed("batch") == []
    assert ledger.in_doubt == 0
    await final_audit(server, sqlite_database, ledger)
    check(ledger)


async def test_a_kill_during_a_slow_sync_loses_no_acknowledged_heartbeat(
    make_server: MakeServer, sqlite_url: str, sqlite_database: StoreDatabase, disk: FaultyDisk
) -> None:
    server = make_server(sqlite_url, environ=disk.environ | NO_TAKEOVER_GRACE)
    ledger = Ledger(server)
    await server.start()
    async with Load(server, ledger, Random(8)) as load:
        await acknowledged(ledger, 100)
        disk.sync_slowly(1_500)
        await asyncio.sleep(LOAD_SECONDS)
        await server.kill()
        await _restarted(server, ledger, load, disk)
    await final_audit(server, sqlite_database, ledger)
    check(ledger)


async def test_a_failed_sync_ends_the_server_without_another_acknowledgement(
    make_server: MakeServer, sqlite_url: str, sqlite_database: StoreDatabase, disk: FaultyDisk
) -> None:
    """After the first failed sync, the server acknowledges nothing and the process ends by itself."""
    server = make_server(sqlite_url, environ=disk.environ | NO_TAKEOVER_GRACE)
    ledger = Ledger(server)
    await server.start()
    async with Load(server, ledger, Random(9)) as load:
        for _ in range(3):
            await acknowledged(ledger, 100)
            disk.fail_to_sync()
            ledger.no_answers_after = time.monotonic()
            assert await server.ended() == EXIT_DISK_BROKEN, server.log_text()
            assert "Traceback" not in server.log_text()
            assert "stopping at once" in server.log_text()
            await _restarted(server, ledger, load, disk)
        load.pause()
        await load.wait_idle()
    await final_audit(server, sqlite_database, ledger)
    check(ledger)


async def test_a_server_does_not_start_on_a_disk_that_fails_to_sync(
    sqlite_url: str, disk: FaultyDisk
) -> None:
    disk.fail_to_sync()
    end = await run_to_end("serve", "--listen", "127.0.0.1:0", "--db", sqlite_url, environ=disk.environ)
    assert end.code == 2
    assert "disk I/O error" in end.stderr
    assert "Traceback" not in end.stderr


async def test_a_full_disk_stops_acknowledgements_until_there_is_room(
    make_server: MakeServer, sqlite_url: str, sqlite_database: StoreDatabase, disk: FaultyDisk
) -> None:
    """The server recovers without a restart."""
    server = make_server(sqlite_url, environ=disk.environ | NO_TAKEOVER_GRACE)
    ledger = Ledger(server)
    await server.start()
    async with Load(server, ledger, Random(10)) as load:
        await acknowledged(ledger, 100)
        disk.fill()
        ledger.no_answers_after = time.monotonic()
        await asyncio.sleep(1.5)
        assert server.running, server.log_text()
        assert ledger.in_doubt > 0
        ledger.no_answers_after = None
        assert server.log_text().count("cannot renew this node's lease") == 1
        disk.repair()
        await acknowledged(ledger, 100)
        load.pause()
        await load.wait_idle()
    await final_audit(server, sqlite_database, ledger)
    check(ledger)


async def test_a_file_that_may_not_grow_ends_the_server(
    make_server: MakeServer, sqlite_url: str, sqlite_database: StoreDatabase, tmp_path: Path
) -> None:
    """The kernel refuses to write beyond a limit; the server ends rather than acknowledge."""
    server = make_server(sqlite_url, environ=NO_TAKEOVER_GRACE)
    ledger = Ledger(server)
    await server.start()
    async with Load(server, ledger, Random(11)) as load:
        await acknowledged(ledger, 100)
        wal = tmp_path / "liveness.db-wal"
        limit = wal.stat().st_size + 100_000
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        assert await server.ended() == EXIT_DISK_BROKEN, server.log_text()
        await _restarted(server, ledger, load)
        load.pause()
        await load.wait_idle()
    await final_audit(server, sqlite_database, ledger)
    check(ledger)


async def _restarted(
    server: ServerProcess, ledger: Ledger, load: Load, disk: FaultyDisk | None = None
) -> None:
    load.pause()
    await load.wait_idle()
    await server.disconnect()
    if disk is not None:
        disk.repair()
    ledger.no_answers_after = None
    await server.start()
    await audit_workers(server, ledger)
    load.resume()
