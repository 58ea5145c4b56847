"""With `--log-format json`, everything that the process writes to stderr is JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.system.cli.server_processes import environment, liveness_command


def test_every_line_is_json_whatever_fails_in_the_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.system.server.failing_libraries", str(tmp_path / "liveness.db")],
        env=environment() | {"GRPC_VERBOSITY": "NONE"},  # as `liveness serve` sets it
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    events = [json.loads(line) for line in done.stderr.splitlines()]
    failures = {
        exception["exc_value"].partition(" failed")[0]
        for event in events
        for exception in event.get("exception", [])
    }
    assert failures == {
        "a task", "a callback", "a handler", "a job", "a thread", "a finalizer", "the process",
    }  # fmt: skip
    loggers = {event.get("logger") for event in events if "exception" in event}
    assert {"asyncio", "grpc._cython.cygrpc", "apscheduler.executors.default"} <= loggers
    assert any("a warning" in event["event"] for event in events)
    assert all({"level", "timestamp"} <= event.keys() for event in events)
    assert "hunter2" not in done.stderr


def test_a_server_that_cannot_start_says_so_in_json(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database, and longer than a header")
    done = subprocess.run(
        liveness_command("serve", "--db", f"sqlite:///{tmp_path}/text.db", "--log-format", "json"),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    [event] = map(json.loads, done.stderr.splitlines())
    assert (event["level"], event["event"]) == ("critical", "the server cannot run")
    assert "is not a SQLite file" in event["why"]
