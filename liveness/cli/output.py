"""Print tables for people and JSON for programs. Control characters in texts from the server are escaped."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC
from io import StringIO
from typing import Any

import click
from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from liveness.cli.durations import format_ms
from liveness.cli.errors import CommandError, escape_control
from liveness.clock import SystemClock

STYLES = {
    "ACTIVE": "green",
    "INACTIVE": "yellow",
    "HEALTHY": "green",
    "STARTING": "cyan",
    "PAUSED": "blue",
    "STOPPING": "yellow",
    "STOPPED": "dim",
    "CRASHED": "red",
    "CLEANED_UP": "dim",
    "DEAD_LETTERED": "red",
    "RETRYING": "yellow",
    "DONE": "green",
    "DISCARDED": "dim",
    "STARTED": "green",
    "WAITING": "yellow",
    "CANCELLED": "dim",
    "QUARANTINED": "red",
    "ok": "green",
    "warning": "yellow",
    "FAILED": "bold red",
}

PADDING = 3
"""Between columns, and around the table."""
UNLIMITED_WIDTH = 1_000_000
"""Wide enough that no cell is wrapped; a table uses only the width it needs."""
PAYLOAD_CHARACTERS_MAX = 2_000


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """On a terminal that is too narrow for whole words, each row is printed as a list of fields."""
    cells = [[_styled_cell(value) for value in row] for row in rows]
    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    least = PADDING
    for number, column in enumerate(table.columns):
        texts = [columns[number], *(row[number].plain for row in cells)]
        column.overflow = "fold"
        # Keys and numbers stay in one piece; sentences are wrapped.
        column.no_wrap = not any(" " in text for text in texts[1:])
        least += PADDING + (
            max(map(cell_len, texts))
            if column.no_wrap
            else max(cell_len(word) for text in texts for word in text.split(" "))
        )
    if sys.stdout.isatty() and least > Console().width:
        for row in cells:
            print_fields(zip(columns, row, strict=True))
            click.echo()
        return
    for row in cells:
        table.add_row(*row)
    _print(table)


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print one item in detail, without the fields that have no value."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields:
        cell = value if isinstance(value, Text) else _styled_cell("" if value is None else value)
        if cell.plain:
            table.add_row(name, cell)
    _print(table)


def _styled_cell(value: object) -> Text:
    # A Text, because rich would interpret markup in a string.
    text = escape_control(str(value))
    word, _, _ = text.partition(" (")  # ACTIVE (paused) has the style of ACTIVE
    return Text(text, style=STYLES.get(word, ""))


def _print(table: Table) -> None:
    if sys.stdout.isatty():
        Console().print(table)
        return
    table.box = None  # programs read the table line by line, so it has no rules
    lines = StringIO()
    Console(file=lines, width=UNLIMITED_WIDTH, color_system=None, force_terminal=False).print(table)
    for line in lines.getvalue().splitlines():
        click.echo(line.rstrip())


def print_json(value: object) -> None:
    # ASCII only, so that it contains nothing that a terminal interprets.
    click.echo(json.dumps(value, indent=2))


def print_json_array(messages: Iterable[Message]) -> None:
    """Print the messages one by one, so that a long list needs little memory."""
    opening = "["
    for message in messages:
        click.echo(opening + "\n" + json.dumps(to_json(message), indent=2), nl=False)
        opening = ","
    click.echo("[]" if opening == "[" else "\n]")


def to_json(message: Message) -> dict[str, Any]:
    """Proto-JSON with the field names of the proto; fields with default values are included."""
    try:
        return json_format.MessageToDict(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
    except (json_format.Error, ValueError) as error:
        raise CommandError(f"the server's answer cannot be written as JSON: {error}") from error


def print_note(text: str) -> None:
    """Print a remark on stderr, so that it is not part of the output."""
    click.echo(escape_control(text), err=True)


def enum_name(kind: Any, number: int) -> str:
    """WORKER_STATE_ACTIVE → ACTIVE; UNSPECIFIED → empty; a value of a newer server → its number."""
    values = kind.DESCRIPTOR.values_by_number
    if number not in values:
        return str(number)
    prefix = values[0].name.removesuffix("UNSPECIFIED")
    return values[number].name.removeprefix(prefix) if number else ""


def format_time(message: Message, field: str) -> str:
    """A timestamp field as UTC; empty if it is not set."""
    return format_timestamp(getattr(message, field)) if message.HasField(field) else ""


def format_timestamp(timestamp: Timestamp, pattern: str = "%Y-%m-%d %H:%M:%S") -> str:
    """UTC to the millisecond, so that the same moment reads the same in every command."""
    try:
        return f"{timestamp.ToDatetime(tzinfo=UTC):{pattern}}.{timestamp.nanos // 1_000_000:03}Z"
    except (ValueError, OverflowError):
        return f"{timestamp.seconds}s since 1970"


def format_age(message: Message, field: str) -> str:
    """The age of a timestamp, in two units at most; empty if it is not set."""
    if not message.HasField(field):
        return ""
    seconds = _seconds_since(message, field)
    return format_time(message, field) if seconds < 0 else f"{_format_roughly(seconds)} ago"


def format_elapsed(message: Message, field: str) -> str:
    """How long something has lasted that began at a timestamp, in two units at most; empty if it is not set."""
    return _format_roughly(max(0, _seconds_since(message, field))) if message.HasField(field) else ""


def _seconds_since(message: Message, field: str) -> int:
    return SystemClock().wall_ms() // 1_000 - int(getattr(message, field).seconds)


def format_time_left(message: Message, field: str) -> str:
    """The time until a timestamp, in two units at most; empty if it is not set."""
    if not message.HasField(field):
        return ""
    seconds = getattr(message, field).seconds - SystemClock().wall_ms() // 1_000
    return f"in {_format_roughly(seconds)}" if seconds > 0 else "now"


def _format_roughly(seconds: int) -> str:
    for unit_s in (86_400, 3_600, 60):
        if seconds >= 10 * unit_s:
            seconds -= seconds % unit_s
            break
    return format_ms(seconds * 1_000)


def payload_text(payload: bytes) -> str:
    """A payload for people: as text if it is UTF-8, cut after a while."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return f"{len(payload)} bytes that are not text; --json shows them"
    if len(text) <= PAYLOAD_CHARACTERS_MAX:
        return text
    return f"{text[:PAYLOAD_CHARACTERS_MAX]}… ({len(payload)} bytes; --json shows all)"
