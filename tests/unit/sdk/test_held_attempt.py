"""What it means to lose a hold, without any server."""

from __future__ import annotations

import asyncio

import pytest

from liveness.sdk import ActivityLost, ActivityRef, FencingToken, LeaseLost, LostSignal, WorkerStopped
from liveness.sdk.held_attempt import CancelOnLoss, HeldAttempt


class FakeLease:
    """A lease that is trusted until it is not."""

    trusted = True

    def is_trusted(self) -> bool:
        return self.trusted


@pytest.fixture
def lease() -> FakeLease:
    return FakeLease()


@pytest.fixture
def hold(lease: FakeLease) -> HeldAttempt:
    hold = HeldAttempt(lease, ActivityRef("a", attempt=2))
    hold.epoch = 7
    return hold


def test_a_hold_has_a_token(hold: HeldAttempt) -> None:
    assert hold.fencing_token == FencingToken(2, 7)
    hold.check()


def test_before_it_is_held_there_is_no_token(lease: FakeLease) -> None:
    with pytest.raises(WorkerStopped):
        _ = HeldAttempt(lease, ActivityRef("a")).fencing_token


def test_whoever_asks_after_the_deadline_is_the_first_to_know(hold: HeldAttempt, lease: FakeLease) -> None:
    lease.trusted = False
    with pytest.raises(LeaseLost):
        hold.check()
    lease.trusted = True
    with pytest.raises(LeaseLost):
        _ = hold.fencing_token
    assert hold.lost.is_set(), "lost is lost"


def test_the_first_reason_counts() -> None:
    lost = LostSignal()
    assert lost.set("the lease", by_lease=True)
    assert not lost.set("something else")
    assert (lost.reason, lost.by_lease) == ("the lease", True)


def test_what_is_registered_after_the_loss_is_done_at_once() -> None:
    lost, done = LostSignal(), []
    lost.then(lambda: done.append("before"))
    forget = lost.then(lambda: done.append("forgotten"))
    forget()
    lost.set("why")
    lost.then(lambda: done.append("after"))
    assert done == ["before", "after"]


def test_waiting_in_a_thread_has_a_limit() -> None:
    lost = LostSignal()
    assert not lost.wait_blocking(0.001)
    lost.set("why")
    assert lost.wait_blocking(0)


async def body(hold: HeldAttempt, *, begun: asyncio.Event | None = None) -> None:
    with CancelOnLoss(hold):
        if begun is not None:
            begun.set()
        await asyncio.Event().wait()


async def test_a_loss_cancels_the_body_and_nothing_after_it(hold: HeldAttempt) -> None:
    asyncio.get_running_loop().call_soon(hold.lost.set, "taken")
    with pytest.raises(ActivityLost, match="taken"):
        await body(hold)
    me = asyncio.current_task()
    assert me is not None
    assert me.cancelling() == 0
    await asyncio.sleep(0)


async def test_a_hold_that_is_lost_already_cancels_at_the_first_wait(hold: HeldAttempt) -> None:
    hold.lost.set("taken")
    with pytest.raises(ActivityLost):
        await body(hold)


async def test_cancelled_from_outside_and_lost_at_once_is_cancelled(hold: HeldAttempt) -> None:
    begun = asyncio.Event()
    task = asyncio.create_task(body(hold, begun=begun))
    await begun.wait()
    hold.lost.set("taken")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_loss_after_the_body_touches_nobody(hold: HeldAttempt) -> None:
    with CancelOnLoss(hold):
        pass
    hold.lost.set("taken")
    await asyncio.sleep(0)


async def test_an_error_of_the_body_says_more_than_the_loss(hold: HeldAttempt) -> None:
    def fail() -> None:
        with CancelOnLoss(hold):
            hold.lost.set("taken")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    me = asyncio.current_task()
    assert me is not None
    assert me.cancelling() == 0


async def test_several_may_wait_for_a_loss(hold: HeldAttempt) -> None:
    waiters = [asyncio.create_task(hold.lost.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    hold.lost.set("taken")
    await asyncio.wait_for(asyncio.gather(*waiters), 60)
