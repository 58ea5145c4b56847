"""Silence counts only while the owner of the shard is listening."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.clock import ManualClock
from liveness.domain.errors import ShardUnavailable
from liveness.domain.worker import WorkerState
from liveness.engine.listener import NodeListener
from liveness.engine.observed_clock import COMMIT_MS_MAX, STEP_MS_MAX, ListeningTime, ObservedClock
from liveness.expiry.lease_deadlines import TAKEOVER_GRACES_MAX
from tests.databases import StoreDatabase
from tests.integration.engine.engine import GRACE_MS, Engine, activity
from tests.integration.store.faulty_store import Fault, FaultyStore

ACTIVE, INACTIVE = WorkerState.ACTIVE, WorkerState.INACTIVE


@pytest.fixture
async def store(store_database: StoreDatabase) -> FaultyStore:
    store = FaultyStore(store_database.connect())
    await store.open(4, "tests")
    return store


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def wait_past_grace(engine: Engine) -> Engine:
    """Advance past the take-over grace."""
    await engine.advance(GRACE_MS)
    return engine


steps = st.lists(
    st.one_of(
        st.tuples(st.just("move"), st.integers(0, 5_000)),
        st.tuples(st.just("begin"), st.just(0)),
        st.tuples(st.just("end"), st.just(0)),
        st.tuples(st.just("probe"), st.just(0)),
        st.tuples(st.just("answer"), st.just(0)),
    ),
    max_size=40,
)


@given(steps)
def test_the_observed_clock_never_runs_backwards_faster_than_time_or_far_past_the_durable_time(
    script: list[tuple[str, int]],
) -> None:
    clock = ManualClock()
    listening, began_ms = ListeningTime(clock), clock.monotonic_ms()
    observed = ObservedClock(500, listening.now_ms())
    handed: tuple[int, int] | None = None
    last, durable = 500, 500
    for what, ms in script:
        if what == "move":
            clock.move(ms)
        elif what == "begin" and handed is None:
            at_ms = listening.now_ms()
            handed = (observed.now_ms(at_ms), at_ms)
            listening.commit_began()
        elif what == "end" and handed is not None:
            observed.mark_durable(*handed)
            durable, handed = handed[0], None
            listening.commit_ended()
        elif what == "probe":
            listening.probe_sent()
        elif what == "answer":
            listening.probe_ended()
        now = observed.now_ms(listening.now_ms())
        assert now >= last, "never backwards"
        assert now - last <= STEP_MS_MAX, "at most a second per step"
        assert now - 500 <= clock.monotonic_ms() - began_ms, "never faster than time"
        assert now - durable <= STEP_MS_MAX
        last = now


async def test_the_observed_clock_is_written_at_least_once_a_second(
    store: FaultyStore, clock: ManualClock
) -> None:
    engine = await Engine(store, clock).start()
    await engine.advance(5_000)
    await engine.crash()
    engine = await Engine(store, clock).start()
    for shard in engine.node.shards():
        assert 4_000 < shard.now_ms() <= 5_000
    await engine.stop()


async def test_a_paused_process_observes_at_most_one_second(store: FaultyStore, clock: ManualClock) -> None:
    engine = await wait_past_grace(await Engine(store, clock).start())
    await engine.beat(lease_ms=5_000)
    await engine.step(3_600_000)
    assert engine.worker("w").state is ACTIVE
    await engine.advance(3_500)
    assert engine.worker("w").state is ACTIVE
    await engine.advance(1_500)
    assert engine.worker("w").state is INACTIVE
    await engine.stop()


async def test_a_hanging_commit_stops_the_observed_clock_and_ends_no_lease(
    store: FaultyStore, clock: ManualClock
) -> None:
    engine = await wait_past_grace(await Engine(store, clock).start())
    await engine.beat("quiet", lease_ms=2_000)
    store.close_gate()
    hanging = asyncio.create_task(engine.beat("w"))
    await store.reached.wait()
    before = engine.shard_of("quiet").now_ms()
    for _ in range(200):
        clock.move(100)
        engine.node.tick()
        await asyncio.sleep(0)
    assert engine.shard_of("quiet").now_ms() - before <= 1_000
    assert engine.worker("quiet").state is ACTIVE, "no heartbeat could be received for twenty seconds"
    store.open_gate()
    assert (await hanging).lease_epoch == 1
    await engine.advance(700)
    assert engine.worker("quiet").state is ACTIVE
    await engine.advance(2_000)
    assert engine.worker("quiet").state is INACTIVE
    await engine.stop()


async def test_each_hanging_commit_counts_as_a_quarter_of_a_second(
    store: FaultyStore, clock: ManualClock
) -> None:
    """A heartbeat waits for at most two commits, which is at most half of the shortest lease."""
    engine = await wait_past_grace(await Engine(store, clock).start())
    await engine.beat("quiet", lease_ms=1_000)
    before = engine.shard_of("quiet").now_ms()
    for _ in range(2):
        store.close_gate()
        hanging = asyncio.create_task(engine.beat("w"))
        await store.reached.wait()
        for _ in range(50):
            clock.move(100)
            engine.node.tick()
            await asyncio.sleep(0)
        store.open_gate()
        await hanging
    assert engine.shard_of("quiet").now_ms() - before <= 2 * COMMIT_MS_MAX
    await engine.advance(400)
    assert engine.worker("quiet").state is ACTIVE
    await engine.advance(1_000)
    assert engine.worker("quiet").state is INACTIVE
    await engine.stop()


async def test_an_unreachable_database_ends_no_lease(store: FaultyStore, clock: ManualClock) -> None:
    engine = await wait_past_grace(await Engine(store, clock).start())
    await engine.beat(lease_ms=5_000)
    for _ in range(60):
        store.faults.append(Fault.REJECTED)
        await engine.step(500)
        store.faults.clear()
        await engine.recovered()
    assert engine.worker("w").state is ACTIVE, "thirty seconds without a single commit"
    await engine.stop()


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
async def test_a_jump_of_the_wall_clock_does_not_affect_leases(
    store: FaultyStore, clock: ManualClock, jump_ms: int
) -> None:
    engine = await wait_past_grace(await Engine(store, clock).start())
    await engine.beat(lease_ms=5_000)
    clock.jump_wall(jump_ms)
    await engine.advance(4_750)
    assert engine.worker("w").state is ACTIVE
    await engine.advance(250)
    assert engine.worker("w").state is INACTIVE
    await engine.stop()


@pytest.mark.parametrize("down_ms", [0, 60_000, 86_400_000])
async def test_downtime_of_the_server_does_not_count_as_silence(
    store: FaultyStore, clock: ManualClock, down_ms: int
) -> None:
    engine = await wait_past_grace(await Engine(store, clock).start())
    await engine.beat(lease_ms=30_000)
    await engine.advance(1_000)
    await engine.crash()
    clock.move(down_ms)
    engine = await Engine(store, clock).start()
    await engine.advance(28_500)
    assert engine.worker("w").state is ACTIVE
    await engine.advance(1_500)
    assert engine.worker("w").state is INACTIVE
    await engine.stop()


async def test_no_lease_expires_during_the_take_over_grace(store: FaultyStore, clock: ManualClock) -> None:
    engine = await wait_past_grace(await Engine(store, clock).start())
    await engine.beat(lease_ms=2_000)
    await engine.advance(1_500)
    await engine.crash()
    engine = await Engine(store, clock).start()
    taken_ms = engine.shard_of("w").now_ms()
    while engine.worker("w").state is ACTIVE:
        await engine.step(50)
    assert GRACE_MS <= engine.shard_of("w").now_ms() - taken_ms <= GRACE_MS + 50
    await engine.stop()


async def test_the_take_over_grace_does_not_delay_a_lease_that_this_owner_granted(
    store: FaultyStore, clock: ManualClock
) -> None:
    engine = await Engine(store, clock).start()
    await engine.step(50)
    await engine.beat(lease_ms=1_000)
    await expires_after(engine, 1_000)
    await engine.stop()


@pytest.mark.parametrize("session", ["s1", "s2"], ids=["renewed", "replaced"])
async def test_the_take_over_grace_ends_with_the_first_heartbeat(
    store: FaultyStore, clock: ManualClock, session: str
) -> None:
    """The lease was long over when the worker was heard again, so its timer waited for the end of the grace."""
    engine = await wait_past_grace(await Engine(store, clock).start())
    await engine.beat(lease_ms=1_000, session_id="s1", sequence=1)
    await engine.advance(750)
    await engine.crash()
    engine = await Engine(store, clock).start()
    await engine.advance(3_500)
    await engine.beat(lease_ms=1_000, session_id=session, sequence=2)
    await expires_after(engine, 1_000)
    await engine.stop()


async def test_a_shorter_lease_after_a_take_over_ends_on_time(store: FaultyStore, clock: ManualClock) -> None:
    engine = await wait_past_grace(await Engine(store, clock).start())
    await engine.beat(lease_ms=8_000, session_id="s1", sequence=1)
    await engine.advance(7_500)
    await engine.crash()
    engine = await Engine(store, clock).start()
    await engine.advance(1_000)
    await engine.beat(lease_ms=1_000, session_id="s2", sequence=1)
    await expires_after(engine, 1_000)
    await engine.stop()


async def expires_after(engine: Engine, lease_ms: int) -> None:
    """Expect that silence ends the lease after its duration, and not later."""
    await engine.advance(lease_ms - 250)
    assert engine.worker("w").state is ACTIVE
    await engine.advance(250)
    assert engine.worker("w").state is INACTIVE


async def test_a_silent_worker_gets_the_take_over_grace_at_most_three_times(
    store: FaultyStore, clock: ManualClock
) -> None:
    engine = await wait_past_grace(await Engine(store, clock).start())
    await engine.beat(lease_ms=3_000, bound_activities=[activity("a")])
    await engine.advance(2_500)
    for _ in range(TAKEOVER_GRACES_MAX):
        await engine.crash()
        engine = await Engine(store, clock).start()
        await engine.advance(GRACE_MS - 1_000)
        assert engine.worker("w").state is ACTIVE
    await engine.crash()
    engine = await Engine(store, clock).start()
    await engine.step(50)
    assert engine.worker("w").state is INACTIVE, "no immortality by crash loop"
    await engine.stop()


async def test_a_heartbeat_renews_the_right_to_the_take_over_grace(
    store: FaultyStore, clock: ManualClock
) -> None:
    engine = await wait_past_grace(await Engine(store, clock).start())
    for _ in range(TAKEOVER_GRACES_MAX + 2):
        await engine.beat(lease_ms=1_000)
        await engine.crash()
        engine = await Engine(store, clock).start()
        await engine.advance(GRACE_MS - 1_000)
        assert engine.worker("w").state is ACTIVE
    await engine.stop()


async def test_after_a_pause_pending_heartbeats_are_read_before_leases_expire(
    store: FaultyStore, clock: ManualClock
) -> None:
    engine = await wait_past_grace(await Engine(store, clock).start())
    await engine.beat(lease_ms=1_000)
    await engine.advance(500)
    await engine.step(60_000)
    assert engine.shard_of("w").now_ms() >= engine.worker("w").deadline_ms, "the deadline has passed"
    assert engine.worker("w").state is ACTIVE, "a heartbeat may still be unread"
    await engine.beat(lease_ms=1_000)
    await engine.advance(750)
    assert engine.worker("w").state is ACTIVE
    await engine.advance(500)
    assert engine.worker("w").state is INACTIVE
    await engine.stop()


async def test_a_silent_worker_becomes_inactive_within_a_second_after_its_lease(
    store: FaultyStore, clock: ManualClock
) -> None:
    engine = await wait_past_grace(await Engine(store, clock).start())
    for number, lease_ms in enumerate([1_000, 1_001, 2_345, 7_777]):
        worker = f"w{number}"
        await engine.beat(worker, lease_ms=lease_ms)
        heard_ms = clock.monotonic_ms()
        while engine.worker(worker).state is ACTIVE:
            await engine.step(50)
        assert lease_ms <= clock.monotonic_ms() - heard_ms <= lease_ms + 1_000
    await engine.stop()


async def test_heartbeats_are_refused_as_unavailable_while_their_shard_is_re_read(
    store: FaultyStore, clock: ManualClock
) -> None:
    engine = await Engine(store, clock).start()
    await engine.beat()
    store.faults.append(Fault.UNKNOWN_LOST)
    with pytest.raises(ShardUnavailable):
        await engine.beat()
    await engine.recovered()
    assert (await engine.beat()).lease_epoch == 1
    await engine.stop()


async def test_a_slow_start_is_not_a_stall_and_heartbeats_are_read_first(
    store: FaultyStore, clock: ManualClock
) -> None:
    engine = await Engine(store, clock, grace_ms=0).start()
    await engine.beat(lease_ms=1_000)
    await engine.stop()
    engine = Engine(store, clock, grace_ms=0)
    stalls: list[int] = []

    class StallListener(NodeListener):
        def stalled(self, ms: int) -> None:
            stalls.append(ms)

    engine.node.add_listener(StallListener())
    await engine.node.open()
    clock.move(30_000)
    engine.node.start(tick=False)
    await engine.step(250)
    assert (stalls, engine.worker("w").state) == ([], ACTIVE)
    await engine.advance(1_500)
    assert (stalls, engine.worker("w").state) == ([], INACTIVE)
    await engine.stop()
