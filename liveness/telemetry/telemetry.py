"""Counts the node's work, on the event loop. It counts whole calls and commits, never single heartbeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import structlog

from liveness.domain.errors import Denied, LivenessError
from liveness.domain.events import ScheduleEvent, ScheduleFired, ScheduleTicksDropped
from liveness.domain.registry import OFFLINE
from liveness.domain.verdicts import VerdictCounts
from liveness.domain.worker import WorkerState
from liveness.engine.census import count_by_state
from liveness.engine.changes import Transition
from liveness.engine.counter_totals import NOTHING_COUNTED, Counted
from liveness.engine.listener import NodeListener
from liveness.engine.node import Node
from liveness.engine.shard import PreparedCommit, Shard
from liveness.security.audit import DENIED_OUTCOME, AuditLog, serving_principal
from liveness.security.principal import caller_name
from liveness.security.principal_limits import PrincipalLimits
from liveness.security.suspicion import SuspicionCounters
from liveness.store.api import PARKED_MS, StoredTask, TaskState, TaskUpdate
from liveness.store.codec import RenewalBatch
from liveness.store.database import ConnectionCounts
from liveness.store.errors import StoreError
from liveness.store.size import Storage
from liveness.telemetry.call_stats import CallStats
from liveness.telemetry.component_numbers import ComponentNumbers
from liveness.telemetry.counters import CountersByNamespace, NamespaceCounters
from liveness.telemetry.histogram import (
    LATENCY_BUCKETS_S,
    LATENESS_BUCKETS_S,
    SIZE_BUCKETS,
    WAIT_BUCKETS_S,
    Histogram,
)
from liveness.telemetry.queue_depths import QueueDepths
from liveness.telemetry.sample_ring import (
    COUNTER_FIELDS,
    GAUGE_FIELDS,
    INTERVAL_MS,
    SampleRing,
    sample_time_ms,
)
from liveness.telemetry.waiting_work import NOTHING_WAITS, UnattendedMs, WaitingWork

logger = structlog.get_logger("liveness.telemetry")

RECENT_STALL_MS = 60_000
REBALANCE_INTERVAL_MS = 60_000
REFRESH_INTERVAL_MS = 5_000
STORAGE_INTERVAL_MS = 60_000
REFRESH_IDLE_FACTOR = 20
"""A slow refresh runs less often: it takes at most one part in twenty of the time."""

_REGISTERED = "WorkerRegistered"
_BATCHES = "LivenessService/RecordWorkerHeartbeats"


class NamespaceNumbers(NamedTuple):
    """Of one namespace on one node."""

    live_entries: Mapping[str, int]
    """Registered components that are not offline, by kind."""
    available_activities: int
    """Those that wait for a worker."""
    heartbeats: int
    """Answered since the node started, refused ones included, like the next."""
    refused_heartbeats: int


class Sample(NamedTuple):
    at_ms: int
    values: dict[str, int]
    """By the names of `GAUGE_FIELDS` and `COUNTER_FIELDS`."""
    latencies: Sequence[int]
    """Heartbeat calls of all namespaces, in the buckets of `LATENCY_BUCKETS_S`."""
    queue_depth: int
    """Queued tasks of all namespaces."""


class ClusterStatus(NamedTuple):
    """What a server knows of the cluster and of its own place in it."""

    nodes: Mapping[str, int]
    """By state."""
    lease_s: float
    renewal_age_s: float
    renewal_failures: int
    renewal_error: str
    """Why the last renewal failed; empty if it did not."""


_UNKNOWN_CLUSTER = ClusterStatus({}, 0.0, 0.0, 0, "")


class Telemetry(NodeListener):
    def __init__(
        self,
        node: Node,
        *,
        streams: Callable[[], int] = lambda: 0,
        attached: Callable[[], int] = lambda: 0,
        waiting_polls: Callable[[], int] = lambda: 0,
        unattended_ms: UnattendedMs = lambda namespace, task_queue, activity_type: 0,
        relay_trouble: Callable[[], str] = lambda: "",
        relay_missed: Callable[[], int] = lambda: 0,
        relay_publishes: Callable[[], Mapping[str, int]] = dict,
        component_samples: Callable[[], Mapping[str, int]] = dict,
        cluster: Callable[[], ClusterStatus] = lambda: _UNKNOWN_CLUSTER,
        insecure: str = "",
        suspicion: SuspicionCounters | None = None,
        audit: AuditLog | None = None,
        limits: PrincipalLimits | None = None,
    ) -> None:
        """The functions return current values: open streams, attached workers, waiting polls, how long no worker has
        attended a task queue, why the broker accepts nothing from this node (empty if it does, or if there is no broker),
        how many events were deleted before they were relayed, messages to the broker by outcome, samples that components reported by outcome, and the cluster."""
        self.node = node
        self.counters = CountersByNamespace()
        self.queue_depths = QueueDepths(node)
        self.waiting_work = WaitingWork(node, unattended_ms)
        self.component_numbers = ComponentNumbers(node, lambda name: self.counters.label(name) == name)
        self.verdicts: dict[str, VerdictCounts] = {}
        """By namespace, since the store was created, on all nodes."""
        self.storage: Storage | None = None
        """The size of the database; None until it was read."""
        self._storage_read_ms = 0
        self.heartbeat_duration_s = Histogram(LATENCY_BUCKETS_S)
        self.lateness_s = Histogram(LATENESS_BUCKETS_S)
        self.reschedule_s = Histogram(WAIT_BUCKETS_S)
        self.commit_s = Histogram(LATENCY_BUCKETS_S)
        self.commit_events = Histogram(SIZE_BUCKETS)
        self.commit_renewals = Histogram(SIZE_BUCKETS)
        self.commit_shards = Histogram(SIZE_BUCKETS)
        self.loop_lag_s = Histogram(LATENCY_BUCKETS_S)
        self.receive_lag_s = Histogram(LATENCY_BUCKETS_S)
        self.shards_taken_over = 0
        self.shards_closed: Counter[str] = Counter()
        self.stalls = 0
        self.stalled_s = 0.0
        self.streams = streams
        self.attached = attached
        self.waiting_polls = waiting_polls
        self.relay_trouble = relay_trouble
        self.relay_publishes = relay_publishes
        self.component_samples = component_samples
        self.cluster = cluster
        self.insecure = insecure
        """The listeners that others can reach without protection, for people; empty if there are none."""
        self.suspicion = suspicion or SuspicionCounters(node.clock)
        self.audit = audit
        self.limits = limits or PrincipalLimits(node.clock)
        self.calls = CallStats()
        self.forwarded = CallStats()
        self.relay_missed = relay_missed
        self._all_ring = SampleRing(
            len(GAUGE_FIELDS) + 1,
            len(GAUGE_FIELDS) + 1 + len(COUNTER_FIELDS) + len(self.heartbeat_duration_s.counts),
        )
        self._namespace_rings: dict[str, SampleRing] = {}
        self._last_counters: dict[str, tuple[int, ...]] = {}
        """Counter values of each namespace at the last sample."""
        self._last_counted: dict[str, Counted] = {}
        self._last_latencies = list(self.heartbeat_duration_s.counts)
        self._sampled_ms = sample_time_ms(node.clock.wall_ms())
        self._rebalanced_ms = node.clock.monotonic_ms()

    def connections(self) -> ConnectionCounts:
        return self.node.store.connection_counts()

    def is_database_reachable(self) -> bool:
        return not self.cluster().renewal_error

    # -- counting

    def record_heartbeats(self, namespace: str, heartbeats: int, seconds: float) -> None:
        """Count one served call and its heartbeats."""
        self.counters.count_heartbeats(namespace, heartbeats)
        self.heartbeat_duration_s.observe(seconds)

    def record_single_heartbeats(self, namespace: str, calls: int, seconds: float) -> None:
        """Count served calls with a heartbeat each."""
        self.counters.count_heartbeats(namespace, calls)
        self.heartbeat_duration_s.observe_many(seconds, calls)

    def record_refusals(self, namespace: str, errors: Collection[LivenessError]) -> None:
        self.counters.get(namespace).refused.update(error.reason for error in errors)

    def record_refused_activity(self, namespace: str, error: LivenessError) -> None:
        self.counters.get(namespace).refused_activities[error.reason] += 1

    def record_progress(self, namespace: str, successes: int, errors: int, *, is_counted: bool) -> None:
        """Count a report that is durable."""
        counters = self.counters.get(namespace)
        if is_counted:
            counters.progress_successes += successes
            counters.progress_errors += errors
        else:
            counters.progress_repeated += 1

    def record_schedule(self, namespace: str, event: ScheduleEvent) -> None:
        """Count an event about a schedule that is durable."""
        ticks = self.counters.get(namespace).schedule_ticks
        if isinstance(event, ScheduleFired):
            ticks["fired" if event.tick_ms else "triggered"] += 1
        elif isinstance(event, ScheduleTicksDropped):
            ticks["overlapped" if event.overlapping else "missed"] += event.count

    def record_refused_items(self, namespace: str, errors: Collection[LivenessError]) -> None:
        """Count items of a batch as suspicious and denied. Other calls fail as a whole, and `server/oversight.py` sees that."""
        self.suspicion.count_reasons(caller_name(), namespace, (error.reason for error in errors))
        denied = sum(isinstance(error, Denied) for error in errors)
        if denied and self.audit is not None:
            self.audit.count_denied(serving_principal(), "", _BATCHES, namespace, DENIED_OUTCOME, denied)

    def record_task_attempt(self, stored: StoredTask, update: TaskUpdate, via: str) -> None:
        """Count an attempt of a task whose outcome is durable."""
        outcome = update.state.name
        if update.state is TaskState.RETRYING and update.due_ms == PARKED_MS:
            outcome = "POSTPONED"
        self.counters.get(stored.task.namespace).reschedule_outcomes[outcome, via] += 1
        if update.state is TaskState.DONE:
            waited_ms = self.node.clock.wall_ms() - stored.created_wall_ms
            self.reschedule_s.observe(max(0, waited_ms) / 1_000)

    def committed(self, commits: Sequence[PreparedCommit]) -> None:
        events = renewals = 0
        for shard, commit, _, _, transitions, _ in commits:
            for entry in commit.entries:
                if type(entry.event) is RenewalBatch:
                    renewals += len(entry.event.worker_numbers)
                else:
                    events += 1
            if transitions:  # most commits renew leases and do nothing else
                for change in transitions:
                    self._count_transition(change, shard)
                for namespace, verdicts in commit.verdicts.items():
                    self.counters.get(namespace).false_deaths += verdicts.refuted
        self.commit_s.observe(self.node.committer.last_commit_s)
        self.commit_events.observe(events)
        self.commit_renewals.observe(renewals)
        self.commit_shards.observe(len(commits))

    def _count_transition(self, change: Transition, shard: Shard) -> None:
        namespace, reason = change.key.namespace, change.reason
        counters = self.counters.track(namespace) if reason == _REGISTERED else self.counters.get(namespace)
        counters.reschedules += change.activities
        if reason == _REGISTERED:
            counters.registrations += 1
            self.suspicion.count_registration(namespace)
        elif reason == "SessionReplaced":
            counters.session_replacements += 1
            self.suspicion.count_session_change(*change.key)
        elif reason == "WorkerResurrected":
            counters.resurrections += 1
        elif reason == "WorkerCleanedUp":
            counters.cleanups += 1
        elif change.before is WorkerState.ACTIVE and change.after is WorkerState.INACTIVE:
            counters.deactivations[reason] += 1
        if change.due_ms is not None:
            # Measured up to now, because no client sees the change before it is durable.
            self.lateness_s.observe(max(0, shard.now_ms() - change.due_ms) / 1_000)

    def shard_opened(self, shard: Shard) -> None:
        self.shards_taken_over += 1
        for namespace, _ in shard.census.counts:
            self.counters.track(namespace)

    def shard_closed(self, shard: Shard) -> None:
        # A hand-over marks the shard as in transition first; a loss does not.
        self.shards_closed["handed_over" if shard.id in self.node.shards_in_transition else "lost"] += 1

    def lagged(self, ms: int) -> None:
        self.loop_lag_s.observe(ms / 1_000)

    def heard(self, lag_ms: int) -> None:
        self.receive_lag_s.observe(lag_ms / 1_000)

    def stalled(self, ms: int) -> None:
        self.stalls += 1
        self.stalled_s += ms / 1_000

    # -- present state

    def disconnected_counts(self) -> Counter[str]:
        """Counts disconnected workers by namespace."""
        found: Counter[str] = Counter()
        for shard in self.node.shards():
            if shard.disconnected:
                found.update(shard.disconnected.counts)
        return found

    def quarantined(self) -> Counter[str]:
        """Counts quarantined activities by namespace."""
        found: Counter[str] = Counter()
        for shard in self.node.shards():
            found.update(shard.activities.quarantined)
        return found

    def progress_units(self) -> Counter[str]:
        """Counts units of work by namespace."""
        found: Counter[str] = Counter()
        for shard in self.node.shards():
            found.update(shard.progress.counts)
        return found

    def schedules(self) -> Counter[str]:
        """Counts schedules by namespace."""
        found: Counter[str] = Counter()
        for shard in self.node.shards():
            found.update(shard.objects.schedules.counts)
        return found

    def paused_schedules(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for shard in self.node.shards():
            found.update(shard.objects.schedules.paused_counts)
        return found

    def concurrency(self, what: str) -> Counter[str]:
        """Adds up the `counts`, `running` or `waiting` of concurrency limits by namespace."""
        found: Counter[str] = Counter()
        for shard in self.node.shards():
            limits = shard.objects.limits
            if what == "counts":
                found.update(limits.counts)
            else:
                for key, count in getattr(limits, what).items():
                    found[key.namespace] += count
        return found

    def dead(self) -> Counter[str]:
        """Counts INACTIVE workers that died, by namespace."""
        found: Counter[str] = Counter()
        for shard in self.node.shards():
            found.update(shard.census.dead)
        return found

    def numbers_of(self, namespace: str) -> NamespaceNumbers:
        live: Counter[str] = Counter()
        for (about, kind, status), count in self.node.registry.statuses.items():
            if about == namespace and status != OFFLINE:
                live[kind] += count
        counters = self.counters.get(namespace)
        waiting = dict(self.waiting_work.namespaces()).get(namespace, NOTHING_WAITS)
        return NamespaceNumbers(live, waiting.available, counters.heartbeats, counters.refused.total())

    def recent_stalls(self) -> list[int]:
        """Returns the milliseconds of each stall of the process, of a commit, or of its hearing, in the last minute."""
        now_ms = self.node.clock.wall_ms()
        # After the wall clock was set back, earlier stalls lie in the future; the upper bound leaves them out.
        recent = self.node.stalls.between(now_ms - RECENT_STALL_MS, now_ms)
        return [stall.duration_ms or 0 for stall in recent]

    # -- reading the store

    async def run(self) -> None:
        while True:
            began_ms = self.node.clock.monotonic_ms()
            try:
                await self.refresh()
            except StoreError as error:
                logger.info("cannot read the store", why=str(error))
            took_ms = self.node.clock.monotonic_ms() - began_ms
            await self.node.clock.sleep(max(REFRESH_INTERVAL_MS, took_ms * REFRESH_IDLE_FACTOR))

    async def refresh(self) -> None:
        await self.waiting_work.refresh()
        await self.component_numbers.refresh()
        await self.queue_depths.refresh()
        self.verdicts = await self.node.store.verdicts()
        now_ms = self.node.clock.monotonic_ms()
        if self.storage is None or now_ms - self._storage_read_ms >= STORAGE_INTERVAL_MS:
            self._storage_read_ms = now_ms
            self.storage = await self.node.store.read_storage(self.node.clock.wall_ms())

    # -- samples

    def tick(self) -> None:
        if sample_time_ms(self.node.clock.wall_ms()) != self._sampled_ms:
            self.take_sample()

    def take_sample(self) -> None:
        at_ms = self._sampled_ms = sample_time_ms(self.node.clock.wall_ms())
        census, disconnected = self.node.census, self.disconnected_counts()
        counted_before, self._last_counted = self._last_counted, self.node.counted()
        for namespace, now_counted in self._last_counted.items():
            self.counters.add_counted(namespace, now_counted, counted_before.get(namespace, NOTHING_COUNTED))
        available = self.waiting_work.available_counts()
        total = [0] * len(COUNTER_FIELDS)
        for namespace, counters in self.counters.items():
            counted = _counter_values(counters)
            before = self._last_counters.get(namespace, (0,) * len(counted))
            self._last_counters[namespace] = counted
            increments = [now - then for now, then in zip(counted, before, strict=True)]
            total = [a + b for a, b in zip(total, increments, strict=True)]
            if self.counters.is_tracked(namespace):
                states = [census[namespace, state] for state in WorkerState]
                ring = self._namespace_rings.setdefault(
                    namespace, SampleRing(len(GAUGE_FIELDS), len(GAUGE_FIELDS) + len(COUNTER_FIELDS))
                )
                ring.put(at_ms, [*states, disconnected[namespace], available[namespace], *increments])
        totals = count_by_state(census)
        latencies = [
            now - then
            for now, then in zip(self.heartbeat_duration_s.counts, self._last_latencies, strict=True)
        ]
        self._last_latencies = list(self.heartbeat_duration_s.counts)
        states = [totals[state] for state in WorkerState]
        self._all_ring.put(
            at_ms,
            [*states, disconnected.total(), available.total(), self.queue_depths.total, *total, *latencies],
        )
        if self.node.clock.monotonic_ms() - self._rebalanced_ms >= REBALANCE_INTERVAL_MS:
            self._rebalance()

    def _rebalance(self) -> None:
        """Let the namespaces that are busiest now have counters and samples of their own."""
        self._rebalanced_ms = self.node.clock.monotonic_ms()
        census = self.node.census
        for namespace in self.counters.rebalance(
            lambda name: any(census[name, state] for state in WorkerState)
        ):
            self._last_counters.pop(namespace, None)
            self._namespace_rings.pop(namespace, None)

    def samples(self, namespace: str, range_ms: int) -> Iterator[Sample]:
        """Yield samples, oldest first: of one namespace, or without a name, of all. A namespace that is not tracked has none."""
        all_rows = dict(self._rows(self._all_ring, range_ms))
        count = len(GAUGE_FIELDS)
        if namespace:
            ring = self._namespace_rings.get(namespace)
            rows = dict(self._rows(ring, range_ms)) if ring is not None else {}
        else:
            rows = {at_ms: [*row[:count], *row[count + 1 :]] for at_ms, row in all_rows.items()}
        for at_ms, row in rows.items():
            all_row = all_rows[at_ms]
            values = dict(zip((*GAUGE_FIELDS, *COUNTER_FIELDS), row, strict=False))
            yield Sample(at_ms, values, all_row[count + 1 + len(COUNTER_FIELDS) :], all_row[count])

    def _rows(self, ring: SampleRing, range_ms: int) -> Iterator[tuple[int, Sequence[int]]]:
        last_ms = sample_time_ms(self.node.clock.wall_ms())
        first_ms = last_ms - range_ms // INTERVAL_MS * INTERVAL_MS
        for at_ms in range(first_ms + INTERVAL_MS, last_ms + 1, INTERVAL_MS):
            if (row := ring.get(at_ms)) is not None:
                yield at_ms, row


def _counter_values(counters: NamespaceCounters) -> tuple[int, ...]:
    """In the order of `COUNTER_FIELDS`."""
    return (
        counters.heartbeats,
        counters.refused.total(),
        counters.registrations,
        counters.expiries,
        counters.resurrections,
        counters.reschedules,
    )
