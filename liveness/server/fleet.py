"""GetFleet: the state of all workers, queues and servers. Each node reports its own shards; the called node adds up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from liveness.domain.verdicts import NO_VERDICTS
from liveness.domain.worker import WorkerState
from liveness.engine.counter_totals import NOTHING_COUNTED
from liveness.engine.node import Node
from liveness.server import wire
from liveness.server.alerts import alerts
from liveness.server.all_nodes import AllNodes
from liveness.server.component_alerts import component_groups, troubled_components
from liveness.server.incidents import Incidents
from liveness.server.validation import duration_ms, optional_identifier
from liveness.telemetry.histogram import quantile
from liveness.telemetry.sample_ring import COUNTER_FIELDS, GAUGE_FIELDS, INTERVAL_MS, RETENTION_MS
from liveness.telemetry.telemetry import Telemetry
from liveness.telemetry.waiting_work import NOTHING_WAITS, NamespaceBacklog
from liveness.v1 import cluster_pb2, fleet_pb2

Share = cluster_pb2.GetFleetShareResponse

NAMESPACES_MAX = 1_000
TASK_QUEUES_MAX = 100
LAGGING_NODE_S = 10
SAMPLES_PER_TURN = 100
"""After this many samples, the event loop serves heartbeats first."""
_SUMMED_SAMPLE_FIELDS = (*GAUGE_FIELDS, *COUNTER_FIELDS, "queue_depth")
_SUMMED_NAMESPACE_FIELDS = (
    "active", "inactive", "cleaned_up", "suspects", "deaths_last_minute", "quarantined_activities",
    "dead_lettered_tasks", "held_expiries", "dead", "available_activities", "unpolled_activities",
    "heartbeats", "successes", "errors",
)  # fmt: skip
_LONGEST_NAMESPACE_FIELDS: tuple[Literal["oldest_polled", "oldest_unpolled"], ...] = (
    "oldest_polled",
    "oldest_unpolled",
)
"""Durations: of several nodes', the longest one counts."""


