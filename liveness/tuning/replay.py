"""Replay outages in time, with other terms. What decides is the service's own code: `LeaseDeadlines` says when a lease is over,
and `ExpiryThrottle` which of them end; only time, timers and workers are replaced."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import NamedTuple

from liveness.domain.keys import WorkerKey
from liveness.domain.policy import Policy
from liveness.domain.worker import (
    NO_BINDINGS,
    NO_PROFILE,
    Standing,
    Worker,
    WorkerState,
    WorkerStatus,
)
from liveness.expiry.disconnects import DisconnectedWorkers
from liveness.expiry.lease_deadlines import LeaseDeadlines
from liveness.expiry.throttle import DueLease, ExpiryThrottle
from liveness.tuning.history import History, Outage

TICK_MS = 50
"""Leases that are over in the same tick are judged together, as in a server."""
HEARTBEATS_PER_LEASE = 3
"""How often the SDK sends heartbeats in each lease."""
OUTAGES_PER_STEP = 200


class Setting(NamedTuple):
    """None: as it was."""

    lease_ms: int | None = None
    grace_ms: int | None = None
    storm_hold_ms: int | None = None
    storm_share: float | None = None

    def policy(self, policy: Policy) -> Policy:
        if self.storm_hold_ms is not None:
            policy = replace(policy, storm_hold_ms=self.storm_hold_ms)
        return policy if self.storm_share is None else replace(policy, storm_share=self.storm_share)


class Terms(NamedTuple):
    """An outage under a setting."""

    start_ms: int
    granted_ms: int
    broken_ms: int | None
    grace_ms: int


def interval_change_ms(granted_ms: int, setting: Setting, interval_ms: int | None) -> int:
    """Return by how much heartbeats would come more often. `interval_ms`: how often they come whatever the lease; None if
    the interval follows the lease, as the SDK's does."""
    if setting.lease_ms is None or interval_ms is not None:
        return 0
    return (granted_ms - setting.lease_ms) // HEARTBEATS_PER_LEASE


def terms_of(outage: Outage, setting: Setting, interval_ms: int | None) -> Terms:
    """With more frequent heartbeats, the last one before the silence would have come later."""
    start_ms = outage.start_ms + interval_change_ms(outage.granted_ms, setting, interval_ms)
    granted_ms = outage.granted_ms if setting.lease_ms is None else setting.lease_ms
    grace_ms = outage.grace_ms
    if grace_ms and setting.grace_ms is not None:
        grace_ms = setting.grace_ms
    broken_ms = None if outage.broken_ms is None else max(outage.broken_ms, start_ms)
    return Terms(start_ms, granted_ms + outage.late_ms, broken_ms, grace_ms + outage.late_ms)


class _Kind(IntEnum):
    """In the order in which things of the same tick happen: what is heard counts before leases end."""

    BREAK = 1
    HEARD = 2
    CHECK = 3


class _ReplayClock:
    def __init__(self) -> None:
        self.now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms

    async def sleep(self, ms: float) -> None:
        raise NotImplementedError("nothing waits in a replay")


