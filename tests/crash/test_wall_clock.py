"""A jump of the wall clock ends no lease early, and keeps no silent worker ACTIVE."""

from __future__ import annotations

import asyncio
import struct
import time
from pathlib import Path
from random import Random

import pytest

from liveness.v1 import fleet_pb2
from tests.crash.scale import scaled
from tests.databases import StoreDatabase
from tests.system.server.audit import audit_workers
from tests.system.server.conftest import NO_TAKEOVER_GRACE, MakeServer
from tests.system.server.crash_loop import ReportResult, acknowledged, check, final_audit
from tests.system.server.faulty_disk import compile_library
from tests.system.server.ledger import Ledger
from tests.system.server.load import Load
from tests.system.server.server_process import ServerProcess

SOURCE = Path(__file__).with_name("wall_clock.c")
HOUR_S = 3_600
COMPACTING = NO_TAKEOVER_GRACE | {"LIVENESS_CHECKPOINT_INTERVAL_S": "0.5"}
SECONDS_MAX = 60
LAPSES = 4
SOME = 100


class WallClock:
    def __init__(self, library: Path, control: Path) -> None:
        self._control = control
        self.set(0)
        self.environ = {"LD_PRELOAD": str(library), "LIVENESS_TEST_CLOCK": str(control)}

    def set(self, wrong_by_s: int) -> None:
        # Written in place, because the process has mapped this file.
        with self._control.open("r+b" if self._control.exists() else "wb") as file:
            file.write(struct.pack("=q", wrong_by_s))


@pytest.fixture
def wall_clock(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> WallClock:
    library = compile_library(tmp_path_factory.mktemp("clock"), SOURCE)
    return WallClock(library, tmp_path / "clock")


@pytest.mark.crash_long
async def test_jumps_of_an_hour_change_no_lease(
    make_server: MakeServer,
    sqlite_url: str,
    sqlite_database: StoreDatabase,
    wall_clock: WallClock,
    report_result: ReportResult,
) -> None:
    server = make_server(sqlite_url, environ=COMPACTING | wall_clock.environ)
    ledger = Ledger(server)
    await server.start()
    jumps = [HOUR_S, 0, -HOUR_S, 0] * scaled(5)
    async with Load(server, ledger, Random(4), leases_ms=[4_000, 5_000]) as load:
        for wrong_by_s in jumps:
            await acknowledged(ledger, SOME)
            lapses = ledger.lapses
            wall_clock.set(wrong_by_s)
            await acknowledged(ledger, SOME)
            assert abs(await server_time_s(server) - time.time() - wrong_by_s) < HOUR_S / 2, (
                "the server's clock did not jump"
            )
            await until_lapsed(ledger, lapses + LAPSES)
            load.pause()
            await load.wait_idle()
            await audit_workers(server, ledger)
            load.resume()
        if load.slowest_turn_s < 2:  # otherwise this process itself stalled
            for key in ledger.lapsed("unary") + ledger.lapsed("batch"):
                ledger.violate(f"{key} lost its lease although it kept sending heartbeats")
        load.pause()
        await load.wait_idle()
    await final_audit(server, sqlite_database, ledger, compacted=True)
    report_result(f"{ledger.lapses} leases lapsed", tried=len(jumps), violated=len(ledger.violations))
    check(ledger)


async def server_time_s(server: ServerProcess) -> float:
    fleet = await server.admin.GetFleet(fleet_pb2.GetFleetRequest(namespace="crash"))
    return fleet.time.ToMilliseconds() / 1_000


async def until_lapsed(ledger: Ledger, wanted: int) -> None:
    """Wait until the leases of silent workers have ended."""
    deadline = time.monotonic() + SECONDS_MAX
    while ledger.lapses < wanted:
        if time.monotonic() > deadline:
            ledger.violate("leases of silent workers have not ended since the clock was set")
            return
        await asyncio.sleep(0.05)
