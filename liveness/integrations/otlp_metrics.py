"""Forwards metrics that components report to a collector, as OpenTelemetry metrics.

A thread of its own sends them, from a bounded queue: a slow or missing collector neither delays nor fails a report. What does
not fit is not forwarded, which is counted. OpenTelemetry is imported only if a collector is configured.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, deque
from collections.abc import Sequence
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any

import structlog

from liveness.background import RepeatedWarning
from liveness.clock import Clock
from liveness.domain.keys import WorkerKey
from liveness.store.component_metrics import MetricType, Sample, SampleReport
from liveness.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData, NumberDataPoint

logger = structlog.get_logger("liveness.otlp")

EXPORT_TIMEOUT_S = 5
QUEUE_SAMPLES_MAX = 50_000
SAMPLES_PER_EXPORT = 5_000
FLUSH_TIMEOUT_S = 2.0
"""How long a shutdown waits for the last export."""
FORWARDED, NOT_FORWARDED = "forwarded", "not_forwarded"


class OtlpNotInstalled(Exception):
    def __init__(self) -> None:
        super().__init__("OpenTelemetry is not installed; install liveness[traces]")


class OtlpMetricsForwarder:
    def __init__(self, url: str, clock: Clock) -> None:
        """`url`: a collector that accepts OTLP over gRPC, http:// or https://."""
        try:
            from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics.export import MetricExportResult
        except ImportError as error:
            raise OtlpNotInstalled from error
        library = logging.getLogger("opentelemetry")
        if not library.handlers:
            # What it would log repeats `_warning`.
            library.addHandler(logging.NullHandler())
            library.propagate = False
        self._exporter = OTLPMetricExporter(
            endpoint=url, insecure=url.startswith("http://"), timeout=EXPORT_TIMEOUT_S
        )
        self._success = MetricExportResult.SUCCESS
        self._warning = RepeatedWarning(logger, "cannot forward metrics of components", clock)
        self._changed = Condition()
        """Guards everything below."""
        self._queue: deque[SampleReport] = deque()
        self._queued_samples = 0
        self._is_closing = False
        self._outcomes = Counter({FORWARDED: 0, NOT_FORWARDED: 0})
        self._thread = Thread(target=self._run, name="otlp-metrics", daemon=True)
        self._thread.start()

    def outcomes(self) -> dict[str, int]:
        """Samples by outcome."""
        with self._changed:
            return dict(self._outcomes)

    def forward(self, reports: Sequence[SampleReport]) -> None:
        """Queue reports, as many as fit."""
        with self._changed:
            for report in reports:
                samples = len(report.samples)
                if self._queued_samples + samples > QUEUE_SAMPLES_MAX:
                    self._outcomes[NOT_FORWARDED] += samples
                else:
                    self._queue.append(report)
                    self._queued_samples += samples
            self._changed.notify()

    async def close(self) -> None:
        """Send what is queued, for at most `FLUSH_TIMEOUT_S`."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join, FLUSH_TIMEOUT_S)

    def _run(self) -> None:
        while batch := self._take():
            samples = sum(len(report.samples) for report in batch)
            try:
                is_sent = self._exporter.export(metrics_data(batch)) is self._success
            except Exception as error:  # noqa: BLE001  # a fault of the library must not end the thread
                is_sent = False
                self._warning.warn(why=repr(error))
            else:
                if is_sent:
                    self._warning.resolve()
                else:
                    self._warning.warn(why="the collector did not accept them")
            with self._changed:
                self._outcomes[FORWARDED if is_sent else NOT_FORWARDED] += samples
        self._exporter.shutdown()

    def _take(self) -> list[SampleReport]:
        """Wait for reports. Returns none when the server stops."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_closing)
            batch: list[SampleReport] = []
            samples = 0
            while self._queue and samples < SAMPLES_PER_EXPORT:
                report = self._queue.popleft()
                batch.append(report)
                samples += len(report.samples)
            self._queued_samples -= samples
            return batch


def metrics_data(reports: Sequence[SampleReport]) -> MetricsData:
    """A resource per component; a metric per name, type, unit and help."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    by_component: dict[WorkerKey, list[Sample]] = {}
    for report in reports:
        by_component.setdefault(report.key, []).extend(report.samples)
    scope = InstrumentationScope("liveness", VERSION)
    return MetricsData(
        [
            ResourceMetrics(
                Resource(
                    {
                        "service.namespace": key.namespace,
                        "service.name": key.instance_key,
                        "service.instance.id": key.instance_key,
                    }
                ),
                [ScopeMetrics(scope, _metrics(samples), "")],
                "",
            )
            for key, samples in by_component.items()
        ]
    )


def _metrics(samples: Sequence[Sample]) -> list[Any]:
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Metric, NumberDataPoint, Sum

    points: dict[tuple[str, MetricType, str, str], list[NumberDataPoint]] = {}
    for sample in samples:
        # When a counter began to count is not known: 0.
        point = NumberDataPoint(json.loads(sample.labels), 0, sample.wall_ms * 1_000_000, sample.value)
        points.setdefault((sample.name, sample.type, sample.unit, sample.help), []).append(point)
    return [
        Metric(
            name,
            help_text,
            unit,
            Sum(of_metric, AggregationTemporality.CUMULATIVE, is_monotonic=True)
            if kind is MetricType.COUNTER
            else Gauge(of_metric),
        )
        for (name, kind, unit, help_text), of_metric in points.items()
    ]
