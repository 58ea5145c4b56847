"""Watch the local lease deadline of one worker, on the scheduler's thread, and report when the lease expires and is valid again."""

from __future__ import annotations

from liveness.sdk import local_lease
from liveness.sdk.local_lease import LocalLease
from liveness.sdk.scheduler import Action, SchedulerThread, Timer


class LeaseWatchdog:
    def __init__(self, scheduler: SchedulerThread, on_expired: Action, on_valid: Action) -> None:
        self.local_lease = LocalLease()
        self.deadline_ms = 0
        """Other threads may read it."""
        self.is_expired = True
        self._scheduler = scheduler
        self._on_expired = on_expired
        self._on_valid = on_valid
        self._timer: Timer | None = None

    def update(self, updated: LocalLease) -> None:
        self.local_lease = updated
        self.deadline_ms = local_lease.deadline_ms(updated)
        if self._scheduler.now_ms() >= self.deadline_ms:
            self._expire()
            return
        if self.is_expired:
            self.is_expired = False
            self._on_valid()
        # A later deadline needs no new timer: the timer at the old deadline arms the next one. Renewals are frequent,
        # expiries are rare.
        if self._timer is None or self._timer.at_ms > self.deadline_ms:
            self._arm()

    def stop(self) -> None:
        self.is_expired = True
        self.deadline_ms = 0
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._scheduler.call_at(self.deadline_ms, self._check)

    def _check(self) -> None:
        self._timer = None
        if self.is_expired:
            return
        if local_lease.is_valid(self.local_lease, self._scheduler.now_ms()):
            self._arm()
        else:
            self._expire()

    def _expire(self) -> None:
        if not self.is_expired:
            self.is_expired = True
            self._on_expired()
