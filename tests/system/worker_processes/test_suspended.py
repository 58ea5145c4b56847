"""Workers that are stopped for longer than their lease resume as zombies."""

from __future__ import annotations

from signal import SIGTERM

from liveness.v1 import worker_pb2
from tests.system.worker_processes.namespace_client import NamespaceClient
from tests.system.worker_processes.worker_notes import Action
from tests.system.worker_processes.worker_processes import WorkerGroup, WorkerProcess, until

LEASE = 1.5
LONG = 300.0
LAPSED = (worker_pb2.WORKER_STATE_INACTIVE, worker_pb2.INACTIVE_REASON_LEASE_EXPIRED)


async def test_a_zombie_is_rejected_and_continues_as_a_healthy_worker(
    worker_group: WorkerGroup, namespace_client: NamespaceClient
) -> None:
    zombie, heir = await _frozen_while_another_completes(worker_group, namespace_client, "careless")
    worker_group.open_gate("job")
    zombie.thaw()
    assert (await zombie.wait_for_note(Action.REFUSED, "job", attempt=1)).text == "FENCED_OFF"
    await zombie.wait_for_note(Action.LOST, "job", attempt=1)
    assert not zombie.noted(Action.FINISHED) + zombie.noted(Action.ACCEPTED)
    await _works_alone(zombie, heir, namespace_client)
    await namespace_client.assert_each_completed_once()


async def test_a_waiting_zombie_is_cancelled(
    worker_group: WorkerGroup, namespace_client: NamespaceClient
) -> None:
    zombie, heir = await _frozen_while_another_completes(worker_group, namespace_client, "gated")
    zombie.thaw()
    await zombie.wait_for_note(Action.LOST, "job", attempt=1)
    await zombie.wait_for_note(Action.STOPPED, "job", attempt=1)
    await _works_alone(zombie, heir, namespace_client)
    assert not zombie.noted(Action.FINISHED, "job")
    await namespace_client.assert_each_completed_once()


async def test_a_zombie_that_finishes_as_it_resumes_counts_its_attempt_as_lost(
    worker_group: WorkerGroup, namespace_client: NamespaceClient
) -> None:
    """Whether its body or its lease watchdog runs first."""
    zombie, heir = await _frozen_while_another_completes(worker_group, namespace_client, "gated")
    worker_group.open_gate("job")
    zombie.thaw()
    await _works_alone(zombie, heir, namespace_client)
    await until(
        lambda: zombie.count and (zombie.count.completed, zombie.count.lost) == (1, 1), zombie.recent_notes
    )
    await namespace_client.assert_each_completed_once()


async def _frozen_while_another_completes(
    worker_group: WorkerGroup, namespace_client: NamespaceClient, activity_type: str
) -> tuple[WorkerProcess, WorkerProcess]:
    zombie = await worker_group.join("zombie", lease=LEASE, grace=1.0)
    await namespace_client.schedule("job", activity_type)
    await zombie.wait_for_note(Action.STARTED, "job")
    await namespace_client.worker_until("zombie", lambda worker: worker.attached)
    zombie.freeze()
    heir = await worker_group.join("heir", lease=LONG, grace=None)
    await heir.wait_for_note(Action.STARTED, "job", attempt=2)
    gone = await namespace_client.worker("zombie")
    assert (gone.state, gone.inactive_reason) == LAPSED
    worker_group.open_gate("job", "heir")
    assert await namespace_client.completion("job", activity_type) == {"worker": "heir", "attempt": 2}
    return zombie, heir


async def _works_alone(zombie: WorkerProcess, heir: WorkerProcess, namespace_client: NamespaceClient) -> None:
    heir.send(SIGTERM)
    assert await heir.end() == 0
    await namespace_client.schedule("next", "quick", ms=10)
    assert await namespace_client.completion("next", "quick") == {"worker": "zombie", "attempt": 1}
    assert (await namespace_client.worker("zombie")).lease_epoch == 2
    await zombie.wait_for_note(Action.FINISHED, "next")
    assert zombie.alive
