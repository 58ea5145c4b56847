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

MARGIN_DIVISOR = 50
"""The margin is this part of the term: 2 %."""
MARGIN_MS_MIN = 20
NEVER_MS = -(2**62)


@dataclass(frozen=True, slots=True)
class LocalLease:
    lease_ms: int = 0
    renewed_ms: int = NEVER_MS
    """When the last acknowledged heartbeat was sent."""
    grace_ms: int | None = None
    """None: the end of the stream means nothing."""
    last_contact_ms: int = NEVER_MS
    """When the last thing that the server answered was sent."""
    has_older_stream: bool = False
    """Until the stream that was asked for is there, the end of an older one may still count, on another node too."""


def deadline_ms(local_lease: LocalLease) -> int:
    """From here on the worker must not rely on its lease."""
    lease_deadline_ms = local_lease.renewed_ms + _trusted_ms(local_lease.lease_ms)
    if local_lease.grace_ms is None:
        return lease_deadline_ms
    return min(
        lease_deadline_ms,
        local_lease.last_contact_ms + _trusted_ms(min(local_lease.grace_ms, local_lease.lease_ms)),
    )


def is_valid(local_lease: LocalLease, now_ms: int) -> bool:
    return now_ms < deadline_ms(local_lease)


def renewed(local_lease: LocalLease, sent_ms: int, lease_ms: int) -> LocalLease:
    """A heartbeat first sent at `sent_ms` was acknowledged. Answers may overtake each other."""
    if sent_ms < local_lease.renewed_ms:
        return local_lease
    return replace(
        local_lease,
        lease_ms=lease_ms,
        renewed_ms=sent_ms,
        last_contact_ms=max(local_lease.last_contact_ms, sent_ms),
    )


def ping_answered(local_lease: LocalLease, sent_ms: int) -> LocalLease:
    """A ping sent at `sent_ms` on the stream that the worker is attached to was answered."""
    return replace(local_lease, last_contact_ms=max(local_lease.last_contact_ms, sent_ms))


def attach_requested(local_lease: LocalLease, grace_ms: int, requested_ms: int) -> LocalLease:
    """The worker asks for this grace at `requested_ms`: from the asking on, the server may count it. If no stream could end its lease before, only the new one can, and that does not break before it is
    opened."""
    if local_lease.grace_ms is None:
        return replace(
            local_lease, grace_ms=grace_ms, last_contact_ms=max(local_lease.last_contact_ms, requested_ms)
        )
    return replace(local_lease, grace_ms=grace_ms, has_older_stream=True)


def attached(local_lease: LocalLease, grace_ms: int | None, requested_ms: int) -> LocalLease:
    """The worker stands on the stream that it asked for at `requested_ms`. From now on only the end of that one counts, and
    it counts for nothing if no grace was granted."""
    return replace(
        local_lease,
        grace_ms=grace_ms,
        last_contact_ms=max(local_lease.last_contact_ms, requested_ms),
        has_older_stream=False,
    )


def stream_closed_by_server(local_lease: LocalLease) -> LocalLease:
    """The server itself has closed the stream, so its end means nothing. That of an older one may."""
    return local_lease if local_lease.has_older_stream else replace(local_lease, grace_ms=None)


def ended(local_lease: LocalLease) -> LocalLease:
    """The server said that the lease is over."""
    return replace(local_lease, renewed_ms=NEVER_MS)


def _trusted_ms(term_ms: int) -> int:
    return term_ms - max(term_ms // MARGIN_DIVISOR, MARGIN_MS_MIN)
