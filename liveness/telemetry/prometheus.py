"""Exports the metrics of the server and of the process in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from liveness.telemetry.histogram import Histogram
from liveness.telemetry.metric_types import CounterMetric, HistogramMetric, LabelledHistogramMetric, Metric

T = TypeVar("T")


class PrometheusExporter:
    """Has its own registry, because one process may run several servers."""

    def __init__(self, telemetry: T, metrics: Sequence[Metric[T]]) -> None:
        self._registry = CollectorRegistry()
        self.add(telemetry, metrics)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def add(self, telemetry: T, metrics: Sequence[Metric[T]]) -> None:
        """Export the metrics of something else that this process runs, too."""
        self._registry.register(_MetricsCollector(telemetry, metrics))

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Returns the text and its content type. `accept`: the Accept header of the request."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _MetricsCollector(Collector, Generic[T]):
    def __init__(self, telemetry: T, metrics: Sequence[Metric[T]]) -> None:
        self._telemetry = telemetry
        self._metrics = metrics

    def describe(self) -> Iterable[Family]:
        """Empty, so that registering this collector reads no metrics."""
        return []

    def collect(self) -> Iterable[Family]:
        for metric in self._metrics:
            yield _family(metric, self._telemetry)


def _family(metric: Metric[T], telemetry: T) -> Family:
    if isinstance(metric, HistogramMetric | LabelledHistogramMetric):
        labels = metric.labels if isinstance(metric, LabelledHistogramMetric) else ()
        family = HistogramMetricFamily(metric.name, metric.help, labels=labels)
        if isinstance(metric, LabelledHistogramMetric):
            for values, histogram in metric.read(telemetry):
                _add(family, values, histogram)
        else:
            _add(family, (), metric.read(telemetry))
        return family
    kind = CounterMetricFamily if isinstance(metric, CounterMetric) else GaugeMetricFamily
    numbers = kind(metric.name, metric.help, labels=metric.labels)
    for values, value in metric.read(telemetry):
        numbers.add_metric(values, value)
    return numbers


def _add(family: HistogramMetricFamily, labels: Sequence[str], histogram: Histogram) -> None:
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    family.add_metric(labels, list(zip(bounds, accumulate(histogram.counts), strict=True)), histogram.sum)
