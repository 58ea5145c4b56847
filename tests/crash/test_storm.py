"""Thousands of workers fall silent at once: who comes back in time keeps its lease, and who does not is found."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest

from liveness.domain.policy import BUILT_IN
from liveness.store.api import TaskState
from liveness.store.codec import decode_bound_activity
from liveness.store.schema import metadata
from liveness.v1 import admin_pb2, fleet_pb2, service_pb2, worker_pb2
from tests.crash.herd import Herd, name
from tests.crash.scale import scaled
from tests.databases import StoreHome
from tests.end_to_end.campaign import Say, stop
from tests.end_to_end.conftest import EXPOSED, MakeServer
from tests.end_to_end.ledger import NAMESPACE, RENEWED, RESURRECTED
from tests.end_to_end.server_process import ServerProcess

LEASE_MS = 20_000
STEADY = 500
"""Who go on all the time."""
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


class Site:
    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.herd = Herd(server, LEASE_MS)
        self.fleet = range(STEADY, STEADY + fleet())
        self._going_on = list(range(STEADY))
        self.steady_latencies_s: list[float] = []

    async def gather_everybody(self) -> None:
        """Register them, with an activity each, and let all heartbeat once more at the same time."""
        await self.herd.beat(range(STEADY))
        await self.herd.beat(self.fleet, binding=True)
        answers = await self.herd.beat(self.fleet)
        assert answers == {RENEWED: len(self.fleet)}, answers

    @asynccontextmanager
    async def some_go_on(self) -> AsyncIterator[None]:
        async def go_on() -> None:
            while True:
                await asyncio.sleep(LEASE_MS / 1_000 / BEATS_PER_LEASE)
                self.herd.latencies_s.clear()
                answers = await self.herd.beat(self._going_on)
                self.steady_latencies_s += self.herd.latencies_s
                assert set(answers) == {RENEWED}, (
                    f"some who went on heartbeating lost their leases: {answers}"
                )

        going_on = asyncio.create_task(go_on())
        try:
            yield
        finally:
            going_on.cancel()
            await asyncio.gather(going_on, return_exceptions=True)
            if not going_on.cancelled() and (error := going_on.exception()) is not None:
                raise error

    async def come_back(self, numbers: list[int]) -> Counter[int]:
        answers = await self.herd.beat(numbers)
        self._going_on += numbers
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
        """Until everybody who fell silent is held or has died. Returns how many had died before it was seen."""

        async def look() -> tuple[int, int]:
            return await self.held(), await self.active()

        # Those who died before are counted once that is committed.
        held, active = await until(
            look, lambda seen: seen[0] > 0 and seen[0] == seen[1] - STEADY, "that all are held"
        )
        assert await self.active() == active, "leases ended while they should have been held"
        return len(self.fleet) - held

    def answered_within_ms(self) -> str:
        times = sorted(self.steady_latencies_s)
        p99 = times[int(len(times) * 0.99)] * 1_000
        return f"batches of 500 answered within {p99:.0f} ms (p99 of {len(times)})"


async def account(home: StoreHome, gone: set[str], late_ms_max: float) -> set[str]:
    """Go through what the server left: whose lease ended had been silent for the whole of it and was found in time, and
    what it held was rescheduled once. Returns who else than `gone` died."""
    dump = await home.dump()
    logged, queued = (list(metadata.tables[table].columns.keys()) for table in ("log", "tasks"))
    deaths: Counter[str] = Counter()
    for values in dump["log"]:
        row = dict(zip(logged, values, strict=True))
        if row["kind"] == "WorkerDeactivated":
            deaths[row["worker_key"]] += 1
            certificate = json.loads(row["payload"])["certificate"]
            assert LEASE_MS <= certificate["silence_ms"] <= late_ms_max, (row["worker_key"], certificate)
    assert set(deaths.values()) <= {1}, "somebody died twice"
    assert gone <= deaths.keys(), f"{len(gone - deaths.keys())} were never found"
    tasks: Counter[str] = Counter()
    for values in dump["tasks"]:
        row = dict(zip(queued, values, strict=True))
        assert row["state"] == TaskState.DONE, row
        assert decode_bound_activity(row["activity"]).workflow_id == f"{row['worker_key']}/activity"
        tasks[row["worker_key"]] += 1
    assert tasks == deaths, "what the dead held was not rescheduled once each"
    return deaths.keys() - gone


@pytest.mark.crash_long
async def test_who_comes_back_within_the_hold_keeps_its_lease(
    make_server: MakeServer, sqlite_url: str, sqlite_file: StoreHome, say: Say
) -> None:
    began = time.monotonic()
    server = make_server(sqlite_url, environ=EXPOSED)
    await server.start()
    site = Site(server)
    await site.gather_everybody()
    back = [number for number in site.fleet if number % 5]
    gone = {name(number) for number in site.fleet if not number % 5}
    async with site.some_go_on():
        dead = await site.storm()
        assert dead <= BUILT_IN.storm_share * (STEADY + len(site.fleet)), "too many died before it was seen"
        answers = await site.come_back(back)
        await until(site.active, lambda active: active <= STEADY + len(back), "that the others are found")
        await until(site.open_tasks, lambda tasks: not tasks, "that all is rescheduled")
        assert await site.active() == STEADY + len(back)
    assert await stop(server) == 0, server.said()
    in_line_ms = len(gone) * 1_000 / BUILT_IN.storm_pace
    returned_dead = await account(sqlite_file, gone, 2 * LEASE_MS + LATE_MS_MAX + in_line_ms)
    assert answers == Counter({RENEWED: len(back) - len(returned_dead)}) + Counter(
        {RESURRECTED: len(returned_dead)}
    )
    assert len(returned_dead) <= dead, "some lost their leases though they were held"
    say(
        f"{len(site.fleet):,} fell silent, and {dead:,} died before it was seen to be a storm; {len(back):,} came back, "
        f"{len(returned_dead):,} of them from among those, and all others kept their leases; {len(gone):,} never came, "
        f"were found in time and what they held was rescheduled once; meanwhile {site.answered_within_ms()}",
        row="most come back",
        tried=1,
        seconds=time.monotonic() - began,
    )


@pytest.mark.crash_long
async def test_an_operator_lets_go_of_all(
    make_server: MakeServer, sqlite_url: str, sqlite_file: StoreHome, say: Say
) -> None:
    began = time.monotonic()
    server = make_server(sqlite_url, environ=EXPOSED)
    await server.start()
    site = Site(server)
    await site.gather_everybody()
    async with site.some_go_on():
        dead = await site.storm()
        answer = await server.admin.ReleaseStorm(admin_pb2.ReleaseStormRequest(namespace=NAMESPACE))
        assert answer.released == len(site.fleet) - dead
        released = time.monotonic()
        await until(site.active, lambda active: active <= STEADY, "that all are found")
        await until(site.open_tasks, lambda tasks: not tasks, "that all is rescheduled")
        seconds = time.monotonic() - released
        assert await site.active() == STEADY
    assert await stop(server) == 0, server.said()
    assert not await account(sqlite_file, set(map(name, site.fleet)), 2 * LEASE_MS)
    say(
        f"{answer.released:,} held leases were let go of, and what they held was rescheduled {seconds:.1f} s later; "
        f"meanwhile {site.answered_within_ms()}",
        row="released by an operator",
        tried=1,
        seconds=time.monotonic() - began,
    )
