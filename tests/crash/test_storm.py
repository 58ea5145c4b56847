"""Thousands of workers fall silent at once: those that come back in time keep their leases, and the others expire."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest

from liveness.domain.policy import DEFAULT_POLICY
from liveness.store.api import TaskState
from liveness.store.codec import decode_bound_activity
from liveness.store.schema import metadata
from liveness.v1 import admin_pb2, fleet_pb2, service_pb2, worker_pb2
from tests.crash.batched_workers import BatchedWorkers, name
from tests.crash.scale import scaled
from tests.databases import StoreDatabase
from tests.system.server.conftest import NO_TAKEOVER_GRACE, MakeServer
from tests.system.server.crash_loop import ReportResult, stop
from tests.system.server.ledger import NAMESPACE, RENEWED, RESURRECTED
from tests.system.server.server_process import ServerProcess

LEASE_MS = 20_000
STEADY = 500
"""Workers that heartbeat all the time."""
BEATS_PER_LEASE = 4
SECONDS_MAX = 240
LATE_MS_MAX = 1_000

T = TypeVar("T")


def fleet() -> int:
    return scaled(20_000)


async def until(ask: Callable[[], Awaitable[T]], wanted: Callable[[T], object], what: str) -> T:
    deadline = time.monotonic() + SECONDS_MAX
    while not wanted(answer := await ask()):
        assert time.monotonic() < deadline, f"{what} never came true; at last: {answer}"
        await asyncio.sleep(0.1)
    return answer


class StormRun:
    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.workers = BatchedWorkers(server, LEASE_MS)
        self.fleet = range(STEADY, STEADY + fleet())
        self._kept_alive = list(range(STEADY))
        self.steady_latencies_s: list[float] = []

    async def register_all(self) -> None:
        """Register the fleet with one activity each, then send one more heartbeat for every worker at the same time."""
        await self.workers.beat(range(STEADY))
        await self.workers.beat(self.fleet, binding=True)
        answers = await self.workers.beat(self.fleet)
        assert answers == {RENEWED: len(self.fleet)}, answers

    @asynccontextmanager
    async def keep_some_alive(self) -> AsyncIterator[None]:
        async def go_on() -> None:
            while True:
                await asyncio.sleep(LEASE_MS / 1_000 / BEATS_PER_LEASE)
                self.workers.latencies_s.clear()
                answers = await self.workers.beat(self._kept_alive)
                self.steady_latencies_s += self.workers.latencies_s
                assert set(answers) == {RENEWED}, (
                    f"some workers lost their leases although they kept sending heartbeats: {answers}"
                )

        going_on = asyncio.create_task(go_on())
        try:
            yield
        finally:
            going_on.cancel()
            await asyncio.gather(going_on, return_exceptions=True)
            if not going_on.cancelled() and (error := going_on.exception()) is not None:
                raise error

    async def resume_heartbeats(self, numbers: list[int]) -> Counter[int]:
        answers = await self.workers.beat(numbers)
        self._kept_alive += numbers
        return answers

    async def active(self) -> int:
        count = service_pb2.CountWorkersRequest(namespace=NAMESPACE)
        count.filter.states.append(worker_pb2.WORKER_STATE_ACTIVE)
        return (await self.server.liveness.CountWorkers(count)).total

    async def held(self) -> int:
        fleet = await self.server.admin.GetFleet(fleet_pb2.GetFleetRequest(namespace=NAMESPACE))
        return sum(part.held_expiries for part in fleet.namespaces)

    async def open_tasks(self) -> int:
        return len((await self.server.admin.ListTasks(admin_pb2.ListTasksRequest(page_size=1))).tasks)

    async def storm(self) -> int:
        """Wait until every silent worker is held or has expired; return how many expired before the storm was declared."""

        async def look() -> tuple[int, int]:
            return await self.held(), await self.active()

        # The count of active workers follows their commit.
        held, active = await until(
            look, lambda seen: seen[0] > 0 and seen[0] == seen[1] - STEADY, "that all are held"
        )
        assert await self.active() == active, "leases ended while they should have been held"
        return len(self.fleet) - held

    def answered_within_ms(self) -> str:
        times = sorted(self.steady_latencies_s)
        p99 = times[int(len(times) * 0.99)] * 1_000
        return f"batches of 500 answered within {p99:.0f} ms (p99 of {len(times)})"


async def check_database(store_database: StoreDatabase, gone: set[str], late_ms_max: float) -> set[str]:
    """Check that each expired worker had been silent for its whole lease, was found in time and had its activity
    rescheduled once. Returns the expired workers that are not in `gone`.
    """
    dump = await store_database.dump()
    logged, queued = (list(metadata.tables[table].columns.keys()) for table in ("log", "tasks"))
    deaths: Counter[str] = Counter()
    for values in dump["log"]:
        row = dict(zip(logged, values, strict=True))
        if row["kind"] == "WorkerDeactivated":
            deaths[row["worker_key"]] += 1
            certificate = json.loads(row["payload"])["certificate"]
            assert LEASE_MS <= certificate["silence_ms"] <= late_ms_max, (row["worker_key"], certificate)
    assert set(deaths.values()) <= {1}, "somebody died twice"
    assert gone <= deaths.keys(), f"{len(gone - deaths.keys())} workers never expired"
    tasks: Counter[str] = Counter()
    for values in dump["tasks"]:
        row = dict(zip(queued, values, strict=True))
        assert row["state"] == TaskState.DONE, row
        assert decode_bound_activity(row["activity"]).workflow_id == f"{row['worker_key']}/activity"
        tasks[row["worker_key"]] += 1
    assert tasks == deaths, "the activities of expired workers were not rescheduled exactly once"
    return deaths.keys() - gone


@pytest.mark.crash_long
async def test_a_worker_that_returns_during_the_storm_keeps_its_lease(
    make_server: MakeServer, sqlite_url: str, sqlite_database: StoreDatabase, report_result: ReportResult
) -> None:
    began = time.monotonic()
    server = make_server(sqlite_url, environ=NO_TAKEOVER_GRACE)
    await server.start()
    run = StormRun(server)
    await run.register_all()
    back = [number for number in run.fleet if number % 5]
    gone = {name(number) for number in run.fleet if not number % 5}
    async with run.keep_some_alive():
        dead = await run.storm()
        assert dead <= DEFAULT_POLICY.storm_share * (STEADY + len(run.fleet)), (
            "too many workers expired before the storm was declared"
        )
        answers = await run.resume_heartbeats(back)
        await until(run.active, lambda active: active <= STEADY + len(back), "the expiry of the others")
        await until(run.open_tasks, lambda tasks: not tasks, "the end of all reschedules")
        assert await run.active() == STEADY + len(back)
    assert await stop(server) == 0, server.log_text()
    in_line_ms = len(gone) * 1_000 / DEFAULT_POLICY.storm_pace
    returned_dead = await check_database(sqlite_database, gone, 2 * LEASE_MS + LATE_MS_MAX + in_line_ms)
    assert answers == Counter({RENEWED: len(back) - len(returned_dead)}) + Counter(
        {RESURRECTED: len(returned_dead)}
    )
    assert len(returned_dead) <= dead, "some workers lost their leases although they were held"
    report_result(
        f"{len(run.fleet):,} workers fell silent; {dead:,} expired before the storm was declared; {len(back):,} came back, "
        f"{len(returned_dead):,} of them from among those, and all others kept their leases; {len(gone):,} never came, "
        f"expired in time, and their activities were rescheduled once; meanwhile {run.answered_within_ms()}",
        row="most come back",
        tried=1,
        seconds=time.monotonic() - began,
    )


@pytest.mark.crash_long
async def test_releasing_a_storm_expires_all_held_workers(
    make_server: MakeServer, sqlite_url: str, sqlite_database: StoreDatabase, report_result: ReportResult
) -> None:
    began = time.monotonic()
    server = make_server(sqlite_url, environ=NO_TAKEOVER_GRACE)
    await server.start()
    run = StormRun(server)
    await run.register_all()
    async with run.keep_some_alive():
        dead = await run.storm()
        answer = await server.admin.ReleaseStorm(admin_pb2.ReleaseStormRequest(namespace=NAMESPACE))
        assert answer.released == len(run.fleet) - dead
        released = time.monotonic()
        await until(run.active, lambda active: active <= STEADY, "the expiry of all")
        await until(run.open_tasks, lambda tasks: not tasks, "the end of all reschedules")
        seconds = time.monotonic() - released
        assert await run.active() == STEADY
    assert await stop(server) == 0, server.log_text()
    assert not await check_database(sqlite_database, set(map(name, run.fleet)), 2 * LEASE_MS)
    report_result(
        f"{answer.released:,} held leases were released, and their activities were rescheduled within {seconds:.1f} s; "
        f"meanwhile {run.answered_within_ms()}",
        row="released by an operator",
        tried=1,
        seconds=time.monotonic() - began,
    )
