"""Counters of workers: each heartbeat counts once, whatever is repeated, and the counts survive."""

from __future__ import annotations

import asyncio
from typing import Any

from liveness.domain.keys import shard_of
from liveness.v1 import fleet_pb2, worker_pb2
from tests.integration.server.server_harness import (
    NAMESPACE,
    REPEATED,
    SHARDS,
    ServerHarness,
    heartbeat,
    refusal,
)
from tests.integration.store.faulty_store import Fault
from tests.integration.telemetry.exposition import Exposition


async def beat(harness: ServerHarness, sequence: int, **fields: Any) -> Any:
    return await harness.beat(session_id="session", sequence=sequence, **fields)


async def test_each_heartbeat_counts_once_and_a_repeated_one_not_at_all(harness: ServerHarness) -> None:
    await beat(harness, 1, successes=4)
    await beat(harness, 2, successes=2, errors=1)
    repeated = await beat(harness, 2, successes=2, errors=1)
    assert repeated.outcome == REPEATED
    await beat(harness, 3)
    for restarts in (False, True):
        if restarts:
            await harness.restart()
        worker = await harness.describe()
        assert (worker.heartbeat_count, worker.successes, worker.errors) == (3, 6, 1)
        [listed] = (await harness.listed()).workers
        assert listed.heartbeat_count == 3


async def test_counts_survive_restarts_checkpoints_and_compaction(harness: ServerHarness) -> None:
    harness.lift_rate_limits()
    for sequence in range(1, 6):
        await beat(harness, sequence, successes=1)
    for later in range(3):
        await harness.server.maintenance.checkpoint()
        await harness.server.maintenance.apply_retention()
        await harness.restart()
        harness.lift_rate_limits()
        worker = await harness.describe()
        assert (worker.heartbeat_count, worker.successes) == (5 + later, 5 + later)
        await beat(harness, 6 + later, successes=1)


async def test_heartbeats_without_a_number_count_each_time_also_within_one_commit(
    stopped_harness: ServerHarness,
) -> None:
    harness = await stopped_harness.start(faulty=True)
    harness.lift_rate_limits()
    await harness.beat()
    await harness.beat()
    assert harness.store is not None
    harness.store.close_gate()
    other = asyncio.create_task(harness.beat("other"))
    await harness.store.reached.wait()
    # These are decided while the commit hangs, and so share the next one.
    beats = asyncio.gather(*(harness.batch(heartbeat(), heartbeat(), heartbeat()) for _ in range(10)))
    while harness.server.node.shard(NAMESPACE, "w").workers[NAMESPACE, "w"].heartbeats < 32:  # type: ignore[index]
        await asyncio.sleep(0)
    harness.store.open_gate()
    await asyncio.gather(other, beats)
    assert (await harness.describe()).heartbeat_count == 32
    # A failed commit has the shard read from the log, as after a crash: a stop in good order writes a checkpoint.
    epoch = harness.server.node.shard(NAMESPACE, "w").epoch
    harness.store.faults.append(Fault.UNKNOWN_LOST)
    await refusal(harness.beat())
    while not is_read_again(harness, epoch):
        await asyncio.sleep(0)
    assert (await harness.describe()).heartbeat_count == 32


def is_read_again(harness: ServerHarness, epoch: int) -> bool:
    shard_id = shard_of(NAMESPACE, "w", SHARDS)
    return any(shard.id == shard_id and shard.epoch > epoch for shard in harness.server.node.shards())


async def test_the_time_of_the_last_error_is_that_of_its_last_report(harness: ServerHarness) -> None:
    harness.lift_rate_limits()
    await beat(harness, 1)
    assert not (await harness.describe()).HasField("last_error_time")
    await harness.advance(1_000)
    first_ms = harness.clock.wall_ms()
    await beat(harness, 2, errors=1, last_error="broken")
    await harness.advance(1_000)
    await beat(harness, 3, last_error="broken")  # still its last error, and no other one
    await beat(harness, 4)
    assert await error_ms(harness) == ("broken", first_ms)
    await harness.advance(1_000)
    await beat(harness, 5, errors=1, last_error="broken")
    again_ms = harness.clock.wall_ms()
    await harness.advance(1_000)
    await harness.restart()
    assert await error_ms(harness) == ("broken", again_ms)
    await harness.beat(session_id="another", sequence=1)
    assert await error_ms(harness) == ("broken", again_ms), "it outlives the session"


async def error_ms(harness: ServerHarness) -> tuple[str, int]:
    worker: worker_pb2.Worker = await harness.describe()
    return worker.last_error, worker.last_error_time.ToMilliseconds()


async def test_totals_of_a_namespace_are_those_of_its_workers(harness: ServerHarness) -> None:
    await harness.beat("a", successes=3)
    await harness.beat("a", successes=1, errors=2)
    await harness.beat("b", errors=1)
    await harness.beat("c", namespace="billing", successes=9)
    assert await totals(harness) == (3, 4, 3)
    await harness.restart()
    await harness.beat("b")
    assert await totals(harness) == (4, 4, 3), "they survive a restart"
    await harness.expire("a")
    assert await totals(harness) == (4, 4, 3)
    await harness.forget("a")
    assert await totals(harness) == (2, 0, 1), "a worker that is forgotten leaves them"
    await harness.server.take_sample()
    text, _ = harness.server.metrics()
    exposition = Exposition(text)
    assert exposition.value("liveness_heartbeats_applied_total", namespace=NAMESPACE) == 1, "since the start"
    assert exposition.value("liveness_successes_total", namespace=NAMESPACE) == 0


async def totals(harness: ServerHarness) -> tuple[int, int, int]:
    fleet = await harness.admin.GetFleet(fleet_pb2.GetFleetRequest(namespace=NAMESPACE))
    [namespace] = fleet.namespaces
    return namespace.heartbeats, namespace.successes, namespace.errors
