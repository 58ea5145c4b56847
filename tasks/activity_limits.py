"""End attempts and activities whose time limit is over.

A limit counts on its shard's observed clock, as leases do, so that time without a server counts against nobody. Like a
lease, a limit of a held attempt ends it only when everything has been heard that had arrived by then: the worker's
heartbeat, or the end of the attempt, may wait in a socket. A limit that was inherited with the shard waits for the grace
that leases get, in which workers and clients reconnect.
"""

from __future__ import annotations

from typing import NamedTuple

from liveness.dispatch.ownership import ActivityOwnership
from liveness.domain import activity_decider
from liveness.domain.activity import Activity, ActivityState, LimitEnd, limit_ends
from liveness.domain.keys import ActivityKey
from liveness.engine.node import Node
from liveness.engine.shard import Shard
from liveness.tasks.contract import Done, NotYet, TimerOutcome

RECHECK_MS = 20
"""Between two looks at whether everything has been heard."""
REMEMBERED_MAX = 100_000


class _Found(NamedTuple):
    """A limit that was found to be over."""

    end_ms: int
    attempt: int
    at_ms: int
    """On the monotonic clock."""


class ActivityLimits:
    def __init__(self, node: Node, ownership: ActivityOwnership) -> None:
        self._node = node
        self._ownership = ownership
        self._found: dict[ActivityKey, _Found] = {}

    def next_end_ms(self, shard: Shard, activity: Activity) -> int | None:
        """When the first limit that runs is over; None if there is none."""
        ends = limit_ends(activity)
        return min(self._end_ms(shard, activity, end) for end in ends) if ends else None

    def enforce(self, key: ActivityKey, shard: Shard, activity: Activity) -> TimerOutcome | None:
        """Time the activity out. None if no limit is over."""
        now_ms = shard.now_ms()
        over = [end for end in limit_ends(activity) if self._end_ms(shard, activity, end) <= now_ms]
        if not over:
            self._found.pop(key, None)
            return None
        end = min(over, key=lambda end: end.end_ms)
        if activity.state is ActivityState.STARTED and (wait_ms := self._unheard_ms(key, activity, end)):
            return NotYet(now_ms + wait_ms)
        self._found.pop(key, None)
        shard.change_activity(key, activity_decider.time_out(activity, end, now_ms))
        if activity.worker:
            self._ownership.unbind_soon(key, activity.worker, activity.attempt)
        return Done()

    def _end_ms(self, shard: Shard, activity: Activity, end: LimitEnd) -> int:
        if activity.state is ActivityState.WAITING:
            return end.end_ms  # nobody could have ended it earlier
        heard_ms = max(activity.heard_ms, activity.since_ms)
        return shard.lease_deadlines.with_takeover_grace(end.end_ms, heard_ms)

    def _unheard_ms(self, key: ActivityKey, activity: Activity, end: LimitEnd) -> int:
        """How long to wait until everything has been heard that had arrived when the limit was found to be over."""
        progress, now_ms = self._node.receive_progress, self._node.clock.monotonic_ms()
        found = self._found.get(key)
        if found is None or (found.end_ms, found.attempt) != (end.end_ms, activity.attempt):
            if len(self._found) >= REMEMBERED_MAX:
                self._found.clear()  # each is found again
            found = self._found[key] = _Found(end.end_ms, activity.attempt, now_ms)
        if found.at_ms > progress.heard_until_ms:
            progress.probe_wanted.set()
            return RECHECK_MS
        return max(progress.ends_from_ms(end.limit_ms) - now_ms, 0)
