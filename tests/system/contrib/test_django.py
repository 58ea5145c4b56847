"""`manage.py liveness_worker` runs the activities of a Django project."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from liveness.sdk import Client, InactiveReason
from tests.system.cli.server_processes import environment
from tests.system.sdk.server_process import SECONDS_MAX, LivenessServer, running_server, until

PROJECT = Path(__file__).with_name("django_project")
APPS = "liveness.contrib.django,shop"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivenessServer]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        yield server


@contextmanager
def command(
    folder: Path, *options: str, apps: str = APPS, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    own = {
        "DJANGO_SETTINGS_MODULE": "settings",
        "SHOP_DB": str(folder / "shop.db"),
        "SHOP_APPS": apps,
        **variables,
    }
    with subprocess.Popen(
        [sys.executable, "-m", "django", "liveness_worker", *options],
        cwd=PROJECT,
        env=environment(PYTHONPATH=str(PROJECT), **own),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def test_the_command_runs_the_activities_of_all_apps(server: LivenessServer, tmp_path: Path) -> None:
    namespace = tmp_path.name
    variables = {"LIVENESS_ADDRESS": server.address, "LIVENESS_NAMESPACE": namespace}
    with (
        Client(server.address, namespace=namespace).blocking as client,
        command(tmp_path, "--task-queue", "shop", **variables) as process,
    ):
        job = client.schedule("count", id="a", input=7, task_queue="shop")
        assert job.result(int, timeout=SECONDS_MAX) == 2
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == 0
        assert "completed activity a/count (attempt 1)" in log
        assert "has stopped: it got SIGTERM" in log
        (worker,) = until(client.workers)
        assert worker.inactive_reason is InactiveReason.SHUTDOWN


@pytest.mark.parametrize(
    ("apps", "options", "complaint"),
    [
        ("liveness.contrib.django", ("--task-queue", "q"), "no app has activities"),
        (
            APPS,
            ("--task-queue", "q", "--address", "127.0.0.1:1"),
            "No liveness server answers at 127.0.0.1:1",
        ),
        (APPS, (), "the following arguments are required: --task-queue"),
    ],
)
def test_the_command_says_what_is_missing(
    tmp_path: Path, apps: str, options: tuple[str, ...], complaint: str
) -> None:
    with command(tmp_path, *options, apps=apps) as process:
        _, error = process.communicate(timeout=SECONDS_MAX)
        assert process.returncode != 0
        assert complaint in error
        assert "Traceback" not in error
