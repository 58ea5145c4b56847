"""Workers that are paused finish what they have and begin nothing new until they are resumed."""

from __future__ import annotations

import time

from tests.sdk_end_to_end.notes import Deed
from tests.sdk_end_to_end.record import Record, names
from tests.sdk_end_to_end.workers import Crew

LEASE = 3.0
GRACE = 3.0


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
    """Those who join later included; and under load, nothing is lost by it."""
    for name in ("one", "two"):
        await crew.join(name, lease=LEASE, grace=GRACE, slots=2)
    await _schedule(record, "before", 30)
    await record.pause()
    paused_at = time.monotonic()
    await _schedule(record, "meanwhile", 20)
    late = await crew.join("late", lease=LEASE, grace=GRACE, slots=2)
    beats = {worker.name: (await record.worker(worker.name)).sequence for worker in crew.members}
    for name, sequence in beats.items():
        # They live on, and had every opportunity to take something.
        await record.worker_until(name, lambda worker, seen=sequence: worker.sequence >= seen + 2)  # type: ignore[misc]
    states = await record.states()
    assert states["AVAILABLE"] >= 20
    assert states["STARTED"] == 0
    resumed_at = time.monotonic()
    await record.resume()
    await record.assert_each_completed_once()
    begun = [note for note in crew.noted(Deed.STARTED) if note.activity.startswith("meanwhile")]
    assert len(begun) == 20
    assert not [note for note in begun if paused_at <= note.at < resumed_at]
    assert late.alive


async def _schedule(record: Record, prefix: str, count: int) -> None:
    for name in names(prefix, count):
        await record.schedule(name, "quick", ms=40)
