"""The kinds of metrics. `SourceT` is what they are read from: the telemetry of a server or of a frontend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

from liveness.telemetry.histogram import Histogram

T = TypeVar("T")
SourceT = TypeVar("SourceT", contravariant=True)

Values = Iterator[tuple[tuple[str, ...], float]]
"""Pairs of label values and number."""


class CounterMetric(NamedTuple, Generic[SourceT]):
    """Never decreases; 0 when the server starts."""

    name: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[SourceT], Values]


class GaugeMetric(NamedTuple, Generic[SourceT]):
    """A present value."""

    name: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[SourceT], Values]


class HistogramMetric(NamedTuple, Generic[SourceT]):
    name: str
    help: str
    read: Callable[[SourceT], Histogram]


class LabelledHistogramMetric(NamedTuple, Generic[SourceT]):
    name: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[SourceT], Iterator[tuple[tuple[str, ...], Histogram]]]


Metric = CounterMetric[T] | GaugeMetric[T] | HistogramMetric[T] | LabelledHistogramMetric[T]


def single_value(read: Callable[[T], float]) -> Callable[[T], Values]:
    def values(telemetry: T) -> Values:
        yield (), read(telemetry)

    return values
