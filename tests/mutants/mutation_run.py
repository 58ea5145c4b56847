"""One bug on trial: a copy of the tree with the bug in it, and harnesses run there until one of them notices.

A harness notices if one of its tests *fails*, and passes on the same tree without the bug. A tree that cannot be
imported, a fixture that breaks, or a test that fails anyway says nothing about the bug.
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
    """Nothing was asserted: the tree cannot be imported, or a fixture broke."""
    FAILS_ANYWAY = "fails without the bug, too"


@dataclass(frozen=True, slots=True)
class Run:
    """Of one harness against one tree."""

    harness: str
    verdict: Verdict
    test: str = ""
    words: str = ""
    """What the test said."""
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
    """Everything that is or could be committed, as it lies there now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=source, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (source / name).is_file() or (source / name).is_symlink():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target / name, follow_symlinks=False)


def environment(tree: Path) -> dict[str, str]:
    """In which `liveness`, `tasks` and `tests` are those of the tree: also for the processes that tests start, and
    although the environment of the interpreter has the original installed."""
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
            raise RuntimeError(f"programs would import {path}, which is outside of the copy {tree}")


class MutationRunner:
    """A clean copy of the tree, from which each bug gets one of its own."""

    def __init__(self, clean: Path, *, every: bool = False) -> None:
        """`every`: all harnesses of a bug are run, also after one has noticed it."""
        self._clean = clean
        self._every = every
        self._sound: dict[str, bool] = {}
        """Tests, and whether they pass without any bug."""

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
        if test not in self._sound:
            self._sound[test] = run_harness(self._clean, test).verdict is Verdict.PASSED
        return self._sound[test]


@contextmanager
def mutation_runner(source: Path, *, every: bool = False) -> Iterator[MutationRunner]:
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        clean = Path(folder, "clean")
        copy_tree(source, clean)
        check_imports(clean)
        # Once, instead of in each copy again; a file with a bug in it is newer than what was compiled.
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
    """None: it had to be ended."""
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
    """The test that failed and what it said; None if none did, whatever else went wrong."""
    if not report.exists():
        return None
    for case in ElementTree.parse(report).iter("testcase"):
        failure = case.find("failure")
        if failure is not None:
            words = (failure.get("message") or "").strip().partition("\n")[0]
            return f"{case.get('file')}::{case.get('name')}", words[:WORDS_MAX]
    return None
