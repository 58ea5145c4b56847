"""examples/claim_files.py"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.system.examples.conftest import Start
from tests.system.examples.programs import FOR_EVER


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Create files of one, two, three … words."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(1, 7):
        (folder / f"{number}.txt").write_text("word " * number)
    return folder


def counted(folder: Path) -> dict[str, int]:
    return {path.stem: int(path.read_text()) for path in folder.glob("*.words")}


def claims(lines: list[str]) -> list[str]:
    return [line for line in lines if "claimed" in line]


def test_another_process_does_the_file_of_a_killed_process(start: Start, texts: Path) -> None:
    victim = start("claim_files.py", str(texts), "--seconds", FOR_EVER)
    assert victim.line_with("claimed") == "1.txt: claimed, attempt 1"
    other = start("claim_files.py", str(texts), "--seconds", "0.01")
    other.line_with("6.txt: 6 words")
    assert set(counted(texts)) == {"2", "3", "4", "5", "6"}, "a claim is exclusive while its holder lives"

    victim.signal(signal.SIGKILL)

    assert other.line_with("claimed") == "1.txt: claimed, attempt 2"
    other.wait_success()
    assert counted(texts) == {str(number): number for number in range(1, 7)}


def test_two_processes_do_each_file_once(start: Start, texts: Path) -> None:
    programs = [start("claim_files.py", str(texts), "--seconds", "0.2") for _ in range(2)]

    claimed = [line for program in programs for line in claims(program.wait_success())]

    assert sorted(claimed) == [f"{number}.txt: claimed, attempt 1" for number in range(1, 7)]
    assert counted(texts) == {str(number): number for number in range(1, 7)}


def test_a_finished_file_is_not_done_again(start: Start, texts: Path) -> None:
    start("claim_files.py", str(texts), "--seconds", "0.01").wait_success()

    assert start("claim_files.py", str(texts)).wait_success() == []
