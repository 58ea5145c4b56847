"""What happened keeps its time: every call shows the same wall time of a fact, to the millisecond, whatever has
happened to the server and its clocks since."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from liveness.domain.keys import ActivityKey
from liveness.v1 import service_pb2
from tests.integration.cluster.test_two_nodes import harnesses, settled
from tests.integration.engine.engine import activity, duration
from tests.integration.server.activity_client import QUEUE, ActivityClient
from tests.integration.server.server_harness import NAMESPACE, SHARDS, ServerHarness, heartbeat
from tests.integration.server.test_commit_failures import served
from tests.integration.store.faulty_store import Fault

__all__ = ["harnesses"]

LONG_MS = 3_000_000
SHORT_MS = 2_000
OUTAGE_MS = 6_000
ACTIVITIES = ("waiting", "available", "held", "completed", "poison", "cancelled")

Times = dict[str, Any]
Disturbance = Callable[[ServerHarness], Awaitable[None]]


async def live(harness: ServerHarness) -> Times:
    """Run workers and activities into every kind of past; return the wall times that the clock showed."""
    clock, client, expected = harness.clock, ActivityClient(harness), {}
    await harness.configure(max_worker_deaths=1, storm_hold_ms=0)
    await harness.beat("registered", session_id="s", lease_ms=LONG_MS)
    expected["registered"] = clock.wall_ms()
    await harness.advance(101)
    for sequence in range(1, 4):
        await harness.advance(203)
        await harness.batch(
            heartbeat("renewed", session_id="s", sequence=sequence, lease_ms=LONG_MS),
            heartbeat("bound", session_id="s", sequence=sequence, lease_ms=LONG_MS, full_bindings=True,
                      bound_activities=[activity(f"b{sequence}")]),
            heartbeat("dead", session_id="s", sequence=sequence, lease_ms=SHORT_MS),
            heartbeat("left", session_id="s", sequence=sequence, lease_ms=LONG_MS),
        )  # fmt: skip
        expected["renewed"] = expected["bound"] = expected["dead"] = expected["left"] = clock.wall_ms()
    await harness.advance(17)
    await harness.shut_down("left")
    await harness.beat("taker", session_id="s", task_queue=QUEUE, lease_ms=LONG_MS, sequence=1)
    expected["taker"] = clock.wall_ms()
    await client.schedule("poison")
    await harness.beat("victim", session_id="s", task_queue=QUEUE, lease_ms=SHORT_MS)
    expected["victim"] = clock.wall_ms()
    assert (await client.take("victim")).id.activity_id == "poison"
    await harness.advance(SHORT_MS)  # the worker dead dies too
    expected["poison"] = expected["victim death"] = clock.wall_ms()
    await client.schedule("waiting", start_delay=duration(LONG_MS))
    expected["waiting"] = clock.wall_ms()
    await harness.advance(23)
    await client.schedule("completed")
    task = await client.take("taker")
    await harness.advance(29)
    await client.complete(task, "taker")
    expected["completed"] = clock.wall_ms()
    await client.schedule("held")
    await client.take("taker")
    expected["held"] = clock.wall_ms()
    await client.schedule("cancelled")
    await harness.advance(31)
    await client.cancel("cancelled")
    expected["cancelled"] = clock.wall_ms()
    await client.schedule("available", task_queue="other")
    expected["available"] = clock.wall_ms()
    await harness.advance(1_000)
    return expected


async def read_times(harness: ServerHarness) -> Times:
    """Read every past time from every call that shows it; the calls must agree."""
    client = ActivityClient(harness)
    found: Times = {}
    for listed in (await served(harness.listed)).workers:
        name = listed.worker_instance_key
        described = await harness.describe(name)
        assert described.last_heartbeat_time == listed.last_heartbeat_time, name
        found[name] = described.last_heartbeat_time.ToMilliseconds()
        history = (await harness.history(name)).events
        found[f"{name} events"] = [event.time.ToMilliseconds() for event in history]
        certificates = [
            json.loads(event.data_json)["certificate"]
            for event in history
            if event.type == "WorkerDeactivated" and "LEASE_EXPIRED" in event.data_json
        ]
        if certificates:
            death = await harness.liveness.GetDeathCertificate(
                service_pb2.GetDeathCertificateRequest(namespace=NAMESPACE, worker_instance_key=name)
            )
            assert death.last_heartbeat_time == described.last_heartbeat_time, name
            heard = [beat.time.ToMilliseconds() for beat in death.heartbeats]
            assert heard == certificates[-1]["heartbeats"]
            assert heard[-1] == found[name]
            found[f"{name} death"] = (death.time.ToMilliseconds(), heard, [s.time for s in death.stalls])
            assert death.time.ToMilliseconds() == history[-1].time.ToMilliseconds()
        elif len(history) == 1:
            assert found[f"{name} events"] == [found[name]] or name == "renewed"
    for listed in (await client.listed()).activities:
        name = listed.id.activity_id
        if name in ACTIVITIES:
            assert (await client.describe(name)).since == listed.since, name
            found[name] = listed.since.ToMilliseconds()
            key = ActivityKey(NAMESPACE, listed.id.workflow_id, listed.id.run_id, name)
            entries = await harness.server.node.store.read_log(listed.shard_id, 0, 2**40, 10_000)
            times = [entry.wall_ms for entry in entries if entry.workflow_id == key.workflow_id]
            assert times[-1] == found[name], "the last event brought the activity into its state"
    return found


async def restart_after_an_outage(harness: ServerHarness) -> None:
    await harness.stop()
    harness.clock.move(OUTAGE_MS)
    await harness.restart()


async def restart_after_a_checkpoint(harness: ServerHarness) -> None:
    await harness.server.maintenance.checkpoint()
    await restart_after_an_outage(harness)


async def read_the_shards_again_from_the_log(harness: ServerHarness) -> None:
    """Lose all shards with a failed commit; no checkpoint precedes it."""
    assert harness.store is not None
    epochs = {shard.id: shard.epoch for shard in harness.server.node.shards()}
    harness.store.faults.append(Fault.REJECTED)
    harness.clock.move(OUTAGE_MS)
    harness.server.node.tick()
    while not harness.store.failed:
        await served(harness.listed)
    while {shard.id: shard.epoch for shard in harness.server.node.shards()} != {
        id: epoch + 1 for id, epoch in epochs.items()
    }:
        await served(harness.listed)


async def stand_still(harness: ServerHarness) -> None:
    harness.clock.move(60_000)
    harness.server.node.tick()
    await harness.advance(2_000)


async def hang_in_a_commit(harness: ServerHarness) -> None:
    """Let heartbeats of other workers come while a commit hangs, so that the observed clock stands still."""
    assert harness.store is not None
    harness.store.close_gate()
    harness.clock.move(600)
    harness.server.node.tick()
    await harness.store.reached.wait()
    for _ in range(40):
        harness.clock.move(100)
        harness.server.node.tick()
    harness.store.open_gate()
    await harness.advance(2_000)


async def set_the_wall_clock(harness: ServerHarness) -> None:
    for jump_ms in (3_600_000, -7_200_000):
        harness.clock.jump_wall(jump_ms)
        await harness.advance(1_000)
    await restart_after_an_outage(harness)


@pytest.mark.parametrize(
    "disturb",
    [
        restart_after_an_outage,
        restart_after_a_checkpoint,
        read_the_shards_again_from_the_log,
        stand_still,
        hang_in_a_commit,
        set_the_wall_clock,
    ],
)
async def test_past_times_stay_as_they_were_recorded(
    stopped_harness: ServerHarness, disturb: Disturbance
) -> None:
    harness = await stopped_harness.start(faulty=True, takeover_grace_ms=0)
    expected = await live(harness)
    before = await read_times(harness)
    assert before.pop("victim death")[0] == expected.pop("victim death")
    assert {name: before[name] for name in expected} == expected
    before = await read_times(harness)
    await disturb(harness)
    assert await read_times(harness) == before


async def test_a_heartbeat_after_a_stall_keeps_its_time_over_checkpoints_and_restarts(
    harness: ServerHarness,
) -> None:
    """Workers whose last heartbeats came before and after a stall share a checkpoint."""
    heard = {}
    for name in ("early", "late", "later"):
        await harness.beat(name, session_id="s", sequence=1, lease_ms=LONG_MS)
        await harness.advance(700)
        await harness.beat(name, session_id="s", sequence=2, lease_ms=LONG_MS)
        heard[name] = harness.clock.wall_ms()
        harness.clock.move(30_000)
        harness.server.node.tick()
    for _ in range(2):
        await harness.server.maintenance.checkpoint()
        await harness.beat("other")
        await restart_after_an_outage(harness)
        found = {name: (await harness.describe(name)).last_heartbeat_time for name in heard}
        assert {name: time.ToMilliseconds() for name, time in found.items()} == heard


@pytest.fixture
async def one_shard(tmp_path: Path) -> AsyncIterator[ServerHarness]:
    harness = await ServerHarness(f"sqlite:///{tmp_path}/liveness.db").start(faulty=True, shards=1)
    yield harness
    await harness.stop()


async def test_heartbeats_during_a_hanging_commit_keep_their_times_and_share_rows(
    one_shard: ServerHarness,
) -> None:
    harness = one_shard
    assert harness.store is not None
    workers = [f"w{n}" for n in range(30)]
    for worker in workers:
        await harness.beat(worker, session_id="s", sequence=1, lease_ms=LONG_MS)
        await harness.beat(worker, session_id="s", sequence=2, lease_ms=LONG_MS)
    [shard] = harness.server.node.shards()
    harness.store.close_gate()
    harness.clock.move(600)
    harness.server.node.tick()
    await harness.store.reached.wait()
    rows, heard = shard._pending.last_seq, {}
    for worker in workers:
        harness.clock.move(100)
        key = (NAMESPACE, worker)
        listening_ms = harness.server.node.listening.now_ms()
        fingerprint = shard._fingerprints[shard.workers[key].number]  # type: ignore[index]
        renewed = shard.renew_unchanged(key, fingerprint, 3, 0, 0, listening_ms, harness.clock.wall_ms())
        assert renewed is not None
        heard[worker] = (harness.clock.wall_ms(), renewed.renewed_wall_ms)
    harness.store.open_gate()
    await harness.advance(100)
    assert all(abs(clock_ms - recorded_ms) <= 100 for clock_ms, recorded_ms in heard.values() if recorded_ms)
    assert shard.durable_seq - rows < len(workers), "several share a row"
    await read_the_shards_again_from_the_log(harness)
    for worker, (_, recorded_ms) in heard.items():
        assert (await harness.describe(worker)).last_heartbeat_time.ToMilliseconds() == recorded_ms


async def test_a_second_node_shows_the_times_of_the_first(harnesses: list[ServerHarness]) -> None:
    first, second, _ = harnesses
    await first.start(takeover_grace_ms=0)
    await live(first)
    before = await read_times(first)
    second.clock.jump_wall(37)  # clocks of two machines differ
    second.clock.move(first.clock.monotonic_ms() - second.clock.monotonic_ms())
    await second.start(takeover_grace_ms=0)
    await settled(first, second)
    for harness in (first, second):
        assert 0 < len(harness.server.node.shards()) < SHARDS
        assert await read_times(harness) == before
    await first.stop()
    second.clock.move(OUTAGE_MS)
    await settled(second)
    assert await read_times(second) == before


async def test_a_list_leaves_out_last_heartbeats_that_only_an_unreachable_node_knows(
    harnesses: list[ServerHarness],
) -> None:
    first, second, _ = harnesses
    await first.start()
    await second.start()
    await settled(first, second)
    workers = [f"w{n}" for n in range(16)]
    for sequence in (1, 2):
        for worker in workers:
            await first.beat(worker, session_id="s", sequence=sequence, lease_ms=LONG_MS)
        await first.advance(1_000)
    await first.shut_down("w0")
    expected = {worker: (await second.describe(worker)).last_heartbeat_time for worker in workers}
    await first.server._cluster_grpc.stop(None)
    seen: Counter[bool] = Counter()
    for listed in (await second.listed()).workers:
        name = listed.worker_instance_key
        is_known = second.server.node.serves(listed.shard_id) or name == "w0"
        assert listed.HasField("last_heartbeat_time") == is_known, name
        assert not is_known or listed.last_heartbeat_time == expected[name]
        seen[is_known] += 1
    assert seen[True]
    assert seen[False]
