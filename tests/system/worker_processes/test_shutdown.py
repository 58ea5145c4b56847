"""Workers that are asked to end finish their activities or hand them back, and the server does not count it as a death."""

from __future__ import annotations

from signal import SIGTERM

from liveness.v1 import worker_pb2
from tests.system.worker_processes.namespace_client import NamespaceClient
from tests.system.worker_processes.worker_notes import Action
from tests.system.worker_processes.worker_processes import WorkerGroup

LONG = 300.0
GRACE = 30.0
SHUTDOWN = (worker_pb2.WORKER_STATE_INACTIVE, worker_pb2.INACTIVE_REASON_SHUTDOWN)


async def test_a_drained_worker_finishes_its_activities_and_ends(
    worker_group: WorkerGroup, namespace_client: NamespaceClient
) -> None:
    leaving = await worker_group.join("leaving", lease=LONG, grace=GRACE)
    await namespace_client.schedule("job", "gated")
    await leaving.wait_for_note(Action.STARTED, "job")
    await namespace_client.drain("leaving", limit_s=60)
    staying = await worker_group.join("staying", lease=LONG, grace=GRACE)
    await namespace_client.schedule("next", "quick", ms=10)
    assert (await namespace_client.completion("next", "quick"))["worker"] == "staying"
    assert leaving.alive
    worker_group.open_gate("job")
    assert await leaving.end() == 0
    assert await namespace_client.completion("job", "gated") == {"worker": "leaving", "attempt": 1}
    assert not staying.noted(Action.STARTED, "job")
    await _said_goodbye(namespace_client, "leaving")
    await namespace_client.assert_each_completed_once()


async def test_a_drained_worker_hands_back_activities_that_it_cannot_finish_in_time(
    worker_group: WorkerGroup, namespace_client: NamespaceClient
) -> None:
    leaving = await worker_group.join("leaving", lease=LONG, grace=GRACE)
    await namespace_client.schedule("job", "gated")
    await leaving.wait_for_note(Action.STARTED, "job")
    staying = await worker_group.join("staying", lease=LONG, grace=GRACE)
    await namespace_client.drain("leaving", limit_s=1)
    assert await leaving.end() == 0
    await staying.wait_for_note(Action.STARTED, "job", attempt=2)
    worker_group.open_gate("job")
    assert await namespace_client.completion("job", "gated") == {"worker": "staying", "attempt": 2}
    assert (await namespace_client.activity("job", "gated")).worker_deaths == 0
    assert (await namespace_client.worker("leaving")).state == worker_pb2.WORKER_STATE_INACTIVE
    await namespace_client.assert_each_completed_once()


async def test_a_terminated_worker_finishes_its_activities_and_ends(
    worker_group: WorkerGroup, namespace_client: NamespaceClient
) -> None:
    leaving = await worker_group.join("leaving", lease=LONG, grace=GRACE)
    await namespace_client.schedule("job", "quick", ms=500)
    await leaving.wait_for_note(Action.STARTED, "job")
    leaving.send(SIGTERM)
    assert await leaving.end() == 0
    assert await namespace_client.completion("job", "quick") == {"worker": "leaving", "attempt": 1}
    await _said_goodbye(namespace_client, "leaving")
    await namespace_client.assert_each_completed_once()


async def test_a_terminated_worker_hands_back_activities_that_it_cannot_finish_in_time(
    worker_group: WorkerGroup, namespace_client: NamespaceClient
) -> None:
    leaving = await worker_group.join("leaving", lease=LONG, grace=GRACE, stop_timeout=0.2)
    for name in ("one", "two"):
        await namespace_client.schedule(name, "gated")
        await leaving.wait_for_note(Action.STARTED, name)
    leaving.send(SIGTERM)
    assert await leaving.end() == 0
    assert len(leaving.noted(Action.HANDED_BACK)) == 2
    assert [event.type for event in await namespace_client.events()].count("ActivityGivenBack") == 2
    await worker_group.join("staying", lease=LONG, grace=GRACE)
    for name in ("one", "two"):
        worker_group.open_gate(name)
        assert await namespace_client.completion(name, "gated") == {"worker": "staying", "attempt": 2}
        done = await namespace_client.activity(name, "gated")
        assert (done.failures, done.worker_deaths) == (0, 0)
    await _said_goodbye(namespace_client, "leaving")
    await namespace_client.assert_each_completed_once()


async def test_handing_back_never_counts_towards_quarantine(
    worker_group: WorkerGroup, namespace_client: NamespaceClient
) -> None:
    """The activity is handed back more often than it may be lost by deaths."""
    await namespace_client.schedule("job", "gated", deaths_max=1)
    for number in range(3):
        leaving = await worker_group.join(f"leaving-{number}", lease=LONG, grace=GRACE, stop_timeout=0.1)
        await leaving.wait_for_note(Action.STARTED, "job", attempt=number + 1)
        leaving.send(SIGTERM)
        assert await leaving.end() == 0
        await _said_goodbye(namespace_client, leaving.name)
    worker_group.open_gate("job")
    await worker_group.join("staying", lease=LONG, grace=GRACE)
    assert await namespace_client.completion("job", "gated") == {"worker": "staying", "attempt": 4}
    await namespace_client.assert_each_completed_once()


async def _said_goodbye(namespace_client: NamespaceClient, worker: str) -> None:
    gone = await namespace_client.worker(worker)
    assert (gone.state, gone.inactive_reason) == SHUTDOWN
