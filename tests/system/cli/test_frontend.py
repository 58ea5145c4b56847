"""`liveness frontend` as a process."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from liveness.cli.frontend import banner
from liveness.config.frontend_settings import FrontendSettings
from tests.system.cli.server_processes import child_process, environment, first_address, liveness_command
from tests.system.cli.shell import Shell


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_frontend_prints_its_address_forwards_calls_and_stops_on_a_signal(
    tmp_path: Path, server: str, cluster_address: str, how: signal.Signals
) -> None:
    command = liveness_command("frontend", "--nodes", cluster_address, "--listen", "127.0.0.1:0")
    with child_process(command, tmp_path) as process:
        assert process.stdout is not None
        address, lines = first_address(process.stdout)
        assert lines[0].startswith("liveness ")
        Shell(address).heartbeat("through-the-frontend")
        assert "through-the-frontend" in Shell(server).ok("workers", "list")
        process.send_signal(how)
        rest = process.stdout.read()
        assert process.wait() == 0
    assert f"liveness workers list --address {address}" in rest
    assert "Traceback" not in (tmp_path / "server.log").read_text()


def test_a_frontend_serves_health_metrics_and_the_api_over_http(
    tmp_path: Path, server: str, cluster_address: str
) -> None:
    flags = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    with child_process(liveness_command("frontend", "--nodes", cluster_address, *flags), tmp_path) as process:
        assert process.stdout is not None
        address, _ = first_address(process.stdout)
        url = process.stdout.readline().split()[-1]
        Shell(address).heartbeat("through-the-frontend")

        def fetch(path: str) -> str:
            with urllib.request.urlopen(url + path, timeout=30) as answer:
                text: str = answer.read().decode()
                return text

        assert json.loads(fetch("healthz")) == {"status": "SERVING"}
        assert json.loads(fetch("readyz")) == {"status": "SERVING"}
        assert "liveness_frontend_nodes 1.0" in fetch("metrics")
        assert "through-the-frontend" in fetch("v1/namespaces/default/workers")


def test_a_frontend_without_nodes_is_not_ready(tmp_path: Path) -> None:
    flags = ("--nodes", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    with child_process(liveness_command("frontend", *flags), tmp_path) as process:
        assert process.stdout is not None
        first_address(process.stdout)
        url = process.stdout.readline().split()[-1]
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{url}readyz", timeout=30)
        with refused.value as answer:
            assert answer.code == 503
        with urllib.request.urlopen(f"{url}healthz", timeout=30) as answer:
            assert answer.status == 200, "a restart would not help"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ((), "a frontend must know where its nodes are; set --nodes or --db."),
        (("--nodes", "a"), "flag --nodes is 'a', but must be HOST:PORT of nodes with commas between them"),
        (
            ("--nodes", "10.0.0.7:8400"),
            "nodes has 10.0.0.7:8400, beyond loopback, but the cluster has no TLS; set",
        ),
        (("--nodes", "a:1", "--db", "postgresql://h/x"), "db and nodes are both set; keep one of them."),
        (("--db", "sqlite:///x.db"), "name the node of this one with --nodes."),
    ],
)
def test_bad_settings_are_reported_in_one_sentence(
    tmp_path: Path, flags: tuple[str, ...], sentence: str
) -> None:
    done = subprocess.run(
        liveness_command("frontend", *flags), cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert sentence in line


def test_an_address_in_use_is_reported_in_one_sentence(tmp_path: Path, server: str) -> None:
    done = subprocess.run(
        liveness_command("frontend", "--nodes", server, "--listen", server), cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 2
    assert server in done.stderr


def test_the_banner_hides_the_password() -> None:
    settings = FrontendSettings(db="postgresql://u:hunter2@h/x")
    shown = banner(settings, "0.0.0.0:7401")
    assert "hunter2" not in shown
    assert "  liveness workers list --address 127.0.0.1:7401\n" in shown
