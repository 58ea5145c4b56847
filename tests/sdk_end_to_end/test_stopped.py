"""Workers that stand still for longer than their lease, and come back as zombies."""

from __future__ import annotations

from signal import SIGTERM

from liveness.v1 import worker_pb2
from tests.sdk_end_to_end.notes import Deed
from tests.sdk_end_to_end.record import Record
from tests.sdk_end_to_end.workers import Crew, WorkerProcess, until

LEASE = 1.5
LONG = 300.0
LAPSED = (worker_pb2.WORKER_STATE_INACTIVE, worker_pb2.INACTIVE_REASON_LEASE_EXPIRED)


async def test_a_zombie_is_refused_and_goes_on_as_a_healthy_worker(crew: Crew, record: Record) -> None:
    zombie, heir = await _frozen_while_another_completes(crew, record, "careless")
    crew.open_gate("job")
    zombie.thaw()
    assert (await zombie.notes_down(Deed.REFUSED, "job", attempt=1)).text == "FENCED_OFF"
    await zombie.notes_down(Deed.LOST, "job", attempt=1)
    assert not zombie.noted(Deed.FINISHED) + zombie.noted(Deed.ACCEPTED)
    await _works_alone(zombie, heir, record)
    await record.assert_each_completed_once()


async def test_a_zombie_that_awaits_something_is_cancelled(crew: Crew, record: Record) -> None:
    zombie, heir = await _frozen_while_another_completes(crew, record, "gated")
    zombie.thaw()
    await zombie.notes_down(Deed.LOST, "job", attempt=1)
    await zombie.notes_down(Deed.STOPPED, "job", attempt=1)
    await _works_alone(zombie, heir, record)
    assert not zombie.noted(Deed.FINISHED, "job")
    await record.assert_each_completed_once()


async def test_a_zombie_that_has_finished_when_it_wakes_up_counts_it_as_lost(
    crew: Crew, record: Record
) -> None:
    """Whether its body or its own fence comes first."""
    zombie, heir = await _frozen_while_another_completes(crew, record, "gated")
    crew.open_gate("job")
    zombie.thaw()
    await _works_alone(zombie, heir, record)
    await until(lambda: zombie.count and (zombie.count.completed, zombie.count.lost) == (1, 1), zombie.story)
    await record.assert_each_completed_once()


async def _frozen_while_another_completes(
    crew: Crew, record: Record, activity_type: str
) -> tuple[WorkerProcess, WorkerProcess]:
    zombie = await crew.join("zombie", lease=LEASE, grace=1.0)
    await record.schedule("job", activity_type)
    await zombie.notes_down(Deed.STARTED, "job")
    await record.worker_until("zombie", lambda worker: worker.attached)
    zombie.freeze()
    heir = await crew.join("heir", lease=LONG, grace=None)
    await heir.notes_down(Deed.STARTED, "job", attempt=2)
    gone = await record.worker("zombie")
    assert (gone.state, gone.inactive_reason) == LAPSED
    crew.open_gate("job", "heir")
    assert await record.completion("job", activity_type) == {"worker": "heir", "attempt": 2}
    return zombie, heir


async def _works_alone(zombie: WorkerProcess, heir: WorkerProcess, record: Record) -> None:
    heir.send(SIGTERM)
    assert await heir.end() == 0
    await record.schedule("next", "quick", ms=10)
    assert await record.completion("next", "quick") == {"worker": "zombie", "attempt": 1}
    assert (await record.worker("zombie")).lease_epoch == 2
    await zombie.notes_down(Deed.FINISHED, "next")
    assert zombie.alive
