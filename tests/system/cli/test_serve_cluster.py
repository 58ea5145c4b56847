"""`liveness serve` refuses to open the cluster's port to others without TLS."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.system.cli.server_processes import environment, liveness_command


@pytest.mark.parametrize(
    "flags",
    [("--listen", "0.0.0.0:7400"), ("--cluster-listen", "0.0.0.0:0"), ("--advertise", "node.example:8400")],
)
def test_a_cluster_port_beyond_loopback_without_tls_ends_with_two(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    command = liveness_command("serve", "--db", "postgresql://127.0.0.1:1/x", *flags)
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    [line] = ended.stderr.strip().splitlines()
    assert "beyond loopback, but the cluster has no TLS; set cluster_cert_file" in line
    assert "--insecure" in line


def test_files_for_tls_that_do_not_exist_end_with_two(tmp_path: Path) -> None:
    names = ("--cluster-cert-file", "c.pem", "--cluster-key-file", "c.key", "--cluster-ca-file", "ca.pem")
    command = liveness_command("serve", "--db", "postgresql://127.0.0.1:1/x", *names)
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "c.pem cannot be read: No such file or directory" in ended.stderr
