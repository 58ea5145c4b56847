"""An attempt that a worker holds, and the signal that it has been lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Event, Lock
from types import TracebackType
from typing import Protocol

from liveness.sdk.converter import Payload
from liveness.sdk.errors import ActivityLost, LeaseLost, WorkerStopped
from liveness.sdk.values import ActivityRef, FencingToken

LEASE_NOT_CONFIRMED = "the server did not confirm the lease in time"


class LostSignal:
    """A one-time signal. Any thread may set it; coroutines and threads may wait for it."""

    def __init__(self) -> None:
        self._event = Event()
        self._lock = Lock()
        self._callbacks: list[Callable[[], None]] = []
        self.reason = ""
        self.by_lease = False

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        noticed = asyncio.Event()
        unsubscribe = self.then(lambda: call_on_loop(loop, noticed.set))
        try:
            await noticed.wait()
        finally:
            unsubscribe()

    def wait_blocking(self, timeout: float | None = None) -> bool:
        """Wait in a thread, never on an event loop. Returns False after `timeout` seconds."""
        return self._event.wait(timeout)

    def then(self, action: Callable[[], None]) -> Callable[[], None]:
        """Run `action` on the thread that sets the signal, or at once if it is set. Returns a function that unsubscribes."""
        with self._lock:
            if not self._event.is_set():
                self._callbacks.append(action)
                return lambda: self._unsubscribe(action)
        action()
        return lambda: None

    def set(self, reason: str, *, by_lease: bool = False) -> bool:
        """Set the signal. Only the first reason counts; later calls return False."""
        with self._lock:
            if self._event.is_set():
                return False
            self.reason, self.by_lease = reason, by_lease
            self._event.set()
            actions, self._callbacks = self._callbacks, []
        for action in actions:
            action()
        return True

    def _unsubscribe(self, action: Callable[[], None]) -> None:
        with self._lock:
            if action in self._callbacks:
                self._callbacks.remove(action)


def call_on_loop(loop: asyncio.AbstractEventLoop, action: Callable[[], object]) -> None:
    """Run `action` on `loop`; any thread may call this."""
    try:
        loop.call_soon_threadsafe(action)
    except RuntimeError:
        pass  # the loop is closed, so nothing runs on it any more


class Lease(Protocol):
    def is_trusted(self) -> bool:
        """Whether the local deadline of the lease lies in the future."""


class HeldAttempt:
    """One attempt that this worker holds."""

    def __init__(self, lease: Lease, ref: ActivityRef) -> None:
        self._lease = lease
        self.ref = ref
        self.epoch = 0
        """The lease epoch under which it is held; 0 before the server confirmed it."""
        self.lost = LostSignal()
        self.stop_heartbeats: Callable[[], Payload | None] = lambda: None
        """Called before the end of the attempt is reported. Returns details of its progress that the server does not have."""

    @property
    def fencing_token(self) -> FencingToken:
        """Pass this token with every write. Raises ActivityLost once the activity is lost."""
        self.check()
        if not self.epoch:
            raise WorkerStopped(worker=f"(for {self.ref}, which is not bound yet)")
        return FencingToken(self.ref.attempt, self.epoch)

    def check(self) -> None:
        """Raise ActivityLost if the activity is lost.

        This method reads the clock itself: after the process stood still, the body may run before the SDK's thread, which
        would have declared the activity lost."""
        if not self.lost.is_set() and not self._lease.is_trusted():
            self.lost.set(LEASE_NOT_CONFIRMED, by_lease=True)
        if self.lost.is_set():
            raise self.loss()

    def loss(self) -> ActivityLost:
        kind = LeaseLost if self.lost.by_lease else ActivityLost
        return kind(activity=self.ref, reason=self.lost.reason)


class CancelOnLoss:
    """Cancels the asyncio task in the body of this `with` when the attempt is lost, and turns that cancellation, and no
    other, into ActivityLost. It works like `asyncio.timeout`, with a loss instead of a time."""

    def __init__(self, held_attempt: HeldAttempt) -> None:
        self._held_attempt = held_attempt
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._cancelled = False
        self._unsubscribe: Callable[[], None] = lambda: None

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancelling = self._task.cancelling()
        loop = asyncio.get_running_loop()
        self._unsubscribe = self._held_attempt.lost.then(lambda: call_on_loop(loop, self._cancel))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unsubscribe()
        task, self._task = self._task, None
        assert task is not None
        if self._cancelled and task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise self._held_attempt.loss() from error
        if kind is None and self._held_attempt.lost.is_set():
            # The body did not notice the loss, or ignored it; either way its work does not count.
            raise self._held_attempt.loss()

    def _cancel(self) -> None:
        if self._task is not None:
            self._cancelled = True
            self._task.cancel()
