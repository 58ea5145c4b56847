"""What components report reaches a collector as OpenTelemetry metrics; a missing collector harms no report."""

from __future__ import annotations

from pathlib import Path

from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from liveness.sdk import Client
from tests.free_ports import free_port
from tests.system.cli.server_processes import running_server
from tests.system.sdk.server_process import until
from tests.system.tracing.collector import collecting


async def test_accepted_samples_are_forwarded(tmp_path: Path) -> None:
    with (
        collecting() as collector,
        running_server(tmp_path, "--component-metrics-otlp", collector.url) as address,
    ):
        async with Client(address, namespace="shop") as client:
            await client.report_metrics("w1", {"queue_depth": 17.5}, labels={"queue": "gpu"})
            await client.report_metrics("w1", counters={"rows_total": 3})
            await client.report_metrics("w2", {"queue_depth": 1})
        metrics = until(lambda: collector.metrics if len(collector.metrics) == 3 else [])
    by_name = {(each.component, each.metric.name): each.metric for each in metrics}
    depth = by_name["shop/w1", "queue_depth"].gauge.data_points
    assert [(point.as_double, point.attributes[0].value.string_value) for point in depth] == [(17.5, "gpu")]
    rows = by_name["shop/w1", "rows_total"].sum
    assert [point.as_double for point in rows.data_points] == [3]
    assert rows.is_monotonic
    assert rows.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    assert by_name["shop/w2", "queue_depth"].gauge.data_points[0].time_unix_nano > 0


async def test_a_missing_collector_neither_fails_nor_delays_a_report(tmp_path: Path) -> None:
    missing = f"http://127.0.0.1:{free_port()}"
    with running_server(tmp_path, "--component-metrics-otlp", missing) as address:
        async with Client(address) as client:
            for value in range(20):
                await client.report_metrics("w", {"a": value})
            [series] = await client.query_metrics()
    assert series.points[-1].max == 19
