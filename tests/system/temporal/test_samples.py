"""Unmodified sample programs of Temporal's Python SDK, and their own tests, through the bridge.

LIVENESS_TEMPORAL_SAMPLES names a checkout of github.com/temporalio/samples-python. Its programs connect to localhost:7233, so that
is where the bridge listens.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.free_ports import free_port
from tests.system.cli.server_processes import environment
from tests.system.temporal.stage import LIMIT_S, Stage, Temporal, temporal_server

CHECKOUT = os.environ.get("LIVENESS_TEMPORAL_SAMPLES", "")
PORT = 7233
SUITE_LIMIT_S = 300

pytestmark = pytest.mark.skipif(
    not CHECKOUT, reason="LIVENESS_TEMPORAL_SAMPLES names no checkout of temporalio/samples-python"
)

PROGRAMS = {
    "eager_wf_start/run.py": "Hello",
    "env_config/load_from_file.py": "connected successfully",
    "hello/hello_activity.py": "Result: Hello, World!",
    "hello/hello_activity_async.py": "Result: Hello, World!",
    "hello/hello_activity_choice.py": "Ordered 8 Apples.*Ordered 4 Oranges",
    "hello/hello_activity_heartbeat.py": "Result: Hello, World!",
    "hello/hello_activity_method.py": "Database update executed",
    "hello/hello_activity_multiprocess.py": "Result on PID .*: Hello, World!",
    "hello/hello_activity_retry.py": "attempt number 4\nResult: Hello, World!",
    "hello/hello_async_activity_completion.py": "Result: Hello, World!",
    "hello/hello_cancellation.py": "",
    "hello/hello_child_workflow.py": "Result: Hello, World!",
    "hello/hello_continue_as_new.py": "",
    "hello/hello_exception.py": "",
    "hello/hello_local_activity.py": "Result: Hello, World!",
    "hello/hello_parallel_activity.py": "Hello, user1!.*Hello, user5!",
    "hello/hello_query.py": "Hello, World!\n.*Goodbye, World!",
    "hello/hello_search_attributes.py": "",
    "hello/hello_signal.py": "Hello, user1.*Hello, user3",
    "hello/hello_update.py": "Hello, World!",
}
"""Programs that end by themselves, and what they then have printed."""

PAIRS = {
    "context_propagation/worker.py": {"context_propagation/starter.py": "Hello, Temporal"},
    "custom_converter/worker.py": {"custom_converter/starter.py": "Workflow result: Hello, Temporal"},
    "custom_decorator/worker.py": {"custom_decorator/starter.py": "Result: activity cancelled!"},
    "hello_standalone_activity/worker.py": {
        "hello_standalone_activity/execute_activity.py": "Activity result: Hello, World!",
        "hello_standalone_activity/start_activity.py": "Activity result: Hello, World!",
        "hello_standalone_activity/list_activities.py": "my-standalone-activity-id",
        "hello_standalone_activity/count_activities.py": "Total activities: ",
    },
    "message_passing/introduction/worker.py": {
        "message_passing/introduction/starter.py": "language changed: ENGLISH -> CHINESE"
    },
    "message_passing/safe_message_handlers/worker.py": {
        "message_passing/safe_message_handlers/starter.py": "Cluster shut down successfully"
    },
    "message_passing/update_with_start/lazy_initialization/worker.py": {
        "message_passing/update_with_start/lazy_initialization/starter.py": "final order: .*total=599"
    },
    "message_passing/waiting_for_handlers/worker.py": {
        "message_passing/waiting_for_handlers/starter.py": "exit type: CANCELLATION"
    },
    "message_passing/waiting_for_handlers_and_compensation/worker.py": {
        "message_passing/waiting_for_handlers_and_compensation/starter.py": "CANCELLATION"
    },
    "polling/frequent/run_worker.py": {"polling/frequent/run_frequent.py": "Result: Hello, World!"},
    "replay/worker.py": {
        "replay/starter.py": "TimerThenActivity Workflow result: Hello, replayer!",
        "replay/replayer.py": "replay_failures={}",
    },
    "schedules/run_worker.py": {
        "schedules/start_schedule.py": "",
        "schedules/describe_schedule.py": "Here's a note on my Schedule",
        "schedules/list_schedule.py": "",
        "schedules/pause_schedule.py": "",
        "schedules/trigger_schedule.py": "",
        "schedules/update_schedule.py": "",
        "schedules/backfill_schedule.py": "",
        "schedules/delete_schedule.py": "",
    },
    "worker_multiprocessing/worker.py": {"worker_multiprocessing/starter.py": "activity-pid"},
    "worker_specific_task_queues/worker.py": {"worker_specific_task_queues/starter.py": "[0-9a-f]{64}"},
}
"""Programs with a worker, those that are run beside it one after the other, and what they print."""

SUITES = (
    "activity_sticky_queues",
    "context_propagation",
    "custom_converter",
    "eager_wf_start",
    "hello",
    "hello_nexus",
    "message_passing",
    "nexus_messaging",
    "polling",
    "resource_pool",
)
"""Folders of the samples' own tests that need nothing but the SDK and a server."""
NEEDS_ANOTHER_SERVER = "tests/hello/hello_query_test.py"
"""It downloads a server that skips time."""