class Fleet:
    def __init__(
        self,
        node: Node,
        telemetry: Telemetry,
        all_nodes: AllNodes | None = None,
        node_count: Callable[[], int] = lambda: 1,
        *,
        relays: bool = False,
        incidents: Incidents | None = None,
    ) -> None:
        """`relays`: whether this node relays to a message broker."""
        self._node = node
        self._telemetry = telemetry
        self._all_nodes = all_nodes
        self._node_count = node_count
        self._relays = relays
        self._incidents = incidents or Incidents(node)

    async def get(self, request: fleet_pb2.GetFleetRequest) -> fleet_pb2.GetFleetResponse:
        namespace = optional_identifier("namespace", request.namespace)
        range_ms = duration_ms("range", request.range) if request.HasField("range") else RETENTION_MS
        share_request = cluster_pb2.GetFleetShareRequest(
            namespace=namespace, range_ms=min(range_ms, RETENTION_MS)
        )
        others: list[Share] = []
        if self._all_nodes is not None:
            others = await self._all_nodes.call_other_nodes(
                "ClusterService/GetFleetShare", share_request, Share, skip_failed=True
            )
        return await self._merge_shares([await self.share(share_request), *others])

    async def share(self, request: cluster_pb2.GetFleetShareRequest) -> Share:
        """Returns the report of this node alone."""
        telemetry = self._telemetry
        share = Share(
            latency_bounds_seconds=telemetry.heartbeat_duration_s.bounds,
            namespaces=self._namespaces(request.namespace),
            queues=self._queues(request.namespace),
            serving_shards=[shard.id for shard in self._node.shards()],
            stalls_ms=telemetry.recent_stalls(),
            relay_trouble=telemetry.relay_trouble(),
            task_queues=self._task_queues(request.namespace),
            database_trouble=telemetry.cluster().renewal_error,
            insecure=telemetry.insecure,
            suspicions=[
                cluster_pb2.Suspicion(kind=kind, namespace=about, who=who, count=times)
                for kind, about, who, times in telemetry.suspicion.suspicions(request.namespace)
            ],
            troubled_components=await troubled_components(self._node, request.namespace),
            component_groups=await component_groups(self._node, request.namespace),
        )
        for number, sample in enumerate(telemetry.samples(request.namespace, request.range_ms), 1):
            share.samples.add(
                time=wire.timestamp(sample.at_ms), queue_depth=sample.queue_depth, **sample.values
            )
            share.latencies.add(counts=sample.latencies)
            if number % SAMPLES_PER_TURN == 0:
                await asyncio.sleep(0)
        return share

    def _namespaces(self, namespace: str) -> list[fleet_pb2.NamespaceFleet]:
        telemetry, census, held_counts = self._telemetry, self._node.census, self._node.throttle.held_counts()
        quarantined, dead_lettered_by_name = telemetry.quarantined(), telemetry.queue_depths.dead_lettered()
        waiting = dict(telemetry.waiting_work.namespaces())
        names = (
            {name for name, _ in census} | quarantined.keys() | dead_lettered_by_name.keys() | waiting.keys()
        )
        disconnected, dead = telemetry.disconnected_counts(), telemetry.dead()
        totals = self._node.counter_totals()
        return [
            fleet_pb2.NamespaceFleet(
                namespace=name,
                dead=dead[name],
                **_waiting_fields(waiting.get(name, NOTHING_WAITS)),
                **totals.get(name, NOTHING_COUNTED)._asdict(),
                active=census[name, WorkerState.ACTIVE],
                inactive=census[name, WorkerState.INACTIVE],
                cleaned_up=census[name, WorkerState.CLEANED_UP],
                suspects=disconnected[name],
                deaths_last_minute=self._node.recent_deaths.count_last_minute(name),
                quarantined_activities=quarantined[name],
                dead_lettered_tasks=dead_lettered_by_name[name],
                held_expiries=held_counts[name],
                held_until=self._held_until(name),
            )
            for name in ([namespace] if namespace else sorted(names)[:NAMESPACES_MAX])
        ]

    def _task_queues(self, namespace: str) -> list[fleet_pb2.TaskQueueBacklog]:
        work = self._telemetry.waiting_work
        return [
            fleet_pb2.TaskQueueBacklog(
                namespace=queue.namespace,
                task_queue=queue.task_queue,
                available=queue.available,
                oldest=wire.duration(queue.oldest_ms),
                unpolled=queue.unpolled,
            )
            for unpolled in (True, False)
            for queue in work.queues(namespace, unpolled=unpolled)[:TASK_QUEUES_MAX]
        ]

    def _held_until(self, namespace: str) -> Timestamp | None:
        until_ms, clock = self._node.throttle.last_hold_ends_ms(namespace), self._node.clock
        return None if until_ms is None else wire.timestamp(clock.wall_ms() + until_ms - clock.monotonic_ms())

    def _queues(self, namespace: str) -> list[fleet_pb2.QueueDepth]:
        wall_ms = self._node.clock.wall_ms()
        found = []
        for shard_id, depth in self._telemetry.queue_depths.by_shard(namespace).items():
            message = fleet_pb2.QueueDepth(
                shard_id=shard_id,
                pending=depth.pending,
                retrying=depth.retrying,
                dead_lettered=depth.dead_lettered,
            )
            if depth.oldest_wall_ms is not None:
                message.oldest.CopyFrom(wire.duration(max(0, wall_ms - depth.oldest_wall_ms)))
            found.append(message)
        return found

    async def _merge_shares(self, shares: Sequence[Share]) -> fleet_pb2.GetFleetResponse:
        serving = {shard_id for share in shares for shard_id in share.serving_shards}
        namespaces, task_queues = _sum_namespaces(shares), _sum_task_queues(shares)
        for message in namespaces:
            message.paused = bool(self._node.policies.of(message.namespace).paused)
            verdicts = self._telemetry.verdicts.get(message.namespace, NO_VERDICTS)
            message.deaths, message.false_deaths = verdicts.deaths, verdicts.refuted
        incidents = [
            incident
            for message in namespaces
            for incident in await self._incidents.recent(message.namespace, message.deaths_last_minute)
        ]
        return fleet_pb2.GetFleetResponse(
            time=wire.timestamp(self._node.clock.wall_ms()),
            interval=wire.duration(INTERVAL_MS),
            samples=await _merge_samples(shares),
            namespaces=namespaces,
            queues=sorted(
                (queue for share in shares for queue in share.queues), key=lambda queue: queue.shard_id
            ),
            task_queues=task_queues[:TASK_QUEUES_MAX],
            alerts=alerts(
                shares,
                namespaces,
                task_queues,
                self._node.shard_count,
                len(serving),
                self._node.policies.of,
                wall_ms=self._node.clock.wall_ms(),
                lost_nodes=self._telemetry.cluster().nodes.get("LOST", 0),
                incidents=incidents,
            ),
            relays=self._relays,
            nodes=self._node_count(),
            shards=self._node.shard_count,
            serving_shards=len(serving),
            storage=self._storage(),
        )

    def _storage(self) -> fleet_pb2.Storage | None:
        """All nodes share the database, so this node answers for all."""
        storage = self._telemetry.storage
        if storage is None:
            return None
        return fleet_pb2.Storage(
            **storage.size._asdict(),
            growth_bytes_per_day=storage.growth_bytes_per_day,
            days_until_full=storage.days_until_full,
        )


