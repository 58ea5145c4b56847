"""The SDK's client against a server whose commits fail."""

from __future__ import annotations

import pytest

from liveness.sdk import ActivityState, CallFailed, Client
from tests.integration.server.server_harness import NAMESPACE, ServerHarness
from tests.integration.store.faulty_store import Fault


@pytest.mark.parametrize("fault", [Fault.REJECTED, Fault.UNKNOWN_LOST, Fault.UNKNOWN_DONE])
async def test_scheduling_is_tried_again_while_its_shard_is_unavailable(
    stopped_harness: ServerHarness, fault: Fault
) -> None:
    """Whether an earlier try took effect or not, the activity is there once."""
    harness = await stopped_harness.start(faulty=True)
    assert harness.store is not None
    async with Client(harness.server.address, namespace=NAMESPACE, timeout=60) as client:
        harness.store.faults.extend([fault] * 3)
        job = await client.schedule("resize", id="a", input={"width": 200}, task_queue="queue")
        assert len(harness.store.faults) < 3, "a commit has failed"
        harness.store.faults.clear()
        assert job.state is ActivityState.AVAILABLE
        [info] = await client.list()
        assert (info.id, info.failures) == ("a", 0)


async def test_a_shard_that_stays_unavailable_is_reported_at_the_deadline(
    stopped_harness: ServerHarness,
) -> None:
    harness = await stopped_harness.start(faulty=True)
    assert harness.store is not None
    async with Client(harness.server.address, namespace=NAMESPACE, timeout=2) as client:
        harness.store.faults.extend([Fault.REJECTED] * 1_000)
        with pytest.raises(CallFailed, match="SHARD_UNAVAILABLE"):
            await client.schedule("resize", id="a", task_queue="queue")
        stats = harness.server.telemetry.calls.method("/liveness.v1.ActivityService/ScheduleActivity")
        assert stats.codes["UNAVAILABLE"] > 1, "it was tried again"
        harness.store.faults.clear()
