"""A full disk is named in the error that callers get, and the server goes on when there is room again."""

from __future__ import annotations

import os
import pwd
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest

from liveness.store.errors import NoSpaceLeft
from liveness.v1 import activity_pb2, service_pb2
from tests.databases import PostgresServer
from tests.integration.server.server_harness import (
    NAMESPACE,
    SHARDS,
    Refusal,
    ServerHarness,
    heartbeat,
    refusal,
    unpack,
    unpack_status,
)

DISK_MIB = 32


class SmallDisk:
    """A small file system in memory."""

    def __init__(self) -> None:
        # Not in pytest's folder, which PostgreSQL may not enter.
        self.folder = Path(tempfile.mkdtemp(prefix="liveness-disk-"))
        self.folder.chmod(0o755)
        options = f"size={DISK_MIB}m,mode=0700,uid={pwd.getpwnam('nobody').pw_uid}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.folder], check=True)

    def fill(self) -> None:
        with (self.folder / "filler").open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                try:
                    while file.write(b"\0" * size) == size:
                        pass
                except OSError:
                    pass

    def make_room(self) -> None:
        (self.folder / "filler").unlink()

    def close(self) -> None:
        subprocess.run(["umount", "-l", self.folder], check=True)
        self.folder.rmdir()


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    disk = SmallDisk()
    yield disk
    disk.close()


@pytest.fixture
def url(dialect: str, disk: SmallDisk, request: pytest.FixtureRequest) -> Iterator[str]:
    if dialect == "sqlite":
        yield f"sqlite:///{disk.folder}/liveness.db"
        return
    server: PostgresServer
    server, template = request.getfixturevalue("migrated_template")
    server.execute(f"CREATE TABLESPACE small LOCATION '{disk.folder}'")
    server.execute(f"CREATE DATABASE on_small_disk TEMPLATE {template} TABLESPACE small")
    yield server.url("on_small_disk")
    server.drop_database("on_small_disk")
    server.execute("DROP TABLESPACE small")


@pytest.fixture
async def limited_harness(tmp_path: Path) -> AsyncIterator[ServerHarness]:
    harness = await ServerHarness(f"sqlite:///{tmp_path}/liveness.db").start()
    yield harness
    await harness.stop()


async def until_refused(harness: ServerHarness) -> Refusal:
    for number in range(2_000):
        try:
            await harness.beat(f"w{number}", session_id="s", sequence=1, last_error="e" * 1_000)
        except grpc.aio.AioRpcError as error:
            return unpack(error)
    raise AssertionError("the disk never became full")


async def until_recovered(harness: ServerHarness) -> None:
    for _ in range(1_000):
        if len(harness.server.node.shards()) == SHARDS:
            return
        harness.clock.move(1_000)
        await harness.liveness.GetServerInfo(service_pb2.GetServerInfoRequest())
    raise AssertionError("the shards do not serve again")


async def check_full_disk_is_named(harness: ServerHarness) -> None:
    refused = await until_refused(harness)
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "STORE_FULL")
    assert refused.message.startswith("The disk of the database is full, so nothing can be stored (")
    assert refused.fields["detail"] in refused.message
    assert refused.retry_ms == 2_000
    # Smaller rows may still fit into the last page.
    items = [item for number in range(100) for item in await harness.batch(heartbeat(f"another{number}"))]
    refused_items = [item for item in items if item.HasField("status")]
    assert unpack_status(refused_items[0].status).reason == "STORE_FULL"
    id = activity_pb2.ActivityId(workflow_id="w", run_id="r", activity_id="a")
    scheduled = activity_pb2.ScheduleActivityRequest(
        namespace=NAMESPACE, id=id, task_queue="q", input=os.urandom(100_000)
    )
    assert (await refusal(harness.activities.ScheduleActivity(scheduled))).reason == "STORE_FULL"


async def test_callers_are_told_that_the_disk_is_full(harness: ServerHarness, disk: SmallDisk) -> None:
    await harness.beat("before", session_id="s", sequence=1)
    disk.fill()
    await check_full_disk_is_named(harness)
    disk.make_room()
    await until_recovered(harness)
    await harness.beat("before", session_id="s", sequence=2)
    assert (await harness.describe("before")).session_id == "s"


async def test_a_database_that_may_not_grow_is_full(limited_harness: ServerHarness) -> None:
    """SQLite's own limit, for machines on which no disk can be mounted."""
    harness = limited_harness
    database = harness.server.store._database

    async def limit(pages: str) -> None:
        await database.write(
            lambda connection: connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        )

    await harness.beat("before")
    await limit("1")  # SQLite makes it the present size; pages that are not full still take a little
    assert (await until_refused(harness)).reason == "STORE_FULL"
    with pytest.raises(NoSpaceLeft):
        await database.write(
            lambda connection: connection.exec_driver_sql("CREATE TABLE big AS SELECT randomblob(9999999)")
        )
    await limit("1000000")
    await until_recovered(harness)
    await harness.beat("after")