@pytest.fixture(scope="module")
def samples() -> Path:
    folder = Path(CHECKOUT).resolve()
    assert (folder / "hello").is_dir(), f"LIVENESS_TEMPORAL_SAMPLES is {CHECKOUT}, which has no folder hello"
    return folder


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", PORT)) == 0:
            pytest.skip(f"something else listens on port {PORT}, where the samples look for Temporal")
    folder, port = tmp_path_factory.mktemp("samples"), free_port()
    with temporal_server(folder, port):
        stage = Stage(folder, Temporal(f"127.0.0.1:{port}"), bridge_port=PORT)
        yield stage
        stage.stop()


@pytest.mark.timeout(2 * SUITE_LIMIT_S)
def test_the_samples_own_tests_pass(stage: Stage, samples: Path) -> None:
    """Before the programs run: one of the tests reads the histories of all workflows that the server has."""
    before = sum(stage.bindings().values())
    # Their settings are those of an older pytest-asyncio, which had one event loop for all.
    one_loop = ("asyncio_default_fixture_loop_scope=session", "asyncio_default_test_loop_scope=session")
    command = [
        *("pytest", "-q", "-p", "no:cacheprovider", "--workflow-environment", f"localhost:{PORT}"),
        *(f"--override-ini={setting}" for setting in (*one_loop, "log_cli=false")),
        *("--deselect", NEEDS_ANOTHER_SERVER),
        *(f"tests/{suite}" for suite in SUITES),
    ]
    done = subprocess.run(
        [sys.executable, "-m", *command],
        **child(samples),
        timeout=SUITE_LIMIT_S,
    )
    assert done.returncode == 0, done.stdout[-5_000:]
    assert re.search(r"\d\d passed", done.stdout), done.stdout
    assert sum(stage.bindings().values()) > before


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_runs_unmodified(stage: Stage, samples: Path, program: str) -> None:
    run(samples, program, PROGRAMS[program])


@pytest.mark.parametrize("worker", PAIRS)
def test_programs_run_unmodified_beside_their_worker(stage: Stage, samples: Path, worker: str) -> None:
    with running(samples, worker):
        for program, printed in PAIRS[worker].items():
            run(samples, program, printed)


def run(samples: Path, program: str, printed: str) -> None:
    require(samples, program)
    done = subprocess.run([sys.executable, *program.split()], **child(samples), timeout=LIMIT_S)
    output = f"{done.returncode} {done.stdout} {done.stderr}"
    assert done.returncode == 0 or crashed_at_exit(done.stderr), output
    assert re.search(printed, output, re.DOTALL), output


def crashed_at_exit(errors: str) -> bool:
    """The interpreter sometimes crashes when the SDK's threads end with it: then no thread has a line of Python to show."""
    finalizing = "Python runtime state: finalizing" in errors
    return finalizing or ("Fatal Python error" in errors and 'File "' not in errors)


@contextmanager
def running(samples: Path, worker: str) -> Iterator[None]:
    """The worker, in a process group of its own: it may have children, which must not outlive it."""
    require(samples, worker)
    options = child(samples) | {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, *worker.split()], **options, start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(LIMIT_S)


def require(samples: Path, program: str) -> None:
    if not (samples / program.split()[0]).exists():
        pytest.skip(f"this checkout has no {program}")


def child(samples: Path) -> dict[str, Any]:
    """How a program of the checkout runs: from its folder, whose packages it imports, and leaving nothing there."""
    variables = {"PYTHONPATH": str(samples), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    variables["PYTHONFAULTHANDLER"] = "1"  # so that a crash says where
    return {
        "cwd": samples,
        "env": environment(**variables),
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
