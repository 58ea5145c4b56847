"""The loss of a held attempt, without a server."""

from __future__ import annotations

import asyncio

import pytest

from liveness.sdk import ActivityLost, ActivityRef, FencingToken, LeaseLost, LostSignal, WorkerStopped
from liveness.sdk.held_attempt import CancelOnLoss, HeldAttempt


class FakeLease:
    """A lease whose `trusted` flag the test sets."""

    trusted = True

    def is_trusted(self) -> bool:
        return self.trusted


@pytest.fixture
def lease() -> FakeLease:
    return FakeLease()


@pytest.fixture
def held(lease: FakeLease) -> HeldAttempt:
    held = HeldAttempt(lease, ActivityRef("a", attempt=2))
    held.epoch = 7
    return held


def test_a_held_attempt_has_a_fencing_token(held: HeldAttempt) -> None:
    assert held.fencing_token == FencingToken(2, 7)
    held.check()


def test_an_attempt_that_is_not_held_yet_has_no_fencing_token(lease: FakeLease) -> None:
    with pytest.raises(WorkerStopped):
        _ = HeldAttempt(lease, ActivityRef("a")).fencing_token


def test_a_check_after_the_deadline_marks_the_attempt_as_lost_for_good(
    held: HeldAttempt, lease: FakeLease
) -> None:
    lease.trusted = False
    with pytest.raises(LeaseLost):
        held.check()
    lease.trusted = True
    with pytest.raises(LeaseLost):
        _ = held.fencing_token
    assert held.lost.is_set(), "a loss is final"


def test_the_first_reason_of_a_loss_is_kept() -> None:
    lost = LostSignal()
    assert lost.set("the lease", by_lease=True)
    assert not lost.set("something else")
    assert (lost.reason, lost.by_lease) == ("the lease", True)


def test_a_callback_registered_after_the_loss_runs_at_once() -> None:
    lost, done = LostSignal(), []
    lost.then(lambda: done.append("before"))
    forget = lost.then(lambda: done.append("forgotten"))
    forget()
    lost.set("why")
    lost.then(lambda: done.append("after"))
    assert done == ["before", "after"]


def test_wait_blocking_returns_after_its_timeout() -> None:
    lost = LostSignal()
    assert not lost.wait_blocking(0.001)
    lost.set("why")
    assert lost.wait_blocking(0)


async def body(held: HeldAttempt, *, started: asyncio.Event | None = None) -> None:
    with CancelOnLoss(held):
        if started is not None:
            started.set()
        await asyncio.Event().wait()


async def test_a_loss_cancels_the_body_and_nothing_after_it(held: HeldAttempt) -> None:
    asyncio.get_running_loop().call_soon(held.lost.set, "taken")
    with pytest.raises(ActivityLost, match="taken"):
        await body(held)
    me = asyncio.current_task()
    assert me is not None
    assert me.cancelling() == 0
    await asyncio.sleep(0)


async def test_an_attempt_that_is_already_lost_cancels_the_body_at_its_first_await(held: HeldAttempt) -> None:
    held.lost.set("taken")
    with pytest.raises(ActivityLost):
        await body(held)


async def test_a_cancellation_from_outside_takes_precedence_over_a_loss(held: HeldAttempt) -> None:
    started = asyncio.Event()
    task = asyncio.create_task(body(held, started=started))
    await started.wait()
    held.lost.set("taken")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_loss_after_the_body_cancels_nothing(held: HeldAttempt) -> None:
    with CancelOnLoss(held):
        pass
    held.lost.set("taken")
    await asyncio.sleep(0)


async def test_an_error_of_the_body_takes_precedence_over_the_loss(held: HeldAttempt) -> None:
    def fail() -> None:
        with CancelOnLoss(held):
            held.lost.set("taken")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    me = asyncio.current_task()
    assert me is not None
    assert me.cancelling() == 0


async def test_several_tasks_can_wait_for_a_loss(held: HeldAttempt) -> None:
    waiters = [asyncio.create_task(held.lost.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    held.lost.set("taken")
    await asyncio.wait_for(asyncio.gather(*waiters), 60)
