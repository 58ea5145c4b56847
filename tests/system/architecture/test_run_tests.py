"""`make test` repeats a few failed timing-sensitive tests alone, and counts the unsteady ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.run_tests import RERUNS_MAX, main

FAILS_ONCE = """
from pathlib import Path
def test_once():
    been = Path(__file__).with_suffix(".been")
    if not been.exists():
        been.touch()
        assert False
"""
FAILS_ALWAYS = "def test_always():\n    assert False\n"
PASSES = "def test_passes():\n    pass\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:schemathesis\n")
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    file = root / "tests" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def last_line(capfd: pytest.CaptureFixture[str]) -> str:
    return capfd.readouterr().out.splitlines()[-1]


def test_a_run_without_failures_counts_no_unsteady_tests(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(root, "system/cluster/test_it.py", PASSES)
    assert main(["-n0"], root) == 0
    assert last_line(capfd) == "0 unsteady tests"


def test_a_timing_sensitive_test_that_passes_alone_is_counted_and_named(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(root, "system/cluster/test_it.py", FAILS_ONCE)
    assert main(["-n0"], root) == 0
    assert last_line(capfd) == (
        "1 unsteady test, failed among the others and passed alone: tests/system/cluster/test_it.py::test_once"
    )


def test_a_test_that_fails_twice_fails_the_run_and_is_not_counted(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(root, "system/cluster/test_it.py", FAILS_ONCE)
    write(root, "crash/test_other.py", FAILS_ALWAYS)
    assert main(["-n0"], root) != 0
    assert last_line(capfd) == (
        "1 unsteady test, failed among the others and passed alone: tests/system/cluster/test_it.py::test_once"
    )


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"system/cluster/test_it.py": FAILS_ALWAYS}, id="fails again"),
        pytest.param({"unit/domain/test_it.py": FAILS_ONCE}, id="not timing-sensitive"),
        pytest.param(
            {f"system/cluster/test_{n}.py": FAILS_ONCE for n in range(RERUNS_MAX + 1)}, id="too many"
        ),
    ],
)
def test_other_failures_fail_the_run(
    root: Path, files: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    for name, text in files.items():
        write(root, name, text)
    assert main(["-n0"], root) != 0
    assert last_line(capfd) == "0 unsteady tests"
