"""A thread that runs actions in order, at once or at a given time. State that only this thread uses needs no locks.
Actions must not block."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from threading import Condition, Thread, current_thread
from typing import TypeAlias

from liveness.clock import Clock

Action: TypeAlias = Callable[[], None]

WAIT_MS_MAX = 60_000
STOP_SECONDS_MAX = 10.0


class Timer:
    __slots__ = ("_action", "at_ms")

    def __init__(self, at_ms: int, action: Action) -> None:
        self.at_ms = at_ms
        self._action: Action | None = action

    @property
    def is_pending(self) -> bool:
        return self._action is not None

    def cancel(self) -> None:
        self._action = None

    def run(self) -> None:
        action, self._action = self._action, None
        if action is not None:
            action()


class SchedulerThread:
    def __init__(self, clock: Clock, name: str, on_failure: Action) -> None:
        """`on_failure` runs if the thread ends without `stop`, which is a bug; it must release all waiting callers."""
        self._clock = clock
        self._on_failure = on_failure
        self._changed = Condition()
        self._actions: deque[Action] = deque()
        self._timers: list[tuple[int, int, Timer]] = []
        self._sequence = count()
        self._stopping = False
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. Actions posted before still run; timers do not."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not current_thread():
            self._thread.join(STOP_SECONDS_MAX)

    def call_soon(self, action: Action) -> None:
        """Run `action` soon. Any thread may call this."""
        with self._changed:
            self._actions.append(action)
            self._changed.notify()

    def now_ms(self) -> int:
        return self._clock.monotonic_ms()

    def call_at(self, at_ms: int, action: Action) -> Timer:
        """Run `action` at `at_ms`. Only the scheduler's own thread may call this."""
        assert self._thread is current_thread()
        timer = Timer(at_ms, action)
        heappush(self._timers, (at_ms, next(self._sequence), timer))
        return timer

    def _run(self) -> None:
        try:
            while self._wait():
                # Actions run before timers: a reply that has arrived may move the timer.
                for _ in range(len(self._actions)):
                    self._actions.popleft()()
                now_ms = self.now_ms()
                while self._timers and self._timers[0][0] <= now_ms:
                    heappop(self._timers)[2].run()
        finally:
            if not self._stopping:
                self._on_failure()

    def _wait(self) -> bool:
        """Wait for an action or a due timer. Returns False after `stop`."""
        with self._changed:
            while not self._actions:
                if self._stopping:
                    return False
                while self._timers and not self._timers[0][2].is_pending:
                    heappop(self._timers)
                wait_ms = self._timers[0][0] - self.now_ms() if self._timers else WAIT_MS_MAX
                if wait_ms <= 0:
                    break
                self._changed.wait(min(wait_ms, WAIT_MS_MAX) / 1_000)
            return True
