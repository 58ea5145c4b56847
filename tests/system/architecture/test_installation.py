"""An installation without the server parts, and programs that have a `tasks` module of their own.

The server parts are made unimportable in a child process, which is what a child of a smaller installation would see.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from liveness.config.extras import SERVER_PACKAGES
from tests.system.cli.server_processes import child_process, environment, first_address, running_server

ROOT = Path(__file__).resolve().parents[3]
WITHOUT_SERVER_PARTS = f"import sys; sys.modules.update(dict.fromkeys({SERVER_PACKAGES!r})); "
COMMAND = "from liveness.cli import main; main(prog_name='liveness')"
TIMEOUT_S = 60


def run(folder: Path, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args],
        cwd=folder,
        env=environment(PYTHONPATH=str(ROOT), **variables),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def run_without_server_parts(folder: Path, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run(folder, "-c", WITHOUT_SERVER_PARTS + COMMAND, *args, **variables)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_server(tmp_path_factory.mktemp("server")) as address:
        yield address


# -- without the server parts


@pytest.mark.parametrize(
    "args",
    [("serve",), ("frontend", "--nodes", "a:1"), ("demo",), ("backup", "copy.db"), ("restore", "copy.db")],
)
def test_a_command_names_the_extra_that_it_lacks(tmp_path: Path, args: tuple[str, ...]) -> None:
    done = run_without_server_parts(tmp_path, *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: liveness {args[0]} needs the server parts; install them with: pip install 'liveness[server]'\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["serve", "frontend", "demo", "backup", "restore", "doctor", "top", "workers"]
)
def test_help_needs_no_server_parts(tmp_path: Path, name: str) -> None:
    done = run_without_server_parts(tmp_path, name, "--help")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("module", ["liveness.testing", "liveness.testing.fixtures", "liveness.fencing"])
def test_a_module_names_the_extra_that_it_lacks(tmp_path: Path, module: str) -> None:
    done = run(tmp_path, "-c", WITHOUT_SERVER_PARTS + f"import {module}")
    assert done.returncode == 1
    public_name = ".".join(module.split(".")[:2])
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: {public_name} needs the server parts; install them with: pip install 'liveness[server]'"
    )


def test_a_worker_needs_no_server_parts(tmp_path: Path, server: str) -> None:
    program = WITHOUT_SERVER_PARTS + (
        "from liveness import ActivityRef, Client, Worker\n"
        f"with Worker({server!r}, task_queue='q') as worker:\n"
        "    with worker.bind(ActivityRef('order-7')):\n"
        "        print('bound')\n"
    )
    done = run(tmp_path, "-c", program)
    assert (done.returncode, done.stdout) == (0, "bound\n"), done.stderr


def test_client_commands_need_no_server_parts(tmp_path: Path, server: str) -> None:
    for args in (
        ("workers", "list"), ("activities", "list"), ("tasks", "list"), ("nodes", "list"), ("shards", "list"),
        ("config", "get"), ("top", "--once"),
    ):  # fmt: skip
        done = run_without_server_parts(tmp_path, "--address", server, *args)
        assert done.returncode == 0, done.stderr


def test_doctor_checks_the_rest_without_the_server_parts(tmp_path: Path, server: str) -> None:
    done = run_without_server_parts(tmp_path, "doctor", "--address", server)
    assert done.returncode == 0, done.stderr
    assert "server parts  warning  not installed, so the database was not checked" in done.stdout
    assert f"{server} serves" in done.stdout


def test_doctor_needs_the_server_parts_for_a_named_database(tmp_path: Path) -> None:
    done = run_without_server_parts(tmp_path, "doctor", "--db", "sqlite:///liveness.db")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: liveness doctor --db needs the server parts; install them with: ")


# -- python -m liveness


def test_python_dash_m_liveness_is_the_command(tmp_path: Path, server: str) -> None:
    assert run(tmp_path, "-m", "liveness", "--version").stdout.startswith("liveness ")
    done = run(tmp_path, "-m", "liveness", "--address", server, "workers", "--json", "list")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("[")


# -- beside a user's own tasks.py


@pytest.fixture
def folder_with_tasks(tmp_path: Path) -> Path:
    """A user's folder whose tasks.py cannot be imported by accident without a failure."""
    (tmp_path / "tasks.py").write_text("raise AssertionError('liveness imported the tasks.py of its user')\n")
    return tmp_path


def test_a_server_starts_beside_a_tasks_module_of_the_user(folder_with_tasks: Path) -> None:
    assert run(folder_with_tasks, "-m", "liveness.cli", "serve", "--help").returncode == 0
    command = [sys.executable, "-m", "liveness.cli", "serve", "--listen", "127.0.0.1:0", "--http", "off"]
    with child_process(command, folder_with_tasks) as process:
        assert process.stdout is not None
        address, _ = first_address(process.stdout)
        listed = run(folder_with_tasks, "-m", "liveness", "tasks", "list", "--address", address)
        assert listed.returncode == 0, listed.stderr


def test_the_fixtures_work_beside_a_tasks_module_of_the_user(folder_with_tasks: Path) -> None:
    (folder_with_tasks / "conftest.py").write_text("pytest_plugins = ['liveness.testing.fixtures']\n")
    (folder_with_tasks / "test_own.py").write_text(
        "from liveness import Worker\n"
        "def test_own(liveness_server):\n"
        "    with Worker(liveness_server.address, task_queue='q') as worker:\n"
        "        liveness_server.advance(1)\n"
    )
    done = run(folder_with_tasks, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
