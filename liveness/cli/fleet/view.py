"""Draw the fleet for the size of the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from liveness.cli.durations import humanize_ms
from liveness.cli.errors import escape_control
from liveness.cli.fleet.reader import REST_FACTOR, WORKERS_MAX, FleetSnapshot
from liveness.cli.fleet.sparkline import sparkline
from liveness.cli.fleet.stats import Stat, stats
from liveness.cli.fleet.view_state import SYNTAX, BadFilter, Sort, Viewport, ViewState, parse_filter
from liveness.cli.fleet.worker_table import Column, columns, sort_workers
from liveness.cli.output import enum_name
from liveness.v1.fleet_pb2 import Alert, AlertKind
from liveness.v1.worker_pb2 import Worker

ALERTS_MAX = 3
COMPACT_HEIGHT = 18
"""In a lower window, workers take precedence over figures and alerts."""
HEAD_LINES = 2
NAME_WIDTH = 11
HELP = (
    ("↑ ↓  PgUp PgDn  Home End", "move"),
    ("s  ← →", "sort by worker, state, lease left, activities"),
    ("r", "reverse the order"),
    ("/", f"filter: {SYNTAX}"),
    ("Esc", "clear the filter"),
    ("p", "pause and resume the view"),
    ("q", "quit"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    snapshot: FleetSnapshot
    view_state: ViewState
    now_ms: int
    """On the monotonic clock."""
    namespace: str
    """Empty: all namespaces."""
    error: str = ""
    """The error of the last read; empty if it succeeded."""
    fresh_ms: int = 10_000
    """A snapshot older than this is stale."""

    @property
    def server_ms(self) -> int:
        return self.snapshot.server_ms(self.now_ms)

    def workers(self) -> list[Worker]:
        view_state = self.view_state
        return sort_workers(
            self.snapshot.workers, view_state.sort, self.server_ms, reverse=view_state.reverse
        )

    @property
    def row_count(self) -> int:
        """The number of rows that can be scrolled."""
        total = self.snapshot.total
        return min(len(self.snapshot.workers) if total is None else total, WORKERS_MAX)


@dataclass(frozen=True, slots=True)
class FleetView:
    frame: Frame
    show_keys: bool = True
    """Whether to show the keys in the footer."""

    def viewport(self, width: int, height: int) -> Viewport:
        above = HEAD_LINES + len(self._stats_and_alerts(width, height))
        return Viewport(max(1, height - above - 1 - self.show_keys), self.frame.row_count)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height or options.size.height
        viewport = self.viewport(width, height)
        lines: list[RenderableType] = [*self.head(width, viewport), *self._stats_and_alerts(width, height)]
        if self.frame.view_state.help:
            lines += _help(width)[: viewport.rows + 1]
        else:
            lines.append(self._table(width, viewport))
        filled = 0
        for line in lines:
            rendered = console.render_lines(line, options.update(height=None), pad=False)
            for row in rendered[: height - self.show_keys - filled]:
                yield from row
                yield Segment.line()
                filled += 1
        if self.show_keys:
            yield from [Segment.line()] * (height - 1 - filled)
            yield from console.render_lines(self._footer(width), options.update(height=None), pad=False)[0]

    # -- above the table

    def _stats_and_alerts(self, width: int, height: int) -> list[Text]:
        """The figures and alerts that fit."""
        rows = self.stats(width)
        lines = rows if height >= COMPACT_HEIGHT else rows[:1] if height >= COMPACT_HEIGHT - 6 else []
        banners = [*self._stale_banner(), *map(_group_banner, _by_kind(self.frame.snapshot.fleet.alerts))]
        shown = banners[: ALERTS_MAX if height >= COMPACT_HEIGHT else 1]
        if len(banners) > len(shown):
            shown[-1] = shown[-1] + f"  (and {len(banners) - len(shown)} more)"
        return [*lines, *(_truncate(Text(f" {text} ", "bold white on red"), width) for text in shown)]

    def head(self, width: int, viewport: Viewport) -> list[Text]:
        return [self._title(width), self._counts(width, viewport)]

    def stats(self, width: int) -> list[Text]:
        return _stat_rows(stats(self.frame.snapshot.fleet), width)

    def _title(self, width: int) -> Text:
        frame, fleet = self.frame, self.frame.snapshot.fleet
        scope = f"namespace {frame.namespace}" if frame.namespace else "all namespaces"
        parts = [scope, frame.snapshot.address, f"{fleet.serving_shards} of {fleet.shards} shards served"]
        if fleet.nodes > 1:
            parts.append(f"{fleet.nodes} nodes")
        left = Text.assemble(("liveness top", "bold"), "  ", (escape_control("  ".join(parts)), "dim"))
        right = Text(_format_time_of_day(frame.server_ms), "bold")
        if frame.view_state.paused:
            right = Text("PAUSED", "bold black on yellow") + Text(" ") + right
        return _justify(left, right, width)

    def _counts(self, width: int, viewport: Viewport) -> Text:
        namespaces = self.frame.snapshot.fleet.namespaces
        deaths = sum(namespace.deaths for namespace in namespaces)
        false = sum(namespace.false_deaths for namespace in namespaces)
        active, dead = (sum(getattr(each, name) for each in namespaces) for name in ("active", "dead"))
        parts = [
            (active, "active", "bold green" if active else "bold red" if dead else "dim"),
            (sum(namespace.suspects for namespace in namespaces), "suspect", "bold yellow"),
            (sum(namespace.inactive for namespace in namespaces), "inactive", "red"),
            (sum(namespace.cleaned_up for namespace in namespaces), "cleaned up", "dim"),
        ]
        left = Text("  ").join(
            Text.assemble((f"{count:,}", style if count or word == "active" else "dim"), f" {word}")
            for count, word, style in parts
        )
        for word in ("successes", "errors"):
            if counted := sum(getattr(namespace, word) for namespace in namespaces):
                left.append(f"  {counted:,} {word}", "dim")
        if false:
            left.append(f"  {false:,} of {deaths:,} deaths were false", "yellow")
        if self.frame.namespace and any(namespace.paused for namespace in namespaces):
            left.append("  namespace paused", "magenta")
        return _justify(left, Text(self._position_text(viewport), "dim"), width)

    def _position_text(self, viewport: Viewport) -> str:
        """The range of visible rows, the number of read workers, and the total."""
        snapshot, view_state = self.frame.snapshot, self.frame.view_state
        if not viewport.row_count:
            return "none found" if view_state.filter or view_state.filter_input else ""
        first = min(view_state.first, viewport.first_row_max)
        seen = f"{first + 1:,}–{min(first + viewport.rows, viewport.row_count):,} of"
        if snapshot.total is not None and snapshot.total <= WORKERS_MAX:
            return f"{seen} {viewport.row_count:,}"
        total = "more" if snapshot.total is None else f"{snapshot.total:,}"
        if view_state.sort is Sort.KEY and not view_state.reverse:
            return f"{seen} the first {viewport.row_count:,} of {total}"
        return f"{seen} {len(snapshot.workers):,} sorted, of {total}"

    def banners(self) -> list[str]:
        """All alerts for the operator, the most urgent first."""
        return [*self._stale_banner(), *map(_banner, self.frame.snapshot.fleet.alerts)]

    def _stale_banner(self) -> list[str]:
        frame = self.frame
        age_ms = frame.now_ms - frame.snapshot.at_ms
        if not frame.error and age_ms <= frame.fresh_ms + (REST_FACTOR + 2) * frame.snapshot.took_ms:
            return []
        why = escape_control(frame.error or f"{frame.snapshot.address} has not answered")
        return [f"STALE for {humanize_ms(age_ms // 1_000 * 1_000)}: {why}"]

    # -- the table

    def _table(self, width: int, viewport: Viewport) -> Table:
        frame = self.frame
        shown = columns(width, with_namespace=not frame.namespace)
        table = Table(
            box=None,
            pad_edge=False,
            padding=(0, 1, 0, 0),
            expand=True,
            header_style="reverse",
            show_edge=False,
        )
        for column in shown:
            table.add_column(
                self._heading(column),
                width=column.width,
                ratio=None if column.width else 2 if column.sort else 1,
                no_wrap=True,
                overflow="ellipsis",
                justify="right" if column.right else "left",
            )
        first = min(frame.view_state.first, viewport.first_row_max)
        server_ms = frame.server_ms
        for worker in frame.workers()[first : first + viewport.rows]:
            table.add_row(*(column.cell(worker, server_ms) for column in shown))
        return table

    def _heading(self, column: Column) -> Text:
        view_state = self.frame.view_state
        if column.sort is not view_state.sort:
            return Text(column.title)
        return Text(f"{column.title}{'▲' if view_state.reverse else '▼'}", "bold")

    # -- below

    def _footer(self, width: int) -> Text:
        view_state = self.frame.view_state
        if view_state.filter_input is not None:
            line = Text.assemble(("/", "bold"), escape_control(view_state.filter_input), ("▏", "blink"))
            try:
                parse_filter(view_state.filter_input)
                line.append("   Enter applies the filter, Esc drops it", "dim")
            except BadFilter as error:
                line.append(f"   {escape_control(str(error))}", "red")
            return _truncate(line, width)
        line = Text("")
        if view_state.filter:
            line.append(f"filter {escape_control(view_state.filter)}", "bold").append("   ")
        for key, meaning in (
            ("q", "quit"),
            ("/", "filter"),
            ("s", "sort"),
            ("r", "reverse"),
            ("p", "resume" if view_state.paused else "pause"),
            ("?", "help"),
        ):
            line.append(key, "bold").append(f" {meaning}  ", "dim")
        return _truncate(line, width)


def _by_kind(alerts: Iterable[Alert]) -> list[list[Alert]]:
    """The server sends alerts of one kind one after the other."""
    return [list(same) for _, same in groupby(alerts, key=lambda alert: alert.kind)]


def _banner(alert: Alert) -> str:
    kind = enum_name(AlertKind, alert.kind).replace("_", " ")
    return f"{kind}: {escape_control(alert.message)}" if kind else escape_control(alert.message)


def _group_banner(alerts: Sequence[Alert]) -> str:
    """One line for all alerts of a kind: the first of them, and where the others are."""
    if len(alerts) == 1:
        return _banner(alerts[0])
    others = ", ".join(escape_control(alert.namespace) for alert in alerts[1:])
    kind = enum_name(AlertKind, alerts[0].kind).replace("_", " ")
    return f"{kind} ({len(alerts)}): {escape_control(alerts[0].message)} Also in: {others}"


def _stat_rows(found: Sequence[Stat], width: int) -> list[Text]:
    stats_per_line = 1 if width < 66 else 2 if width < 126 else 3
    stat_width = width // stats_per_line - 1
    value_width = max(len(stat.value_text) for stat in found)
    rows = []
    for start in range(0, len(found), stats_per_line):
        line = Text("")
        for stat in found[start : start + stats_per_line]:
            line.append(f"{stat.name:<{NAME_WIDTH}} ", "dim")
            line.append(f"{stat.value_text:<{value_width}} ", "yellow" if stat.is_alarming else "bold")
            chart_width = max(0, stat_width - NAME_WIDTH - value_width - 3)
            line.append(f"{sparkline(stat.history, chart_width):>{chart_width}}  ", "cyan")
        rows.append(_truncate(line, width))
    return rows


def _help(width: int) -> list[Text]:
    lines = [Text(""), *(Text.assemble((f"  {key:<26}", "bold"), meaning) for key, meaning in HELP)]
    return [_truncate(line, width) for line in (*lines, Text(""), Text("  Press any key to go back.", "dim"))]


def _justify(left: Text, right: Text, width: int) -> Text:
    """One line with text at both ends. If they do not fit, the left text is cut."""
    room = max(0, width - right.cell_len - (2 if right.cell_len else 0))
    left = _truncate(left, room)
    return _truncate(left + Text(" " * (width - left.cell_len - right.cell_len)) + right, width)


def _truncate(line: Text, width: int) -> Text:
    line.no_wrap = True
    line.truncate(max(width, 0), overflow="ellipsis")
    return line


def _format_time_of_day(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1_000, UTC).strftime("%H:%M:%SZ")
