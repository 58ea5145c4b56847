"""No request makes the server fail or stand still: whatever a client sends, it gets an answer that is not 500, and others
are served."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from collections import Counter

import pytest

from liveness.doors.noetl.paths import noetl_door
from liveness.doors.noetl.settings import NoetlSettings
from tests.crash.scale import scaled
from tests.fuzz.fuzzer import MEMORY_BYTES_MAX, TARGETS, UNATTRIBUTED_MAX, Target, resident_bytes
from tests.fuzz.http_inputs import HttpInputs, send
from tests.fuzz.loop_steps import STEP_MS_MAX, LoopSteps
from tests.integration.http.conftest import stopped_harness
from tests.integration.http.http_client import Client
from tests.integration.http.http_harness import HttpHarness
from tests.system.server.crash_loop import ReportResult

__all__ = ["stopped_harness"]

SEED = 20_261
INPUTS = 2_000
FEW_INPUTS = 1_000
MANY_INPUTS = 100_000
HTTP_TARGETS = ("authentication", "frontend, authentication")
SENDERS = 16
TRIES = 3
OFF_LOOP_BYTES_MIN = 16 * 1024


@pytest.fixture
async def http_harness(stopped_harness: HttpHarness) -> HttpHarness:
    return await stopped_harness.open(
        doors=[noetl_door(NoetlSettings(namespace="orders"), stopped_harness.harness.clock)]
    )


async def send_many(port: int, seed: int, count: int, *, has_credentials: bool = False) -> Counter[int]:
    inputs = HttpInputs(seed, has_credentials=has_credentials)
    codes: Counter[int] = Counter()
    drawn = iter(range(count))

    async def keep_sending() -> None:
        for number in drawn:
            each = inputs.next()
            answered = await send(port, each, timeout_s=0.3)
            codes.update(answered)
            assert 500 not in answered, f"seed {seed}, input {number}: {each}"

    before_bytes = resident_bytes()
    gc.collect()
    gc.disable()  # a full collection in the middle of a step would count as a part of it
    try:
        with LoopSteps() as steps:
            await asyncio.gather(*(keep_sending() for _ in range(SENDERS)))
            own = [step for step in steps.slow if "keep_sending" not in step.what]
    finally:
        gc.enable()
    long = [step for step in own if step.ms > STEP_MS_MAX]
    assert len(long) <= UNATTRIBUTED_MAX, f"seed {seed}: {long}"
    assert resident_bytes() < before_bytes + MEMORY_BYTES_MAX
    return codes


async def test_no_input_makes_the_server_fail(
    http_harness: HttpHarness, caplog: pytest.LogCaptureFixture
) -> None:
    codes = await send_many(http_harness.port, SEED, INPUTS)
    assert (await http_harness.client.ask("GET", "/healthz")).code == 200
    await http_harness.client.post("/v1/namespaces/fresh/workers/w/heartbeat", {})
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    # The inputs reach all layers.
    assert {200, 400, 404, 405, 413, 414, 415, 421, 431} <= set(codes), codes


@pytest.mark.crash_long
async def test_no_input_of_many_makes_the_server_fail(
    http_harness: HttpHarness, report_result: ReportResult
) -> None:
    count = scaled(MANY_INPUTS)
    for seed, start in enumerate(range(0, count, INPUTS)):
        await send_many(http_harness.port, seed, min(count - start, INPUTS))
    assert (await http_harness.client.ask("GET", "/healthz")).code == 200
    report_result(f"{count:,} requests", row="HTTP", tried=count)


async def send_many_to(url: str, name: str, seed: int, count: int) -> Counter[int]:
    """Send inputs to the HTTP listener of other servers, and let them serve a client afterwards."""
    target = await Target(url, TARGETS[name]).start()
    try:
        port = await target.start_http()
        codes = await send_many(port, seed, count, has_credentials=target.shape.asks_callers)
        assert (await Client(port).ask("GET", "/healthz")).code == 200
        await target.check_serves()
    finally:
        await target.stop()
    return codes


@pytest.mark.parametrize("dialect", ["sqlite"])
@pytest.mark.parametrize("name", HTTP_TARGETS)
async def test_no_input_makes_a_server_fail_that_asks_who_calls(
    url: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    codes = await send_many_to(url, name, SEED, FEW_INPUTS)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert {200, 400, 401, 403, 404} <= set(codes), codes


@pytest.mark.crash_long
@pytest.mark.parametrize("dialect", ["sqlite"])
@pytest.mark.parametrize("name", HTTP_TARGETS)
async def test_no_input_of_many_makes_a_server_fail_that_asks_who_calls(
    url: str, name: str, report_result: ReportResult
) -> None:
    count = scaled(MANY_INPUTS)
    for seed, start in enumerate(range(0, count, INPUTS)):
        await send_many_to(url, name, seed, min(count - start, INPUTS))
    report_result(f"{count:,} requests", row=f"HTTP, {name}", tried=count)


BODIES = {
    "empty activities": {"heartbeats": [{"bound_activities": [{}] * 990}] * 10},
    "empty heartbeats": {"heartbeats": [{}] * 1_000},
    "all activities": {
        "heartbeats": [
            {
                "worker_instance_key": f"w{worker}",
                "bound_activities": [
                    {"workflow_id": f"f{number}", "run_id": "r", "activity_id": "a", "task_queue": "q"}
                    for number in range(120)
                ],
            }
            for worker in range(150)
        ]
    },
}


@pytest.mark.parametrize("name", BODIES)
async def test_no_body_takes_the_loop_for_long(http_harness: HttpHarness, name: str) -> None:
    body = json.dumps(BODIES[name], separators=(",", ":")).encode()
    longest = []
    gc.disable()
    try:
        with LoopSteps() as steps:
            for _ in range(TRIES):  # the machine may be busy
                steps.clear()
                answer = await http_harness.client.ask(
                    "POST", "/v1/namespaces/n/heartbeats", {"Content-Type": "application/json"}, body
                )
                assert answer.code == 200
                longest.append(steps.longest)
    finally:
        gc.enable()
    assert min(longest).ms <= STEP_MS_MAX, longest
    if len(body) > OFF_LOOP_BYTES_MIN:
        is_off_loop = any("run_asgi" not in step.what for step in longest)
        assert is_off_loop, f"the loop parsed {len(body)} bytes itself: {longest}"


def test_the_same_seed_draws_the_same_inputs() -> None:
    one, other = HttpInputs(1), HttpInputs(1)
    assert [one.next() for _ in range(50)] == [other.next() for _ in range(50)]
