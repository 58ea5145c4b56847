"""Watches one worker's fence, on the ticker's thread, and says when it shuts and opens."""

from __future__ import annotations

from liveness.sdk import fence
from liveness.sdk.fence import Fence
from liveness.sdk.ticker import Action, Ticker, Timer


class Sentry:
    def __init__(self, ticker: Ticker, on_shut: Action, on_open: Action) -> None:
        self.fence = Fence()
        self.deadline_ms = 0
        """For whoever wants to look at it from another thread."""
        self.shut = True
        self._ticker = ticker
        self._on_shut = on_shut
        self._on_open = on_open
        self._timer: Timer | None = None

    def move(self, moved: Fence) -> None:
        self.fence = moved
        self.deadline_ms = fence.deadline_ms(moved)
        if self._ticker.now_ms() >= self.deadline_ms:
            self._shut()
            return
        if self.shut:
            self.shut = False
            self._on_open()
        # A fence that moved on is looked at again when the old time has come: renewals are many, lapses few.
        if self._timer is None or self._timer.at_ms > self.deadline_ms:
            self._arm()

    def stand_down(self) -> None:
        self.shut = True
        self.deadline_ms = 0
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._ticker.at(self.deadline_ms, self._look)

    def _look(self) -> None:
        self._timer = None
        if self.shut:
            return
        if fence.is_open(self.fence, self._ticker.now_ms()):
            self._arm()
        else:
            self._shut()

    def _shut(self) -> None:
        if not self.shut:
            self.shut = True
            self._on_shut()
