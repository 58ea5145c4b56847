"""The picture of the fleet, in whatever room there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from liveness.cli.durations import in_words
from liveness.cli.failure import inert
from liveness.cli.fleet.choices import SYNTAX, BadFilter, Choices, Room, Sort, parse_filter
from liveness.cli.fleet.figures import Figure, figures
from liveness.cli.fleet.reading import REST, WORKERS_MAX, Snapshot
from liveness.cli.fleet.rows import Column, columns, in_order
from liveness.cli.fleet.sparkline import sparkline
from liveness.cli.output import enum_word
from liveness.v1.fleet_pb2 import AlertKind
from liveness.v1.worker_pb2 import Worker

ALERTS_MAX = 3
LOW = 18
"""In a window that is lower, the workers are worth more than figures and alerts."""
HEAD_LINES = 2
NAME_WIDTH = 11
HELP = (
    ("↑ ↓  PgUp PgDn  Home End", "move"),
    ("s  ← →", "sort by worker, state, lease left, activities"),
    ("r", "the other way round"),
    ("/", f"filter: {SYNTAX}"),
    ("Esc", "no filter"),
    ("p", "pause the picture, and go on"),
    ("q", "quit"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    snapshot: Snapshot
    choices: Choices
    now_ms: int
    """On the monotonic clock."""
    namespace: str
    """Empty: all of them."""
    trouble: str = ""
    """Why the server did not answer when it was asked last."""
    fresh_ms: int = 10_000
    """What is older is stale, whether there was trouble or just no answer."""

    @property
    def server_ms(self) -> int:
        return self.snapshot.server_ms(self.now_ms)

    def workers(self) -> list[Worker]:
        choices = self.choices
        return in_order(self.snapshot.workers, choices.sort, self.server_ms, reverse=choices.reverse)

    @property
    def known(self) -> int:
        """How many rows one may move through."""
        total = self.snapshot.total
        return min(len(self.snapshot.workers) if total is None else total, WORKERS_MAX)


@dataclass(frozen=True, slots=True)
class View:
    picture: Picture
    keys: bool = True
    """Whether there is somebody to press them."""

    def room(self, width: int, height: int) -> Room:
        above = HEAD_LINES + len(self._notable(width, height))
        return Room(max(1, height - above - 1 - self.keys), self.picture.known)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height or options.size.height
        room = self.room(width, height)
        lines: list[RenderableType] = [*self.head(width, room), *self._notable(width, height)]
        if self.picture.choices.help:
            lines += _help(width)[: room.rows + 1]
        else:
            lines.append(self._table(width, room))
        filled = 0
        for line in lines:
            rendered = console.render_lines(line, options.update(height=None), pad=False)
            for row in rendered[: height - self.keys - filled]:
                yield from row
                yield Segment.line()
                filled += 1
        if self.keys:
            yield from [Segment.line()] * (height - 1 - filled)
            yield from console.render_lines(self._footer(width), options.update(height=None), pad=False)[0]

    # -- above the table

    def _notable(self, width: int, height: int) -> list[Text]:
        """Figures and alerts, as far as there is room for them."""
        rows = self.figures(width)
        lines = rows if height >= LOW else rows[:1] if height >= LOW - 6 else []
        banners = self.banners()
        shown = banners[: ALERTS_MAX if height >= LOW else 1]
        if len(banners) > len(shown):
            shown[-1] = shown[-1] + f"  (and {len(banners) - len(shown)} more)"
        return [*lines, *(_cut(Text(f" {text} ", "bold white on red"), width) for text in shown)]

    def head(self, width: int, room: Room) -> list[Text]:
        return [self._title(width), self._counts(width, room)]

    def figures(self, width: int) -> list[Text]:
        return _figure_rows(figures(self.picture.snapshot.fleet), width)

    def _title(self, width: int) -> Text:
        picture, fleet = self.picture, self.picture.snapshot.fleet
        what = f"namespace {picture.namespace}" if picture.namespace else "all namespaces"
        parts = [what, picture.snapshot.address, f"{fleet.serving_shards} of {fleet.shards} shards served"]
        if fleet.nodes > 1:
            parts.append(f"{fleet.nodes} nodes")
        left = Text.assemble(("liveness top", "bold"), "  ", (inert("  ".join(parts)), "dim"))
        right = Text(_clock(picture.server_ms), "bold")
        if picture.choices.paused:
            right = Text("PAUSED", "bold black on yellow") + Text(" ") + right
        return _ends(left, right, width)

    def _counts(self, width: int, room: Room) -> Text:
        counted = self.picture.snapshot.fleet.namespaces
        deaths = sum(one.deaths for one in counted)
        false = sum(one.false_deaths for one in counted)
        parts = [
            (sum(one.active for one in counted), "active", "bold green"),
            (sum(one.suspects for one in counted), "suspect", "bold yellow"),
            (sum(one.inactive for one in counted), "inactive", "red"),
            (sum(one.cleaned_up for one in counted), "cleaned up", "dim"),
        ]
        left = Text("  ").join(
            Text.assemble((f"{count:,}", style if count else "dim"), f" {word}")
            for count, word, style in parts
        )
        if false:
            left.append(f"  {false:,} of {deaths:,} deaths were none", "yellow")
        if self.picture.namespace and any(one.paused for one in counted):
            left.append("  namespace paused", "magenta")
        return _ends(left, Text(self._place(room), "dim"), width)

    def _place(self, room: Room) -> str:
        """Which of the workers are seen, of which that are looked at, of how many."""
        snapshot, choices = self.picture.snapshot, self.picture.choices
        if not room.known:
            return "none found" if choices.filter or choices.typing else ""
        first = min(choices.first, room.last)
        seen = f"{first + 1:,}–{min(first + room.rows, room.known):,} of"
        if snapshot.total is not None and snapshot.total <= WORKERS_MAX:
            return f"{seen} {room.known:,}"
        total = "more" if snapshot.total is None else f"{snapshot.total:,}"
        if choices.sort is Sort.KEY and not choices.reverse:
            return f"{seen} the first {room.known:,} of {total}"
        return f"{seen} {len(snapshot.workers):,} sorted, of {total}"

    def banners(self) -> list[str]:
        """What an operator should look at, the most urgent first."""
        picture = self.picture
        banners = []
        age_ms = picture.now_ms - picture.snapshot.at_ms
        if picture.trouble or age_ms > picture.fresh_ms + (REST + 2) * picture.snapshot.took_ms:
            why = inert(picture.trouble or f"{picture.snapshot.address} has not answered")
            banners.append(f"STALE for {in_words(age_ms // 1_000 * 1_000)}: {why}")
        for alert in picture.snapshot.fleet.alerts:
            kind = enum_word(AlertKind, alert.kind).replace("_", " ")
            banners.append(f"{kind}: {inert(alert.message)}" if kind else inert(alert.message))
        return banners

    # -- the table

    def _table(self, width: int, room: Room) -> Table:
        picture = self.picture
        shown = columns(width, with_namespace=not picture.namespace)
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
        first = min(picture.choices.first, room.last)
        server_ms = picture.server_ms
        for worker in picture.workers()[first : first + room.rows]:
            table.add_row(*(column.cell(worker, server_ms) for column in shown))
        return table

    def _heading(self, column: Column) -> Text:
        choices = self.picture.choices
        if column.sort is not choices.sort:
            return Text(column.title)
        return Text(f"{column.title}{'▲' if choices.reverse else '▼'}", "bold")

    # -- below

    def _footer(self, width: int) -> Text:
        choices = self.picture.choices
        if choices.typing is not None:
            line = Text.assemble(("/", "bold"), inert(choices.typing), ("▏", "blink"))
            try:
                parse_filter(choices.typing)
                line.append("   Enter keeps it, Esc does not", "dim")
            except BadFilter as error:
                line.append(f"   {inert(str(error))}", "red")
            return _cut(line, width)
        line = Text("")
        if choices.filter:
            line.append(f"filter {inert(choices.filter)}", "bold").append("   ")
        for key, meaning in (
            ("q", "quit"),
            ("/", "filter"),
            ("s", "sort"),
            ("r", "reverse"),
            ("p", "go on" if choices.paused else "pause"),
            ("?", "help"),
        ):
            line.append(key, "bold").append(f" {meaning}  ", "dim")
        return _cut(line, width)


def _figure_rows(found: Sequence[Figure], width: int) -> list[Text]:
    across = 1 if width < 66 else 2 if width < 126 else 3
    each = width // across - 1
    value_width = max(len(figure.now) for figure in found)
    rows = []
    for start in range(0, len(found), across):
        line = Text("")
        for figure in found[start : start + across]:
            line.append(f"{figure.name:<{NAME_WIDTH}} ", "dim")
            line.append(f"{figure.now:<{value_width}} ", "yellow" if figure.alarming else "bold")
            chart_width = max(0, each - NAME_WIDTH - value_width - 3)
            line.append(f"{sparkline(figure.history, chart_width):>{chart_width}}  ", "cyan")
        rows.append(_cut(line, width))
    return rows


def _help(width: int) -> list[Text]:
    lines = [Text(""), *(Text.assemble((f"  {key:<26}", "bold"), meaning) for key, meaning in HELP)]
    return [_cut(line, width) for line in (*lines, Text(""), Text("  Any key goes back.", "dim"))]


def _ends(left: Text, right: Text, width: int) -> Text:
    """One line with something at both ends; where there is no room for both, the right one stays whole."""
    room = max(0, width - right.cell_len - (2 if right.cell_len else 0))
    left = _cut(left, room)
    return _cut(left + Text(" " * (width - left.cell_len - right.cell_len)) + right, width)


def _cut(line: Text, width: int) -> Text:
    line.no_wrap = True
    line.truncate(max(width, 0), overflow="ellipsis")
    return line


def _clock(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1_000, UTC).strftime("%H:%M:%SZ")
