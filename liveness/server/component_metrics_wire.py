"""The only mapping between messages about components' metrics and the values of the store."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from liveness.domain.errors import InvalidField
from liveness.server.validation import check_count, duration_ms, optional_identifier, timestamp_ns
from liveness.server.wire import timestamp
from liveness.slices import in_slices
from liveness.store.component_metrics import MetricType, Point, Sample, Series, SeriesFilter, Steps
from liveness.v1 import component_metrics_service_pb2 as pb

SAMPLES_MAX = 1_000
SAMPLES_PER_SLICE = 50
LABELS_MAX = 16
NAME_CHARS_MAX = 200
LABEL_CHARS_MAX = 100
UNIT_BYTES_MAX = 63
HELP_BYTES_MAX = 1_024
VALUE_MAX = 1e200
"""Sums of values must stay finite."""
PAST_MS_MAX = 3_600_000
AHEAD_MS_MAX = 60_000
RANGE_MS_DEFAULT = 3_600_000
POINTS_MAX = 1_000
POINTS_DEFAULT = 300

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]*")
_TYPES = {0: MetricType.GAUGE, **{int(each): each for each in MetricType}}


# -- from messages


async def samples(messages: Sequence[pb.MetricSample], now_ms: int) -> list[Sample]:
    """In slices: samples may have thousands of labels together."""
    if not messages:
        raise InvalidField(field="samples", rule="must have at least one element")
    check_count("samples", messages, SAMPLES_MAX)
    found: list[Sample] = []
    types: dict[tuple[str, str], MetricType] = {}
    async for index, message in in_slices(enumerate(messages), SAMPLES_PER_SLICE):
        sample = _sample(f"samples[{index}]", message, now_ms)
        found.append(sample)
        if types.setdefault((sample.name, sample.labels), sample.type) is not sample.type:
            rule = "differs from the type of another sample of the same series"
            raise InvalidField(field=f"samples[{index}].type", rule=rule)
    return found


def _sample(field: str, message: pb.MetricSample, now_ms: int) -> Sample:
    value = message.value
    if not -VALUE_MAX <= value <= VALUE_MAX:  # nor NaN
        rule = f"must be a number between -{VALUE_MAX:g} and {VALUE_MAX:g}"
        raise InvalidField(field=f"{field}.value", rule=rule)
    return Sample(
        _name(f"{field}.name", message.name, NAME_CHARS_MAX),
        _labels(f"{field}.labels", message.labels),
        _type(f"{field}.type", int(message.type)),
        _short_text(f"{field}.unit", message.unit, UNIT_BYTES_MAX),
        _short_text(f"{field}.help", message.help, HELP_BYTES_MAX),
        _sample_time(f"{field}.time", message, now_ms),
        value,
    )


def _name(field: str, value: str, chars_max: int) -> str:
    if not value:
        raise InvalidField(field=field, rule="must be set")
    if len(value) > chars_max or not _NAME.fullmatch(value):
        rule = f"must be a letter or _, then letters, digits and _ . : / -, at most {chars_max} of them"
        raise InvalidField(field=field, rule=rule)
    return value


def _labels(field: str, labels: Mapping[str, str]) -> str:
    if not labels:
        return "{}"
    check_count(field, labels, LABELS_MAX)
    for name, value in labels.items():
        _label(field, name, value)
    return json.dumps(dict(sorted(labels.items())), ensure_ascii=False, separators=(",", ":"))


def _label(field: str, name: str, value: str) -> None:
    _name(f"a name in {field}", name, LABEL_CHARS_MAX)
    optional_identifier(f"{field}[{name}]", value)


def _type(field: str, number: int) -> MetricType:
    if number not in _TYPES:
        raise InvalidField(field=field, rule="must be GAUGE or COUNTER")
    return _TYPES[number]


def _short_text(field: str, value: str, bytes_max: int) -> str:
    if len(value.encode()) > bytes_max:
        raise InvalidField(field=field, rule=f"must be at most {bytes_max} bytes of UTF-8")
    return optional_identifier(field, value) if bytes_max == UNIT_BYTES_MAX else _without_nul(field, value)


def _without_nul(field: str, value: str) -> str:
    if "\0" in value:
        raise InvalidField(field=field, rule="must not contain NUL characters")
    return value


def _sample_time(field: str, message: pb.MetricSample, now_ms: int) -> int:
    if not message.HasField("time"):
        return now_ms
    wall_ms = timestamp_ns(field, message.time) // 1_000_000
    if not now_ms - PAST_MS_MAX <= wall_ms <= now_ms + AHEAD_MS_MAX:
        raise InvalidField(
            field=field, rule="must be at most an hour old and at most a minute ahead of the server's clock"
        )
    return wall_ms


def series_filter(namespace: str, request: pb.QueryMetricsRequest) -> SeriesFilter:
    check_count("labels", request.labels, LABELS_MAX)
    for name, value in request.labels.items():
        _label("labels", name, value)
    members = [_labels("labels", {name: value})[1:-1] for name, value in sorted(request.labels.items())]
    return SeriesFilter(
        namespace=namespace,
        worker_key=optional_identifier("worker_instance_key", request.worker_instance_key),
        name=_name("name", request.name, NAME_CHARS_MAX) if request.name else "",
        labels=tuple(members),
    )


def steps(request: pb.QueryMetricsRequest, now_ms: int) -> Steps:
    """The steps that are asked for. Now is included, unless the request names an end."""
    end_ms = _wall_ms("end_time", request) if request.HasField("end_time") else now_ms + 1
    start_ms = (
        _wall_ms("start_time", request) if request.HasField("start_time") else end_ms - RANGE_MS_DEFAULT
    )
    if start_ms >= end_ms:
        raise InvalidField(field="start_time", rule="must be before end_time, which is now if it is unset")
    if not request.HasField("step"):
        return Steps(start_ms, end_ms, -(-(end_ms - start_ms) // POINTS_DEFAULT))
    found = Steps(start_ms, end_ms, duration_ms("step", request.step))
    if found.step_count > POINTS_MAX:
        shortest_ms = -(-(end_ms - start_ms) // POINTS_MAX)
        raise InvalidField(
            field="step",
            rule=f"must be at least {shortest_ms} ms in this range of time, since a series has at most {POINTS_MAX} points",
        )
    return found


def _wall_ms(field: str, request: pb.QueryMetricsRequest) -> int:
    return max(0, timestamp_ns(field, getattr(request, field)) // 1_000_000)  # no sample is older than 1970


# -- to messages


class SeriesWithPoints(NamedTuple):
    series: Series
    points: Sequence[Point]


def series_message(found: SeriesWithPoints) -> pb.MetricSeries:
    series = found.series
    is_counter = series.type is MetricType.COUNTER
    return pb.MetricSeries(
        worker_instance_key=series.worker_key,
        name=series.name,
        type=pb.MetricType.ValueType(int(series.type)),
        labels=json.loads(series.labels),
        unit=series.unit,
        help=series.help,
        points=[
            pb.MetricSeries.Point(
                time=timestamp(point.wall_ms),
                value=point.last if is_counter else point.average,
                min=point.low,
                max=point.high,
                last_sample_time=timestamp(point.last_wall_ms) if is_counter else None,
            )
            for point in found.points
        ],
    )
