"""How long a worker may trust its lease without hearing from the server.

All times are on the worker's own monotonic clock. Two rules, and the earlier deadline counts:

Lease: the time at which the last acknowledged heartbeat was *sent*, plus the granted lease. The server counts the lease
from when it applied that heartbeat, and it cannot have done so before it was sent; so the worker is always the first to
know. A heartbeat that was sent several times was applied at an unknown one of them: the first counts.

Grace, while the end of the worker's stream may end its lease: the time at which the last acknowledged heartbeat or
answered ping was sent, plus the disconnect grace. The server counts the grace from when it saw the stream break, which
is after it answered that ping or heartbeat, which is after that was sent.

From each a margin is taken off, because clocks do not run equally fast and threads are not woken at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

MARGIN_SHARE = 50
"""The margin is this part of the term: 2 %."""
MARGIN_MS_MIN = 20
LONG_AGO_MS = -(2**62)


@dataclass(frozen=True, slots=True)
class Fence:
    lease_ms: int = 0
    renewed_ms: int = LONG_AGO_MS
    """When the last acknowledged heartbeat was sent."""
    grace_ms: int | None = None
    """None: the end of the stream means nothing."""
    heard_ms: int = LONG_AGO_MS
    """When the last thing that the server answered was sent."""
    older: bool = False
    """Until the stream that was asked for is there, the end of an older one may still count, on another node too."""


def deadline_ms(fence: Fence) -> int:
    """From here on the worker must not rely on its lease."""
    by_lease = fence.renewed_ms + _trusted_ms(fence.lease_ms)
    if fence.grace_ms is None:
        return by_lease
    return min(by_lease, fence.heard_ms + _trusted_ms(min(fence.grace_ms, fence.lease_ms)))


def is_open(fence: Fence, now_ms: int) -> bool:
    return now_ms < deadline_ms(fence)


def renewed(fence: Fence, sent_ms: int, lease_ms: int) -> Fence:
    """A heartbeat first sent at `sent_ms` was acknowledged. Answers may overtake each other."""
    if sent_ms < fence.renewed_ms:
        return fence
    return replace(fence, lease_ms=lease_ms, renewed_ms=sent_ms, heard_ms=max(fence.heard_ms, sent_ms))


def answered(fence: Fence, sent_ms: int) -> Fence:
    """A ping sent at `sent_ms` on the stream that the worker is attached to was answered."""
    return replace(fence, heard_ms=max(fence.heard_ms, sent_ms))


def exposed(fence: Fence, grace_ms: int, asked_ms: int) -> Fence:
    """The worker asks for this grace at `asked_ms`: from the asking on, the server may count it. If no stream could end its lease before, only the new one can, and that does not break before it is
    opened."""
    if fence.grace_ms is None:
        return replace(fence, grace_ms=grace_ms, heard_ms=max(fence.heard_ms, asked_ms))
    return replace(fence, grace_ms=grace_ms, older=True)


def attached(fence: Fence, grace_ms: int | None, asked_ms: int) -> Fence:
    """The worker stands on the stream that it asked for at `asked_ms`. From now on only the end of that one counts, and
    it counts for nothing if no grace was granted."""
    return replace(fence, grace_ms=grace_ms, heard_ms=max(fence.heard_ms, asked_ms), older=False)


def sheltered(fence: Fence) -> Fence:
    """The server itself has closed the stream, so its end means nothing. That of an older one may."""
    return fence if fence.older else replace(fence, grace_ms=None)


def ended(fence: Fence) -> Fence:
    """The server said that the lease is over."""
    return replace(fence, renewed_ms=LONG_AGO_MS)


def _trusted_ms(term_ms: int) -> int:
    return term_ms - max(term_ms // MARGIN_SHARE, MARGIN_MS_MIN)
