"""The retry budget of a call: how long it is retried, and how long it waits before the next try."""

from __future__ import annotations

from liveness.clock import Clock
from liveness.routing.routing_table import RoutingTable

CALL_MS_MAX = 10_000
"""Time-out of a try, for calls without a deadline."""
RETRY_MS_MAX = 8_000
"""No new try starts after this time, for calls without a deadline."""
NO_NODES_MS_MAX = 1_000
"""The same while no node is known at all: this is no take-over, which ends soon."""
MARGIN_SHARE, MARGIN_MS_MAX = 1 / 10, 250
"""The time left for the answer, as a share of the caller's time, and its limit."""
BATCH_MARGIN_SHARE, BATCH_MARGIN_MS_MAX = 1 / 3, 1_500
"""The same for a batch. Its answer carries the heartbeats of many workers. If it came too late because the shards of a few
have no owner, all of them would send the same heartbeats again, which renew no lease, until their leases are over. A
busy machine needs more than a few dozen milliseconds to answer in time."""
RETRY_DELAY_MS_MIN = 20
RETRY_DELAY_MS_MAX = 320
RETRY_DELAY_GROWTH = 1.6


class RetryBudget:
    def __init__(
        self,
        clock: Clock,
        routes: RoutingTable,
        remaining_s: float | None,
        wait_ms_max: int = 0,
        *,
        is_batch: bool = False,
    ) -> None:
        """`remaining_s`: time until the caller's deadline, if it has one. `wait_ms_max`: how long the node may hold the call."""
        self._clock = clock
        self._routes = routes
        self._tried_revision = routes.revision
        """The revision of the routes when the last try began."""
        self._has_skipped_wait = False
        self._started_ms = now_ms = clock.monotonic_ms()
        self._call_ms_max = CALL_MS_MAX + wait_ms_max
        self._deadline_ms: float | None = None
        self._reply_by_ms: float = now_ms + CALL_MS_MAX
        self._retry_until_ms: float = now_ms + RETRY_MS_MAX
        if remaining_s is not None:
            remaining_ms = remaining_s * 1_000
            share, ms_max = (
                (BATCH_MARGIN_SHARE, BATCH_MARGIN_MS_MAX) if is_batch else (MARGIN_SHARE, MARGIN_MS_MAX)
            )
            margin_ms = min(ms_max, remaining_ms * share)
            self._deadline_ms = now_ms + remaining_ms
            # The last refusal must reach the caller before its deadline, since it says more than DEADLINE_EXCEEDED. And no
            # try starts without time for an answer, because its outcome would be unknown.
            self._reply_by_ms = self._deadline_ms - margin_ms
            self._retry_until_ms = self._reply_by_ms - margin_ms
        self._delay_ms: float = RETRY_DELAY_MS_MIN

    def timeout_s(self) -> float:
        """Time-out of the next try."""
        if self._deadline_ms is None:
            return self._call_ms_max / 1_000
        return max(0.001, (self._deadline_ms - self._clock.monotonic_ms()) / 1_000)

    def part_timeout_s(self) -> float:
        """Time-out of a try for one part of a batch. It leaves time to answer with the other parts."""
        return max(0.001, (self._reply_by_ms - self._clock.monotonic_ms()) / 1_000)

    async def wait(self) -> bool:
        """Wait until the routes change, or for the retry delay. Returns False when the budget is used up.

        Routes that changed during the last try are tried at once, but not twice in a row: nodes that name each other as the
        owner change them with every try.
        """
        routes = self._routes
        now_ms = self._clock.monotonic_ms()
        until_ms = self._retry_until_ms
        if not routes.members():
            until_ms = min(until_ms, self._started_ms + NO_NODES_MS_MAX)
        if until_ms <= now_ms:
            return False
        self._has_skipped_wait = not self._has_skipped_wait and routes.revision != self._tried_revision
        if not self._has_skipped_wait:
            await routes.wait_for_change(self._clock, min(self._delay_ms, until_ms - now_ms))
            self._delay_ms = min(self._delay_ms * RETRY_DELAY_GROWTH, RETRY_DELAY_MS_MAX)
        self._tried_revision = routes.revision
        return self._clock.monotonic_ms() < until_ms
