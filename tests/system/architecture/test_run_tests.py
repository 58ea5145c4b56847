"""Who gets a second look in `make test`."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.run_tests import RERUNS_MAX, main

ONCE = """
from pathlib import Path
def test_once():
    been = Path(__file__).with_suffix(".been")
    if not been.exists():
        been.touch()
        assert False
"""
ALWAYS = "def test_always():\n    assert False\n"


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


def test_a_test_of_real_time_that_a_stall_has_tripped_passes_alone(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(root, "system/cluster/test_it.py", ONCE)
    assert main(["-n0"], root) == 0
    assert "Unsteady, passed alone: tests/system/cluster/test_it.py::test_once" in capfd.readouterr().out


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"system/cluster/test_it.py": ALWAYS}, id="fails again"),
        pytest.param({"unit/domain/test_it.py": ONCE}, id="no real time in it"),
        pytest.param({f"system/cluster/test_{n}.py": ONCE for n in range(RERUNS_MAX + 1)}, id="too many"),
    ],
)
def test_everything_else_fails_the_run(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        write(root, name, text)
    assert main(["-n0"], root) != 0
