"""The picture of a moment: what the processes are, what the server makes of them, and what has happened so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from liveness.demo.cast import Condition
from liveness.demo.ledger import Ledger
from liveness.demo.plan import BLOCK
from liveness.demo.story import Line, Tone

STATE_WIDTH = 61
WIDE = 112
"""From here on the story stands beside the workers, else below."""
BAR = 12
STATE_LINES = 9
"""All that is not a worker or a line of the story: title, frames, headings, the bar of activities."""
STORY_MIN = 6
STORY_MAX = 16
PROCESS = {
    Condition.STARTING: ("starting", "dim"),
    Condition.RUNNING: ("running", "green"),
    Condition.KILLED: ("killed", "bold red"),
    Condition.FROZEN: ("frozen", "bold cyan"),
    Condition.ENDED: ("ended", "dim"),
}
TONES = {
    Tone.QUIET: "dim",
    Tone.BLOW: "bold red",
    Tone.NOTICED: "yellow",
    Tone.MOVED: "green",
    Tone.REFUSED: "bold magenta",
    Tone.WRONG: "bold white on red",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    name: str
    condition: Condition
    verdict: str
    """What the server says: ACTIVE, INACTIVE, or nothing yet."""
    suspect: bool
    epoch: int
    lease_left: float
    """The part of the lease that is left, from 0 to 1."""
    lease_left_s: float
    holds: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    title: str
    time: str
    workers: Sequence[WorkerRow]
    completed: int
    running: int
    waiting: int
    total: int
    story: Sequence[Line]


@dataclass(frozen=True, slots=True)
class View:
    """A scene that fits itself into the room it is given."""

    scene: Scene

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height or options.size.height
        if options.max_width >= WIDE:
            body = Table.grid(expand=True)
            body.add_column(width=STATE_WIDTH)
            body.add_column(ratio=1)
            rows = _that_fit(self.scene.workers, height - STATE_LINES)
            story = _story(self.scene.story, min(STORY_MAX, height - 4))
            body.add_row(Group(_workers(rows), _activities(self.scene)), story)
            parts: list[RenderableType] = [_title(self.scene), body]
        else:
            rows = _that_fit(self.scene.workers, height - STATE_LINES - STORY_MIN - 2)
            room = height - STATE_LINES - len(rows) - 2
            story = _story(self.scene.story, min(max(room, STORY_MIN), STORY_MAX))
            parts = [_title(self.scene), _workers(rows), _activities(self.scene), story]
        for part in parts:
            yield from console.render(part, options.update(height=None))


def _that_fit(rows: Sequence[WorkerRow], room: int) -> Sequence[WorkerRow]:
    """In a low window, those that are over go first, then those to whom nothing happens."""
    spare = max(len(rows) - max(room, 1), 0)
    over = [row for row in rows if row.verdict == "INACTIVE" and row.condition is not Condition.FROZEN]
    calm = [row for row in rows if row.condition is Condition.RUNNING and row.epoch <= 1]
    hidden = [*over, *reversed(calm)][:spare]
    return [row for row in rows if row not in hidden]


def _title(scene: Scene) -> RenderableType:
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column()
    line.add_column(justify="right")
    line.add_row(
        Text.assemble(("liveness demo", "bold"), "  ", (scene.title, "dim")), Text(scene.time, "bold")
    )
    return line


def _workers(rows: Sequence[WorkerRow]) -> Panel:
    table = Table(box=None, pad_edge=False, expand=True, header_style="dim", padding=(0, 1, 0, 0))
    table.add_column("worker", no_wrap=True)
    table.add_column("process", no_wrap=True)
    table.add_column("server says", no_wrap=True, min_width=11)
    table.add_column("lease", no_wrap=True, width=BAR + 6)
    table.add_column("blocks", no_wrap=True, ratio=1, overflow="ellipsis")
    for row in rows:
        word, style = PROCESS[row.condition]
        over = row.verdict == "INACTIVE"
        table.add_row(
            Text(row.name, "dim" if over else ""),
            Text(word, style),
            _verdict(row),
            _lease(row),
            Text(" ".join(name.removeprefix(BLOCK) for name in row.holds), "dim" if over else ""),
        )
    return Panel(table, title="workers", title_align="left", box=box.ROUNDED, border_style="dim")


def _verdict(row: WorkerRow) -> Text:
    if not row.verdict:
        return Text("")
    if row.verdict == "ACTIVE":
        if row.suspect:
            return Text("suspect ?", "bold yellow")
        return Text(f"active e{row.epoch}" if row.epoch > 1 else "active", "green")
    return Text(row.verdict.lower(), "dim")


def _lease(row: WorkerRow) -> Text:
    if row.verdict != "ACTIVE":
        return Text("")
    filled = min(max(round(row.lease_left * BAR), 0), BAR)
    style = "green" if row.lease_left > 0.5 else "yellow" if row.lease_left > 0.2 else "red"
    return Text.assemble(("━" * filled, style), ("─" * (BAR - filled), "dim"), f" {row.lease_left_s:3.1f} s")


def _activities(scene: Scene) -> Panel:
    unknown = scene.total - scene.completed - scene.running - scene.waiting
    parts = (
        (scene.completed, "completed", "green", "█"),
        (scene.running, "running", "cyan", "█"),
        (scene.waiting, "waiting", "yellow", "█"),
        (unknown, "to come", "dim", "░"),
    )
    words = Text("   ").join(
        Text.assemble((glyph, style), f" {count} {word}") for count, word, style, glyph in parts
    )
    return Panel(
        Group(_Proportion([(count, style, glyph) for count, _, style, glyph in parts]), words),
        title=f"{scene.total} activities",
        title_align="left",
        box=box.ROUNDED,
        border_style="dim",
    )


@dataclass(frozen=True, slots=True)
class _Proportion:
    """One bar over the whole width, divided in proportion."""

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


def _story(lines: Sequence[Line], room: int) -> Panel:
    return Panel(
        _LastLines(lines, room),
        title="what happens",
        title_align="left",
        box=box.ROUNDED,
        border_style="dim",
        height=room + 2,
    )


@dataclass(frozen=True, slots=True)
class _LastLines:
    """As many of the last lines as there is room for, folded ones counted as they are."""

    lines: Sequence[Line]
    room: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(style="dim", no_wrap=True)
        table.add_column()
        for line in self.lines[-self.room :]:
            table.add_row(line.time, Text(line.text, TONES[line.tone]))
        rendered = console.render_lines(table, options.update(height=None), pad=False)
        for row in rendered[-self.room :]:
            yield from row
            yield Segment.line()


def reckoning(ledger: Ledger, told: str) -> RenderableType:
    """The ledger, for people."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(justify="right", style="bold")
    table.add_column()
    table.add_column(style="dim")
    good, bad = "bold green", "bold white on red"
    for count, word, remark, wanted in (
        (ledger.scheduled, "scheduled", "", None),
        (ledger.executed, "executed", "attempts that a worker began", None),
        (ledger.completed, "completed", "on record, and by a worker's own notes", ledger.scheduled),
        (ledger.cut_short, "cut short", "ended with their worker, and done again by another", None),
        (ledger.refused, "refused", "reported by a zombie, and turned away", None),
        (ledger.lost, "lost", "", 0),
        (ledger.completed_twice, "completed twice", "", 0),
    ):
        style = "" if wanted is None else good if count == wanted else bad
        table.add_row(Text(str(count), style), Text(word, style), remark)
    return Panel(
        Group(table, Text(""), Text(told, "dim")),
        title="ledger",
        title_align="left",
        box=box.ROUNDED,
        border_style="green" if ledger.clean else "red",
        expand=False,
    )
