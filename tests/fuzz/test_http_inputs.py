"""No request makes the server fail: whatever a client sends, it gets an answer that is not 500, and others are served."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest

from tests.fuzz.http_inputs import HttpInputs, send
from tests.integration.http.conftest import http_harness, stopped_harness
from tests.integration.http.http_harness import HttpHarness

__all__ = ["http_harness", "stopped_harness"]

SEED = 20_261
INPUTS = 2_000
SENDERS = 16


async def test_no_input_makes_the_server_fail(
    http_harness: HttpHarness, caplog: pytest.LogCaptureFixture
) -> None:
    inputs = HttpInputs(SEED)
    codes: Counter[int] = Counter()
    drawn = iter([inputs.next() for _ in range(INPUTS)])

    async def keep_sending() -> None:
        for each in drawn:
            answered = await send(http_harness.port, each, timeout_s=0.3)
            codes.update(answered)
            assert 500 not in answered, each

    await asyncio.gather(*(keep_sending() for _ in range(SENDERS)))
    assert (await http_harness.client.ask("GET", "/healthz")).code == 200
    await http_harness.client.post("/v1/namespaces/fresh/workers/w/heartbeat", {})
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    # The inputs reach all layers.
    assert {200, 400, 404, 405, 413, 414, 415, 421, 431} <= set(codes), codes


def test_the_same_seed_draws_the_same_inputs() -> None:
    one, other = HttpInputs(1), HttpInputs(1)
    assert [one.next() for _ in range(50)] == [other.next() for _ in range(50)]
