"""Acknowledged data survives a power loss, whatever part of the unsynced writes the disk keeps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from tests.crash.power_loss import SOURCE, PowerLoss
from tests.crash.scale import scaled
from tests.databases import StoreDatabase
from tests.system.server.audit import audit_workers
from tests.system.server.conftest import NO_TAKEOVER_GRACE, MakeServer
from tests.system.server.crash_loop import ReportResult, acknowledged, check, crash_repeatedly
from tests.system.server.faulty_disk import FaultyDisk, compile_library
from tests.system.server.ledger import Ledger
from tests.system.server.load import Load
from tests.system.server.server_process import ServerProcess

COMPACTING = NO_TAKEOVER_GRACE | {"LIVENESS_CHECKPOINT_INTERVAL_S": "0.2"}
SLOW_MS = 15
"""Each sync takes this much longer, so that more writes are unsynced when the power fails."""


@pytest.fixture(scope="session")
def power_loss_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp("power"), SOURCE)


@pytest.fixture
def power_loss(power_loss_library: Path, tmp_path: Path, disk: FaultyDisk) -> PowerLoss:
    disk.sync_slowly(SLOW_MS)
    return PowerLoss(power_loss_library, tmp_path / "liveness.db", disk.environ["LD_PRELOAD"])


class Losses:
    def __init__(self, power_loss: PowerLoss, random: Random) -> None:
        self._power = power_loss
        self._random = random
        self.writes = 0

    def crash(self, server: ServerProcess) -> Callable[[], Awaitable[None]]:
        async def crash() -> None:
            await server.kill()
            self.writes += self._power.fail(self._random, all_of_it=self._random.random() < 0.5)

        return crash


async def test_acknowledged_heartbeats_survive_a_power_loss(
    make_server: MakeServer,
    sqlite_url: str,
    sqlite_database: StoreDatabase,
    power_loss: PowerLoss,
    disk: FaultyDisk,
    report_result: ReportResult,
) -> None:
    server = make_server(sqlite_url, environ=NO_TAKEOVER_GRACE | disk.environ | power_loss.environ)
    crash = Losses(power_loss, Random(1)).crash(server)
    check(
        await crash_repeatedly(server, sqlite_database, report_result, times=1, compacted=False, crash=crash)
    )


@pytest.mark.crash_long
@pytest.mark.parametrize("compacted", [False, True])
async def test_acknowledged_heartbeats_survive_repeated_power_losses(
    make_server: MakeServer,
    sqlite_url: str,
    sqlite_database: StoreDatabase,
    power_loss: PowerLoss,
    disk: FaultyDisk,
    report_result: ReportResult,
    compacted: bool,
) -> None:
    environ = COMPACTING if compacted else NO_TAKEOVER_GRACE
    server = make_server(sqlite_url, environ=environ | disk.environ | power_loss.environ)
    losses = Losses(power_loss, Random(2))
    ledger = await crash_repeatedly(
        server,
        sqlite_database,
        report_result,
        times=scaled(50),
        compacted=compacted,
        seed=2,
        crash=losses.crash(server),
    )
    check(ledger)
    assert losses.writes > 0, "no write was ever lost, so the test proves nothing"
    report_result(f"{losses.writes} writes were lost")


async def lose_power_once(server: ServerProcess, power_loss: PowerLoss) -> Ledger:
    ledger = Ledger(server)
    async with Load(server, ledger, Random(3)) as load:
        await acknowledged(ledger, 200)
        await server.kill()
        power_loss.fail(Random(3), all_of_it=True)
        load.pause()
        await load.wait_idle()
        await server.disconnect()
        await server.start()
        await audit_workers(server, ledger)
    return ledger


@pytest.mark.crash_long
@pytest.mark.parametrize("synchronous", ["OFF", "NORMAL"])
async def test_the_harness_detects_a_server_that_does_not_sync(
    make_server: MakeServer,
    sqlite_url: str,
    power_loss: PowerLoss,
    disk: FaultyDisk,
    report_result: ReportResult,
    synchronous: str,
) -> None:
    """Proves that the other tests of this file can fail."""
    server = make_server(
        sqlite_url,
        environ=NO_TAKEOVER_GRACE | disk.environ | power_loss.environ | {"SYNCHRONOUS": synchronous},
        module="tests.crash.unsynced_server",
    )
    await server.start()
    ledger = await lose_power_once(server, power_loss)
    report_result(f"synchronous={synchronous}: {len(ledger.violations)} violations were found")
    assert any("agrees with none" in violation for violation in ledger.violations), (
        "the harness found no lost acknowledgement"
    )
