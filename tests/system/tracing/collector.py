"""A collector: a real gRPC server of OTLP that keeps the spans and metrics that it receives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Condition
from typing import Any, NamedTuple

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

SECONDS_MAX = 60


class SpanRecord(NamedTuple):
    """A span, and the service that sent it."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    """Empty for the first span of a trace."""
    attributes: dict[str, str | int]
    failed: bool


Spans = list[SpanRecord]


class MetricRecord(NamedTuple):
    component: str
    """NAMESPACE/KEY."""
    metric: Metric


class _Metrics(MetricsServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def Export(self, request: ExportMetricsServiceRequest, context: Any) -> ExportMetricsServiceResponse:
        for part in request.resource_metrics:
            about = _values(part.resource.attributes)
            component = f"{about['service.namespace']}/{about['service.instance.id']}"
            for scope in part.scope_metrics:
                self._collector.metrics += [MetricRecord(component, metric) for metric in scope.metrics]
        return ExportMetricsServiceResponse()


class Collector(TraceServiceServicer):
    def __init__(self) -> None:
        self.url = ""
        self.metrics: list[MetricRecord] = []
        self._spans: Spans = []
        self._more = Condition()

    def Export(self, request: ExportTraceServiceRequest, context: Any) -> ExportTraceServiceResponse:
        with self._more:
            for part in request.resource_spans:
                service = _values(part.resource.attributes)["service.name"]
                for scope in part.scope_spans:
                    self._spans += [_told(str(service), span) for span in scope.spans]
            self._more.notify_all()
        return ExportTraceServiceResponse()

    @property
    def spans(self) -> Spans:
        with self._more:
            return list(self._spans)

    def until(self, wanted: Callable[[Spans], Spans]) -> Spans:
        """Wait until `wanted`, called with all spans, returns something, and return that."""
        with self._more:
            assert self._more.wait_for(lambda: wanted(self._spans), SECONDS_MAX), self._spans
            return wanted(self._spans)


def _told(service: str, span: Span) -> SpanRecord:
    return SpanRecord(
        service=service,
        name=span.name,
        kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        attributes=_values(span.attributes),
        failed=span.status.code == 2,
    )


def _values(attributes: Any) -> dict[str, str | int]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


def chain(spans: Spans, last: SpanRecord) -> Spans:
    """Return the spans from the first of its trace to this one."""
    by_id = {span.span_id: span for span in spans if span.trace_id == last.trace_id}
    found = [last]
    while (parent := by_id.get(found[0].parent_id)) is not None:
        found.insert(0, parent)
    return found


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(4))
    add_TraceServiceServicer_to_server(collector, server)
    add_MetricsServiceServicer_to_server(_Metrics(collector), server)
    collector.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()
