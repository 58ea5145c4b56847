"""When so many workers of a namespace fall silent at once that the cause is hardly with the workers, and what then
becomes of their leases.

A storm only ever puts off the end of a lease that is over by its own terms: whatever this file says, no lease ends
early. Why it is so: docs/decisions/0016-storm-brake.md.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from liveness.domain.death import COMPANY_MS
from liveness.domain.policy import BUILT_IN, Policy

WINDOW_MS = COMPANY_MS
"""As with those of whom a death certificate says that they died with the worker."""
CAME_BACK_SHARE = 0.9
"""When so many of those whom a storm caught have come back, it is over, and the others are likely to be gone."""


def is_storm(struck: int, left: int, policy: Policy = BUILT_IN) -> bool:
    """`struck`: workers whose lease ended within the window for silence or a broken stream, or is over now. `left`:
    the others that are ACTIVE."""
    return struck >= policy.storm_min_workers and struck > policy.storm_share * (left + struck)


class Phase(Enum):
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

    def phase(self, now_ms: int, policy: Policy) -> Phase:
        if self.released_ms is not None or not policy.storm_hold_ms:
            return Phase.RELEASED
        calmed = self.caught > 0 and self.returned >= CAME_BACK_SHARE * self.caught
        return Phase.DRAINING if calmed or now_ms >= self.hold_ends_ms(policy) else Phase.HOLDING

    def is_over(self, held: int, now_ms: int) -> bool:
        """Nobody is held any more. What an operator has released stays so until the deaths that follow are no news:
        the next one would be called a storm at once."""
        return not held and (self.released_ms is None or now_ms >= self.released_ms + WINDOW_MS)


def held_until_ms(due_ms: int, granted_ms: int, policy: Policy) -> int:
    """Until when a worker is held at most, on the clock of its lease. `due_ms`: when its lease was over by its own
    terms; whoever judges the same worker later, after a restart or elsewhere, comes to the same end."""
    return due_ms + min(policy.storm_hold_ms, granted_ms)


class Line(NamedTuple):
    """Those whose hold is over, one behind the other."""

    free_ms: float = 0.0
    """When the next place is."""

    def join(self, now_ms: int, pace: int) -> tuple[int, Line]:
        """When it is one's turn, and the line behind."""
        if not pace:
            return now_ms, self
        place_ms = max(self.free_ms, float(now_ms))
        return int(place_ms), Line(place_ms + 1_000 / pace)
