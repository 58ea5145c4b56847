"""The own tests of Temporal's Python SDK get the same outcomes through the bridge as directly.

LIVENESS_TEMPORAL_SDK names a checkout of github.com/temporalio/sdk-python. Its tests may be of another version than the SDK that is
installed, so that some fail; through the bridge none may fail that passes directly.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.cli.server_processes import environment
from tests.system.temporal.stage import Stage

CHECKOUT = os.environ.get("LIVENESS_TEMPORAL_SDK", "")
SUITES = ("tests/worker/test_activity.py", "tests/worker/test_update_with_start.py")
SUITE_LIMIT_S = 280
PASSED_MIN = 50

pytestmark = pytest.mark.skipif(
    not CHECKOUT, reason="LIVENESS_TEMPORAL_SDK names no checkout of temporalio/sdk-python"
)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """The tests alone: beside them is the SDK's source, which has no compiled part."""
    assert (Path(CHECKOUT) / SUITES[0]).exists(), (
        f"LIVENESS_TEMPORAL_SDK is {CHECKOUT}, which has no {SUITES[0]}"
    )
    folder = tmp_path / "suite"
    shutil.copytree(Path(CHECKOUT) / "tests", folder / "tests")
    shutil.copy(Path(CHECKOUT) / "pyproject.toml", folder)
    return folder


@pytest.mark.timeout(3 * SUITE_LIMIT_S)
def test_what_passes_directly_passes_through_the_bridge(stage: Stage, suite: Path) -> None:
    directly = passed(suite, stage.temporal.address)
    assert len(directly) > PASSED_MIN
    before = sum(stage.bindings().values())

    through_the_bridge = passed(suite, stage.address)

    # What depends on chance, or on how busy the machine is, gets another try at both.
    missing = directly - through_the_bridge
    if missing:
        missing = passed(suite, stage.temporal.address, missing) - passed(suite, stage.address, missing)
    assert not missing
    assert sum(stage.bindings().values()) > before


def passed(suite: Path, address: str, only: set[str] | None = None) -> set[str]:
    command = ["pytest", "-q", "-rA", "-p", "no:cacheprovider", "-p", "no:schemathesis", "--timeout", "60"]
    # As the suite's own settings say to an older pytest-asyncio.
    command += [f"--override-ini=asyncio_default_{what}_loop_scope=session" for what in ("fixture", "test")]
    command += ["--workflow-environment", address.replace("127.0.0.1", "localhost")]
    done = subprocess.run(
        [sys.executable, "-m", *command, *(sorted(only) if only else SUITES)],
        cwd=suite,
        env=environment(PYTHONPATH=str(suite)),
        capture_output=True,
        text=True,
        timeout=SUITE_LIMIT_S,
    )
    found = set(re.findall(r"^PASSED (\S.*)$", done.stdout, re.MULTILINE))
    assert found, done.stdout[-3_000:] + done.stderr[-3_000:]
    return found
