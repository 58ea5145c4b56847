"""make test: run the tests on all cores, and look once more, alone, at the few of real time that failed in the crowd.

Tests with real processes, signals, leases of seconds or a browser share the machine with all the others. One that a
stall of the machine has tripped passes when nothing else runs; one that found a fault fails again. Whoever had to be
asked twice is named. Tests of everything else get no second look, and neither does a run with many failures.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAST_FAILED = Path(".pytest_cache", "v", "cache", "lastfailed")
REAL_TIME = ("tests/system/", "tests/crash/")
RERUNS_MAX = 3
TESTS_FAILED = 1
"""Exit code of pytest: all were run, some failed."""


def main(options: list[str], root: Path = ROOT) -> int:
    last_failed = root / LAST_FAILED
    last_failed.unlink(missing_ok=True)
    code = _pytest(root, "-n", "auto", "--dist=loadgroup", *options)
    if code != TESTS_FAILED:
        return code
    failed = sorted(json.loads(last_failed.read_text())) if last_failed.exists() else []
    if not (0 < len(failed) <= RERUNS_MAX and all(test.startswith(REAL_TIME) for test in failed)):
        return code
    print(f"\nOnce more, with the machine to themselves: {', '.join(failed)}", flush=True)
    code = _pytest(root, *failed)
    if code == 0:
        print(f"Unsteady, passed alone: {', '.join(failed)}")
    return code


def _pytest(root: Path, *options: str) -> int:
    try:
        return subprocess.run([sys.executable, "-m", "pytest", *options], cwd=root, check=False).returncode
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
