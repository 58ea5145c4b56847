"""Races of concurrent calls: heartbeats with expiries, with other heartbeats and with repeated ones."""

from __future__ import annotations

import asyncio
from random import Random

import grpc
import pytest

from liveness.v1 import admin_pb2
from tests.integration.engine.engine import activity
from tests.integration.server.server_harness import (
    ACTIVE,
    INACTIVE,
    NAMESPACE,
    REGISTERED,
    RENEWED,
    REPEATED,
    RESURRECTED,
    SESSION_REPLACED,
    ServerHarness,
    heartbeat,
    unpack,
)

WORKERS = 100
ROUNDS = 12
LEASE_MS = 2_000


@pytest.mark.parametrize("seed", range(2))
async def test_a_heartbeat_at_the_exact_deadline_either_renews_or_resurrects(
    harness: ServerHarness, seed: int
) -> None:
    """In thousands of races the lease either continues with its binding, or it ended and the binding is
    rescheduled once."""
    random = Random(seed)
    await harness.advance(10_000)  # past the take-over grace
    await harness.configure(storm_hold_ms=0)  # otherwise a storm would hold the expiries
    epochs = dict.fromkeys((f"w{number}" for number in range(WORKERS)), 0)
    rescheduled: set[tuple[str, int]] = set()
    renewed = resurrected = 0
    sequence = 0
    for turn in range(ROUNDS):
        sequence += 1
        bound = [activity(f"{turn}")]
        items = await harness.batch(
            *(
                heartbeat(
                    w,
                    session_id="s",
                    sequence=sequence,
                    lease_ms=LEASE_MS,
                    bound_activities=bound,
                    full_bindings=True,
                )
                for w in epochs
            )
        )
        for worker, item in zip(epochs, items, strict=True):
            epochs[worker] = item.result.lease_epoch
        await harness.advance(LEASE_MS - 1)
        sequence += 1

        async def look() -> None:
            harness.clock.move(random.choice([0, 1, 1, 1, 2]))
            for _ in range(random.randrange(60)):
                await asyncio.sleep(0)
            harness.server.node.tick()

        calls = [
            harness.beat(worker, session_id="s", sequence=sequence, lease_ms=LEASE_MS) for worker in epochs
        ]
        results, _ = await asyncio.gather(asyncio.gather(*calls), look())
        await harness.advance(1)
        for worker, result in zip(epochs, results, strict=True):
            described = await harness.describe(worker)
            assert described.state == ACTIVE
            if result.outcome == RENEWED:
                renewed += 1
                assert result.lease_epoch == described.lease_epoch == epochs[worker]
                assert list(described.bound_activities) == bound
                assert not result.cancel_activities
            else:
                resurrected += 1
                assert result.outcome == RESURRECTED
                assert result.lease_epoch == described.lease_epoch == epochs[worker] + 1
                assert list(result.cancel_activities) == bound
                assert not described.bound_activities
                rescheduled.add((worker, epochs[worker]))
                epochs[worker] += 1
    done = []
    request = admin_pb2.ListTasksRequest(states=[admin_pb2.TASK_STATE_DONE], page_size=1_000)
    while True:
        page = await harness.admin.ListTasks(request)
        done += [(task.worker_instance_key, task.lease_epoch) for task in page.tasks]
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert len(done) == len(set(done)), "nothing was rescheduled twice"
    assert set(done) == rescheduled, "exactly the lost bindings were rescheduled"
    assert renewed
    assert resurrected


async def test_reordered_and_repeated_heartbeats_end_with_the_newest(harness: ServerHarness) -> None:
    random = Random(7)
    for turn in range(10):
        worker = f"w{turn}"
        await harness.beat(worker, session_id="s", sequence=1)
        sequences = [*range(2, 22), *range(2, 22)]
        random.shuffle(sequences)
        calls = [
            harness.beat(worker, session_id="s", sequence=n, bound_activities=[activity(f"{n}")])
            for n in sequences
        ]
        results = await asyncio.gather(*calls, return_exceptions=True)
        applied = []
        for sequence, result in zip(sequences, results, strict=True):
            if isinstance(result, grpc.aio.AioRpcError):
                assert unpack(result).reason == "STALE_HEARTBEAT"
            elif not isinstance(result, BaseException) and result.outcome == RENEWED:
                applied.append(sequence)
            else:
                assert not isinstance(result, BaseException)
                assert result.outcome == REPEATED
        described = await harness.describe(worker)
        assert described.sequence == 21
        assert len(applied) == len(set(applied)), "each sequence number is applied once"
        held = {int(bound.activity_id) for bound in described.bound_activities}
        assert held == set(applied), "exactly the acknowledged activities are bound"


