"""What a namespace's history says about leases: its outages, and silences that were none.

An outage is a silence that ended a lease, or would have without a storm's hold or a take-over's grace. It is replayed in time, together
with the others. Shorter silences have no time of day, and are only compared with other terms.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from liveness.domain.death_certificate import SILENCE_REASONS
from liveness.domain.events import Activation, WorkerDeactivated
from liveness.domain.silences import CountedSilence, SilenceKind
from liveness.domain.verdicts import refutes_death
from liveness.store.codec import LogEntry

SAVED_OUTAGES_MAX = 5_000
LATE_MS = 1_000
"""A lease that ended this much after its terms was delayed by a take-over or a server that stood still."""
_BROKEN_STREAM = re.compile(r"its stream broke and nothing was heard of it for (\d+) ms of a (\d+) ms grace")


class Outage(NamedTuple):
    """Times are wall times. They are as far apart as the observed times, on which leases are counted."""

    start_ms: int
    """The last heartbeat."""
    granted_ms: int
    ended_ms: int | None = None
    """When the lease ended; None if it did not."""
    returned_ms: int | None = None
    """When the same session was heard again: the worker had been alive."""
    replaced_ms: int | None = None
    """When another session took the worker's key."""
    broken_ms: int | None = None
    """When the worker's stream broke, if that is known and it had a grace."""
    grace_ms: int = 0
    late_ms: int = 0
    """How much later than by its terms the lease ended, because of the server."""
    activities: int = 0

    @property
    def is_false(self) -> bool:
        return self.ended_ms is not None and self.returned_ms is not None


class History(NamedTuple):
    outages: Sequence[Outage]
    silences: Sequence[CountedSilence]
    """Of workers that went on, shorter than their terms."""
    active: int
    """ACTIVE workers now."""
    watched_s: int = 0
    """For how long ACTIVE workers lived while silences were counted, added up."""

    @property
    def deaths(self) -> list[Outage]:
        return [outage for outage in self.outages if outage.ended_ms is not None]


def read_history(
    events: Iterable[LogEntry], silences: Iterable[CountedSilence], active: int, from_wall_ms: int
) -> History:
    """`events`: beginnings and ends of leases, each worker's in their order."""
    outages = [
        outage
        for entry, after in pairwise([*events, None])
        if entry is not None and entry.wall_ms >= from_wall_ms
        if (outage := _outage(entry, after)) is not None
    ]
    short, watched_s = [], 0
    for counted in silences:
        silence, count = counted
        if silence.kind is SilenceKind.WATCHED:
            watched_s += count
        elif silence.silence_ms < silence.terms_ms:
            short.append(counted)
        elif silence.kind is SilenceKind.HEARTBEATS:
            saved = Outage(
                silence.wall_ms - silence.silence_ms, silence.terms_ms, returned_ms=silence.wall_ms
            )
            outages += [saved] * min(count, SAVED_OUTAGES_MAX - len(outages))
    return History(sorted(outages, key=lambda outage: outage.start_ms), short, active, watched_s)


def _outage(entry: LogEntry, after: LogEntry | None) -> Outage | None:
    """`after`: the next event, if it is one of the same worker."""
    event = entry.event
    if not isinstance(event, WorkerDeactivated) or event.reason not in SILENCE_REASONS:
        return None
    certificate = event.certificate
    if certificate is None or certificate.silence_ms is None:
        return None
    start_ms = entry.wall_ms - certificate.silence_ms
    broken_ms, grace_ms, due_ms = None, 0, start_ms + certificate.granted_ms
    if matched := _BROKEN_STREAM.fullmatch(event.detail):
        broken_ms, grace_ms = entry.wall_ms - int(matched[1]), int(matched[2])
        due_ms = min(due_ms, broken_ms + grace_ms)
    late_ms = entry.wall_ms - certificate.held_ms - due_ms
    returned_ms = replaced_ms = None
    if (
        after is not None
        and (after.namespace, after.worker) == (entry.namespace, entry.worker)
        and isinstance(after.event, Activation)
    ):
        # The lease's clock counts, not the wall clock, which goes on while the server is down.
        next_ms = entry.wall_ms + max(0, after.event.at_ms - event.at_ms)
        if refutes_death(after.event, certificate.session_id):
            returned_ms = next_ms
        else:
            replaced_ms = next_ms
    return Outage(
        start_ms,
        certificate.granted_ms,
        entry.wall_ms,
        returned_ms,
        replaced_ms,
        broken_ms,
        grace_ms,
        late_ms if late_ms > LATE_MS else 0,
        certificate.activities or 0,
    )
