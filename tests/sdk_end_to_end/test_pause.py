"""Workers that are paused finish what they have and begin nothing new until they are resumed."""

from __future__ import annotations

import time
from functools import partial

from liveness.v1.worker_pb2 import Worker as WorkerMessage
from tests.sdk_end_to_end.notes import Deed
from tests.sdk_end_to_end.record import Record, names
from tests.sdk_end_to_end.workers import Crew

LEASE = 6.0
"""Longer than a busy machine may keep a worker from running."""
GRACE = 6.0


async def test_a_paused_worker_begins_nothing_and_keeps_what_it_has(crew: Crew, record: Record) -> None:
    paused = await crew.join("paused", lease=LEASE, grace=GRACE)
    await record.schedule("held", "gated")
    await paused.notes_down(Deed.STARTED, "held")
    await crew.join("busy", lease=LEASE, grace=GRACE)
    await _schedule(record, "before", 20)
    await record.pause("paused")
    await _schedule(record, "meanwhile", 20)
    for name in names("meanwhile", 20):
        assert (await record.completion(name, "quick"))["worker"] == "busy"
    assert (await record.worker("paused")).paused
    crew.open_gate("held")
    assert await record.completion("held", "gated") == {"worker": "paused", "attempt": 1}
    await record.pause("busy")
    await _schedule(record, "after", 5)
    resumed_at = time.monotonic()
    await record.resume("paused")
    for name in names("after", 5):
        assert (await record.completion(name, "quick"))["worker"] == "paused"
    begun = [note.at for note in crew.noted(Deed.STARTED) if note.activity.startswith("after")]
    assert min(begun) >= resumed_at
    await record.assert_each_completed_once()


async def test_a_paused_namespace_stands_still_until_it_is_resumed(crew: Crew, record: Record) -> None:
    """Busy workers, idle ones that wait for work, and those who join later; and nothing is lost by it."""
    for name in ("one", "two"):
        await crew.join(name, lease=LEASE, grace=GRACE, slots=2)
    await _schedule(record, "before", 30)
    await _stands_still_while_paused(crew, record, "busy", joining="three")
    await record.all_completed()
    await _stands_still_while_paused(crew, record, "idle", joining="four")
    await record.assert_each_completed_once()
    assert all(worker.alive for worker in crew.members)


async def _stands_still_while_paused(crew: Crew, record: Record, prefix: str, joining: str) -> None:
    await record.pause()
    await _schedule(record, prefix, 20)
    await crew.join(joining, lease=LEASE, grace=GRACE, slots=2)
    beats = {worker.name: (await record.worker(worker.name)).sequence for worker in crew.members}
    for name, before in beats.items():
        # They live on, and had every opportunity to take something.
        await record.worker_until(name, partial(_has_beaten, before + 2))
    states = await record.states()
    assert states["AVAILABLE"] >= 20
    assert states["STARTED"] == 0
    resumed_at = time.monotonic()
    await record.resume()
    await record.all_completed()
    begun = [note.at for note in crew.noted(Deed.STARTED) if note.activity.startswith(prefix)]
    assert len(begun) == 20
    assert min(begun) >= resumed_at


def _has_beaten(beats: int, worker: WorkerMessage) -> bool:
    return worker.sequence >= beats


async def _schedule(record: Record, prefix: str, count: int) -> None:
    for name in names(prefix, count):
        await record.schedule(name, "quick", ms=40)
