"""Paused workers finish their activities and start none until they are resumed."""

from __future__ import annotations

import time
from functools import partial

from liveness.v1.worker_pb2 import Worker as WorkerMessage
from tests.system.worker_processes.namespace_client import NamespaceClient, names
from tests.system.worker_processes.worker_notes import Action
from tests.system.worker_processes.worker_processes import WorkerGroup

LEASE = 6.0
"""Longer than a busy machine may keep a worker from running."""
GRACE = 6.0


async def test_a_paused_worker_starts_nothing_and_keeps_its_activities(
    worker_group: WorkerGroup, namespace_client: NamespaceClient
) -> None:
    paused = await worker_group.join("paused", lease=LEASE, grace=GRACE)
    await namespace_client.schedule("held", "gated")
    await paused.wait_for_note(Action.STARTED, "held")
    await worker_group.join("busy", lease=LEASE, grace=GRACE)
    await _schedule(namespace_client, "before", 20)
    await namespace_client.pause("paused")
    await _schedule(namespace_client, "meanwhile", 20)
    for name in names("meanwhile", 20):
        assert (await namespace_client.completion(name, "quick"))["worker"] == "busy"
    assert (await namespace_client.worker("paused")).paused
    worker_group.open_gate("held")
    assert await namespace_client.completion("held", "gated") == {"worker": "paused", "attempt": 1}
    await namespace_client.pause("busy")
    await _schedule(namespace_client, "after", 5)
    resumed_at = time.monotonic()
    await namespace_client.resume("paused")
    for name in names("after", 5):
        assert (await namespace_client.completion(name, "quick"))["worker"] == "paused"
    begun = [note.at for note in worker_group.noted(Action.STARTED) if note.activity.startswith("after")]
    assert min(begun) >= resumed_at
    await namespace_client.assert_each_completed_once()


async def test_a_paused_namespace_starts_nothing_until_it_is_resumed(
    worker_group: WorkerGroup, namespace_client: NamespaceClient
) -> None:
    """This holds for busy workers, idle ones and later ones, and no activity is lost."""
    for name in ("one", "two"):
        await worker_group.join(name, lease=LEASE, grace=GRACE, slots=2)
    await _schedule(namespace_client, "before", 30)
    await _stands_still_while_paused(worker_group, namespace_client, "busy", joining="three")
    await namespace_client.all_completed()
    await _stands_still_while_paused(worker_group, namespace_client, "idle", joining="four")
    await namespace_client.assert_each_completed_once()
    assert all(worker.alive for worker in worker_group.members)


async def _stands_still_while_paused(
    worker_group: WorkerGroup, namespace_client: NamespaceClient, prefix: str, joining: str
) -> None:
    await namespace_client.pause()
    await _schedule(namespace_client, prefix, 20)
    await worker_group.join(joining, lease=LEASE, grace=GRACE, slots=2)
    beats = {
        worker.name: (await namespace_client.worker(worker.name)).sequence for worker in worker_group.members
    }
    for name, before in beats.items():
        # The workers are alive and had every opportunity to take an activity.
        await namespace_client.worker_until(name, partial(_has_beaten, before + 2))
    states = await namespace_client.states()
    assert states["AVAILABLE"] >= 20
    assert states["STARTED"] == 0
    resumed_at = time.monotonic()
    await namespace_client.resume()
    await namespace_client.all_completed()
    begun = [note.at for note in worker_group.noted(Action.STARTED) if note.activity.startswith(prefix)]
    assert len(begun) == 20
    assert min(begun) >= resumed_at


def _has_beaten(beats: int, worker: WorkerMessage) -> bool:
    return worker.sequence >= beats


async def _schedule(namespace_client: NamespaceClient, prefix: str, count: int) -> None:
    for name in names(prefix, count):
        await namespace_client.schedule(name, "quick", ms=40)