class Replay:
    """Step through it with `run`; then `ended_ms` has the end of each outage's lease."""

    def __init__(
        self, history: History, setting: Setting, policy: Policy, interval_ms: int | None = None
    ) -> None:
        self.terms = [terms_of(outage, setting, interval_ms) for outage in history.outages]
        self.ended_ms: list[int | None] = [None] * len(self.terms)
        self.needs_attention: set[tuple[str, str]] = set()
        self._outages: Sequence[Outage] = history.outages
        self._clock = _ReplayClock()
        self._census: Counter[tuple[str, WorkerState]] = Counter()
        self._census["", WorkerState.ACTIVE] = history.active + sum(
            outage.returned_ms is None and outage.replaced_ms is None for outage in history.deaths
        )
        policy = setting.policy(policy)
        self._throttle = ExpiryThrottle(self._clock, lambda namespace: policy, self._census)
        self._disconnected = DisconnectedWorkers()
        self._deadlines = LeaseDeadlines(self._disconnected, (), 0)
        self._workers: dict[WorkerKey, Worker] = {}
        self._events: list[tuple[int, _Kind, int]] = []
        for index, (outage, terms) in enumerate(zip(self._outages, self.terms, strict=True)):
            key = _key(index)
            heard_ms = _heard_ms(outage)
            if heard_ms is not None and heard_ms <= terms.start_ms:
                continue  # with heartbeats that come so much later, there is no silence
            self._workers[key] = worker = _worker(index, terms)
            self._push(self._deadlines.next_check_ms(key, worker, terms.start_ms), _Kind.CHECK, index)
            if terms.broken_ms is not None:
                self._push(terms.broken_ms, _Kind.BREAK, index)
            if heard_ms is not None:
                self._push(heard_ms, _Kind.HEARD, index)

    @property
    def storms(self) -> int:
        return self._throttle.storm_counts[""]

    # -- what the throttle uses of a shard

    def now_ms(self) -> int:
        return self._clock.now_ms

    def recheck(self, key: WorkerKey, at_ms: int | None = None) -> None:
        self._push(self.now_ms() if at_ms is None else at_ms, _Kind.CHECK, int(key.instance_key))

    # -- the course of time

    def run(self) -> Iterator[None]:
        """Yields now and then, so that others can be served."""
        events, steps = self._events, 0
        while events:
            self._clock.now_ms = now_ms = events[0][0]
            self._throttle.tick()
            due: dict[int, None] = {}
            while events and events[0][0] <= now_ms:
                _, kind, index = heapq.heappop(events)
                steps += 1
                if kind is _Kind.CHECK:
                    due[index] = None
                else:
                    self._happen(kind, index)
            self._end_leases(due)
            if events and self._throttle.active_storms and events[0][0] > now_ms + 1_000:
                # Storms change with time, not only when something happens.
                self._push(now_ms + 1_000, _Kind.CHECK, -1)
            if steps >= OUTAGES_PER_STEP:
                steps = 0
                yield

    def _happen(self, kind: _Kind, index: int) -> None:
        key = _key(index)
        worker = self._workers.get(key)
        if kind is _Kind.HEARD:
            if worker is None:  # its lease had ended
                self._census["", WorkerState.ACTIVE] += 1
            else:
                del self._workers[key]
                self._disconnected.pop(key, None)
                self._throttle.on_heartbeat(key)
        elif worker is not None:
            terms = self.terms[index]
            assert terms.broken_ms is not None
            self._disconnected[key] = terms.broken_ms
            self._push(self._deadlines.next_check_ms(key, worker, self.now_ms()), _Kind.CHECK, index)

    def _end_leases(self, indexes: dict[int, None]) -> None:
        now_ms, due = self.now_ms(), []
        for index in indexes:
            key = _key(index)
            worker = self._workers.get(key)
            if worker is None:
                continue
            end = self._deadlines.ended_by(key, worker, now_ms)
            if end is None:
                self._push(self._deadlines.next_check_ms(key, worker, now_ms), _Kind.CHECK, index)
            else:
                due.append(DueLease(self, key, worker, end))
        for lease in self._throttle.filter_due(due, {}):
            del self._workers[lease.key]
            self._disconnected.pop(lease.key, None)
            self._throttle.record_death(lease.key)
            self._throttle.on_lease_ended(lease.key, died=True)
            self._census["", WorkerState.ACTIVE] -= 1
            self.ended_ms[int(lease.key.instance_key)] = now_ms

    def _push(self, at_ms: int, kind: _Kind, index: int) -> None:
        tick_ms = max(-(-at_ms // TICK_MS) * TICK_MS, self.now_ms())
        heapq.heappush(self._events, (tick_ms, kind, index))


def _key(index: int) -> WorkerKey:
    return WorkerKey("", str(index))


def _heard_ms(outage: Outage) -> int | None:
    return outage.replaced_ms if outage.returned_ms is None else outage.returned_ms


def _worker(index: int, terms: Terms) -> Worker:
    return Worker(
        number=index + 1,
        state=WorkerState.ACTIVE,
        session_id="",
        sequence=1,
        epoch=1,
        granted_ms=terms.granted_ms,
        renewed_ms=terms.start_ms,
        deadline_ms=terms.start_ms + terms.granted_ms,
        bindings=NO_BINDINGS,
        lost=NO_BINDINGS,
        superseded=(),
        profile=NO_PROFILE,
        status=WorkerStatus.RUNNING,
        last_error="",
        successes=0,
        errors=0,
        resync=False,
        inactive_reason=None,
        inactive_detail="",
        standing=Standing(grace_ms=terms.grace_ms),
    )
