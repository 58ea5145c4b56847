"""Workers that are asked to end: they finish or hand back what they have, and nobody counts it as a death."""

from __future__ import annotations

from signal import SIGTERM

from liveness.v1 import worker_pb2
from tests.sdk_end_to_end.notes import Deed
from tests.sdk_end_to_end.record import Record
from tests.sdk_end_to_end.workers import Crew

LONG = 300.0
GRACE = 30.0
SHUTDOWN = (worker_pb2.WORKER_STATE_INACTIVE, worker_pb2.INACTIVE_REASON_SHUTDOWN)


async def test_a_drained_worker_finishes_what_it_has_and_ends(crew: Crew, record: Record) -> None:
    leaving = await crew.join("leaving", lease=LONG, grace=GRACE)
    await record.schedule("job", "gated")
    await leaving.notes_down(Deed.STARTED, "job")
    await record.drain("leaving", limit_s=60)
    staying = await crew.join("staying", lease=LONG, grace=GRACE)
    await record.schedule("next", "quick", ms=10)
    assert (await record.completion("next", "quick"))["worker"] == "staying"
    assert leaving.alive
    crew.open_gate("job")
    assert await leaving.end() == 0
    assert await record.completion("job", "gated") == {"worker": "leaving", "attempt": 1}
    assert not staying.noted(Deed.STARTED, "job")
    await _said_goodbye(record, "leaving")
    await record.assert_each_completed_once()


async def test_a_drained_worker_hands_back_what_it_cannot_finish_in_time(crew: Crew, record: Record) -> None:
    leaving = await crew.join("leaving", lease=LONG, grace=GRACE)
    await record.schedule("job", "gated")
    await leaving.notes_down(Deed.STARTED, "job")
    staying = await crew.join("staying", lease=LONG, grace=GRACE)
    await record.drain("leaving", limit_s=1)
    assert await leaving.end() == 0
    await staying.notes_down(Deed.STARTED, "job", attempt=2)
    crew.open_gate("job")
    assert await record.completion("job", "gated") == {"worker": "staying", "attempt": 2}
    assert (await record.activity("job", "gated")).worker_deaths == 0
    assert (await record.worker("leaving")).state == worker_pb2.WORKER_STATE_INACTIVE
    await record.assert_each_completed_once()


async def test_a_terminated_worker_finishes_what_it_has_and_ends(crew: Crew, record: Record) -> None:
    leaving = await crew.join("leaving", lease=LONG, grace=GRACE)
    await record.schedule("job", "quick", ms=500)
    await leaving.notes_down(Deed.STARTED, "job")
    leaving.send(SIGTERM)
    assert await leaving.end() == 0
    assert await record.completion("job", "quick") == {"worker": "leaving", "attempt": 1}
    await _said_goodbye(record, "leaving")
    await record.assert_each_completed_once()


async def test_a_terminated_worker_hands_back_what_it_cannot_finish_in_time(
    crew: Crew, record: Record
) -> None:
    leaving = await crew.join("leaving", lease=LONG, grace=GRACE, stop_timeout=0.2)
    for name in ("one", "two"):
        await record.schedule(name, "gated")
        await leaving.notes_down(Deed.STARTED, name)
    leaving.send(SIGTERM)
    assert await leaving.end() == 0
    assert len(leaving.noted(Deed.HANDED_BACK)) == 2
    assert [event.type for event in await record.events()].count("ActivityGivenBack") == 2
    await crew.join("staying", lease=LONG, grace=GRACE)
    for name in ("one", "two"):
        crew.open_gate(name)
        assert await record.completion(name, "gated") == {"worker": "staying", "attempt": 2}
        done = await record.activity(name, "gated")
        assert (done.failures, done.worker_deaths) == (0, 0)
    await _said_goodbye(record, "leaving")
    await record.assert_each_completed_once()


async def test_handing_back_is_never_taken_for_poison(crew: Crew, record: Record) -> None:
    """More goodbyes than deaths would be forgiven."""
    await record.schedule("job", "gated", deaths_max=1)
    for number in range(3):
        leaving = await crew.join(f"leaving-{number}", lease=LONG, grace=GRACE, stop_timeout=0.1)
        await leaving.notes_down(Deed.STARTED, "job", attempt=number + 1)
        leaving.send(SIGTERM)
        assert await leaving.end() == 0
        await _said_goodbye(record, leaving.name)
    crew.open_gate("job")
    await crew.join("staying", lease=LONG, grace=GRACE)
    assert await record.completion("job", "gated") == {"worker": "staying", "attempt": 4}
    await record.assert_each_completed_once()


async def _said_goodbye(record: Record, worker: str) -> None:
    gone = await record.worker(worker)
    assert (gone.state, gone.inactive_reason) == SHUTDOWN
