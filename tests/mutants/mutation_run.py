"""Run one bug: plant it in a copy of the tree, and run its harnesses there until one of them catches it.

A harness catches a bug if one of its tests *fails* with the bug and passes on the same tree without it. A tree that
cannot be imported, a fixture that breaks, or a test that fails without the bug too says nothing about the bug.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from xml.etree import ElementTree

from tests.mutants.bug import Bug

HARNESS_SECONDS_MAX = 400
TEST_SECONDS_MAX = 90
WORDS_MAX = 140

_PYTEST = (
    *("-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", "-o", "junit_family=xunit1"),
    *("-p", "no:schemathesis", "--hypothesis-profile=hasty", "--hypothesis-seed=0"),
    f"--timeout={TEST_SECONDS_MAX}",
)
_IMPORT_ORIGINS = "import liveness, liveness.tasks.contract, tests.databases as t; print(liveness.__file__, t.__file__, sep='\\n')"


class Verdict(Enum):
    NOTICED = "noticed"
    PASSED = "passed"
    HUNG = "did not end in time"
    BROKE = "could not be run"
    """No test failed: the tree cannot be imported, or a fixture broke."""
    FAILS_ANYWAY = "fails without the bug, too"


@dataclass(frozen=True, slots=True)
class Run:
    """One harness, run on one tree."""

    harness: str
    verdict: Verdict
    test: str = ""
    words: str = ""
    """The first line of the test's failure."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    bug: Bug
    runs: tuple[Run, ...]
    seconds: float

    @property
    def noticed(self) -> list[Run]:
        return [run for run in self.runs if run.verdict is Verdict.NOTICED]


def copy_tree(source: Path, target: Path) -> None:
    """Copy all files that git tracks or would add, with their uncommitted changes."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=source, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (source / name).is_file() or (source / name).is_symlink():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target / name, follow_symlinks=False)


def environment(tree: Path) -> dict[str, str]:
    """Return environment variables under which programs import `liveness` and `tests` from the tree.

    They also hold for processes that tests start, and win over the original that is installed in the virtual
    environment.
    """
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("LIVENESS_", "PYTEST_"))
    }
    return {**clean, "PYTHONPATH": str(tree)}


def check_imports(tree: Path) -> None:
    origins = subprocess.run(
        [sys.executable, "-P", "-c", _IMPORT_ORIGINS],
        cwd=tempfile.gettempdir(), env=environment(tree), check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for path in origins.split():
        if not Path(path).is_relative_to(tree):
            raise RuntimeError(f"programs would import {path}, which is outside the copy {tree}")


class MutationRunner:
    """Runs bugs, each in its own copy of a clean tree."""

    def __init__(self, clean: Path, *, every: bool = False) -> None:
        """`every`: run all harnesses of a bug, also after one has caught it."""
        self._clean = clean
        self._every = every
        self._passes_clean: dict[str, bool] = {}
        """By test: whether it passes on the clean tree."""

    def run_bug(self, bug: Bug) -> Result:
        began = time.monotonic()
        runs: list[Run] = []
        with _copy_of(self._clean) as tree:
            bug.plant(tree)
            for harness in bug.harnesses:
                run = run_harness(tree, harness)
                if run.verdict is Verdict.NOTICED and not self._passes_without_bug(run.test):
                    run = replace(run, verdict=Verdict.FAILS_ANYWAY)
                runs.append(run)
                if run.verdict is Verdict.NOTICED and not self._every:
                    break
        return Result(bug, tuple(runs), time.monotonic() - began)

    def _passes_without_bug(self, test: str) -> bool:
        if test not in self._passes_clean:
            self._passes_clean[test] = run_harness(self._clean, test).verdict is Verdict.PASSED
        return self._passes_clean[test]


@contextmanager
def mutation_runner(source: Path, *, every: bool = False) -> Iterator[MutationRunner]:
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        clean = Path(folder, "clean")
        copy_tree(source, clean)
        check_imports(clean)
        # The copies share this bytecode. Python compiles a file with a bug again, because it is newer.
        compiled = [name for name in ("liveness", "tests") if (clean / name).is_dir()]
        subprocess.run([sys.executable, "-m", "compileall", "-qq", *compiled], cwd=clean, check=False)
        yield MutationRunner(clean, every=every)


@contextmanager
def _copy_of(clean: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir=clean.parent))
    try:
        yield Path(shutil.copytree(clean, folder / "tree", symlinks=True))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_harness(tree: Path, harness: str, seconds_max: float = HARNESS_SECONDS_MAX) -> Run:
    began = time.monotonic()
    return replace(_run(tree, harness, seconds_max), seconds=time.monotonic() - began)


def _run(tree: Path, harness: str, seconds_max: float) -> Run:
    with tempfile.TemporaryDirectory(prefix="mutants-run-") as folder:
        report = Path(folder, "report.xml")
        paths = (f"--junitxml={report}", f"--basetemp={folder}/tmp", harness)
        code = _exit_code([sys.executable, *_PYTEST, *paths], tree, seconds_max)
        if code is None:
            return Run(harness, Verdict.HUNG)
        if code == 0:
            return Run(harness, Verdict.PASSED)
        found = _first_failure(report) if code == 1 else None
        return Run(harness, Verdict.NOTICED, *found) if found else Run(harness, Verdict.BROKE)


def _exit_code(command: Sequence[str], tree: Path, seconds_max: float) -> int | None:
    """Run the command; return None if it was killed after `seconds_max`."""
    quiet = subprocess.DEVNULL
    child = subprocess.Popen(
        command,
        cwd=tree,
        env=environment(tree),
        stdin=quiet,
        stdout=quiet,
        stderr=quiet,
        start_new_session=True,
    )
    try:
        return child.wait(seconds_max)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _first_failure(report: Path) -> tuple[str, str] | None:
    """Return the first failed test and its message; None if no test failed, also when a fixture broke."""
    if not report.exists():
        return None
    for case in ElementTree.parse(report).iter("testcase"):
        failure = case.find("failure")
        if failure is not None:
            words = (failure.get("message") or "").strip().partition("\n")[0]
            return f"{case.get('file')}::{case.get('name')}", words[:WORDS_MAX]
    return None
