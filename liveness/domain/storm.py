"""When so many workers of a namespace fall silent at once that the cause is hardly with the workers, and what then
becomes of their leases.

A storm only ever puts off the end of a lease that is over by its own terms: whatever this file says, no lease ends
early. Why it is so: docs/decisions/0016-storm-brake.md.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from liveness.domain.death_certificate import CONCURRENT_DEATHS_WINDOW_MS
from liveness.domain.policy import DEFAULT_POLICY, Policy

STORM_WINDOW_MS = CONCURRENT_DEATHS_WINDOW_MS
"""As with those of whom a death certificate says that they died with the worker."""
RECOVERED_SHARE = 0.9
"""When so many of those whom a storm caught have come back, it is over, and the others are likely to be gone."""


def is_storm(dead: int, alive: int, policy: Policy = DEFAULT_POLICY) -> bool:
    """`dead`: workers whose lease ended within the window for silence or a broken stream, or is over now. `alive`:
    the others that are ACTIVE."""
    return dead >= policy.storm_min_workers and dead > policy.storm_share * (alive + dead)


class StormPhase(Enum):
    HOLDING = "nobody's lease is ended"
    DRAINING = "leases that are over are ended, one after the other at the set pace"
    RELEASED = "leases that are over are ended, as if there were no storm"


class Storm(NamedTuple):
    """How it stands. Times are on the clock of whoever judges it."""

    began_ms: int
    lease_ms: int = 0
    """The longest of those that were caught while it held expiries."""
    caught: int = 0
    """Workers that were held while it held expiries."""
    returned: int = 0
    """Of all who were held: those that came back, said goodbye, or were forced out."""
    released_ms: int | None = None
    """When an operator let expiries go on."""

    def hold_ends_ms(self, policy: Policy) -> int:
        """When it lets go of the last of them, whenever that one fell due: a storm holds for one lease at most, however
        many go on falling due."""
        return self.began_ms + min(policy.storm_hold_ms, self.lease_ms)

    def phase(self, now_ms: int, policy: Policy) -> StormPhase:
        if self.released_ms is not None or not policy.storm_hold_ms:
            return StormPhase.RELEASED
        has_recovered = self.caught > 0 and self.returned >= RECOVERED_SHARE * self.caught
        return (
            StormPhase.DRAINING
            if has_recovered or now_ms >= self.hold_ends_ms(policy)
            else StormPhase.HOLDING
        )

    def is_over(self, held: int, now_ms: int) -> bool:
        """Nobody is held any more. What an operator has released stays so until the deaths that follow are no news:
        the next one would be called a storm at once."""
        return not held and (self.released_ms is None or now_ms >= self.released_ms + STORM_WINDOW_MS)


def held_until_ms(due_ms: int, granted_ms: int, policy: Policy) -> int:
    """Until when a worker is held at most, on the clock of its lease. `due_ms`: when its lease was over by its own
    terms; whoever judges the same worker later, after a restart or elsewhere, comes to the same end."""
    return due_ms + min(policy.storm_hold_ms, granted_ms)


class ExpiryPacer(NamedTuple):
    """Those whose hold is over, one behind the other."""

    next_slot_ms: float = 0.0
    """When the next place is."""

    def reserve(self, now_ms: int, pace: int) -> tuple[int, ExpiryPacer]:
        """When it is one's turn, and the line behind."""
        if not pace:
            return now_ms, self
        slot_ms = max(self.next_slot_ms, float(now_ms))
        return int(slot_ms), ExpiryPacer(slot_ms + 1_000 / pace)
