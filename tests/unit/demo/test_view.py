"""The demo view fits its window and shows the important rows."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from liveness.demo.ledger import Ledger
from liveness.demo.processes import ProcessState
from liveness.demo.timeline import EntryKind, TimelineEntry, join_names
from liveness.demo.view import DemoView, Frame, WorkerRow, render_ledger


def row(number: int, process_state: ProcessState = ProcessState.RUNNING, **changes: object) -> WorkerRow:
    usual = {"server_state": "ACTIVE", "suspect": False, "epoch": 1, "lease_left": 0.9, "lease_left_s": 4.5}
    return WorkerRow(
        name=f"worker-{number}",
        process_state=process_state,
        holds=(f"block-{number:02}",),
        **{**usual, **changes},  # type: ignore[arg-type]  # overrides of any field
    )


def sample_frame(*rows: WorkerRow) -> Frame:
    timeline = [
        TimelineEntry(1_000 * number, f"thing number {number} " * 5, EntryKind.INFO) for number in range(40)
    ]
    return Frame(
        title="a demo",
        time="0:40",
        workers=rows,
        completed=20,
        running=6,
        waiting=4,
        total=40,
        timeline=timeline,
    )


def drawn(shown: object, width: int = 128, height: int = 40) -> list[str]:
    console = Console(file=StringIO(), record=True, width=width, height=height, force_terminal=True)
    console.print(shown)
    return console.export_text().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (128, 40), (200, 24), (111, 60)])
@pytest.mark.parametrize("workers", [2, 7])
def test_the_view_fits_its_window(width: int, height: int, workers: int) -> None:
    lines = drawn(DemoView(sample_frame(*map(row, range(workers)))), width, height)

    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert all(any(f"worker-{number} " in line for line in lines) for number in range(workers))


def test_the_last_timeline_entry_is_visible() -> None:
    assert any("thing number 39" in line for line in drawn(DemoView(sample_frame(row(1))), 80, 24))


def test_a_low_window_hides_dead_workers_first() -> None:
    over = [row(number, ProcessState.KILLED, server_state="INACTIVE") for number in range(1, 10)]

    lines = drawn(DemoView(sample_frame(*over, row(10))), 80, 24)

    assert any("worker-10" in line for line in lines)
    assert not any("worker-1 " in line for line in lines)
    assert len(lines) <= 24


def test_a_low_window_keeps_workers_with_changes() -> None:
    lines = drawn(
        DemoView(sample_frame(*map(row, range(1, 20)), row(20, ProcessState.KILLED, suspect=True))), 80, 24
    )

    assert any("worker-20 killed" in line for line in lines)
    assert any("thing number 39" in line for line in lines)
    assert len(lines) <= 24


def test_a_row_shows_the_process_state_and_the_state_on_the_server() -> None:
    text = "\n".join(
        drawn(
            DemoView(
                sample_frame(
                    row(1),
                    row(2, ProcessState.KILLED, suspect=True, lease_left=0.25, lease_left_s=1.2),
                    row(3, ProcessState.FROZEN, server_state="INACTIVE"),
                    row(4, epoch=2),
                )
            )
        )
    )
    lines = {
        number: next(line for line in text.splitlines() if f"worker-{number}" in line)
        for number in range(1, 5)
    }

    assert "running" in lines[1]
    assert "━━━━━━━━━━━─ 4.5 s 01" in lines[1]
    assert "killed" in lines[2]
    assert "suspect ?   ━━━───────── 1.2 s 02" in lines[2]
    assert "frozen" in lines[3]
    assert "inactive" in lines[3]
    assert "active e2" in lines[4]
    assert "20 completed   █ 6 running   █ 4 waiting   ░ 10 to come" in text


def test_the_rendered_ledger_shows_losses() -> None:
    good = Ledger(scheduled=2, executed=2, completed=2, cut_short=0, refused=0, lost=0, completed_twice=0)
    bad = Ledger(scheduled=2, executed=2, completed=1, cut_short=1, refused=0, lost=1, completed_twice=0)

    assert any("0  lost" in line for line in drawn(render_ledger(good, "")))
    assert any("1  lost" in line for line in drawn(render_ledger(bad, "")))


@pytest.mark.parametrize(
    ("parts", "joined"), [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_names_are_joined_with_commas_and_and(parts: list[str], joined: str) -> None:
    assert join_names(parts) == joined
