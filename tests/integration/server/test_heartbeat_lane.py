"""Heartbeats that the lane serves together get the answers, and leave the rows, of heartbeats that are served one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest

from liveness.server.edge_listener import edge_is_installed
from liveness.v1 import service_pb2, worker_pb2
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from tests.integration.engine.engine import activity, duration
from tests.integration.server.server_harness import NAMESPACE, Dump, ServerHarness, heartbeat, unpack

pytestmark = pytest.mark.skipif(
    not edge_is_installed(), reason="the native edge is not installed; make edge builds it"
)

ROUNDS, BEATS_PER_ROUND, WORKERS = 5, 40, 12
SEEDS = range(6)
HEARTBEAT_METHOD = "/liveness.v1.LivenessService/RecordWorkerHeartbeat"
OWN_TABLES = ("shards", "nodes", "meta", "audit")
"""What says which process served, and when."""

SECONDS_MAX = 30
ROUND_TRIPS = 3
"""After so many calls of another method, a heartbeat that was sent before them has been decided."""
Call = tuple[str, worker_pb2.WorkerHeartbeat | None]
"""A namespace, and the heartbeat; None: the request has none."""


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not condition():
            await asyncio.sleep(0)


def random_call(random: Random, round_number: int) -> Call:
    worker = f"w{random.randrange(WORKERS)}"
    namespace = random.choices((NAMESPACE, "unknown", "", "a b"), (20, 1, 1, 1))[0]
    kind = random.choices(
        ("plain", "bound", "unbound", "session", "stale", "invalid", "key", "none", "lease"),
        (20, 3, 2, 2, 2, 1, 1, 1, 2),
    )[0]
    session, sequence = f"s-{worker}", round_number * 100 + random.randrange(100)
    if kind == "none":
        return namespace, None
    if kind == "invalid":
        return namespace, heartbeat(worker, lease_duration=duration(-1))
    if kind == "key":
        return namespace, heartbeat(random.choice(("", "x" * 300, "ü")))
    beat = heartbeat(worker, session_id=session, sequence=sequence, successes=random.randrange(3))
    if kind == "bound":
        beat.bound_activities.append(activity(f"a{random.randrange(4)}-{worker}"))
    elif kind == "unbound":
        beat.unbound_activities.append(activity(f"a{random.randrange(4)}-{worker}"))
    elif kind == "session":
        beat.session_id = f"{session}-{random.randrange(3)}"
    elif kind == "stale":
        beat.sequence = 1
    elif kind == "lease":
        beat.lease_duration.CopyFrom(duration(random.choice((100, 5_000, 60_000))))
    return namespace, beat


class Side:
    """A server, and how heartbeats of a round reach it: all at once, or each when the one before it has been decided."""

    def __init__(self, harness: ServerHarness, *, together: bool) -> None:
        self.harness = harness
        self.together = together

    async def send(self, calls: list[Call]) -> list[Any]:
        harness, store = self.harness, self.harness.store
        assert store is not None
        # A commit that is under way holds the next one back, so that all of a round are committed together.
        store.close_gate()
        first = asyncio.create_task(harness.beat("first", namespace="first"))
        await store.reached.wait()
        serving: Any = harness.server._grpc
        loop, arrived = asyncio.get_running_loop(), 0
        if self.together:
            loop.remove_reader(serving._edge.fileno())
            arrived = serving.stats()["calls"]
        answers = []
        for namespace, beat in calls:
            request = service_pb2.RecordWorkerHeartbeatRequest(namespace=namespace, heartbeat=beat)
            answers.append(asyncio.ensure_future(harness.liveness.RecordWorkerHeartbeat(request)))
            if self.together:
                arrived += 1
                await until(lambda wanted=arrived: serving.stats()["calls"] >= wanted)  # type: ignore[misc]
            else:
                for _ in range(ROUND_TRIPS):
                    await harness.config()
        if self.together:
            loop.add_reader(serving._edge.fileno(), serving._on_readable)
        for _ in range(ROUND_TRIPS):
            await harness.config()
        store.open_gate()
        await first
        found = await asyncio.gather(*answers, return_exceptions=True)
        return [_comparable(answer) for answer in found]


def _comparable(answer: Any) -> Any:
    if isinstance(answer, grpc.aio.AioRpcError):
        return unpack(answer)
    assert isinstance(answer, worker_pb2.HeartbeatResult)
    answer.ClearField("next_heartbeat_after")  # it has a random part
    return answer


def _without_owner(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Without the rows that name the node, and differ for that."""
    return [row for row in rows if "ShardTaken" not in row and "ShardReleased" not in row]


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_lane_answers_and_stores_what_single_calls_would(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    rounds = [
        [random_call(random, number) for _ in range(random.randint(1, BEATS_PER_ROUND))]
        for number in range(1, ROUNDS + 1)
    ]
    dumps: list[Dump] = []
    answers: list[list[Any]] = []
    for name, together in (("alone", False), ("together", True)):
        (tmp_path / name).mkdir()
        harness = ServerHarness(f"sqlite:///{tmp_path / name}/liveness.db")
        listener = "edge" if together else "python"
        await harness.start(faulty=True, namespaces=(NAMESPACE, "first"), listener=listener)
        harness.server.node.policies.replace(NAMESPACE, {"worker_heartbeat_rate": 2.0, "max_workers": 9})
        side = Side(harness, together=together)
        found: list[Any] = []
        for calls in rounds:
            found += await side.send(calls)
            await harness.advance(1_500)
        stats = harness.server.telemetry.calls.method(HEARTBEAT_METHOD)
        found.append(dict(stats.codes))
        await harness.stop()
        dumps.append(await harness.dump(*OWN_TABLES))
        answers.append(found)
    alone, together_ = answers
    assert together_ == alone
    for table, rows in dumps[0].items():
        assert _without_owner(dumps[1][table]) == _without_owner(rows), table


async def test_a_call_that_waits_for_a_commit_ends_with_its_deadline_or_its_client(tmp_path: Path) -> None:
    harness = await ServerHarness(f"sqlite:///{tmp_path}/liveness.db").start(faulty=True, listener="edge")
    store = harness.store
    assert store is not None
    codes = harness.server.telemetry.calls.method(HEARTBEAT_METHOD).codes
    await harness.beat("known")
    store.close_gate()
    waiting = asyncio.ensure_future(harness.beat("known"))
    await store.reached.wait()
    request = service_pb2.RecordWorkerHeartbeatRequest(namespace=NAMESPACE, heartbeat=heartbeat("late"))
    late = harness.liveness.RecordWorkerHeartbeat(request, timeout=0.2)
    gone = harness.liveness.RecordWorkerHeartbeat(request)
    await until(lambda: harness.server._gate.calls.count == 3)
    gone.cancel()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await late
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    store.open_gate()
    await waiting
    await until(lambda: harness.server._gate.calls.count == 0)
    assert codes["CANCELLED"] == 2
    await harness.stop()


async def test_calls_in_flight_are_answered_when_a_server_stops(tmp_path: Path) -> None:
    harness = await ServerHarness(f"sqlite:///{tmp_path}/liveness.db").start(faulty=True, listener="edge")
    store = harness.store
    assert store is not None
    store.close_gate()
    async with grpc.aio.insecure_channel(harness.server.address) as channel:
        stub = LivenessServiceStub(channel)
        beats: list[Any] = [
            stub.RecordWorkerHeartbeat(
                service_pb2.RecordWorkerHeartbeatRequest(
                    namespace=NAMESPACE, heartbeat=heartbeat(f"w{number}")
                )
            )
            for number in range(20)
        ]
        await until(lambda: harness.server._gate.calls.count == len(beats))
        stopping = asyncio.ensure_future(harness.server.stop())
        await until(lambda: harness.server._grpc._is_draining)
        store.open_gate()
        results = await asyncio.gather(*beats)
        await stopping
    assert len(results) == len(beats)
