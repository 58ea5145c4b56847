"""A lease ends only when everything has been heard that had arrived when the lease was over."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from liveness.clock import ManualClock
from liveness.domain.worker import WorkerState
from liveness.engine.observed_clock import PROBE_MS_MAX
from liveness.engine.receive_progress import RECOVERY_MS
from liveness.store.sql import SqlStore
from tests.databases import StoreDatabase
from tests.integration.engine.engine import Engine

ACTIVE, INACTIVE = WorkerState.ACTIVE, WorkerState.INACTIVE
LEASE_MS = 2_000


@pytest.fixture
async def engine(store: SqlStore, store_database: StoreDatabase) -> AsyncIterator[Engine]:
    engine = await Engine(store, ManualClock(), grace_ms=0).start()
    engine.node.receive_progress.start_measuring()
    yield engine
    await engine.stop()


async def probe(engine: Engine, lag_ms: int = 0) -> None:
    """Send a probe that is answered after `lag_ms`."""
    engine.node.receive_progress.probe_sent()
    if lag_ms:
        await engine.advance(lag_ms)
    engine.node.probe_answered()
    await engine.node.barrier().wait()


async def test_a_lease_ends_when_two_probes_are_answered_that_were_sent_after_its_end(engine: Engine) -> None:
    await probe(engine)
    await engine.beat(lease_ms=LEASE_MS)
    await engine.advance(LEASE_MS)
    assert engine.node.receive_progress.probe_wanted.is_set(), "the node asks for a probe"
    for _ in range(2):
        assert engine.worker("w").state is ACTIVE
        await probe(engine)
    assert engine.worker("w").state is INACTIVE


async def test_a_probe_that_was_sent_before_the_end_of_a_lease_proves_nothing(engine: Engine) -> None:
    await engine.beat(lease_ms=LEASE_MS)
    await engine.advance(LEASE_MS - 250)
    await probe(engine)
    engine.node.receive_progress.probe_sent()
    await engine.advance(250)
    engine.node.probe_answered()
    assert engine.worker("w").state is ACTIVE
    await probe(engine)
    assert engine.worker("w").state is ACTIVE, "the one before it was sent too early"
    await probe(engine)
    assert engine.worker("w").state is INACTIVE


async def test_after_a_failed_probe_two_more_are_needed(engine: Engine) -> None:
    await engine.beat(lease_ms=LEASE_MS)
    await engine.advance(LEASE_MS)
    await probe(engine)
    engine.node.receive_progress.probe_sent()
    engine.node.receive_progress.probe_failed()
    await probe(engine)
    assert engine.worker("w").state is ACTIVE
    await probe(engine)
    assert engine.worker("w").state is INACTIVE


async def test_a_heartbeat_that_is_heard_after_the_end_of_its_lease_renews_it(engine: Engine) -> None:
    await engine.beat(lease_ms=LEASE_MS)
    await engine.advance(LEASE_MS + 100)
    await probe(engine)
    result = await engine.beat(lease_ms=LEASE_MS)
    assert result.lease_epoch == 1
    await probe(engine)
    await probe(engine)
    assert engine.worker("w").state is ACTIVE
    await engine.advance(LEASE_MS)
    await probe(engine)
    await probe(engine)
    assert engine.worker("w").state is INACTIVE, "its timer was armed again"


async def test_of_a_probe_without_an_answer_little_counts_as_listening(engine: Engine) -> None:
    shard = engine.shard_of("w")
    before_ms = shard.now_ms()
    await probe(engine, lag_ms=5_000)
    assert shard.now_ms() - before_ms == PROBE_MS_MAX
    await engine.advance(1_000)
    assert shard.now_ms() - before_ms == PROBE_MS_MAX + 1_000


async def test_a_worker_has_a_whole_lease_to_be_heard_after_calls_were_heard_too_late(engine: Engine) -> None:
    await engine.beat("short", lease_ms=LEASE_MS)
    await engine.beat("long", lease_ms=LEASE_MS * 20)
    await probe(engine, lag_ms=LEASE_MS // 2)
    late_ms = engine.clock.monotonic_ms()
    await engine.advance(LEASE_MS)
    while engine.worker("short").state is ACTIVE:
        await engine.advance(250)
        await probe(engine)
    waited_ms = engine.clock.monotonic_ms() - late_ms
    assert LEASE_MS + RECOVERY_MS <= waited_ms <= LEASE_MS + RECOVERY_MS + 750
    assert engine.node.receive_progress.ends_from_ms(LEASE_MS * 20) == 0, (
        "it was no hindrance for a long lease"
    )


async def test_leases_end_without_probes_if_the_listener_cannot_be_reached(engine: Engine) -> None:
    await engine.beat(lease_ms=LEASE_MS)
    engine.node.receive_progress.probe_sent()
    await engine.advance(LEASE_MS)
    engine.node.receive_progress.stop_measuring()
    await engine.advance(LEASE_MS)
    assert engine.worker("w").state is INACTIVE


async def test_a_late_answer_is_a_stall_in_the_certificate_and_in_the_metrics(engine: Engine) -> None:
    await probe(engine, lag_ms=800)
    [stall] = engine.node.stalls.kept
    assert stall.duration_ms == 800
    assert engine.telemetry.receive_lag_s.sum == pytest.approx(0.8)
    assert engine.telemetry.recent_stalls() == [800]
