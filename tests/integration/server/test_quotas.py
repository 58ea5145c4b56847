"""Quotas and rate limits hold exactly under racing clients, and refused calls change nothing."""

from __future__ import annotations

import asyncio
from collections import Counter

import grpc

from liveness.domain.events import ConfigChanged
from liveness.v1 import worker_pb2
from tests.integration.engine.engine import activity
from tests.integration.server.server_harness import (
    ACTIVE,
    INACTIVE,
    REGISTERED,
    RENEWED,
    SESSION_REPLACED,
    ServerHarness,
    heartbeat,
    refusal,
    unpack,
)

RACERS = 200
LIMIT = 50


async def race(*calls: object) -> Counter[str]:
    """Run the calls concurrently and count their outcomes: OK or the reason of the refusal."""
    results = await asyncio.gather(*calls, return_exceptions=True)  # type: ignore[call-overload]
    return Counter(unpack(r).reason if isinstance(r, grpc.aio.AioRpcError) else "OK" for r in results)


async def test_workers_per_namespace_are_never_exceeded_by_racing_clients(harness: ServerHarness) -> None:
    await harness.configure(max_workers=LIMIT)
    outcomes = await race(*(harness.beat(f"w{number}") for number in range(RACERS)))
    assert outcomes == {"OK": LIMIT, "WORKER_QUOTA_EXCEEDED": RACERS - LIMIT}
    assert await harness.count() == {ACTIVE: LIMIT}
    known = [worker.worker_instance_key for worker in (await harness.listed()).workers]
    again = await race(
        *(harness.beat(worker) for worker in known), *(harness.beat(f"x{n}") for n in range(50))
    )
    assert again == {"OK": LIMIT, "WORKER_QUOTA_EXCEEDED": 50}, "registered workers continue"


async def test_bindings_per_worker_are_never_exceeded_by_racing_heartbeats(harness: ServerHarness) -> None:
    await harness.configure(max_bindings_per_worker=LIMIT, worker_heartbeat_rate=0)
    await harness.beat()
    outcomes = await race(*(harness.beat(bound_activities=[activity(f"a{n}")]) for n in range(RACERS)))
    assert outcomes == {"OK": LIMIT, "BINDING_QUOTA_EXCEEDED": RACERS - LIMIT}
    assert (await harness.describe()).bound_activity_count == LIMIT


async def test_inactive_workers_count_and_cleaned_up_ones_do_not(harness: ServerHarness) -> None:
    await harness.configure(max_workers=2, cleanup_delay_ms=5_000)
    await harness.beat("a")
    await harness.beat("b")
    await harness.shut_down("a")
    refused = await refusal(harness.beat("c"))
    assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "WORKER_QUOTA_EXCEEDED")
    assert refused.fields == {"namespace": "orders", "limit": "2", "inactive": "1"}
    assert refused.message == (
        "Namespace orders has its 2 workers, 1 of them INACTIVE, which count until their cleanup_delay is over or "
        "`liveness workers forget` removes them; otherwise raise max_workers."
    )
    assert refused.retry_ms
    assert (await harness.beat("a")).state == ACTIVE, "it can be resurrected"
    await harness.shut_down("a")
    await harness.advance(5_000)
    assert (await harness.beat("c")).state == ACTIVE
    await harness.restart()
    assert (await refusal(harness.beat("d"))).reason == "WORKER_QUOTA_EXCEEDED"


async def test_workers_above_a_lowered_quota_may_continue_and_unbind(harness: ServerHarness) -> None:
    await harness.beat(bound_activities=[activity(f"a{n}") for n in range(5)])
    await harness.configure(max_bindings_per_worker=2, max_workers=0)
    assert (await harness.beat()).outcome == RENEWED
    assert (
        await refusal(harness.beat(bound_activities=[activity("more")]))
    ).reason == "BINDING_QUOTA_EXCEEDED"
    assert (await harness.beat(unbound_activities=[activity("a0")])).outcome == RENEWED
    assert (await harness.describe()).bound_activity_count == 4


async def test_a_heartbeat_over_the_binding_quota_renews_nothing(harness: ServerHarness) -> None:
    await harness.configure(max_bindings_per_worker=1)
    await harness.beat(session_id="s", sequence=1, bound_activities=[activity("a")])
    await harness.advance(5_000)
    before = await harness.describe()
    stored = await harness.dump("shards", "audit")
    refused = await refusal(
        harness.beat(session_id="s", sequence=2, bound_activities=[activity("b")], errors=1)
    )
    assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "BINDING_QUOTA_EXCEEDED")
    assert await harness.describe() == before
    assert await harness.dump("shards", "audit") == stored


async def test_the_rate_limit_of_a_worker_gives_a_retry_hint_and_changes_nothing(
    harness: ServerHarness,
) -> None:
    await harness.configure(worker_heartbeat_rate=2)
    for sequence in range(1, 5):
        await harness.beat(session_id="s", sequence=sequence)
    before, stored = await harness.describe(), await harness.dump("shards", "audit")
    refused = await refusal(harness.beat(session_id="s", sequence=5, bound_activities=[activity("a")]))
    assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
    assert refused.retry_ms is not None
    assert 0 < refused.retry_ms <= 501
    assert await harness.describe() == before
    assert await harness.dump("shards", "audit") == stored
    assert (await harness.beat("other")).state == ACTIVE
    await harness.advance(refused.retry_ms)
    assert (await harness.beat(session_id="s", sequence=5)).outcome == RENEWED


