"""Activity bodies that block the process: the lease is renewed, and the server shows that the work is stuck."""

from __future__ import annotations

from tests.system.worker_processes.namespace_client import NamespaceClient
from tests.system.worker_processes.worker_notes import Action
from tests.system.worker_processes.worker_processes import WorkerGroup

LEASE = 2.0


async def test_a_frozen_event_loop_is_shown_and_costs_no_lease(
    worker_group: WorkerGroup, namespace_client: NamespaceClient
) -> None:
    frozen = await worker_group.join("frozen", lease=LEASE, grace=LEASE)
    await namespace_client.schedule("job", "freezing", ms=int(LEASE * 2_000))
    await frozen.wait_for_note(Action.STARTED, "job")
    lagging = await namespace_client.worker_until(
        "frozen", lambda worker: worker.loop_lag.ToMilliseconds() >= 1_000
    )
    assert not frozen.noted(Action.FINISHED, "job")
    assert await namespace_client.completion("job", "freezing") == {"worker": "frozen", "attempt": 1}
    thawed = await namespace_client.worker_until(
        "frozen", lambda worker: worker.loop_lag.ToMilliseconds() == 0
    )
    assert lagging.lease_epoch == thawed.lease_epoch == 1
    assert not frozen.noted(Action.LOST)
    await namespace_client.assert_each_completed_once()


async def test_computing_bodies_do_not_starve_the_heartbeats(
    worker_group: WorkerGroup, namespace_client: NamespaceClient
) -> None:
    burning = await worker_group.join("burning", lease=LEASE, grace=LEASE)
    for name in ("one", "two"):
        await namespace_client.schedule(name, "burning")
        await burning.wait_for_note(Action.STARTED, name)
    before = await namespace_client.worker("burning")
    # More heartbeats than fit into one lease.
    after = await namespace_client.worker_until(
        "burning", lambda worker: worker.sequence >= before.sequence + 6
    )
    assert after.lease_epoch == before.lease_epoch == 1
    for name in ("one", "two"):
        worker_group.open_gate(name)
        assert await namespace_client.completion(name, "burning") == {"worker": "burning", "attempt": 1}
    assert not burning.noted(Action.LOST)
    await namespace_client.assert_each_completed_once()
