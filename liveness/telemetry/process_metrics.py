"""The metrics that servers and frontends have in common: their calls, and their way to the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from liveness.security.principal_limits import PrincipalLimits
from liveness.security.suspicion import SuspicionCounters
from liveness.store.database import ConnectionCounts
from liveness.telemetry.call_stats import CallStats
from liveness.telemetry.histogram import Histogram
from liveness.telemetry.metric_types import (
    CounterMetric,
    GaugeMetric,
    LabelledHistogramMetric,
    Metric,
    Values,
    single_value,
)
from liveness.version import VERSION


class ProcessTelemetry(Protocol):
    @property
    def calls(self) -> CallStats: ...

    @property
    def forwarded(self) -> CallStats:
        """Calls to nodes on behalf of callers."""

    def connections(self) -> ConnectionCounts: ...

    def is_database_reachable(self) -> bool: ...

    @property
    def suspicion(self) -> SuspicionCounters: ...

    @property
    def limits(self) -> PrincipalLimits: ...


class FrontendTelemetry:
    def __init__(
        self,
        nodes: Callable[[], int],
        connections: Callable[[], ConnectionCounts],
        is_database_reachable: Callable[[], bool],
        suspicion: SuspicionCounters,
        limits: PrincipalLimits,
    ) -> None:
        """The functions return current values: known nodes, database connections, and whether the last read succeeded."""
        self.calls = CallStats()
        self.forwarded = CallStats()
        self.nodes = nodes
        self.connections = connections
        self.is_database_reachable = is_database_reachable
        self.suspicion = suspicion
        self.limits = limits


def _calls(stats: CallStats) -> Values:
    for method, found in stats.items():
        for code, count in found.codes.items():
            yield (method, code), count


def _durations(stats: CallStats) -> Iterator[tuple[tuple[str, ...], Histogram]]:
    for method, found in stats.items():
        yield (method,), found.duration_s


def _connections(telemetry: ProcessTelemetry) -> Values:
    counts = telemetry.connections()
    yield ("in_use",), counts.in_use
    yield ("idle",), counts.idle


CALL_METRICS: tuple[Metric[ProcessTelemetry], ...] = (
    CounterMetric(
        "liveness_rpcs_total",
        "gRPC calls that have ended, by method (SERVICE/METHOD) and status code.",
        ("method", "code"),
        lambda telemetry: _calls(telemetry.calls),
    ),
    LabelledHistogramMetric(
        "liveness_rpc_duration_seconds",
        "gRPC calls with one answer: from their arrival to the answer. Polls wait for work as long as they may.",
        ("method",),
        lambda telemetry: _durations(telemetry.calls),
    ),
    CounterMetric(
        "liveness_forwarded_rpcs_total",
        "Tries to have a call served by the node that owns its shard, by status code. Batches of single heartbeats count as "
        "the call that carries them.",
        ("method", "code"),
        lambda telemetry: _calls(telemetry.forwarded),
    ),
    LabelledHistogramMetric(
        "liveness_forwarded_rpc_duration_seconds",
        "Those tries: from sending to the node's answer.",
        ("method",),
        lambda telemetry: _durations(telemetry.forwarded),
    ),
)
SECURITY_METRICS: tuple[Metric[ProcessTelemetry], ...] = (
    CounterMetric(
        "liveness_refused_total",
        "Calls and streams that were refused because their principal exceeds its limits: calls, bytes, streams, connections.",
        ("reason",),
        lambda telemetry: (((reason,), count) for reason, count in telemetry.limits.refused.items()),
    ),
    CounterMetric(
        "liveness_suspicious_total",
        "What may be part of an attack, by kind: failed_sign_ins, foreign_keys (attempts on worker keys of other principals), "
        "session_flaps (sessions that replaced another), fenced_off (calls of former holders and sessions), registrations, "
        "shared_token (tokens used from too many addresses), cluster_port (refusals on the cluster's port).",
        ("kind",),
        lambda telemetry: (((kind,), count) for kind, count in telemetry.suspicion.totals.items()),
    ),
    GaugeMetric(
        "liveness_suspects",
        "Addresses, principals, worker keys, namespaces or tokens that exceed the threshold of a kind now, at most 20 of each.",
        ("kind",),
        lambda telemetry: (((kind,), count) for kind, count in telemetry.suspicion.offender_counts().items()),
    ),
)
DATABASE_METRICS: tuple[Metric[ProcessTelemetry], ...] = (
    GaugeMetric(
        "liveness_database_reachable",
        "1 if the last look at the registry in the database succeeded, which is tried twice a second; else 0.",
        (),
        single_value(lambda telemetry: telemetry.is_database_reachable()),
    ),
    GaugeMetric(
        "liveness_db_connections",
        "Open connections to PostgreSQL, by state; 0 on SQLite.",
        ("state",),
        _connections,
    ),
    GaugeMetric(
        "liveness_db_connections_max",
        "How many connections to PostgreSQL this process may open (db_connections); 0 on SQLite.",
        (),
        single_value(lambda telemetry: telemetry.connections().max),
    ),
)
FRONTEND_METRICS: tuple[Metric[FrontendTelemetry], ...] = (
    *CALL_METRICS,
    *SECURITY_METRICS,
    *DATABASE_METRICS,
    GaugeMetric(
        "liveness_frontend_nodes",
        "Nodes to which this frontend can forward calls.",
        (),
        single_value(lambda telemetry: telemetry.nodes()),
    ),
    GaugeMetric(
        "liveness_frontend_info",
        "1, with the frontend's version as a label.",
        ("version",),
        lambda telemetry: iter([((VERSION,), 1)]),
    ),
)
"""Of a frontend without a database, the metrics of the database are 1 and 0."""
