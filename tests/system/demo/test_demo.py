"""The demo runs to its end or is interrupted, and leaves no process behind."""

from __future__ import annotations

import json
import os
import pty
import signal
from pathlib import Path

import pytest

from tests.system.demo.demo_process import (
    SECONDS_MAX,
    demo_process,
    exit_code,
    read_to_the_end,
    read_until,
    wait_for_the_end_of,
)


def test_the_demo_completes_every_activity_once(tmp_path: Path) -> None:
    with demo_process(tmp_path, "--json", "--activities", "20") as played:
        output, story = played.process.communicate(timeout=SECONDS_MAX)

        assert played.process.returncode == 0, story
        assert played.others() == []
    ledger = json.loads(output)
    assert ledger["clean"] is True
    assert (ledger["scheduled"], ledger["completed"]) == (20, 20)
    assert (ledger["lost"], ledger["completed_twice"]) == (0, 0)
    assert ledger["executed"] == ledger["completed"] + ledger["cut_short"] + ledger["refused"]
    assert (ledger["killed"], ledger["frozen"], ledger["workers"]) == (2, 1, 5)
    assert ledger["refused"] >= 1
    assert len(ledger["lapse_seconds"]) >= 3
    assert "was refused for" in story
    assert "FENCED_OFF" in story
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "moment"),
    [(signal.SIGINT, "was frozen"), (signal.SIGTERM, "listens on"), (signal.SIGHUP, "was killed")],
)
def test_an_interrupted_demo_leaves_no_process_behind(
    number: signal.Signals, moment: str, tmp_path: Path
) -> None:
    with demo_process(tmp_path) as played:
        played.wait_for(moment)
        played.process.send_signal(number)
        output, errors = played.process.communicate(timeout=SECONDS_MAX)

        assert played.process.returncode == exit_code(number), errors
        assert f"Stopped by {number.name}; all processes have ended." in output
        assert errors == ""
        assert played.others() == []
    assert list(tmp_path.iterdir()) == []


def test_a_killed_demo_leaves_no_process_behind(tmp_path: Path) -> None:
    """Not even the worker that is frozen at that moment."""
    with demo_process(tmp_path) as played:
        played.wait_for("was frozen")
        others = played.others()
        assert len(others) >= 3, "a server and workers"

        played.process.kill()

        wait_for_the_end_of(others)


def test_the_demo_animates_on_a_terminal(tmp_path: Path) -> None:
    """Ctrl-C brings the cursor back."""
    ours, its = pty.openpty()
    with demo_process(tmp_path, terminal=its) as played:
        os.close(its)
        seen = read_until(ours, b"frozen")
        played.process.send_signal(signal.SIGINT)
        rest = read_to_the_end(ours)

        assert played.process.wait(SECONDS_MAX) == exit_code(signal.SIGINT)
        assert played.others() == []
    os.close(ours)
    assert b"\x1b[?25l" in seen, "the cursor is hidden"
    assert b"suspect" in seen
    assert b"\x1b[?25h" in rest
    assert b"Stopped by SIGINT" in rest
