"""The expiry throttle: a storm of expiries is held for a bounded time and then released at a set rate."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from liveness.domain.keys import WorkerKey
from liveness.v1 import admin_pb2, fleet_pb2, service_pb2
from tests.integration.engine.engine import activity, duration
from tests.integration.server.server_harness import (
    ACTIVE,
    INACTIVE,
    NAMESPACE,
    SESSION_REPLACED,
    ServerHarness,
    heartbeat,
)
from tests.integration.server.test_attach_streams import Stream

LEASE_MS = 10_000
MANY = [f"w{number}" for number in range(40)]


@pytest.fixture
async def harness(stopped_harness: ServerHarness) -> ServerHarness:
    """A server without a take-over grace, so that leases end exactly when they are over."""
    return await stopped_harness.start(takeover_grace_ms=0)


async def register_all(
    harness: ServerHarness, workers: Iterable[str] = MANY, lease_ms: int = LEASE_MS, **fields: Any
) -> None:
    """Register the workers with one activity each."""
    beats = [
        heartbeat(
            worker, lease_ms=lease_ms, session_id=f"s-{worker}", sequence=1, bound_activities=[activity(f"a-{worker}")],
        )
        for worker in workers
    ]  # fmt: skip
    await harness.batch(*beats, **fields)


async def renew_all(
    harness: ServerHarness, workers: Iterable[str], sequence: int = 2, lease_ms: int = LEASE_MS
) -> None:
    beats = [
        heartbeat(worker, lease_ms=lease_ms, session_id=f"s-{worker}", sequence=sequence)
        for worker in workers
    ]
    for item in await harness.batch(*beats):
        assert item.result.state == ACTIVE


async def count_inactive(harness: ServerHarness, namespace: str = NAMESPACE) -> int:
    return (await harness.count(namespace)).get(INACTIVE, 0)


async def fleet(
    harness: ServerHarness, namespace: str = NAMESPACE
) -> tuple[fleet_pb2.NamespaceFleet, list[str]]:
    """Return the fleet of the namespace and the messages of its storm alerts."""
    answer = await harness.admin.GetFleet(fleet_pb2.GetFleetRequest(namespace=namespace))
    storms = [alert.message for alert in answer.alerts if alert.kind == fleet_pb2.ALERT_KIND_STORM]
    return answer.namespaces[0], storms


async def held(harness: ServerHarness, namespace: str = NAMESPACE) -> int:
    return (await fleet(harness, namespace))[0].held_expiries


async def release(harness: ServerHarness, namespace: str = NAMESPACE) -> int:
    request = admin_pb2.ReleaseStormRequest(namespace=namespace, reason="we know why")
    return (await harness.admin.ReleaseStorm(request)).released


# -- holding and draining


async def test_a_storm_holds_expiries_for_one_lease_and_then_releases_them_at_the_set_rate(
    harness: ServerHarness,
) -> None:
    await harness.configure(storm_pace=10)
    await register_all(harness)
    await harness.advance(LEASE_MS)
    assert (await count_inactive(harness), await held(harness)) == (0, 40)
    await harness.advance(LEASE_MS - 250)
    assert (await count_inactive(harness), await held(harness)) == (0, 40)
    for seconds in range(1, 4):
        await harness.advance(1_000)
        assert abs(await count_inactive(harness) - 10 * seconds) <= 4
    await harness.advance(1_250)
    assert (await count_inactive(harness), await held(harness)) == (40, 0)
    assert len(await harness.tasks(admin_pb2.TASK_STATE_DONE)) == 40


async def test_a_worker_that_returns_during_the_hold_keeps_its_lease_and_bindings(
    harness: ServerHarness,
) -> None:
    await register_all(harness)
    before = {worker: await harness.describe(worker) for worker in MANY}
    await harness.advance(2 * LEASE_MS - 250)
    await renew_all(harness, MANY)
    assert await held(harness) == 0
    await harness.advance(LEASE_MS - 250)
    for worker in MANY:
        after = await harness.describe(worker)
        assert (after.state, after.lease_epoch) == (ACTIVE, before[worker].lease_epoch)
        assert list(after.bound_activities) == list(before[worker].bound_activities)
    assert not await harness.tasks(admin_pb2.TASK_STATE_DONE)
    assert not await harness.tasks()


async def test_a_worker_that_returned_and_falls_silent_again_expires_on_time(harness: ServerHarness) -> None:
    """The storm had postponed its timer."""
    await register_all(harness)
    await harness.advance(LEASE_MS + 3_000)
    await renew_all(harness, MANY)
    await renew_all(harness, MANY[:10], sequence=3, lease_ms=1_000)
    await harness.advance(750)
    assert await count_inactive(harness) == 0
    await harness.advance(500)
    assert await count_inactive(harness) == 10, "too few for a storm"
    await harness.advance(LEASE_MS - 1_500)
    await renew_all(harness, MANY[10:35], sequence=4)
    await harness.advance(500)
    assert await count_inactive(harness) == 15


async def test_when_most_workers_have_returned_the_others_expire(harness: ServerHarness) -> None:
    await register_all(harness)
    await harness.advance(LEASE_MS + 1_000)
    await renew_all(harness, MANY[:35])
    await harness.advance(250)
    assert (await count_inactive(harness), await held(harness)) == (0, 5)
    await renew_all(harness, MANY[35:36])
    await harness.advance(500)
    assert (await count_inactive(harness), await held(harness)) == (4, 0)


async def test_expiries_spread_over_time_become_a_storm_at_the_threshold(
    harness: ServerHarness,
) -> None:
    """The first workers have expired by then."""
    for worker in MANY:
        await register_all(harness, [worker])
        await harness.advance(250)
    await harness.advance(2 * LEASE_MS - 40 * 250 - 1_000)
    assert await count_inactive(harness) == 19
    assert await held(harness) >= 15


async def test_a_storm_ends_after_one_lease_even_if_more_workers_fall_due(
    harness: ServerHarness,
) -> None:
    for turn in range(4):
        await register_all(harness, [f"{worker}-{turn}" for worker in MANY])
        await harness.advance(LEASE_MS // 2 + 500)
    # The first group falls due at 10 s, the second at 15.5 s. The hold that began at 10 s ends at 20 s for
    # both. The third group falls due at 21 s.
    assert await count_inactive(harness) == 2 * len(MANY)
    assert harness.server.node.throttle.storm_counts[NAMESPACE] == 2, "the later expiries are a second storm"


# -- expiries that are not held


async def test_a_small_fleet_has_no_storm(harness: ServerHarness) -> None:
    await register_all(harness, MANY[:19])
    await harness.advance(LEASE_MS)
    assert (await count_inactive(harness), await held(harness)) == (19, 0)


async def test_a_small_share_of_a_large_fleet_is_not_a_storm(harness: ServerHarness) -> None:
    await register_all(harness, [f"healthy-{number}" for number in range(94)], lease_ms=60_000)
    await register_all(harness)
    await harness.advance(LEASE_MS)
    assert (await count_inactive(harness), await held(harness)) == (40, 0)


async def test_a_storm_in_one_namespace_does_not_hold_expiries_in_another(harness: ServerHarness) -> None:
    await register_all(harness)
    await register_all(harness, ["w0"], namespace="billing")
    await harness.advance(LEASE_MS)
    assert await held(harness) == 40
    assert (await count_inactive(harness, "billing"), await held(harness, "billing")) == (1, 0)
    assert not (await fleet(harness, "billing"))[1]


async def test_shutdowns_forced_expiries_and_new_sessions_are_not_held(harness: ServerHarness) -> None:
    await register_all(harness)
    await harness.advance(LEASE_MS + 1_000)
    assert (await harness.shut_down("w0")).rescheduled_activities == 1
    assert (await harness.expire("w1")).rescheduled_activities == 1
    result = await harness.beat("w2", session_id="anew", sequence=1, lease_ms=2_000)
    assert result.outcome == SESSION_REPLACED
    await harness.advance(1_000)
    assert await held(harness) == 37
    assert (await count_inactive(harness), len(await harness.tasks(admin_pb2.TASK_STATE_DONE))) == (2, 3)


async def test_the_end_of_a_drain_is_not_held(harness: ServerHarness) -> None:
    await register_all(harness)
    await harness.advance(LEASE_MS - 1_000)
    request = admin_pb2.DrainWorkerRequest(
        namespace=NAMESPACE, worker_instance_key="w0", limit=duration(3_000)
    )
    await harness.admin.DrainWorker(request)
    await harness.advance(2_750)
    assert (await count_inactive(harness), await held(harness)) == (0, 40)
    await harness.advance(250)
    assert (await count_inactive(harness), await held(harness)) == (1, 39)


async def test_expiries_by_disconnect_grace_are_held(sqlite_harness: ServerHarness) -> None:
    await sqlite_harness.restart(takeover_grace_ms=0)
    await register_all(sqlite_harness, lease_ms=60_000)
    stream = Stream(sqlite_harness)
    for worker in MANY:
        await stream.attach(worker, grace_ms=2_000, session=f"s-{worker}")
    await stream.ping()
    await stream.cut()
    while len([1 for shard in sqlite_harness.server.node.shards() for _ in shard.disconnected]) < len(MANY):
        await sqlite_harness.beat("x", namespace="other")  # lets the server notice the break
    await sqlite_harness.advance(2_250)
    assert (await count_inactive(sqlite_harness), await held(sqlite_harness)) == (0, 40)
    # The lease itself ends at 60 s, and the hold lasts one lease from the end of the grace.
    await sqlite_harness.advance(59_000)
    assert await count_inactive(sqlite_harness) == 0
    await sqlite_harness.advance(2_000)
    assert await count_inactive(sqlite_harness) == 40


# -- operators


async def test_an_operator_releases_held_expiries_and_those_of_the_next_minute(
    harness: ServerHarness,
) -> None:
    await register_all(harness)
    await register_all(harness, [f"later-{number}" for number in range(40)], lease_ms=LEASE_MS + 5_000)
    await harness.advance(LEASE_MS)
    assert await release(harness) == 40
    await harness.advance(250)
    assert (await count_inactive(harness), await held(harness)) == (40, 0)
    await harness.advance(5_000)
    assert (await count_inactive(harness), await held(harness)) == (80, 0)
    assert await release(harness) == 0
    await harness.advance(60_000)
    assert not harness.server.node.throttle.active_storms
    await register_all(harness, [f"much-later-{number}" for number in range(40)])
    await harness.advance(LEASE_MS)
    assert (await count_inactive(harness), await held(harness)) == (80, 40)


async def test_a_hold_of_zero_disables_the_throttle(harness: ServerHarness) -> None:
    await harness.configure(storm_hold_ms=0)
    await register_all(harness)
    await harness.advance(LEASE_MS)
    assert (await count_inactive(harness), await held(harness)) == (40, 0)


async def test_disabling_the_throttle_during_a_storm_releases_all_expiries_at_once(
    harness: ServerHarness,
) -> None:
    await register_all(harness)
    await harness.advance(LEASE_MS)
    await harness.configure(storm_hold_ms=0)
    await harness.advance(250)
    assert (await count_inactive(harness), await held(harness)) == (40, 0)


async def test_a_shorter_hold_and_a_new_rate_take_effect_at_once(harness: ServerHarness) -> None:
    await harness.configure(storm_pace=1)
    await register_all(harness)
    await harness.advance(LEASE_MS)
    await harness.configure(storm_hold_ms=2_000)
    await harness.advance(1_750)
    assert await count_inactive(harness) == 0
    await harness.advance(3_250)
    assert 3 <= await count_inactive(harness) <= 5
    await harness.configure(storm_pace=0)
    await harness.advance(250)
    assert await count_inactive(harness) == 40


async def test_each_namespace_has_its_own_storm_thresholds(harness: ServerHarness) -> None:
    await harness.configure(storm_min_workers=3, storm_share=0.5)
    await register_all(harness, MANY[:3])
    await harness.advance(LEASE_MS)
    assert (await count_inactive(harness), await held(harness)) == (0, 3)


# -- restarts


async def test_restarts_during_a_storm_do_not_extend_the_hold(harness: ServerHarness) -> None:
    await register_all(harness)
    await harness.advance(LEASE_MS + 4_000)
    assert await held(harness) == 40
    for _ in range(3):
        await harness.restart(takeover_grace_ms=0)
        await harness.advance(500)
        assert (await count_inactive(harness), await held(harness)) == (0, 40)
    await harness.advance(LEASE_MS - 4_000 - 3 * 500 - 250)
    assert await count_inactive(harness) == 0
    await harness.advance(1_000)
    assert await count_inactive(harness) == 40


async def test_the_take_over_grace_and_the_hold_run_concurrently(harness: ServerHarness) -> None:
    await register_all(harness)
    await harness.advance(LEASE_MS + 4_000)
    await harness.restart(takeover_grace_ms=3_000)
    await harness.advance(2_000)
    assert (await count_inactive(harness), await held(harness)) == (0, 0), (
        "no expiry is evaluated during the grace"
    )
    await harness.advance(2_000)
    assert (await count_inactive(harness), await held(harness)) == (0, 40)
    await harness.advance(2_500)
    assert await count_inactive(harness) == 40


# -- bounds


@pytest.mark.parametrize("seed", range(6))
async def test_no_worker_is_held_longer_than_its_lease_and_the_release_queue(
    sqlite_harness: ServerHarness, seed: int
) -> None:
    """Leases, returns, restarts and operators act at random; the test computes the bounds itself."""
    harness, random = sqlite_harness, Random(seed)
    await harness.restart(takeover_grace_ms=0)
    await harness.configure(storm_pace=20, storm_min_workers=5)
    heard: dict[str, tuple[int, int, int]] = {}  # time, lease, sequence of the last heartbeat
    now_ms = 0
    for _ in range(120):
        alive = [worker for worker in MANY if random.random() < 0.02]
        if random.random() < 0.1:
            alive = MANY
        for worker in alive:
            lease_ms = random.choice([1_000, 2_000, 5_000])
            sequence = heard[worker][2] + 1 if worker in heard else 1
            await harness.beat(worker, lease_ms=lease_ms, session_id="s", sequence=sequence)
            heard[worker] = now_ms, lease_ms, sequence
        if random.random() < 0.03:
            await harness.restart()
        if random.random() < 0.03:
            await release(harness)
        await harness.advance(250)
        now_ms += 250
        if not heard:
            continue
        states = {worker.worker_instance_key: worker.state for worker in (await harness.listed()).workers}
        for worker, (at_ms, lease_ms, _) in heard.items():
            silent_ms = now_ms - at_ms
            if silent_ms < lease_ms:
                assert states[worker] == ACTIVE, "no lease ends early"
            elif silent_ms > 2 * lease_ms + len(MANY) * 1_000 // 20 + 1_000:
                assert states[worker] == INACTIVE, (worker, silent_ms, lease_ms)


# -- observability


async def test_a_storm_is_visible_in_the_fleet_the_worker_and_the_metrics(harness: ServerHarness) -> None:
    await register_all(harness)
    await harness.advance(LEASE_MS)
    found, [message] = await fleet(harness)
    assert "40 workers of orders fell silent together: their leases are held" in message
    left_ms = found.held_until.ToMilliseconds() - harness.clock.wall_ms()
    assert left_ms == LEASE_MS
    worker = await harness.describe("w7")
    assert worker.held_until.ToMilliseconds() - harness.clock.wall_ms() == LEASE_MS
    text = harness.server.metrics()[0].decode()
    assert 'liveness_held_expiries{namespace="orders"} 40.0' in text
    assert 'liveness_storms_total{namespace="orders"} 1.0' in text
    await harness.advance(LEASE_MS + 500)
    text = harness.server.metrics()[0].decode()
    assert 'liveness_held_expiries{namespace="orders"} 0.0' in text
    assert not (await harness.describe("w7")).HasField("held_until")


async def test_a_certificate_contains_the_duration_of_the_hold(harness: ServerHarness) -> None:
    await register_all(harness, ["alone"])
    await harness.advance(LEASE_MS)
    await register_all(harness)
    await harness.advance(2 * LEASE_MS + 500)

    async def certificate(worker: str) -> Any:
        request = service_pb2.GetDeathCertificateRequest(namespace=NAMESPACE, worker_instance_key=worker)
        return await harness.liveness.GetDeathCertificate(request)

    death = await certificate("w7")
    assert LEASE_MS <= death.held.ToMilliseconds() <= LEASE_MS + 500
    assert death.silence.ToMilliseconds() == LEASE_MS + death.held.ToMilliseconds()
    assert not (await certificate("alone")).HasField("held")


async def test_a_held_expiry_does_not_count_as_late(harness: ServerHarness) -> None:
    await register_all(harness)
    await harness.advance(2 * LEASE_MS + 1_000)
    assert await count_inactive(harness) == 40
    late = harness.server.telemetry.lateness_s
    assert sum(late.counts) == 40
    assert late.sum <= 40 * 0.5


async def test_a_held_expiry_is_evaluated_once(harness: ServerHarness) -> None:
    await register_all(harness)
    await harness.advance(LEASE_MS)
    hold = harness.server.node.throttle.hold_of(WorkerKey(NAMESPACE, "w7"))
    assert hold is not None
    await harness.advance(LEASE_MS - 250)
    assert harness.server.node.throttle.hold_of(WorkerKey(NAMESPACE, "w7")) is hold, (
        "the hold was not computed again"
    )