async def test_the_rate_limit_of_a_namespace_covers_all_its_workers_and_no_others(
    harness: ServerHarness,
) -> None:
    await harness.configure(namespace_heartbeat_rate=10)
    outcomes = await race(*(harness.beat(f"w{number}") for number in range(RACERS)))
    assert outcomes == {"OK": 20, "RATE_LIMITED": RACERS - 20}
    assert await harness.count() == {ACTIVE: 20}
    assert (await harness.beat(namespace="billing")).state == ACTIVE
    await harness.advance(1_000)
    outcomes = await race(*(harness.beat(f"w{number}") for number in range(RACERS)))
    assert outcomes == {"OK": 10, "RATE_LIMITED": RACERS - 10}


async def test_a_refusal_by_the_namespace_limit_does_not_use_the_workers_rate(harness: ServerHarness) -> None:
    await harness.configure(namespace_heartbeat_rate=1, worker_heartbeat_rate=1)
    assert await race(*(harness.beat(f"w{n}") for n in range(2))) == {"OK": 2}
    for _ in range(5):
        refused = await refusal(harness.beat("w9"))
        assert refused.fields["whose"] == "namespace orders"
    await harness.advance(1_000)
    assert (await harness.beat("w9")).state == ACTIVE


async def test_a_rate_limited_heartbeat_does_not_renew_the_lease(harness: ServerHarness) -> None:
    await harness.advance(10_000)
    await harness.configure(worker_heartbeat_rate=0.1)
    await harness.beat(lease_ms=2_000)
    await harness.advance(1_000)
    assert (await refusal(harness.beat(lease_ms=2_000))).reason == "RATE_LIMITED"
    await harness.advance(1_000)
    worker = await harness.describe()
    assert (worker.state, worker.inactive_reason) == (INACTIVE, worker_pb2.INACTIVE_REASON_LEASE_EXPIRED)


async def test_a_worker_never_holds_more_than_one_heartbeat_can_name(harness: ServerHarness) -> None:
    """An older version accepted a higher limit, and the database still holds it."""
    node, stored = harness.server.node, {"max_bindings_per_worker": 5_000.0}
    shard = node.shard("", "")
    shard.change_config("", ConfigChanged(set=stored, unset=(), reason=""), stored)
    await node.wait_durable(shard)
    await harness.restart()
    assert (await harness.config()).effective.max_bindings_per_worker == 1_000
    await harness.configure(max_workers=7)  # other settings can still be changed
    everything = [activity(str(number)) for number in range(1_000)]
    await harness.beat(session_id="s", sequence=1, bound_activities=everything, full_bindings=True)
    refused = await refusal(harness.beat(session_id="s", sequence=2, bound_activities=[activity("one more")]))
    assert refused.reason == "BINDING_QUOTA_EXCEEDED"
    assert (await harness.beat(session_id="s", sequence=5)).resync_bindings
    full = await harness.beat(session_id="s", sequence=6, bound_activities=everything, full_bindings=True)
    assert not full.resync_bindings


async def test_a_worker_that_loops_is_slowed_down_by_default(harness: ServerHarness) -> None:
    outcomes = Counter(
        [
            "OK" if item.HasField("result") else "refused"
            for _ in range(3)
            for item in await harness.batch(*(heartbeat("w") for _ in range(100)))
        ]
    )
    assert outcomes == {"OK": 100, "refused": 200}


async def test_new_sessions_of_a_worker_are_limited_and_refused_ones_write_nothing(
    harness: ServerHarness,
) -> None:
    """Each writes all metadata of the worker to the log."""
    labels = {"fat": "x" * 10_000}
    for number in range(21):
        await harness.beat(session_id=f"s{number}", sequence=1, labels=labels)
    stored = await harness.dump("shards", "audit")
    refused = await refusal(harness.beat(session_id="s21", sequence=1, labels=labels))
    assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
    assert refused.message == "Too many new sessions of worker w; try again in 6001 ms."
    assert await harness.dump("shards", "audit") == stored
    assert (await harness.beat(session_id="s20", sequence=2)).outcome == RENEWED, "the present one goes on"
    assert (await harness.beat("other", session_id="s", sequence=1)).outcome == REGISTERED
    await harness.advance(refused.retry_ms or 0)
    assert (await harness.beat(session_id="s21", sequence=1)).outcome == SESSION_REPLACED


async def test_resurrections_of_a_worker_are_limited_too(harness: ServerHarness) -> None:
    await harness.configure(worker_sessions_per_minute=1)
    for _ in range(3):
        await harness.beat()
        await harness.shut_down()
    assert (await refusal(harness.beat())).reason == "RATE_LIMITED"
    await harness.configure(worker_sessions_per_minute=0)
    for _ in range(30):
        await harness.beat()
        await harness.shut_down()