async def test_racing_first_heartbeats_register_once(harness: ServerHarness) -> None:
    for turn in range(5):
        results = await asyncio.gather(
            *(harness.beat(f"w{turn}", session_id="s", sequence=1) for _ in range(40))
        )
        assert sorted(result.outcome for result in results) == [REGISTERED, *[REPEATED] * 39]
        assert {result.lease_epoch for result in results} == {1}


async def test_racing_sessions_replace_each_other_and_only_the_last_stays_valid(
    harness: ServerHarness,
) -> None:
    harness.lift_rate_limits()
    sessions = [f"s{number}" for number in range(40)]
    results = await asyncio.gather(
        *(harness.beat(session_id=s, sequence=1, bound_activities=[activity(s)]) for s in sessions)
    )
    assert sorted(result.lease_epoch for result in results) == list(range(1, 41))
    assert sorted(result.outcome for result in results) == sorted([REGISTERED, *[SESSION_REPLACED] * 39])
    described = await harness.describe()
    last = max(range(40), key=lambda n: results[n].lease_epoch)
    assert described.session_id == sessions[last]
    assert list(described.bound_activities) == [activity(sessions[last])]
    await harness.advance(1)
    moved = {task.activity.activity_id for task in await harness.tasks(admin_pb2.TASK_STATE_DONE)}
    assert moved == set(sessions) - {sessions[last]}
    replies = await asyncio.gather(
        *(harness.beat(session_id=s, sequence=2) for s in sessions), return_exceptions=True
    )
    reasons = [unpack(z).reason if isinstance(z, grpc.aio.AioRpcError) else "OK" for z in replies]
    assert reasons.count("OK") == 1
    assert reasons.count("SESSION_SUPERSEDED") == 39


async def test_a_shutdown_racing_with_heartbeats_loses_no_binding(harness: ServerHarness) -> None:
    """In any order each acknowledged binding is either held in the end or rescheduled."""
    for turn in range(20):
        worker = f"w{turn}"
        await harness.beat(worker, session_id="s", sequence=1, bound_activities=[activity(f"{turn}-1")])
        results = await asyncio.gather(
            *(
                harness.beat(worker, session_id="s", sequence=n, bound_activities=[activity(f"{turn}-{n}")])
                for n in range(2, 6)
            ),
            harness.shut_down(worker),
            return_exceptions=True,
        )
        acked = {f"{turn}-1"} | {
            f"{turn}-{n}"
            for n, result in zip(range(2, 6), results, strict=False)
            if not isinstance(result, BaseException)
        }
        await harness.advance(1)
        held = {bound.activity_id for bound in (await harness.describe(worker)).bound_activities}
        done = await harness.tasks(admin_pb2.TASK_STATE_DONE, page_size=1_000)
        moved = [task.activity.activity_id for task in done if task.worker_instance_key == worker]
        assert len(moved) == len(set(moved))
        assert held | set(moved) == acked
        assert not held & set(moved)


async def test_an_unthrottled_mass_expiry_reschedules_everything_within_a_second(
    harness: ServerHarness,
) -> None:
    await harness.advance(10_000)
    await harness.configure(storm_hold_ms=0)
    for start in range(0, 1_000, 500):
        await harness.batch(
            *(
                heartbeat(f"w{n}", lease_ms=5_000, bound_activities=[activity(f"{n}-{k}") for k in range(3)])
                for n in range(start, start + 500)
            )
        )
    await harness.advance(4_999)
    assert await harness.count() == {ACTIVE: 1_000}
    await harness.advance(1_000)
    assert await harness.count() == {INACTIVE: 1_000}
    assert len(harness.server.matching.available_activities(NAMESPACE, "queue")) == 3_000
