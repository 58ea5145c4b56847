"""Bodies that let nobody else run: the lease goes on, and that the work stands still is shown."""

from __future__ import annotations

from tests.sdk_end_to_end.notes import Deed
from tests.sdk_end_to_end.record import Record
from tests.sdk_end_to_end.workers import Crew

LEASE = 2.0


async def test_a_frozen_event_loop_is_shown_and_costs_no_lease(crew: Crew, record: Record) -> None:
    frozen = await crew.join("frozen", lease=LEASE, grace=LEASE)
    await record.schedule("job", "freezing", ms=int(LEASE * 2_000))
    await frozen.notes_down(Deed.STARTED, "job")
    lagging = await record.worker_until("frozen", lambda worker: worker.loop_lag.ToMilliseconds() >= 1_000)
    assert not frozen.noted(Deed.FINISHED, "job")
    assert await record.completion("job", "freezing") == {"worker": "frozen", "attempt": 1}
    thawed = await record.worker_until("frozen", lambda worker: worker.loop_lag.ToMilliseconds() == 0)
    assert lagging.lease_epoch == thawed.lease_epoch == 1
    assert not frozen.noted(Deed.LOST)
    await record.assert_each_completed_once()


async def test_bodies_that_only_compute_do_not_starve_the_heartbeat(crew: Crew, record: Record) -> None:
    burning = await crew.join("burning", lease=LEASE, grace=LEASE)
    for name in ("one", "two"):
        await record.schedule(name, "burning")
        await burning.notes_down(Deed.STARTED, name)
    before = await record.worker("burning")
    # More beats than a lease lasts for.
    after = await record.worker_until("burning", lambda worker: worker.sequence >= before.sequence + 6)
    assert after.lease_epoch == before.lease_epoch == 1
    for name in ("one", "two"):
        crew.open_gate(name)
        assert await record.completion(name, "burning") == {"worker": "burning", "attempt": 1}
    assert not burning.noted(Deed.LOST)
    await record.assert_each_completed_once()
