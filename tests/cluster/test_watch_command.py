"""`liveness watch` with the addresses of all nodes: the one it watches is killed, and it misses and repeats nothing."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.cli.servers import environment, liveness_command
from tests.cluster.conftest import MakeCluster, Place
from tests.cluster.nodes import SECONDS_MAX
from tests.cluster.test_watch import NAMESPACE, leave_marks
from tests.sdk_end_to_end.record import Record

Records = list[dict[str, Any]]


@asynccontextmanager
async def watching(addresses: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *liveness_command("watch", "--json", "--from-beginning"),
        *("--address", addresses, "--namespace", NAMESPACE),
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def read_until(process: asyncio.subprocess.Process, marks: set[str]) -> Records:
    """Every line up to the last of these."""
    assert process.stdout is not None
    records: Records = []
    async with asyncio.timeout(SECONDS_MAX):
        while marks - {record.get("workflow_id") for record in records}:
            records.append(json.loads(await process.stdout.readline()))
    return records


def places(records: Records) -> list[tuple[int, int]]:
    events = [record for record in records if "type" in record]
    return sorted((record["shard_id"], int(record["sequence"])) for record in events)


async def test_a_watch_goes_on_at_another_node(make_cluster: MakeCluster, place: Place) -> None:
    cluster = make_cluster(place.url)
    await cluster.start()
    first, *others = cluster.nodes
    async with watching(cluster.addresses) as watch:
        async with Record(others[0].place, NAMESPACE) as record:
            seen = await read_until(watch, await leave_marks(record, "before"))
            await first.kill()
            await cluster.all_served(by=others)
            last = await leave_marks(record, "after")
            seen += await read_until(watch, last)
        async with watching(others[0].place) as anew:
            assert places(seen) == places(await read_until(anew, last))
        watch.send_signal(signal.SIGINT)
        _, said = await watch.communicate()
    broken, going_on = said.decode().splitlines()
    assert broken.startswith("Broken off: ")
    assert going_on in {f"Going on where it broke off, at {node.place}." for node in others}
    await cluster.stop()
