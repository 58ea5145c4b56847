"""What NoETL's server reports about itself, under the names that it uses."""

from __future__ import annotations

from collections.abc import Iterator

from liveness.v1.component_metrics_service_pb2 import METRIC_TYPE_COUNTER, METRIC_TYPE_GAUGE, MetricSample


def server_samples(
    *, active_pools: int, waiting_activities: int, heartbeats: int, refused_heartbeats: int
) -> Iterator[MetricSample]:
    gauges = (
        ("noetl_server_active_workers", active_pools, "workers", "Number of active workers"),
        ("noetl_server_queue_size", waiting_activities, "jobs", "Activities that wait for a worker"),
    )  # fmt: skip
    counters = (
        ("noetl_server_heartbeats_total", heartbeats, "Heartbeats that were answered"),
        ("noetl_server_heartbeats_refused_total", refused_heartbeats, "Those of them that were refused"),
    )  # fmt: skip
    for name, value, unit, text in gauges:
        yield MetricSample(name=name, value=value, type=METRIC_TYPE_GAUGE, unit=unit, help=text)
    for name, value, text in counters:
        yield MetricSample(name=name, value=value, type=METRIC_TYPE_COUNTER, help=text)