def _sum_namespaces(shares: Sequence[Share]) -> list[fleet_pb2.NamespaceFleet]:
    by_name: dict[str, fleet_pb2.NamespaceFleet] = {}
    for message in (message for share in shares for message in share.namespaces):
        known = by_name.setdefault(message.namespace, message)
        if known is not message:
            for name in _SUMMED_NAMESPACE_FIELDS:
                setattr(known, name, getattr(known, name) + getattr(message, name))
            if message.held_until.ToNanoseconds() > known.held_until.ToNanoseconds():
                known.held_until.CopyFrom(message.held_until)
            for name in _LONGEST_NAMESPACE_FIELDS:
                longer = _is_longer(getattr(message, name), getattr(known, name))
                if message.HasField(name) and (longer or not known.HasField(name)):
                    getattr(known, name).CopyFrom(getattr(message, name))
    return [by_name[name] for name in sorted(by_name)][:NAMESPACES_MAX]


def _sum_task_queues(shares: Sequence[Share]) -> list[fleet_pb2.TaskQueueBacklog]:
    by_name: dict[tuple[str, str, bool], fleet_pb2.TaskQueueBacklog] = {}
    for message in (message for share in shares for message in share.task_queues):
        known = by_name.setdefault((message.namespace, message.task_queue, message.unpolled), message)
        if known is not message:
            known.available += message.available
            if _is_longer(message.oldest, known.oldest):
                known.oldest.CopyFrom(message.oldest)
    return sorted(by_name.values(), key=lambda queue: -queue.oldest.ToMilliseconds())


def _is_longer(one: Duration, other: Duration) -> bool:
    return one.ToNanoseconds() > other.ToNanoseconds()


def _waiting_fields(work: NamespaceBacklog) -> dict[str, Any]:
    """The fields of a `NamespaceFleet`."""
    found: dict[str, Any] = {"available_activities": work.available, "unpolled_activities": work.unpolled}
    if work.oldest_polled_ms is not None:
        found["oldest_polled"] = wire.duration(work.oldest_polled_ms)
    if work.oldest_unpolled_ms is not None:
        found["oldest_unpolled"] = wire.duration(work.oldest_unpolled_ms)
    return found


async def _merge_samples(shares: Sequence[Share]) -> list[fleet_pb2.FleetSample]:
    """Add samples up by time. Latencies of a node that uses other buckets (another version) are left out."""
    bounds = list(shares[0].latency_bounds_seconds)
    samples: dict[int, fleet_pb2.FleetSample] = {}
    latencies: dict[int, list[int]] = {}
    for share in shares:
        comparable = list(share.latency_bounds_seconds) == bounds
        await asyncio.sleep(0)
        for sample, latency in zip(share.samples, share.latencies, strict=True):
            at_s = sample.time.seconds
            known = samples.setdefault(at_s, sample)
            if known is not sample:
                for name in _SUMMED_SAMPLE_FIELDS:
                    setattr(known, name, getattr(known, name) + getattr(sample, name))
            if comparable:
                before = latencies.get(at_s, [0] * (len(bounds) + 1))
                latencies[at_s] = [a + b for a, b in zip(before, latency.counts, strict=True)]
    for number, (at_s, counts) in enumerate(latencies.items(), 1):
        if number % SAMPLES_PER_TURN == 0:
            await asyncio.sleep(0)
        samples[at_s].latency_p50_ms = quantile(bounds, counts, 0.5) * 1_000
        samples[at_s].latency_p99_ms = quantile(bounds, counts, 0.99) * 1_000
    through_s = _complete_through_s(shares)
    return [samples[at_s] for at_s in sorted(samples) if at_s <= through_s]


def _complete_through_s(shares: Sequence[Share]) -> int:
    """Returns the time up to which all nodes have taken samples. Without this cut, the newest sample would dip whenever
    one node is a moment ahead of another. Nodes that are far behind do not count."""
    newest = [share.samples[-1].time.seconds for share in shares if share.samples]
    return min((at_s for at_s in newest if at_s >= max(newest) - LAGGING_NODE_S), default=0)
