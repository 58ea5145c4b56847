"""What the fleet's samples come to: a number for now, and a line for the last minutes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from liveness.cli.durations import to_ms
from liveness.cli.fleet.reading import RANGE_MS
from liveness.v1.fleet_pb2 import FleetSample, GetFleetResponse

NOW_MS = 10_000
"""A rate is taken over so long, or it would only jump about."""
MINUTE_MS = 60_000
SHORTEST_MS = 2 * MINUTE_MS
"""Of a server that has just begun, not all of the line stays empty."""


class Figure(NamedTuple):
    name: str
    now: str
    history: Sequence[float | None]
    """Evenly spaced, the newest last; None where nobody counted."""
    alarming: bool = False


def figures(fleet: GetFleetResponse) -> list[Figure]:
    interval_ms = to_ms(fleet.interval) or 1
    slots = _slots(fleet, interval_ms)
    recent = _last(slots, NOW_MS // interval_ms)
    minute = _last(slots, MINUTE_MS // interval_ms)
    newest = next(reversed(_last(slots, len(slots))), FleetSample())
    heartbeats = sum(sample.heartbeats for sample in recent) * 1_000 / (len(recent) * interval_ms or 1)
    refused = sum(sample.refused_heartbeats for sample in recent)
    timed = next((sample for sample in reversed(recent) if sample.heartbeats and sample.latency_p99_ms), None)
    expiries = sum(sample.expiries for sample in minute)
    reschedules = sum(sample.reschedules for sample in minute)

    def line(of: Callable[[FleetSample], float]) -> list[float | None]:
        return [None if sample is None else of(sample) for sample in slots]

    return [
        Figure(
            "heartbeats",
            f"{_rounded(heartbeats)}/s" + (f", {refused} refused" if refused else ""),
            line(lambda sample: sample.heartbeats),
            alarming=refused > 0,
        ),
        Figure(
            "p50, p99",
            f"{_ms(timed.latency_p50_ms)}, {_ms(timed.latency_p99_ms)} ms" if timed is not None else "–",
            line(lambda sample: sample.latency_p99_ms),
        ),
        Figure("active", f"{newest.active:,}", line(lambda sample: sample.active)),
        Figure("expiries", f"{expiries:,}/min", line(lambda sample: sample.expiries), alarming=expiries > 0),
        Figure("reschedules", f"{reschedules:,}/min", line(lambda sample: sample.reschedules)),
        Figure("queue", f"{newest.queue_depth:,}", line(lambda sample: sample.queue_depth)),
    ]


def _slots(fleet: GetFleetResponse, interval_ms: int) -> list[FleetSample | None]:
    """The whole range, so that a gap is a gap and what is older stands further left."""
    slots: list[FleetSample | None] = [None] * (RANGE_MS // interval_ms)
    for sample in fleet.samples:
        age_ms = fleet.time.ToMilliseconds() - sample.time.ToMilliseconds()
        place = len(slots) - 1 - age_ms // interval_ms
        if 0 <= place < len(slots):
            slots[place] = sample
    begun = next((place for place, sample in enumerate(slots) if sample is not None), len(slots))
    return slots[min(begun, len(slots) - min(SHORTEST_MS // interval_ms, len(slots))) :]


def _last(slots: Sequence[FleetSample | None], how_many: int) -> list[FleetSample]:
    return [sample for sample in slots[-max(how_many, 1) :] if sample is not None]


def _rounded(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}"


def _ms(ms: float) -> str:
    return f"{ms:,.0f}" if ms >= 10 else f"{ms:.1f}"
