"""Counts what the node does. All of it on the event loop, and nothing per heartbeat: a call and a commit are the
smallest things that are counted one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import structlog

from liveness.domain.errors import LivenessError
from liveness.domain.verdict import Verdicts
from liveness.domain.worker import WorkerState
from liveness.shard.census import by_state
from liveness.shard.changes import Transition
from liveness.shard.node import Node
from liveness.shard.shard import HandedOver, Shard
from liveness.store.api import PARKED_MS, StoredTask, TaskState, TaskUpdate
from liveness.store.codec import Renewals
from liveness.store.errors import StoreError
from liveness.telemetry.histogram import LATENCY_S, LATENESS_S, SIZES, WAITING_S, Histogram
from liveness.telemetry.queues import Queues
from liveness.telemetry.samples import HAPPENINGS, INTERVAL_MS, STATES, Ring, sample_ms
from liveness.telemetry.tallies import Tallies, Tally

logger = structlog.get_logger("liveness.telemetry")

STALL_REMEMBERED_MS = 60_000
LOOK_EVERY_MS = 5_000
REST_FACTOR = 20
"""A look at the store that takes long is taken less often: it may use so small a part of the time."""

_REGISTERED = "WorkerRegistered"


class Sample(NamedTuple):
    at_ms: int
    values: dict[str, int]
    """By the names of `STATES` and `HAPPENINGS`."""
    latencies: Sequence[int]
    """Calls with heartbeats, in the buckets of `LATENCY_S`. Over all namespaces, as is the next."""
    queue_depth: int


class Telemetry:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.tallies = Tallies()
        self.queues = Queues(node)
        self.verdicts: dict[str, Verdicts] = {}
        """Per namespace, over all nodes and times."""
        self.heartbeat_s = Histogram(LATENCY_S)
        self.lateness_s = Histogram(LATENESS_S)
        self.reschedule_s = Histogram(WAITING_S)
        self.commit_s = Histogram(LATENCY_S)
        self.commit_events = Histogram(SIZES)
        self.commit_renewals = Histogram(SIZES)
        self.commit_shards = Histogram(SIZES)
        self.lag_s = Histogram(LATENCY_S)
        self.shards_taken = 0
        self.shards_closed: Counter[str] = Counter()
        self.stalls = 0
        self.stalled_s = 0.0
        self.streams: Callable[[], int] = lambda: 0
        self.attached: Callable[[], int] = lambda: 0
        self.polls: Callable[[], int] = lambda: 0
        self.relay_trouble: Callable[[], str] = lambda: ""
        """Why the broker takes nothing from this node; empty if it does, or none is used."""
        self._ring = Ring(len(STATES) + 1, len(STATES) + 1 + len(HAPPENINGS) + len(self.heartbeat_s.counts))
        self._rings: dict[str, Ring] = {}
        self._counted: dict[str, tuple[int, ...]] = {}
        """What happened in each namespace until the last sample."""
        self._latencies = list(self.heartbeat_s.counts)
        self._sampled_ms = sample_ms(node.clock.wall_ms())
        node.on_committed.append(self._on_committed)
        node.on_opened.append(self._on_opened)
        node.on_closed.append(self._on_closed)
        node.on_lag.append(lambda ms: self.lag_s.observe(ms / 1_000))
        node.on_stall.append(self._on_stall)
        node.on_pulse.append(self._on_pulse)

    # -- what is counted

    def answered(self, namespace: str, heartbeats: int, seconds: float) -> None:
        """A call with heartbeats was served."""
        self.tallies.of(namespace).heartbeats += heartbeats
        self.heartbeat_s.observe(seconds)

    def refused(self, namespace: str, errors: Collection[LivenessError]) -> None:
        """Some of its heartbeats were."""
        self.tallies.of(namespace).refused.update(error.reason for error in errors)

    def task_tried(self, stored: StoredTask, update: TaskUpdate, via: str) -> None:
        """How it went is durable."""
        outcome = update.state.name
        if update.state is TaskState.RETRYING and update.due_ms == PARKED_MS:
            outcome = "POSTPONED"
        self.tallies.of(stored.task.namespace).outcomes[outcome, via] += 1
        if update.state is TaskState.DONE:
            waited_ms = self.node.clock.wall_ms() - stored.created_wall_ms
            self.reschedule_s.observe(max(0, waited_ms) / 1_000)

    def _on_committed(self, handed: Sequence[HandedOver]) -> None:
        events = renewals = 0
        for shard, commit, _, _, transitions, _ in handed:
            for entry in commit.entries:
                if type(entry.event) is Renewals:
                    renewals += len(entry.event.numbers)
                else:
                    events += 1
            if transitions:  # most commits renew leases and do nothing else
                for change in transitions:
                    self._note(change, shard)
                for namespace, verdicts in commit.verdicts.items():
                    self.tallies.of(namespace).false_deaths += verdicts.refuted
        self.commit_s.observe(self.node.committer.took_s)
        self.commit_events.observe(events)
        self.commit_renewals.observe(renewals)
        self.commit_shards.observe(len(handed))

    def _note(self, change: Transition, shard: Shard) -> None:
        namespace, reason = change.key.namespace, change.reason
        tally = self.tallies.adopt(namespace) if reason == _REGISTERED else self.tallies.of(namespace)
        tally.reschedules += change.activities
        if reason == _REGISTERED:
            tally.registrations += 1
        elif reason == "SessionReplaced":
            tally.replacements += 1
        elif reason == "WorkerResurrected":
            tally.resurrections += 1
        elif reason == "WorkerCleanedUp":
            tally.cleanups += 1
        elif change.before is WorkerState.ACTIVE and change.after is WorkerState.INACTIVE:
            tally.endings[reason] += 1
        if change.due_ms is not None:
            # Only now that it is durable, anybody could know.
            self.lateness_s.observe(max(0, shard.now_ms() - change.due_ms) / 1_000)

    def _on_opened(self, shard: Shard) -> None:
        self.shards_taken += 1
        for namespace, _ in shard.census.counts:
            self.tallies.adopt(namespace)

    def _on_closed(self, shard: Shard) -> None:
        # Who hands a shard over says so first; a lost one comes as a surprise.
        self.shards_closed["handed_over" if shard.id in self.node.busy else "lost"] += 1

    def _on_stall(self, ms: int) -> None:
        self.stalls += 1
        self.stalled_s += ms / 1_000

    # -- what is the case

    def suspects(self) -> Counter[str]:
        """Per namespace."""
        found: Counter[str] = Counter()
        for shard in self.node.shards():
            if shard.suspects:
                found.update(shard.suspects.census)
        return found

    def quarantined(self) -> Counter[str]:
        """Activities per namespace."""
        found: Counter[str] = Counter()
        for shard in self.node.shards():
            found.update(shard.activities.quarantined)
        return found

    def recent_stalls(self) -> list[int]:
        """Milliseconds of each within the last minute: the process stood still, or a commit hung."""
        now_ms = self.node.clock.wall_ms()
        # Those of a wall clock that was set back since then lie in the future, and would for hours be the last minute's.
        recent = self.node.stalls.between(now_ms - STALL_REMEMBERED_MS, now_ms)
        return [stall.duration_ms or 0 for stall in recent]

    # -- what only the store knows

    async def run(self) -> None:
        while True:
            began_ms = self.node.clock.monotonic_ms()
            try:
                await self.look()
            except StoreError as error:
                logger.info("cannot look at the store", why=str(error))
            took_ms = self.node.clock.monotonic_ms() - began_ms
            await self.node.clock.sleep(max(LOOK_EVERY_MS, took_ms * REST_FACTOR))

    async def look(self) -> None:
        await self.queues.look()
        self.verdicts = await self.node.store.verdicts()

    # -- samples

    def _on_pulse(self) -> None:
        if sample_ms(self.node.clock.wall_ms()) != self._sampled_ms:
            self.take_sample()

    def take_sample(self) -> None:
        at_ms = self._sampled_ms = sample_ms(self.node.clock.wall_ms())
        census, suspects = self.node.census, self.suspects()
        total = [0] * len(HAPPENINGS)
        for namespace, tally in self.tallies.items():
            counted = _happenings(tally)
            before = self._counted.get(namespace, (0,) * len(counted))
            self._counted[namespace] = counted
            happened = [now - then for now, then in zip(counted, before, strict=True)]
            total = [a + b for a, b in zip(total, happened, strict=True)]
            if self.tallies.has(namespace):
                states = [census[namespace, state] for state in WorkerState]
                ring = self._rings.setdefault(namespace, Ring(len(STATES), len(STATES) + len(HAPPENINGS)))
                ring.put(at_ms, [*states, suspects[namespace], *happened])
        whole = by_state(census)
        latencies = [now - then for now, then in zip(self.heartbeat_s.counts, self._latencies, strict=True)]
        self._latencies = list(self.heartbeat_s.counts)
        states = [whole[state] for state in WorkerState]
        self._ring.put(at_ms, [*states, suspects.total(), self.queues.depth, *total, *latencies])

    def samples(self, namespace: str, range_ms: int) -> Iterator[Sample]:
        """Oldest first. Without a namespace: of all; of one that has no numbers of its own: none."""
        wide = dict(self._rows(self._ring, range_ms))
        count = len(STATES)
        if namespace:
            ring = self._rings.get(namespace)
            rows = dict(self._rows(ring, range_ms)) if ring is not None else {}
        else:
            rows = {at_ms: [*row[:count], *row[count + 1 :]] for at_ms, row in wide.items()}
        for at_ms, row in rows.items():
            shared = wide[at_ms]
            values = dict(zip((*STATES, *HAPPENINGS), row, strict=False))
            yield Sample(at_ms, values, shared[count + 1 + len(HAPPENINGS) :], shared[count])

    def _rows(self, ring: Ring, range_ms: int) -> Iterator[tuple[int, Sequence[int]]]:
        last_ms = sample_ms(self.node.clock.wall_ms())
        first_ms = last_ms - range_ms // INTERVAL_MS * INTERVAL_MS
        for at_ms in range(first_ms + INTERVAL_MS, last_ms + 1, INTERVAL_MS):
            if (row := ring.get(at_ms)) is not None:
                yield at_ms, row


def _happenings(tally: Tally) -> tuple[int, ...]:
    """In the order of `HAPPENINGS`."""
    return (
        tally.heartbeats,
        tally.refused.total(),
        tally.registrations,
        tally.expiries,
        tally.resurrections,
        tally.reschedules,
    )
