"""Client-supplied text is escaped, and output that is not on a terminal is never truncated."""

from __future__ import annotations

import io
import json
import re
import sys
import unicodedata

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from liveness.cli.errors import CommandError, escape_control
from liveness.cli.output import (
    enum_name,
    format_time,
    print_fields,
    print_json,
    print_json_array,
    print_table,
    to_json,
)
from liveness.v1.worker_pb2 import Worker, WorkerState

HOSTILE = "a\x1b[31mb\r\n\x07\u202ec\u2028[red]d[/red]:smile:\x9b2J"
SHOWN = r"a\x1b[31mb\r\n\x07\u202ec\u2028[red]d[/red]:smile:\x9b2J"


def test_control_characters_are_escaped() -> None:
    assert escape_control(HOSTILE) == SHOWN


@given(st.text())
def test_escaped_text_contains_no_invisible_characters(text: str) -> None:
    assert not {unicodedata.category(c) for c in escape_control(text)} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


@given(st.text(st.characters(categories=["L", "N", "P", "S"])))
def test_visible_text_is_not_changed(text: str) -> None:
    assert escape_control(text) == text


def test_a_table_shows_markup_and_controls_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("worker", "host"), [(HOSTILE, "[bold]h")])
    print_fields([("job", HOSTILE)])
    out = capsys.readouterr().out
    assert out.count(SHOWN) == 2
    assert "[bold]h" in out
    assert out.replace("\n", "").isprintable()


def test_output_without_a_terminal_is_not_cut_folded_or_coloured(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 5_000
    print_table(("worker", "state", "last"), [(long, "ACTIVE", long), ("w", "INACTIVE", "")])
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["worker", "state", "last"]
    assert first.split() == [long, "ACTIVE", long]
    assert second.split() == ["w", "INACTIVE"]
    assert second == second.rstrip()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_long_cell_is_folded_on_a_terminal_without_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    print_table(
        ("worker", "state"), [("0123456789" * 20, "ACTIVE"), ("w", "ACTIVE (paused)"), ("w", "QUARANTINED")]
    )
    coloured = terminal.getvalue()
    assert "\x1b[32mACTIVE" in coloured
    assert "\x1b[31mQUARANTINED" in coloured
    assert "\x1b[32mACTIVE (paused)" in coloured
    lines = re.sub(r"\x1b\[[0-9;]*m", "", coloured).splitlines()
    assert "".join(lines).count("9") == 20
    assert max(map(len, lines)) == 40


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (
            "60",
            [
                "component            status    reason",
                "worker:discovery:0   HEALTHY",
                "worker:discovery:1   FAILED    restarted 5 times within",
                "300 s",
            ],
        ),
        (
            "30",
            [
                "component  worker:discovery:0",
                "status     HEALTHY",
                "component  worker:discovery:1",
                "status     FAILED",
                "reason     restarted 5 times",
                "within 300 s",
            ],
        ),
    ],
)
def test_a_narrow_terminal_breaks_sentences_but_no_words(
    monkeypatch: pytest.MonkeyPatch, width: str, shown: list[str]
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setenv("TERM", "xterm")
    reason = "restarted 5 times within 300 s"
    rows = [("worker:discovery:0", "HEALTHY", ""), ("worker:discovery:1", "FAILED", reason)]
    print_table(("component", "status", "reason"), rows)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    lines = [line.strip() for line in plain.splitlines()]
    assert [line for line in lines if line.strip("─")] == shown


def test_json_is_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"job": HOSTILE})
    out = capsys.readouterr().out
    assert out.isascii()
    assert out.replace("\n", "").isprintable()
    assert json.loads(out) == {"job": HOSTILE}


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_json_array_is_one_document(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    print_json_array(Worker(worker_instance_key=f"w{n}") for n in range(count))
    items = json.loads(capsys.readouterr().out)
    assert [item["worker_instance_key"] for item in items] == [f"w{n}" for n in range(count)]


def test_json_has_every_plain_field_under_its_proto_name() -> None:
    assert to_json(Worker())["bound_activity_count"] == 0


def test_a_message_without_json_form_raises_a_command_error() -> None:
    with pytest.raises(CommandError, match="cannot be written as JSON"):
        to_json(Worker(start_time=Timestamp(seconds=2**62)))


def test_a_time_beyond_the_calendar_is_shown_in_seconds() -> None:
    assert format_time(Worker(start_time=Timestamp(seconds=2**62)), "start_time") == f"{2**62}s since 1970"
    assert format_time(Worker(start_time=Timestamp(seconds=0)), "start_time") == "1970-01-01 00:00:00.000Z"
    assert format_time(Worker(), "start_time") == ""


def test_a_state_that_only_a_newer_server_knows_is_shown_by_number() -> None:
    assert [enum_name(WorkerState, number) for number in (0, 1, 3, 77)] == ["", "ACTIVE", "CLEANED_UP", "77"]
