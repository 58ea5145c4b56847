"""The network between a worker and its server: cut, silent, slow, closed on one side, losing an answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from liveness.v1 import activity_pb2, worker_pb2
from tests.sdk_end_to_end.notes import Deed
from tests.sdk_end_to_end.proxy import Proxy, Way
from tests.sdk_end_to_end.record import Record, names
from tests.sdk_end_to_end.workers import Crew, WorkerProcess, until

LONG = 300.0
ACTIVE = worker_pb2.WORKER_STATE_ACTIVE
STARTED = activity_pb2.ACTIVITY_STATE_STARTED


@pytest.mark.parametrize(
    ("lease", "grace"),
    [pytest.param(2.5, 1.0, id="by the grace"), pytest.param(4.0, None, id="by the lease")],
)
async def test_a_worker_that_hears_nothing_gives_up_before_another_begins(
    crew: Crew, record: Record, proxy: Proxy, lease: float, grace: float | None
) -> None:
    alone = await _holding(crew, record, proxy, "gated", lease=lease, grace=grace)
    heir = await crew.join("heir", lease=LONG, grace=None)
    proxy.black_hole()
    lost = await alone.notes_down(Deed.LOST, "job", attempt=1)
    began = await heir.notes_down(Deed.STARTED, "job", attempt=2)
    assert lost.at <= began.at, f"{(lost.at - began.at) * 1_000:.1f} ms late"
    crew.open_gate("job")
    assert await record.completion("job", "gated") == {"worker": "heir", "attempt": 2}
    await alone.notes_down(Deed.STOPPED, "job", attempt=1)
    assert not alone.noted(Deed.FINISHED, "job")
    proxy.heal()
    await _works_again(alone, heir, record)
    await record.assert_each_completed_once()


async def test_what_arrives_long_after_the_lease_is_refused(crew: Crew, record: Record, proxy: Proxy) -> None:
    """The network delivers, when it heals, all that was sent into it, a completion among it."""
    alone = await _holding(crew, record, proxy, "gated", lease=2.0, grace=None)
    heir = await crew.join("heir", lease=LONG, grace=None)
    proxy.black_hole(Way.HOLD)
    crew.open_gate("job")
    await alone.notes_down(Deed.FINISHED, "job", attempt=1)
    assert await record.completion("job", "gated") == {"worker": "heir", "attempt": 2}
    proxy.heal()
    await _works_again(alone, heir, record)
    counted = await alone.notes_down(Deed.COUNTED)
    assert counted.lost == 1, alone.story()
    await record.assert_each_completed_once()


async def test_a_cut_that_is_mended_within_the_grace_costs_nothing(
    crew: Crew, record: Record, proxy: Proxy
) -> None:
    steady = await _holding(crew, record, proxy, "gated", lease=LONG, grace=30.0)
    for _ in range(3):
        await _connected_anew(record, proxy, proxy.cut)
    await _completes_unharmed(steady, crew, record)


@pytest.mark.parametrize("towards_server", [True, False])
async def test_a_connection_closed_on_one_side_is_made_anew(
    crew: Crew, record: Record, proxy: Proxy, towards_server: bool
) -> None:
    steady = await _holding(crew, record, proxy, "gated", lease=LONG, grace=30.0)
    await _connected_anew(record, proxy, lambda: proxy.half_close(towards_server=towards_server))
    await _completes_unharmed(steady, crew, record)


async def test_a_slow_network_does_no_harm(crew: Crew, record: Record, proxy: Proxy) -> None:
    proxy.delay_seconds = 0.3
    slow = await crew.join("slow", address=proxy.address, lease=5.0, grace=4.0, slots=8)
    jobs = names("job", 8)
    for name in jobs:
        await record.schedule(name, "quick", ms=100)
    for name in jobs:
        assert await record.completion(name, "quick") == {"worker": "slow", "attempt": 1}
    assert not slow.noted(Deed.LOST)
    assert (await record.worker("slow")).lease_epoch == 1
    await record.assert_each_completed_once()


async def test_work_whose_way_to_the_worker_was_lost_is_found_and_done(
    crew: Crew, record: Record, proxy: Proxy
) -> None:
    await record.configure(dispatch_timeout={"seconds": 1})
    deaf = await crew.join("deaf", address=proxy.address, lease=LONG, grace=30.0)
    await record.schedule("warm", "quick", ms=10)
    await record.completion("warm", "quick")
    proxy.lose_answers()
    await record.schedule("job", "quick", ms=10)
    held = await record.activity_until("job", "quick", lambda activity: activity.state == STARTED)
    assert (held.worker_instance_key, held.attempt) == ("deaf", 1)
    # Whether the answer has left the server yet or not, it does not survive this.
    proxy.heal()
    proxy.cut()
    assert await record.completion("job", "quick") == {"worker": "deaf", "attempt": 2}
    assert [note.attempt for note in deaf.noted(Deed.STARTED, "job")] == [2]
    done = await record.activity("job", "quick")
    assert (done.failures, done.worker_deaths) == (0, 0)
    await record.assert_each_completed_once()
    story = [event.type for event in await record.events() if event.workflow_id == "job"]
    assert story.count("ActivityStarted") == 2
    assert story.count("ActivityGivenBack") == 1


async def _holding(
    crew: Crew, record: Record, proxy: Proxy, activity_type: str, *, lease: float, grace: float | None
) -> WorkerProcess:
    """A worker behind the proxy that is at work on `job`."""
    worker = await crew.join("behind", address=proxy.address, lease=lease, grace=grace)
    await record.schedule("job", activity_type)
    await worker.notes_down(Deed.STARTED, "job")
    await record.worker_until("behind", lambda seen: seen.attached)
    return worker


async def _works_again(worker: WorkerProcess, other: WorkerProcess, record: Record) -> None:
    await other.kill()
    await record.worker_until("behind", lambda seen: seen.state == ACTIVE and seen.attached)
    await record.schedule("next", "quick", ms=10)
    assert await record.completion("next", "quick") == {"worker": "behind", "attempt": 1}
    assert worker.alive


async def _completes_unharmed(worker: WorkerProcess, crew: Crew, record: Record) -> None:
    crew.open_gate("job")
    assert await record.completion("job", "gated") == {"worker": "behind", "attempt": 1}
    assert not worker.noted(Deed.LOST)
    assert (await record.worker("behind")).lease_epoch == 1
    await record.assert_each_completed_once()


async def _connected_anew(record: Record, proxy: Proxy, disturb: Callable[[], None]) -> None:
    """Wait until the worker stands on a stream again that was opened after the disturbance."""
    accepted = proxy.accepted
    disturb()
    await until(lambda: proxy.accepted > accepted)
    await record.worker_until("behind", lambda seen: seen.attached and not seen.suspect)
