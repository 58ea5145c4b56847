"""When workers die, others complete their activities; an activity that kills its workers is quarantined."""

from __future__ import annotations

from signal import SIGKILL

import pytest

from liveness.v1 import activity_pb2, worker_pb2
from tests.system.worker_processes.namespace_client import NamespaceClient
from tests.system.worker_processes.worker_notes import Action
from tests.system.worker_processes.worker_processes import WorkerGroup, until

LONG = 300.0
"""A lease longer than any test: what ends, ends for another reason."""
INACTIVE = worker_pb2.WORKER_STATE_INACTIVE


@pytest.mark.parametrize(
    ("lease", "grace", "reason"),
    [
        pytest.param(LONG, 1.0, worker_pb2.INACTIVE_REASON_DISCONNECTED, id="found by its stream"),
        pytest.param(1.5, None, worker_pb2.INACTIVE_REASON_LEASE_EXPIRED, id="found by its lease"),
    ],
)
async def test_another_worker_completes_the_activity_of_a_killed_worker(
    worker_group: WorkerGroup,
    namespace_client: NamespaceClient,
    lease: float,
    grace: float | None,
    reason: int,
) -> None:
    doomed = await worker_group.join("doomed", lease=lease, grace=grace)
    await namespace_client.schedule("job", "gated")
    await doomed.wait_for_note(Action.STARTED, "job")
    await namespace_client.worker_until("doomed", lambda worker: worker.attached)
    await doomed.kill()
    heir = await worker_group.join("heir", lease=LONG, grace=None)
    await heir.wait_for_note(Action.STARTED, "job", attempt=2)
    worker_group.open_gate("job")
    assert await namespace_client.completion("job", "gated") == {"worker": "heir", "attempt": 2}
    gone = await namespace_client.worker("doomed")
    assert (gone.state, gone.inactive_reason) == (INACTIVE, reason)
    assert (await namespace_client.activity("job", "gated")).failures == 1
    await namespace_client.assert_each_completed_once()


async def test_a_worker_restarted_within_its_lease_loses_the_activities_of_its_last_run(
    worker_group: WorkerGroup, namespace_client: NamespaceClient
) -> None:
    first = await worker_group.join("first", key="same", lease=LONG, grace=None)
    await namespace_client.schedule("job", "gated")
    await first.wait_for_note(Action.STARTED, "job")
    await first.kill()
    second = await worker_group.join("second", key="same", lease=LONG, grace=None)
    started = await second.wait_for_note(Action.STARTED, "job")
    assert (started.attempt, started.epoch) == (2, 2)
    await namespace_client.schedule("another", "quick", ms=10)
    assert await namespace_client.completion("another", "quick") == {"worker": "same", "attempt": 1}
    worker_group.open_gate("job")
    assert await namespace_client.completion("job", "gated") == {"worker": "same", "attempt": 2}
    await namespace_client.assert_each_completed_once()


async def test_a_replaced_run_stops_its_activities_and_ends(
    worker_group: WorkerGroup, namespace_client: NamespaceClient
) -> None:
    first = await worker_group.join("first", key="same", lease=LONG, grace=5.0)
    await namespace_client.schedule("job", "gated")
    await first.wait_for_note(Action.STARTED, "job")
    second = await worker_group.join("second", key="same", lease=LONG, grace=5.0)
    await second.wait_for_note(Action.STARTED, "job", attempt=2)
    await first.wait_for_note(Action.STOPPED, "job")
    assert (await first.wait_for_note(Action.ENDED)).text == "SessionReplaced"
    assert await first.end() == 1
    worker_group.open_gate("job")
    assert await namespace_client.completion("job", "gated") == {"worker": "same", "attempt": 2}
    await namespace_client.assert_each_completed_once()
    assert second.alive


async def test_an_activity_that_kills_its_workers_is_quarantined_after_three_deaths(
    worker_group: WorkerGroup, namespace_client: NamespaceClient
) -> None:
    for name in ("one", "two", "three", "four"):
        await worker_group.join(name, lease=LONG, grace=0.5)
    await namespace_client.schedule("poison", "poisonous")
    quarantined = activity_pb2.ACTIVITY_STATE_QUARANTINED
    poison = await namespace_client.activity_until(
        "poison", "poisonous", lambda activity: activity.state == quarantined
    )
    assert poison.worker_deaths == 3
    dead = [note.worker for note in worker_group.noted(Action.STARTED, "poison")]
    assert len(dead) == 3
    await until(lambda: sum(worker.alive for worker in worker_group.members) == 1, worker_group.recent_notes)
    [survivor] = [worker for worker in worker_group.members if worker.alive]
    assert {worker.process.returncode for worker in worker_group.members} == {None, -SIGKILL}
    await namespace_client.schedule("job", "quick", ms=10)
    assert await namespace_client.completion("job", "quick") == {"worker": survivor.name, "attempt": 1}
    assert survivor.alive
    assert len(worker_group.noted(Action.STARTED, "poison")) == 3
