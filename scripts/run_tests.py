"""make test: run the tests on all cores, and repeat a few failed timing-sensitive tests alone.

Tests with real processes, databases, signals, leases of seconds or a browser share the machine with all other tests. A test
that failed because the machine stalled passes when nothing else runs; a test that found a bug fails again. The last lines
count and name the unsteady tests: those that failed among the others and passed alone. Each of them is a fault to mend, in the
test or in the product. Tests below other folders are not repeated, and nothing is repeated after a run with many failures.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAST_FAILED = Path(".pytest_cache", "v", "cache", "lastfailed")
TIMING_SENSITIVE = ("tests/integration/", "tests/system/", "tests/crash/")
RERUNS_MAX = 8
TESTS_FAILED = 1
"""pytest's exit code after a complete run in which tests failed."""


def main(options: list[str], root: Path = ROOT) -> int:
    (root / LAST_FAILED).unlink(missing_ok=True)
    code = _pytest(root, "-n", "auto", "--dist=loadgroup", *options)
    unsteady: list[str] = []
    if code == TESTS_FAILED:
        failed = _last_failed(root)
        if 0 < len(failed) <= RERUNS_MAX and all(test.startswith(TIMING_SENSITIVE) for test in failed):
            print(f"\nRunning again, alone: {', '.join(failed)}", flush=True)
            code = _pytest(root, *failed)
            if code in (0, TESTS_FAILED):
                failed_again = _last_failed(root)
                unsteady = [test for test in failed if test not in failed_again]
    print(_unsteady_line(unsteady), flush=True)
    return code


def _last_failed(root: Path) -> list[str]:
    file = root / LAST_FAILED
    return sorted(json.loads(file.read_text())) if file.exists() else []


def _unsteady_line(unsteady: list[str]) -> str:
    if not unsteady:
        return "0 unsteady tests"
    tests = "test" if len(unsteady) == 1 else "tests"
    return (
        f"{len(unsteady)} unsteady {tests}, failed among the others and passed alone: {', '.join(unsteady)}"
    )


def _pytest(root: Path, *options: str) -> int:
    try:
        return subprocess.run([sys.executable, "-m", "pytest", *options], cwd=root, check=False).returncode
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
