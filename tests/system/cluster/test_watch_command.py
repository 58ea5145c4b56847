"""`liveness watch` knows all nodes; when the watched node is killed, the command misses and repeats no event."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.system.cli.server_processes import environment, liveness_command
from tests.system.cluster.conftest import ClusterDatabase, MakeCluster
from tests.system.cluster.nodes import SECONDS_MAX
from tests.system.cluster.test_watch import NAMESPACE, schedule_on_each_shard
from tests.system.worker_processes.namespace_client import NamespaceClient

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
    """Return every line up to the last of these marks."""
    assert process.stdout is not None
    records: Records = []
    async with asyncio.timeout(SECONDS_MAX):
        while marks - {record.get("workflow_id") for record in records}:
            records.append(json.loads(await process.stdout.readline()))
    return records


def positions(records: Records) -> list[tuple[int, int]]:
    events = [record for record in records if "type" in record]
    return sorted((record["shard_id"], int(record["sequence"])) for record in events)


async def test_watch_resumes_at_another_node(
    make_cluster: MakeCluster, cluster_database: ClusterDatabase
) -> None:
    cluster = make_cluster(cluster_database.url)
    await cluster.start()
    first, *others = cluster.nodes
    async with watching(cluster.addresses) as watch:
        async with NamespaceClient(others[0].fixed_address, NAMESPACE) as record:
            seen = await read_until(watch, await schedule_on_each_shard(record, "before"))
            await first.kill()
            await cluster.all_served(by=others)
            last = await schedule_on_each_shard(record, "after")
            seen += await read_until(watch, last)
        async with watching(others[0].fixed_address) as anew:
            assert positions(seen) == positions(await read_until(anew, last))
        watch.send_signal(signal.SIGINT)
        _, said = await watch.communicate()
    broken, going_on = said.decode().splitlines()
    assert broken.startswith("The stream broke: ")
    assert going_on in {f"Continuing where the stream broke, at {node.fixed_address}." for node in others}
    await cluster.stop()
