"""`liveness metrics`: report numbers about a component, and show what components have reported."""

from __future__ import annotations

import math
from collections.abc import Mapping

import click

from liveness.cli.client import Client, Milliseconds, client_command, limit_option
from liveness.cli.fleet.sparkline import sparkline
from liveness.cli.output import print_json_array, print_note, print_table
from liveness.cli.shared_options import SharedOptionsGroup
from liveness.clock import SystemClock
from liveness.v1 import component_metrics_service_pb2 as pb

CHART_WIDTH = 30
SINCE_MS_DEFAULT = 3_600_000
COLUMNS = ("component", "metric", "labels", "last", "least", "most", "over time")
NOTHING = "Nothing was reported in namespace {} in that time; components report with `worker.metrics(...)` or `liveness metrics report`."


class NamedValue(click.ParamType[tuple[str, float]]):
    name = "NAME=VALUE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        name, _, number = str(value).rpartition("=")
        try:
            return name, float(number)
        except ValueError:
            self.fail(f"{value!r} is not NAME=VALUE with a number, such as queue_depth=17.", param, ctx)


class Label(click.ParamType[tuple[str, str]]):
    name = "NAME=VALUE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        name, separator, text = str(value).partition("=")
        if not separator:
            self.fail(f"{value!r} is not NAME=VALUE, such as queue=gpu.", param, ctx)
        return name, text


@click.group(cls=SharedOptionsGroup)
def metrics() -> None:
    """Report and query numbers that components report about themselves.

    The server keeps them for some days; docs/component-metrics.md says when to use Prometheus instead.

    \b
    Examples:
      liveness metrics report worker-1 queue_depth=17
      liveness metrics query --worker worker-1
    """


@metrics.command()
@click.argument("worker", metavar="WORKER")
@click.argument("values", metavar="NAME=VALUE...", type=NamedValue(), nargs=-1, required=True)
@click.option("--counter", is_flag=True, help="They are totals that only rise.")
@click.option(
    "--label", "labels", type=Label(), multiple=True, help="A label of all of them; may be repeated."
)
@click.option("--unit", default="", help="The unit of all of them, such as s or bytes.")
@client_command()
def report(
    client: Client,
    *,
    worker: str,
    values: tuple[tuple[str, float], ...],
    counter: bool,
    labels: tuple[tuple[str, str], ...],
    unit: str,
    as_json: bool,
) -> None:
    """Report numbers about the component with the instance key WORKER, all or none.

    The component need not be registered.

    \b
    Examples:
      liveness metrics report worker-1 queue_depth=17 cpu_percent=81.5
      liveness metrics report worker-1 --counter --label table=orders rows_total=1200
    """
    kind = pb.METRIC_TYPE_COUNTER if counter else pb.METRIC_TYPE_GAUGE
    samples = [
        pb.MetricSample(name=name, value=value, type=kind, labels=dict(labels), unit=unit)
        for name, value in values
    ]
    request = pb.ReportMetricsRequest(namespace=client.namespace, worker_instance_key=worker, samples=samples)
    stored = client.call(client.metrics.ReportMetrics, request)
    if as_json:
        print_json_array([stored])
    else:
        print_note(f"Stored {stored.stored_samples} of {worker}.")


@metrics.command()
@click.option("--worker", metavar="KEY", default="", help="Only this component.")
@click.option("--name", metavar="NAME", default="", help="Only metrics of this name.")
@click.option("--label", "labels", type=Label(), multiple=True, help="Only with this label; may be repeated.")
@click.option(
    "--since",
    type=Milliseconds(),
    default="1h",
    show_default=True,
    help="How far back, for instance 30m or 7d.",
)
@click.option("--step", type=Milliseconds(), help="Merge samples over this time.  [default: 300 points]")
@limit_option
@client_command()
def query(
    client: Client,
    *,
    worker: str,
    name: str,
    labels: tuple[tuple[str, str], ...],
    since: int,
    step: int | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show series of metrics, each with a chart of its values.

    Samples are averaged over steps; of counters, which only rise, the last one counts.

    \b
    Examples:
      liveness metrics query --name queue_depth --label queue=gpu
      liveness metrics query --worker worker-1 --since 1d
      liveness metrics query --since 10m --step 10s --json | jq '.[].points[-1].value'
    """
    end_ms = SystemClock().wall_ms() + 1
    start_ms = max(0, end_ms - since)
    request = pb.QueryMetricsRequest(
        namespace=client.namespace, worker_instance_key=worker, name=name, labels=dict(labels)
    )
    request.start_time.FromMilliseconds(start_ms)
    request.end_time.FromMilliseconds(end_ms)
    if step is not None:
        request.step.FromMilliseconds(step)
    found = client.list_all(client.metrics.QueryMetrics, request, lambda answer: answer.series, limit)
    if as_json:
        print_json_array(found)
        return
    rows = [_row(series, start_ms, end_ms) for series in found]
    if rows:
        print_table(COLUMNS, rows)
    else:
        print_note(NOTHING.format(client.namespace))


def _row(series: pb.MetricSeries, start_ms: int, end_ms: int) -> tuple[object, ...]:
    points = series.points
    return (
        series.worker_instance_key,
        series.name,
        _labels_text(series.labels),
        f"{_number(points[-1].value)} {series.unit}".rstrip(),
        _number(min(point.min for point in points)),
        _number(max(point.max for point in points)),
        _chart(series, start_ms, end_ms),
    )


def _labels_text(labels: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(labels.items()))


def _number(value: float) -> str:
    return f"{value:.0f}" if value == math.floor(value) and abs(value) < 1e15 else f"{value:.6g}"


def _chart(series: pb.MetricSeries, start_ms: int, end_ms: int) -> str:
    """The averages over equal parts of the time; of a counter, how much it rose in each."""
    parts: list[list[float]] = [[] for _ in range(CHART_WIDTH)]
    before = series.points[0].value
    for point in series.points:
        at = (point.time.ToMilliseconds() - start_ms) * CHART_WIDTH // (end_ms - start_ms)
        value = point.value
        if series.type == pb.METRIC_TYPE_COUNTER:
            # A total that is lower than before has started anew.
            value, before = (value - before if value >= before else value), value
        parts[min(max(at, 0), CHART_WIDTH - 1)].append(value)
    is_counter = series.type == pb.METRIC_TYPE_COUNTER
    means = [None if not part else sum(part) if is_counter else sum(part) / len(part) for part in parts]
    low = min((mean for mean in means if mean is not None), default=0.0)
    # The bars begin at 0, or at the least value if that is below.
    return sparkline([None if mean is None else mean - min(low, 0.0) for mean in means], CHART_WIDTH)
