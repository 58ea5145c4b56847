"""Compute the figures of the fleet from its samples: a current value, and a history of the last minutes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from liveness.cli.durations import to_ms
from liveness.cli.fleet.reader import RANGE_MS
from liveness.v1.fleet_pb2 import FleetSample, GetFleetResponse

RATE_WINDOW_MS = 10_000
"""Rates are averaged over this window; shorter ones would jump."""
MINUTE_MS = 60_000
HISTORY_MS_MIN = 2 * MINUTE_MS
"""The shortest history drawn, so that the chart of a new server is not almost empty."""


class Stat(NamedTuple):
    name: str
    value_text: str
    history: Sequence[float | None]
    """Evenly spaced, the newest last; None where there is no sample."""
    is_alarming: bool = False


def stats(fleet: GetFleetResponse) -> list[Stat]:
    interval_ms = to_ms(fleet.interval) or 1
    slots = _slots(fleet, interval_ms)
    recent = _last_samples(slots, RATE_WINDOW_MS // interval_ms)
    minute = _last_samples(slots, MINUTE_MS // interval_ms)
    newest = next(reversed(_last_samples(slots, len(slots))), FleetSample())
    heartbeats = sum(sample.heartbeats for sample in recent) * 1_000 / (len(recent) * interval_ms or 1)
    refused = sum(sample.refused_heartbeats for sample in recent)
    latest_timed = next(
        (sample for sample in reversed(recent) if sample.heartbeats and sample.latency_p99_ms), None
    )
    expiries = sum(sample.expiries for sample in minute)
    reschedules = sum(sample.reschedules for sample in minute)

    def history_of(of: Callable[[FleetSample], float]) -> list[float | None]:
        return [None if sample is None else of(sample) for sample in slots]

    return [
        Stat(
            "heartbeats",
            f"{_format_rate(heartbeats)}/s" + (f", {refused} refused" if refused else ""),
            history_of(lambda sample: sample.heartbeats),
            is_alarming=refused > 0,
        ),
        Stat(
            "p50, p99",
            f"{_format_latency(latest_timed.latency_p50_ms)}, {_format_latency(latest_timed.latency_p99_ms)} ms"
            if latest_timed is not None
            else "–",
            history_of(lambda sample: sample.latency_p99_ms),
        ),
        Stat("active", f"{newest.active:,}", history_of(lambda sample: sample.active)),
        Stat(
            "expiries",
            f"{expiries:,}/min",
            history_of(lambda sample: sample.expiries),
            is_alarming=expiries > 0,
        ),
        Stat("reschedules", f"{reschedules:,}/min", history_of(lambda sample: sample.reschedules)),
        Stat(
            "waiting",
            f"{newest.available_activities:,}, {newest.queue_depth:,} tasks",
            history_of(lambda sample: sample.available_activities + sample.queue_depth),
            is_alarming=any(namespace.unpolled_activities for namespace in fleet.namespaces),
        ),
    ]


def _slots(fleet: GetFleetResponse, interval_ms: int) -> list[FleetSample | None]:
    """The samples by time slot over the whole range; None for a slot without a sample."""
    slots: list[FleetSample | None] = [None] * (RANGE_MS // interval_ms)
    for sample in fleet.samples:
        age_ms = fleet.time.ToMilliseconds() - sample.time.ToMilliseconds()
        index = len(slots) - 1 - age_ms // interval_ms
        if 0 <= index < len(slots):
            slots[index] = sample
    first_index = next((index for index, sample in enumerate(slots) if sample is not None), len(slots))
    return slots[min(first_index, len(slots) - min(HISTORY_MS_MIN // interval_ms, len(slots))) :]


def _last_samples(slots: Sequence[FleetSample | None], count: int) -> list[FleetSample]:
    return [sample for sample in slots[-max(count, 1) :] if sample is not None]


def _format_rate(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}"


def _format_latency(ms: float) -> str:
    return f"{ms:,.0f}" if ms >= 10 else f"{ms:.1f}"
