"""Storms: so many workers of a namespace fall silent at once that the cause is probably not in the workers.

A storm only delays the end of leases whose deadline has passed. Nothing in this file can end a lease early.
Rationale: docs/decisions/0016-storm-brake.md.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from liveness.domain.death_certificate import CONCURRENT_DEATHS_WINDOW_MS
from liveness.domain.policy import DEFAULT_POLICY, Policy

STORM_WINDOW_MS = CONCURRENT_DEATHS_WINDOW_MS
"""The window in which a death certificate counts concurrent deaths."""
RECOVERED_SHARE = 0.9
"""A storm stops holding leases when this share of the held workers has returned: the rest are probably dead."""


def is_storm(dead: int, alive: int, policy: Policy = DEFAULT_POLICY) -> bool:
    """`dead`: workers whose lease ended within the window for silence or a broken stream, or whose deadline has passed.
    `alive`: all other ACTIVE workers."""
    return dead >= policy.storm_min_workers and dead > policy.storm_share * (alive + dead)


class StormPhase(Enum):
    HOLDING = "no expired lease is ended"
    DRAINING = "expired leases are ended at the configured pace"
    RELEASED = "expired leases are ended at once, as without a storm"


class Storm(NamedTuple):
    """The state of a storm. Times are on the clock of the node that throttles expiry."""

    began_ms: int
    lease_ms: int = 0
    """The longest lease among the workers held in phase HOLDING."""
    held_count: int = 0
    """Workers held in phase HOLDING."""
    returned: int = 0
    """Held workers that returned, shut down, or were forced out."""
    released_ms: int | None = None
    """When an operator released the storm."""

    def hold_ends_ms(self, policy: Policy) -> int:
        """When the storm stops holding all workers, whenever their leases expired: it holds for at most one lease."""
        return self.began_ms + min(policy.storm_hold_ms, self.lease_ms)

    def phase(self, now_ms: int, policy: Policy) -> StormPhase:
        if self.released_ms is not None or not policy.storm_hold_ms:
            return StormPhase.RELEASED
        has_recovered = self.held_count > 0 and self.returned >= RECOVERED_SHARE * self.held_count
        return (
            StormPhase.DRAINING
            if has_recovered or now_ms >= self.hold_ends_ms(policy)
            else StormPhase.HOLDING
        )

    def is_over(self, held: int, now_ms: int) -> bool:
        """Whether no worker is held any more. A released storm stays for one more window: otherwise the deaths that follow
        the release would count as a new storm at once."""
        return not held and (self.released_ms is None or now_ms >= self.released_ms + STORM_WINDOW_MS)


def held_until_ms(due_ms: int, granted_ms: int, policy: Policy) -> int:
    """The latest time until which a worker is held, on the clock of its lease. `due_ms`: the deadline of its lease.

    Depends on nothing else, so a node that judges the same worker later, or after a restart, gets the same time.
    """
    return due_ms + min(policy.storm_hold_ms, granted_ms)


class ExpiryPacer(NamedTuple):
    """Spreads the expiries that follow a hold evenly over time."""

    next_slot_ms: float = 0.0

    def reserve(self, now_ms: int, pace: int) -> tuple[int, ExpiryPacer]:
        """Return the time of the next expiry, and the pacer with that slot taken."""
        if not pace:
            return now_ms, self
        slot_ms = max(self.next_slot_ms, float(now_ms))
        return int(slot_ms), ExpiryPacer(slot_ms + 1_000 / pace)
