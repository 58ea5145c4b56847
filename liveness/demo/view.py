"""Draw one frame of the demo: the processes, the server's view of them, and the timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from liveness.demo.ledger import Ledger
from liveness.demo.plan import BLOCK_PREFIX
from liveness.demo.processes import ProcessState
from liveness.demo.timeline import EntryKind, TimelineEntry

STATE_WIDTH = 61
WIDE_LAYOUT_MIN = 112
"""From this width on the timeline is drawn beside the workers, otherwise below them."""
BAR_WIDTH = 12
FIXED_LINES = 9
"""Lines that are neither workers nor timeline: title, frames, headings, the bar of activities."""
TIMELINE_LINES_MIN = 6
TIMELINE_LINES_MAX = 16
PROCESS_STYLES = {
    ProcessState.STARTING: ("starting", "dim"),
    ProcessState.RUNNING: ("running", "green"),
    ProcessState.KILLED: ("killed", "bold red"),
    ProcessState.FROZEN: ("frozen", "bold cyan"),
    ProcessState.ENDED: ("ended", "dim"),
}
ENTRY_STYLES = {
    EntryKind.INFO: "dim",
    EntryKind.FAULT: "bold red",
    EntryKind.DETECTED: "yellow",
    EntryKind.MOVED: "green",
    EntryKind.REFUSED: "bold magenta",
    EntryKind.ERROR: "bold white on red",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    name: str
    process_state: ProcessState
    server_state: str
    """The server's state of the worker: ACTIVE, INACTIVE, or empty before it is registered."""
    suspect: bool
    epoch: int
    lease_left: float
    """The remaining part of the lease, from 0 to 1."""
    lease_left_s: float
    holds: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    title: str
    time: str
    workers: Sequence[WorkerRow]
    completed: int
    running: int
    waiting: int
    total: int
    timeline: Sequence[TimelineEntry]


@dataclass(frozen=True, slots=True)
class DemoView:
    """A frame, laid out for the size of the terminal."""

    frame: Frame

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height or options.size.height
        if options.max_width >= WIDE_LAYOUT_MIN:
            body = Table.grid(expand=True)
            body.add_column(width=STATE_WIDTH)
            body.add_column(ratio=1)
            rows = _visible_rows(self.frame.workers, height - FIXED_LINES)
            timeline = _timeline_panel(self.frame.timeline, min(TIMELINE_LINES_MAX, height - 4))
            body.add_row(Group(_worker_panel(rows), _activity_panel(self.frame)), timeline)
            parts: list[RenderableType] = [_title(self.frame), body]
        else:
            rows = _visible_rows(self.frame.workers, height - FIXED_LINES - TIMELINE_LINES_MIN - 2)
            max_lines = height - FIXED_LINES - len(rows) - 2
            timeline = _timeline_panel(
                self.frame.timeline, min(max(max_lines, TIMELINE_LINES_MIN), TIMELINE_LINES_MAX)
            )
            parts = [_title(self.frame), _worker_panel(rows), _activity_panel(self.frame), timeline]
        for part in parts:
            yield from console.render(part, options.update(height=None))


def _visible_rows(rows: Sequence[WorkerRow], max_lines: int) -> Sequence[WorkerRow]:
    """Hide ended workers first when the window is too low, then workers that have met no fault."""
    excess = max(len(rows) - max(max_lines, 1), 0)
    ended = [
        row for row in rows if row.server_state == "INACTIVE" and row.process_state is not ProcessState.FROZEN
    ]
    undisturbed = [row for row in rows if row.process_state is ProcessState.RUNNING and row.epoch <= 1]
    hidden = [*ended, *reversed(undisturbed)][:excess]
    return [row for row in rows if row not in hidden]


def _title(frame: Frame) -> RenderableType:
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column()
    line.add_column(justify="right")
    line.add_row(
        Text.assemble(("liveness demo", "bold"), "  ", (frame.title, "dim")), Text(frame.time, "bold")
    )
    return line


def _worker_panel(rows: Sequence[WorkerRow]) -> Panel:
    table = Table(box=None, pad_edge=False, expand=True, header_style="dim", padding=(0, 1, 0, 0))
    table.add_column("worker", no_wrap=True)
    table.add_column("process", no_wrap=True)
    table.add_column("server says", no_wrap=True, min_width=11)
    table.add_column("lease", no_wrap=True, width=BAR_WIDTH + 6)
    table.add_column("blocks", no_wrap=True, ratio=1, overflow="ellipsis")
    for row in rows:
        word, style = PROCESS_STYLES[row.process_state]
        ended = row.server_state == "INACTIVE"
        table.add_row(
            Text(row.name, "dim" if ended else ""),
            Text(word, style),
            _state_text(row),
            _lease_bar(row),
            Text(" ".join(name.removeprefix(BLOCK_PREFIX) for name in row.holds), "dim" if ended else ""),
        )
    return Panel(table, title="workers", title_align="left", box=box.ROUNDED, border_style="dim")


