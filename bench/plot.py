"""Small SVG charts: bars and lines on logarithmic axes, legible on a light and on a dark background."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH = 720
LEFT, RIGHT, TOP = 76, 24, 56
COLOURS = ("#3b82f6", "#f59e0b", "#10b981", "#a855f7", "#ef4444")
"""Bright enough for a dark background and dark enough for a light one."""
STYLE = """\
<style>
text { font: 12px system-ui, sans-serif; fill: #1f2937 }
.title { font-size: 15px; font-weight: 600 }
.faint { fill: #6b7280 }
.grid { stroke: #d1d5db; stroke-width: 1 }
.ground { fill: #ffffff }
@media (prefers-color-scheme: dark) {
  text { fill: #e5e7eb }
  .faint { fill: #9ca3af }
  .grid { stroke: #374151 }
  .ground { fill: #111827 }
}
</style>"""


class Bar(NamedTuple):
    label: str
    value: float
    low: float
    high: float
    group: int = 0
    """The index of its colour."""


class Line(NamedTuple):
    name: str
    points: Sequence[tuple[float, float, float, float]]
    """x, y, and the lowest and highest y."""


def short(value: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def decades(low: float, high: float) -> list[float]:
    return [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]


class Scale:
    """Maps values to positions, logarithmically, over whole decades."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        low, high = min(values), max(values)
        self.ticks = decades(low, high if high > low else low * 10)
        self._start, self._end = start, end
        self._low, self._high = math.log10(self.ticks[0]), math.log10(self.ticks[-1])

    def __call__(self, value: float) -> float:
        part = (math.log10(value) - self._low) / (self._high - self._low)
        return self._start + part * (self._end - self._start)


def picture(title: str, subtitle: str, height: int, body: Sequence[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
            f"<title>{escape(title)}</title>",
            STYLE,
            f'<rect class="ground" width="{WIDTH}" height="{height}" rx="8"/>',
            f'<text class="title" x="16" y="26">{escape(title)}</text>',
            f'<text class="faint" x="16" y="44">{escape(subtitle)}</text>',
            *body,
            "</svg>",
            "",
        ]
    )


def bars(title: str, unit: str, given: Sequence[Bar], groups: Sequence[str]) -> str:
    """Draw horizontal bars, each with a whisker from the lowest to the highest round."""
    step, left = 22, 250
    bottom = TOP + 12 + step * len(given)
    # Starts a decade below the smallest value, so that its bar is visible.
    across = Scale([min(bar.low for bar in given) / 3, *(bar.high for bar in given)], left, WIDTH - 70)
    body = _grid_down(across, TOP, bottom)
    for index, bar in enumerate(given):
        y = TOP + 10 + step * index
        colour = COLOURS[bar.group % len(COLOURS)]
        end = across(bar.value)
        body += [
            f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{escape(bar.label)}</text>',
            f'<rect x="{left}" y="{y}" width="{end - left:.1f}" height="15" rx="2" fill="{colour}"/>',
            (
                f'<line x1="{across(bar.low):.1f}" x2="{across(bar.high):.1f}" y1="{y + 7.5}" y2="{y + 7.5}" '
                'stroke="#6b7280" stroke-width="2"/>'
            ),
            f'<text x="{across(bar.high) + 6:.1f}" y="{y + 12}">{short(bar.value)}</text>',
        ]
    body += _legend(groups, bottom + 34)
    return picture(
        title, f"{unit}, logarithmic; the line is from the lowest round to the highest", bottom + 48, body
    )


def lines(title: str, across_unit: str, unit: str, given: Sequence[Line]) -> str:
    bottom = 330
    points = [point for line in given for point in line.points]
    across = Scale([point[0] for point in points], LEFT, WIDTH - RIGHT - 30)
    up = Scale([value for point in points for value in point[2:]], bottom, TOP + 10)
    body = _grid_down(across, TOP + 10, bottom)
    for tick in up.ticks:
        y = up(tick)
        body += [
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>',
            f'<text class="faint" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{short(tick)}</text>',
        ]
    for number, line in enumerate(given):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y, _, _ in line.points)
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y, low, high in line.points:
            body += [
                (
                    f'<line x1="{across(x):.1f}" x2="{across(x):.1f}" y1="{up(low):.1f}" y2="{up(high):.1f}" '
                    f'stroke="{colour}" stroke-width="5" stroke-opacity="0.35"/>'
                ),
                f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3.5" fill="{colour}"/>',
                f'<text x="{across(x):.1f}" y="{up(y) - 8:.1f}" text-anchor="middle">{short(y)}</text>',
            ]
    body.append(
        f'<text class="faint" x="{(LEFT + WIDTH) / 2}" y="{bottom + 34}" text-anchor="middle">{escape(across_unit)}</text>'
    )
    names = [line.name for line in given] if len(given) > 1 else []
    body += _legend(names, bottom + 54)
    return picture(title, f"{unit}; both axes logarithmic", bottom + (68 if names else 48), body)


def _grid_down(across: Scale, top: float, bottom: float) -> list[str]:
    body = []
    for tick in across.ticks:
        x = across(tick)
        body += [
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>',
            f'<text class="faint" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{short(tick)}</text>',
        ]
    return body


def _legend(names: Sequence[str], y: float) -> list[str]:
    body, x = [], 16.0
    for number, name in enumerate(names):
        colour = COLOURS[number % len(COLOURS)]
        body += [
            f'<rect x="{x}" y="{y - 10}" width="12" height="12" rx="2" fill="{colour}"/>',
            f'<text x="{x + 18}" y="{y}">{escape(name)}</text>',
        ]
        x += 36 + 6.6 * len(name)
    return body


def flames(title: str, subtitle: str, stacks: Mapping[tuple[str, ...], int]) -> str:
    """Draw time by call stack, callers below; hovering shows the name and the share."""
    total = sum(stacks.values())
    deepest = max(len(stack) for stack in stacks)
    step, top = 16, TOP
    body: list[str] = []

    def draw(depth: int, within: list[tuple[tuple[str, ...], int]], x: float) -> None:
        parts: dict[str, list[tuple[tuple[str, ...], int]]] = {}
        for stack, samples in within:
            if len(stack) > depth:
                parts.setdefault(stack[depth], []).append((stack, samples))
        for name, own in sorted(parts.items()):
            samples = sum(samples for _, samples in own)
            width = samples / total * (WIDTH - 32)
            if width >= 0.8:  # narrower boxes are invisible
                y = top + (deepest - depth - 1) * step
                body.extend(_flame(name, x, y, width, samples / total))
                draw(depth + 1, own, x)
            x += width

    draw(0, list(stacks.items()), 16)
    return picture(title, subtitle, top + deepest * step + 16, body)


def _flame(name: str, x: float, y: float, width: float, part: float) -> list[str]:
    # The same function has the same warm colour in all charts.
    hue = 8 + sum(map(ord, name.partition(":")[0])) % 45
    letters = int((width - 4) / 6)
    label = name.rpartition(":")[2] if len(name) > letters else name
    label = label if len(label) <= letters else label[: max(0, letters - 1)] + "…" if letters > 3 else ""
    drawn = [
        (
            f"<g><title>{escape(name)}: {part:.1%}</title>"
            f'<rect x="{x:.1f}" y="{y}" width="{max(0.5, width - 0.5):.1f}" height="15" rx="1" fill="hsl({hue} 85% 62%)"/>'
        )
    ]
    if label:
        drawn.append(
            f'<text x="{x + 3:.1f}" y="{y + 11}" style="font-size:9.5px;fill:#1f2937">{escape(label)}</text>'
        )
    drawn.append("</g>")
    return drawn
