"""No call makes the server fail or stand still, whatever a client or a peer sends."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from liveness.app import Server
from liveness.config.settings import Settings
from liveness.store.integrity import check_database
from tests.crash.scale import scaled
from tests.fuzz.fuzzer import SHARDS, TARGETS, Fuzzer, Target
from tests.fuzz.grpc_inputs import METHODS, GrpcInputs
from tests.system.server.crash_loop import ReportResult

SEED = 20
INPUTS = 8_000
MANY_INPUTS = 2_000_000
MANY_INPUTS_OF_OTHERS = 200_000
INPUTS_PER_SERVER = 100_000
OTHER_TARGETS = [
    (name, "sqlite" if shape.nodes == 1 else "postgresql")
    for name, shape in TARGETS.items()
    if name != "node"
]
FEW_INPUTS = [
    ("authentication", "sqlite", 4_000),
    ("frontend, authentication", "sqlite", 3_000),
    ("two nodes", "postgresql", 3_000),
]


async def check_stored(url: str) -> None:
    """Let a new server read everything that the inputs have left behind."""
    if url.startswith("sqlite"):
        check_database(Path(url.removeprefix("sqlite:///")), lambda *_: None)
    again = Server(Settings(db=url, listen="127.0.0.1:0", shards=SHARDS))
    await again.start()
    await again.stop()


async def run(url: str, seed: int, count: int, name: str = "node") -> Fuzzer:
    target = await Target(url, TARGETS[name]).start()
    fuzzer = Fuzzer(target, target.inputs(seed))
    try:
        await fuzzer.run(0, count)
        await target.check_serves()
    finally:
        await target.stop()
    await check_stored(url)
    return fuzzer


async def test_no_input_makes_the_server_fail_or_stand_still(url: str) -> None:
    fuzzer = await run(url, SEED, INPUTS)
    assert fuzzer.codes[grpc.StatusCode.OK] > INPUTS / 20, "many requests get past validation"


@pytest.mark.parametrize(("name", "dialect", "inputs"), FEW_INPUTS)
async def test_no_input_makes_other_servers_fail_or_stand_still(url: str, name: str, inputs: int) -> None:
    """Servers that ask who calls, calls through a frontend, and calls that one node forwards to another."""
    fuzzer = await run(url, SEED, inputs, name)
    codes = fuzzer.codes
    assert codes[grpc.StatusCode.OK] > inputs / 20, "many requests get past validation"
    if TARGETS[name].asks_callers:
        assert codes[grpc.StatusCode.UNAUTHENTICATED] > inputs / 50
        assert codes[grpc.StatusCode.PERMISSION_DENIED] > inputs / 50


def test_inputs_reach_every_method_and_depend_on_their_number_only() -> None:
    inputs = GrpcInputs(SEED)
    drawn = {inputs.draw(number).method.full_name for number in range(INPUTS)}
    assert drawn == {method.full_name for method in METHODS}
    assert inputs.draw(7) == GrpcInputs(SEED).draw(7)


@pytest.mark.crash_long
async def test_no_input_of_many_makes_the_server_fail_or_stand_still(
    url: str, dialect: str, report_result: ReportResult
) -> None:
    """Most inputs go to a server on SQLite, where they take a third of the time."""
    count = scaled(MANY_INPUTS if dialect == "sqlite" else MANY_INPUTS // 20)
    for seed, start in enumerate(range(0, count, INPUTS_PER_SERVER)):
        await run(url, seed, min(count - start, INPUTS_PER_SERVER))
    report_result(f"{count:,} calls", row=f"gRPC, {dialect}", tried=count)


@pytest.mark.crash_long
@pytest.mark.parametrize(("name", "dialect"), OTHER_TARGETS)
async def test_no_input_of_many_makes_other_servers_fail_or_stand_still(
    url: str, name: str, report_result: ReportResult
) -> None:
    count = scaled(MANY_INPUTS_OF_OTHERS)
    for seed, start in enumerate(range(0, count, INPUTS_PER_SERVER)):
        await run(url, seed, min(count - start, INPUTS_PER_SERVER), name)
    report_result(f"{count:,} calls", row=f"gRPC, {name}", tried=count)
