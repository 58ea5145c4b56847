"""Exports the metrics of the server and of the process in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from liveness.telemetry.metrics import METRICS, CounterMetric, HistogramMetric, Metric
from liveness.telemetry.telemetry import Telemetry


class PrometheusExporter(Collector):
    """Has its own registry, because one process may run several servers."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def describe(self) -> Iterable[Family]:
        """Empty, so that registering this collector reads no metrics."""
        return []

    def collect(self) -> Iterable[Family]:
        for metric in METRICS:
            yield _family(metric, self._telemetry)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Returns the text and its content type. `accept`: the Accept header of the request."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


def _family(metric: Metric, telemetry: Telemetry) -> Family:
    if isinstance(metric, HistogramMetric):
        histogram = metric.read(telemetry)
        bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
        family = HistogramMetricFamily(metric.name, metric.help)
        family.add_metric((), list(zip(bounds, accumulate(histogram.counts), strict=True)), histogram.sum)
        return family
    kind = CounterMetricFamily if isinstance(metric, CounterMetric) else GaugeMetricFamily
    numbers = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in metric.read(telemetry):
        numbers.add_metric(labels, value)
    return numbers
