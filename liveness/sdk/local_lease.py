"""The local lease: how long a worker may trust its lease without an answer from the server.

All times are on the worker's own monotonic clock. Two rules, and the earlier deadline counts:

Lease: the time at which the last acknowledged heartbeat was *sent*, plus the granted lease. The server counts the lease
from the moment at which it applied that heartbeat, and it cannot have applied it before it was sent; so the worker's
deadline always comes first. Of a heartbeat that was sent several times it is unknown which sending was applied: the first
sending counts.

Grace, while the end of the worker's stream may end its lease: the time at which the last acknowledged heartbeat or
answered ping was sent, plus the disconnect grace. The server counts the grace from the moment at which it saw the stream
break. That is after it answered the ping or heartbeat, which is after the ping or heartbeat was sent.

Only a server process that saw the stream break counts the grace, and only in its memory. If the worker knows that this
process has ended, the grace is over without effect: whoever serves next counts the lease alone (`server_ended`).

A margin is subtracted from each, because clocks run at slightly different speeds and threads are not woken at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

MARGIN_DIVISOR = 50
"""The margin is this fraction of the lease or grace: 2 %."""
MARGIN_MS_MIN = 20
NEVER_MS = -(2**62)


@dataclass(frozen=True, slots=True)
class LocalLease:
    lease_ms: int = 0
    renewed_ms: int = NEVER_MS
    """When the last acknowledged heartbeat was sent."""
    grace_ms: int | None = None
    """None: the end of the stream does not affect the lease."""
    last_contact_ms: int = NEVER_MS
    """When the last answered heartbeat or ping was sent."""
    has_older_stream: bool = False
    """An older stream, perhaps on another node, may still end the lease until the server confirms the new one."""


def deadline_ms(local_lease: LocalLease) -> int:
    """The time from which the worker must not rely on its lease."""
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
    """Record that a heartbeat first sent at `sent_ms` was acknowledged. Replies may arrive out of order."""
    if sent_ms < local_lease.renewed_ms:
        return local_lease
    return replace(
        local_lease,
        lease_ms=lease_ms,
        renewed_ms=sent_ms,
        last_contact_ms=max(local_lease.last_contact_ms, sent_ms),
    )


def ping_answered(local_lease: LocalLease, sent_ms: int) -> LocalLease:
    """Record that the server answered a ping, sent at `sent_ms` on the stream to which the worker is attached."""
    return replace(local_lease, last_contact_ms=max(local_lease.last_contact_ms, sent_ms))


def attach_requested(local_lease: LocalLease, grace_ms: int, requested_ms: int) -> LocalLease:
    """Record that the worker requests this grace: the server may count it from the request on.

    If no stream could end the lease before, only the new one can, and it cannot break before it is opened."""
    if local_lease.grace_ms is None:
        return replace(
            local_lease, grace_ms=grace_ms, last_contact_ms=max(local_lease.last_contact_ms, requested_ms)
        )
    return replace(local_lease, grace_ms=grace_ms, has_older_stream=True)


def attached(local_lease: LocalLease, grace_ms: int | None, requested_ms: int) -> LocalLease:
    """Record that the server attached the worker to the stream requested at `requested_ms`. From now on only the end of
    that stream counts; without a granted grace it has no effect."""
    return replace(
        local_lease,
        grace_ms=grace_ms,
        last_contact_ms=max(local_lease.last_contact_ms, requested_ms),
        has_older_stream=False,
    )


def stream_closed_by_server(local_lease: LocalLease) -> LocalLease:
    """Record that the server closed the stream on purpose, so its end does not affect the lease. An older one still may."""
    return local_lease if local_lease.has_older_stream else replace(local_lease, grace_ms=None)


def server_ended(local_lease: LocalLease, now_ms: int) -> LocalLease:
    """Record that the only process that could have counted the grace of the worker's last stream has ended.

    If the grace is over by now, the process may have ended the lease before it ended itself."""
    if local_lease.has_older_stream or not is_valid(local_lease, now_ms):
        return local_lease
    return replace(local_lease, grace_ms=None)


def lease_ended(local_lease: LocalLease) -> LocalLease:
    """Record that the server ended the lease."""
    return replace(local_lease, renewed_ms=NEVER_MS)


def _trusted_ms(term_ms: int) -> int:
    return term_ms - max(term_ms // MARGIN_DIVISOR, MARGIN_MS_MIN)
