"""The Temporal example starts everything from wheels, with the bridge inside the server."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.system.examples.programs import Program


def test_another_worker_takes_over(tmp_path: Path) -> None:
    program = Program("temporal/run.py", folder=tmp_path)
    try:
        program.line_with("attempt 1")
        program.line_with("4. another worker has the activity after")
    finally:
        program.process.send_signal(signal.SIGINT)  # it stops what it started
        program.process.wait(60)