def _state_text(row: WorkerRow) -> Text:
    if not row.server_state:
        return Text("")
    if row.server_state == "ACTIVE":
        if row.suspect:
            return Text("suspect ?", "bold yellow")
        return Text(f"active e{row.epoch}" if row.epoch > 1 else "active", "green")
    return Text(row.server_state.lower(), "dim")


def _lease_bar(row: WorkerRow) -> Text:
    if row.server_state != "ACTIVE":
        return Text("")
    filled = min(max(round(row.lease_left * BAR_WIDTH), 0), BAR_WIDTH)
    style = "green" if row.lease_left > 0.5 else "yellow" if row.lease_left > 0.2 else "red"
    return Text.assemble(
        ("━" * filled, style), ("─" * (BAR_WIDTH - filled), "dim"), f" {row.lease_left_s:3.1f} s"
    )


def _activity_panel(frame: Frame) -> Panel:
    unscheduled = frame.total - frame.completed - frame.running - frame.waiting
    parts = (
        (frame.completed, "completed", "green", "█"),
        (frame.running, "running", "cyan", "█"),
        (frame.waiting, "waiting", "yellow", "█"),
        (unscheduled, "to come", "dim", "░"),
    )
    words = Text("   ").join(
        Text.assemble((glyph, style), f" {count} {word}") for count, word, style, glyph in parts
    )
    return Panel(
        Group(_ProportionBar([(count, style, glyph) for count, _, style, glyph in parts]), words),
        title=f"{frame.total} activities",
        title_align="left",
        box=box.ROUNDED,
        border_style="dim",
    )


@dataclass(frozen=True, slots=True)
class _ProportionBar:
    """One bar over the whole width, divided in proportion to the counts."""

    parts: Sequence[tuple[int, str, str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        total = sum(count for count, _, _ in self.parts) or 1
        width = options.max_width
        drawn = seen = 0
        for count, style, glyph in self.parts:
            seen += count
            until = round(seen * width / total)
            yield Segment(glyph * (until - drawn), console.get_style(style))
            drawn = until
        yield Segment.line()


def _timeline_panel(lines: Sequence[TimelineEntry], max_lines: int) -> Panel:
    return Panel(
        _LastEntries(lines, max_lines),
        title="what happens",
        title_align="left",
        box=box.ROUNDED,
        border_style="dim",
        height=max_lines + 2,
    )


@dataclass(frozen=True, slots=True)
class _LastEntries:
    """The last entries that fit; a wrapped entry counts with all its lines."""

    lines: Sequence[TimelineEntry]
    max_lines: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(style="dim", no_wrap=True)
        table.add_column()
        for line in self.lines[-self.max_lines :]:
            table.add_row(line.time, Text(line.text, ENTRY_STYLES[line.kind]))
        rendered = console.render_lines(table, options.update(height=None), pad=False)
        for row in rendered[-self.max_lines :]:
            yield from row
            yield Segment.line()


def render_ledger(ledger: Ledger, summary: str) -> RenderableType:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(justify="right", style="bold")
    table.add_column()
    table.add_column(style="dim")
    good, bad = "bold green", "bold white on red"
    for count, word, remark, expected in (
        (ledger.scheduled, "scheduled", "", None),
        (ledger.executed, "executed", "attempts that a worker started", None),
        (
            ledger.completed,
            "completed",
            "by the server's record and by a worker's own notes",
            ledger.scheduled,
        ),
        (ledger.cut_short, "cut short", "ended with their worker, and repeated by another", None),
        (ledger.refused, "refused", "reported by a zombie, and refused by the server", None),
        (ledger.lost, "lost", "", 0),
        (ledger.completed_twice, "completed twice", "", 0),
    ):
        style = "" if expected is None else good if count == expected else bad
        table.add_row(Text(str(count), style), Text(word, style), remark)
    return Panel(
        Group(table, Text(""), Text(summary, "dim")),
        title="ledger",
        title_align="left",
        box=box.ROUNDED,
        border_style="green" if ledger.is_clean else "red",
        expand=False,
    )
