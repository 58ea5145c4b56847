"""Workers that die: their work goes on elsewhere, and work that kills its workers does not."""

from __future__ import annotations

from signal import SIGKILL

import pytest

from liveness.v1 import activity_pb2, worker_pb2
from tests.sdk_end_to_end.notes import Deed
from tests.sdk_end_to_end.record import Record
from tests.sdk_end_to_end.workers import Crew, until

LONG = 300.0
"""A lease that no test can outlast: whatever ends, ends for another reason."""
INACTIVE = worker_pb2.WORKER_STATE_INACTIVE


@pytest.mark.parametrize(
    ("lease", "grace", "reason"),
    [
        pytest.param(LONG, 1.0, worker_pb2.INACTIVE_REASON_DISCONNECTED, id="found by its stream"),
        pytest.param(1.5, None, worker_pb2.INACTIVE_REASON_LEASE_EXPIRED, id="found by its lease"),
    ],
)
async def test_work_of_a_killed_worker_is_completed_by_another(
    crew: Crew, record: Record, lease: float, grace: float | None, reason: int
) -> None:
    doomed = await crew.join("doomed", lease=lease, grace=grace)
    await record.schedule("job", "gated")
    await doomed.notes_down(Deed.STARTED, "job")
    await record.worker_until("doomed", lambda worker: worker.attached)
    await doomed.kill()
    heir = await crew.join("heir", lease=LONG, grace=None)
    await heir.notes_down(Deed.STARTED, "job", attempt=2)
    crew.open_gate("job")
    assert await record.completion("job", "gated") == {"worker": "heir", "attempt": 2}
    gone = await record.worker("doomed")
    assert (gone.state, gone.inactive_reason) == (INACTIVE, reason)
    assert (await record.activity("job", "gated")).failures == 1
    await record.assert_each_completed_once()


async def test_a_worker_restarted_within_its_lease_gives_up_what_its_last_run_held(
    crew: Crew, record: Record
) -> None:
    first = await crew.join("first", key="same", lease=LONG, grace=None)
    await record.schedule("job", "gated")
    await first.notes_down(Deed.STARTED, "job")
    await first.kill()
    second = await crew.join("second", key="same", lease=LONG, grace=None)
    started = await second.notes_down(Deed.STARTED, "job")
    assert (started.attempt, started.epoch) == (2, 2)
    await record.schedule("another", "quick", ms=10)
    assert await record.completion("another", "quick") == {"worker": "same", "attempt": 1}
    crew.open_gate("job")
    assert await record.completion("job", "gated") == {"worker": "same", "attempt": 2}
    await record.assert_each_completed_once()


async def test_a_run_that_was_replaced_while_it_lives_stops_its_work_and_ends(
    crew: Crew, record: Record
) -> None:
    first = await crew.join("first", key="same", lease=LONG, grace=5.0)
    await record.schedule("job", "gated")
    await first.notes_down(Deed.STARTED, "job")
    second = await crew.join("second", key="same", lease=LONG, grace=5.0)
    await second.notes_down(Deed.STARTED, "job", attempt=2)
    await first.notes_down(Deed.STOPPED, "job")
    assert (await first.notes_down(Deed.ENDED)).text == "SessionReplaced"
    assert await first.end() == 1
    crew.open_gate("job")
    assert await record.completion("job", "gated") == {"worker": "same", "attempt": 2}
    await record.assert_each_completed_once()
    assert second.alive


async def test_work_that_kills_its_workers_is_quarantined_before_it_kills_a_fourth(
    crew: Crew, record: Record
) -> None:
    for name in ("one", "two", "three", "four"):
        await crew.join(name, lease=LONG, grace=0.5)
    await record.schedule("poison", "poisonous")
    quarantined = activity_pb2.ACTIVITY_STATE_QUARANTINED
    poison = await record.activity_until(
        "poison", "poisonous", lambda activity: activity.state == quarantined
    )
    assert poison.worker_deaths == 3
    dead = [note.worker for note in crew.noted(Deed.STARTED, "poison")]
    assert len(dead) == 3
    await until(lambda: sum(worker.alive for worker in crew.members) == 1, crew.story)
    [survivor] = [worker for worker in crew.members if worker.alive]
    assert {worker.process.returncode for worker in crew.members} == {None, -SIGKILL}
    await record.schedule("job", "quick", ms=10)
    assert await record.completion("job", "quick") == {"worker": survivor.name, "attempt": 1}
    assert survivor.alive
    assert len(crew.noted(Deed.STARTED, "poison")) == 3
