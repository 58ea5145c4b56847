"""What a bridge counts."""

from __future__ import annotations

from collections import Counter

from liveness.telemetry.histogram import LATENCY_BUCKETS_S, Histogram
from liveness.telemetry.metric_types import (
    CounterMetric,
    GaugeMetric,
    HistogramMetric,
    Metric,
    Values,
    single_value,
)

POLL, EAGER = "poll", "eager"
"""What handed an attempt out: the answer of a poll, or that of a completed workflow task."""


class BridgeStatistics:
    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        """By method and status code."""
        self.added_s = Histogram(LATENCY_BUCKETS_S)
        """What the bridge adds to a call beside the time that it waits for Temporal."""
        self.bindings: Counter[str] = Counter()
        """By POLL and EAGER."""
        self.unrecorded: Counter[str] = Counter()
        """Hand-outs that were released without a record, by reason."""
        self.rescues: Counter[str] = Counter()
        """By outcome."""
        self.rescues_refused = 0
        """Answers by which Temporal refused a rescue; it is tried again, and finally fails."""
        self.rescues_waiting = 0
        """Rescues that this bridge has taken, and holds until Temporal is back."""
        self.failed_back = 0
        """Answers of polls whose client was gone, given back at once."""
        self.hints: Counter[str] = Counter()
        self.workers = 0
        self.held = 0


def _by_reason(counter: Counter[str]) -> Values:
    for reason, count in sorted(counter.items()):
        yield (reason,), count


def _calls(statistics: BridgeStatistics) -> Values:
    yield from sorted(statistics.calls.items())


METRICS: tuple[Metric[BridgeStatistics], ...] = (
    CounterMetric(
        "liveness_bridge_calls_total",
        "Calls passed on to Temporal, by method and status.",
        ("method", "code"),
        _calls,
    ),
    HistogramMetric(
        "liveness_bridge_added_seconds",
        "Time that the bridge added to a call.",
        lambda statistics: statistics.added_s,
    ),
    CounterMetric(
        "liveness_bridge_bindings_total",
        "Hand-outs that were recorded before their answer was released, by what handed out: poll or eager.",
        ("source",),
        lambda statistics: _by_reason(statistics.bindings),
    ),
    CounterMetric(
        "liveness_bridge_unrecorded_total",
        "Hand-outs that were released without a record, by reason.",
        ("reason",),
        lambda statistics: _by_reason(statistics.unrecorded),
    ),
    CounterMetric(
        "liveness_bridge_rescues_total",
        "Lost attempts that this bridge dealt with, by outcome.",
        ("outcome",),
        lambda statistics: _by_reason(statistics.rescues),
    ),
    CounterMetric(
        "liveness_bridge_rescues_refused_total",
        "Refusals of a rescue by Temporal.",
        (),
        single_value(lambda statistics: statistics.rescues_refused),
    ),
    GaugeMetric(
        "liveness_bridge_rescues_waiting",
        "Rescues that wait because Temporal does not answer.",
        (),
        single_value(lambda statistics: statistics.rescues_waiting),
    ),
    CounterMetric(
        "liveness_bridge_failed_back_total",
        "Answers of polls whose client was gone, given back to Temporal at once.",
        (),
        single_value(lambda statistics: statistics.failed_back),
    ),
    CounterMetric(
        "liveness_bridge_hints_total",
        "Leases that were shortened, by what made the worker suspect.",
        ("reason",),
        lambda statistics: _by_reason(statistics.hints),
    ),
    GaugeMetric(
        "liveness_bridge_workers",
        "Workers that called through this bridge.",
        (),
        single_value(lambda statistics: statistics.workers),
    ),
    GaugeMetric(
        "liveness_bridge_held_activities",
        "Activities that these workers hold.",
        (),
        single_value(lambda statistics: statistics.held),
    ),
)
