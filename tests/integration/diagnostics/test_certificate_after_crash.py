"""Death certificates of workers whose server crashed before the death."""

from __future__ import annotations

import pytest

from liveness.clock import ManualClock
from liveness.domain.events import WorkerDeactivated
from liveness.domain.keys import WorkerKey
from liveness.store.sql import SqlStore
from tests.integration.engine.engine import NAMESPACE, Engine


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def death_of(engine: Engine, worker: str) -> WorkerDeactivated:
    entries = await engine.store.worker_history(
        WorkerKey(NAMESPACE, worker), engine.shard_of(worker).id, newest_first=True, beyond_seq=None, limit=1
    )
    event = entries[0].event
    assert isinstance(event, WorkerDeactivated)
    return event


async def test_a_certificate_contains_a_crash_between_the_last_heartbeat_and_the_death(
    store: SqlStore, clock: ManualClock
) -> None:
    engine = await Engine(store, clock, grace_ms=0).start()
    await engine.beat(lease_ms=5_000, sequence=1)
    await engine.advance(1_000)
    await engine.beat(lease_ms=5_000, sequence=2)
    heard = clock.wall_ms()
    await engine.advance(500)
    await engine.crash()
    clock.move(60_000)
    engine = await Engine(store, clock, grace_ms=0).start()
    back = clock.wall_ms()
    await engine.advance(5_000)
    certificate = (await death_of(engine, "w")).certificate
    assert certificate is not None
    assert certificate.heartbeats == (heard,), "the new owner has seen no other heartbeat"
    assert [(stall.wall_ms, stall.duration_ms) for stall in certificate.stalls] == [(back, None)]
    assert certificate.silence_ms == 5_000
    await engine.stop()


async def test_the_number_of_heartbeat_histories_per_shard_is_bounded(
    store: SqlStore, clock: ManualClock
) -> None:
    engine = Engine(store, clock, grace_ms=0)
    engine.node._evidence_sources.histories_max = 1
    await engine.start()
    engine.node.policies.replace("", {"storm_hold_ms": 0})  # otherwise a storm would hold the expiries
    for sequence in (1, 2):
        for n in range(20):
            await engine.beat(f"w{n}", lease_ms=5_000, sequence=sequence, session_id="s")
        await engine.advance(1_000)
    await engine.advance(5_000)
    deaths = [(await death_of(engine, f"w{n}")).certificate for n in range(20)]
    shown = [len(certificate.heartbeats) for certificate in deaths if certificate is not None]
    assert sorted(shown) == [1] * 16 + [2] * 4, "one worker in each of the four shards"
    await engine.stop()
