"""The power fails: what was acknowledged had been synced, and whatever else the disk kept makes no sense of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from tests.crash.power import SOURCE, Power
from tests.crash.scale import scaled
from tests.databases import StoreHome
from tests.end_to_end.audit import audit_workers
from tests.end_to_end.campaign import Say, acknowledged, check, crash_again_and_again
from tests.end_to_end.conftest import EXPOSED, MakeServer
from tests.end_to_end.disk import Disk, compile_library
from tests.end_to_end.ledger import Ledger
from tests.end_to_end.load import Load
from tests.end_to_end.server_process import ServerProcess

COMPACTING = EXPOSED | {"LIVENESS_CHECKPOINT_INTERVAL_S": "0.2"}
SLOW_MS = 15
"""So much longer takes each sync, so that more is under way when the power fails."""


@pytest.fixture(scope="session")
def power_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp("power"), SOURCE)


@pytest.fixture
def power(power_library: Path, tmp_path: Path, disk: Disk) -> Power:
    disk.sync_slowly(SLOW_MS)
    return Power(power_library, tmp_path / "liveness.db", disk.environ["LD_PRELOAD"])


class Losses:
    def __init__(self, power: Power, random: Random) -> None:
        self._power = power
        self._random = random
        self.writes = 0

    def crash(self, server: ServerProcess) -> Callable[[], Awaitable[None]]:
        async def crash() -> None:
            await server.kill()
            self.writes += self._power.fail(self._random, all_of_it=self._random.random() < 0.5)

        return crash


async def test_what_was_acknowledged_survives_a_loss_of_power(
    make_server: MakeServer, sqlite_url: str, sqlite_file: StoreHome, power: Power, disk: Disk, say: Say
) -> None:
    server = make_server(sqlite_url, environ=EXPOSED | disk.environ | power.environ)
    crash = Losses(power, Random(1)).crash(server)
    check(await crash_again_and_again(server, sqlite_file, say, times=1, compacted=False, crash=crash))


@pytest.mark.crash_long
@pytest.mark.parametrize("compacted", [False, True])
async def test_power_fails_again_and_again(
    make_server: MakeServer,
    sqlite_url: str,
    sqlite_file: StoreHome,
    power: Power,
    disk: Disk,
    say: Say,
    compacted: bool,
) -> None:
    environ = COMPACTING if compacted else EXPOSED
    server = make_server(sqlite_url, environ=environ | disk.environ | power.environ)
    losses = Losses(power, Random(2))
    ledger = await crash_again_and_again(
        server, sqlite_file, say, times=scaled(50), compacted=compacted, seed=2, crash=losses.crash(server)
    )
    check(ledger)
    assert losses.writes > 0, "nothing was ever lost, so that nothing was proved"
    say(f"{losses.writes} writes were lost")


async def lose_power_once(server: ServerProcess, power: Power) -> Ledger:
    ledger = Ledger(server)
    async with Load(server, ledger, Random(3)) as load:
        await acknowledged(ledger, 200)
        await server.kill()
        power.fail(Random(3), all_of_it=True)
        load.pause()
        await load.quiet()
        await server.disconnect()
        await server.start()
        await audit_workers(server, ledger)
    return ledger


@pytest.mark.crash_long
@pytest.mark.parametrize("synchronous", ["OFF", "NORMAL"])
async def test_a_server_that_does_not_sync_is_found_out(
    make_server: MakeServer,
    sqlite_url: str,
    power: Power,
    disk: Disk,
    say: Say,
    synchronous: str,
) -> None:
    """Else the others would prove nothing."""
    server = make_server(
        sqlite_url,
        environ=EXPOSED | disk.environ | power.environ | {"SYNCHRONOUS": synchronous},
        module="tests.crash.careless_server",
    )
    await server.start()
    ledger = await lose_power_once(server, power)
    say(f"synchronous={synchronous}: {len(ledger.violations)} violations were found")
    assert any("agrees with none" in violation for violation in ledger.violations), "no lost ack was noticed"
