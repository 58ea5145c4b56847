"""The size of the database, its growth and the room that is left, as metrics and in GetFleet."""

from __future__ import annotations

from liveness.v1 import fleet_pb2
from tests.integration.server.server_harness import ServerHarness
from tests.integration.telemetry.exposition import Exposition

HOUR_MS = 3_600_000


async def fleet_storage(harness: ServerHarness) -> fleet_pb2.Storage:
    await harness.server.take_sample()
    response = await harness.admin.GetFleet(fleet_pb2.GetFleetRequest())
    storage: fleet_pb2.Storage = response.storage
    return storage


async def test_the_growth_is_known_after_a_while(harness: ServerHarness) -> None:
    first = await fleet_storage(harness)
    assert first.used_bytes > 0
    assert first.disk_bytes > 0
    assert not first.HasField("growth_bytes_per_day")
    await harness.server.maintenance.record_size()
    for number in range(100):
        await harness.beat(f"worker-{number}", last_error="e" * 1_000)
    harness.clock.jump_wall(HOUR_MS)
    harness.clock.move(60_000)
    storage = await fleet_storage(harness)
    assert storage.growth_bytes_per_day > 24 * 100 * 1_000
    is_sqlite = harness.url.startswith("sqlite")
    assert storage.HasField("free_bytes") == storage.HasField("days_until_full") == is_sqlite
    metrics = {sample.name: sample.value for sample in Exposition(harness.server.metrics()[0]).samples}
    assert metrics["liveness_database_bytes"] == storage.used_bytes
    assert metrics["liveness_database_disk_bytes"] == storage.disk_bytes
    assert metrics["liveness_database_growth_bytes_per_day"] == storage.growth_bytes_per_day
    assert ("liveness_database_free_bytes" in metrics) == is_sqlite


async def test_the_size_is_read_once_a_minute(harness: ServerHarness) -> None:
    await harness.server.take_sample()
    before = harness.server.telemetry.storage
    for number in range(100):
        await harness.beat(f"worker-{number}", last_error="e" * 1_000)
    await harness.server.take_sample()
    assert harness.server.telemetry.storage == before
    harness.clock.move(60_000)
    await harness.server.take_sample()
    assert harness.server.telemetry.storage != before
