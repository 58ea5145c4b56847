"""Numbers that components report about themselves, and queries over them."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from liveness.sdk.connection import Connection, uncancellable_future
from liveness.sdk.errors import LivenessSdkError, ServerAway
from liveness.sdk.rpc_failures import RpcFailed, RpcFailure, worker_error
from liveness.v1 import component_metrics_service_pb2 as pb

REPORT_TIMEOUT_SECONDS = 10.0


class MetricPoint(NamedTuple):
    """The samples of a series within one step."""

    time: datetime
    """The beginning of the step."""
    value: float
    """Their average; of a counter, the last one."""
    min: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSeries:
    """Samples of one component with the same name and labels."""

    worker: str
    """Its instance key."""
    name: str
    is_counter: bool
    labels: Mapping[str, str]
    unit: str
    help: str
    points: tuple[MetricPoint, ...]
    """Oldest first."""


def report_request(
    namespace: str,
    worker: str,
    gauges: Mapping[str, float],
    counters: Mapping[str, float],
    labels: Mapping[str, str] | None,
) -> pb.ReportMetricsRequest:
    kinds = ((pb.METRIC_TYPE_GAUGE, gauges), (pb.METRIC_TYPE_COUNTER, counters))
    return pb.ReportMetricsRequest(
        namespace=namespace,
        worker_instance_key=worker,
        samples=[
            pb.MetricSample(name=name, value=value, type=kind, labels=labels or {})
            for kind, values in kinds
            for name, value in values.items()
        ],
    )


def report_metrics(
    connection: Connection, request: pb.ReportMetricsRequest, timeout_s: float = REPORT_TIMEOUT_SECONDS
) -> Future[None]:
    """Report until it succeeds or is refused: samples that a lost answer hides may be stored twice, with equal values."""
    deadline_ms = connection.clock.monotonic_ms() + int(timeout_s * 1_000)
    answer = connection.call(
        lambda endpoint: endpoint.metrics.ReportMetrics,
        request,
        timeout_s=connection.call_timeout_s(timeout_s),
        deadline_ms=deadline_ms,
        should_retry=lambda rpc_failure: rpc_failure.is_retryable,
    )
    outcome: Future[None] = uncancellable_future()

    def on_done(done: Future[Any]) -> None:
        error = done.exception()
        if error is None:
            outcome.set_result(None)
        elif isinstance(error, RpcFailed):
            outcome.set_exception(
                metrics_error(error.rpc_failure, "ReportMetrics", connection.address, request.namespace)
            )
        else:
            outcome.set_exception(error)

    answer.add_done_callback(on_done)
    return outcome


def metrics_error(
    rpc_failure: RpcFailure, call: str, address: str, namespace: str, worker: str = ""
) -> LivenessSdkError:
    if rpc_failure.is_retryable and not rpc_failure.reason:
        return ServerAway(address=address, detail=str(rpc_failure))
    return worker_error(rpc_failure, call, address=address, namespace=namespace, worker=worker)


def series_from_proto(message: pb.MetricSeries) -> MetricSeries:
    return MetricSeries(
        worker=message.worker_instance_key,
        name=message.name,
        is_counter=message.type == pb.METRIC_TYPE_COUNTER,
        labels=dict(message.labels),
        unit=message.unit,
        help=message.help,
        points=tuple(
            MetricPoint(point.time.ToDatetime(tzinfo=UTC), point.value, point.min, point.max)
            for point in message.points
        ),
    )
