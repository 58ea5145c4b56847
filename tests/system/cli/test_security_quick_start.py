"""The commands of the quick start in docs/security.md, run as they are written, with other ports."""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path

from tests.system.cli.server_processes import environment

ROOT = Path(__file__).resolve().parents[3]
SECONDS_MAX = 120
CHECKS = """
for try in $(seq 60); do
  LIVENESS_TOKEN_FILE=web-token liveness activities describe photo-17 --type resize > described
  if grep COMPLETED described; then break; fi
done
LIVENESS_TOKEN_FILE=oncall-token liveness workers list
if LIVENESS_TOKEN_FILE=web-token liveness workers pause --all; then exit 3; fi
trap - EXIT
kill $(jobs -p)
wait
"""


def block(path: str, language: str, begins: str) -> str:
    text = (ROOT / path).read_text(encoding="utf-8")
    [found] = [
        each for each in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL) if each.startswith(begins)
    ]
    return str(found)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def test_the_quick_start_for_a_team_works_as_written(tmp_path: Path) -> None:
    grpc_port, http_port = free_ports(2)
    worker = block("README.md", "python", "import asyncio\nfrom liveness import Worker")
    assert "sleep(60)" in worker
    worker = worker.replace("sleep(60)", "sleep(0)")
    (tmp_path / "first_worker.py").write_text(worker.replace("127.0.0.1:7400", f"127.0.0.1:{grpc_port}"))
    commands = block("docs/security.md", "sh", "umask").replace("127.0.0.1:7480", f"127.0.0.1:{http_port}")
    assert "127.0.0.1:7400" not in commands
    script = f"set -eu -o pipefail\ntrap 'kill $(jobs -p)' EXIT\n{commands}{CHECKS}"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environment(
            PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            LIVENESS_LISTEN=f"127.0.0.1:{grpc_port}",
            LIVENESS_HTTP=f"127.0.0.1:{http_port}",
            LIVENESS_ADDRESS=f"127.0.0.1:{grpc_port}",
        ),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "principal   render-farm\ngrants      worker:default" in done.stdout
    assert "COMPLETED" in done.stdout, "the worker did what the producer scheduled"
    assert "ACTIVE" in done.stdout
    assert "PERMISSION_DENIED" in done.stderr, "a producer pauses nobody"
    for name in ("admin", "render", "web", "oncall"):
        token_file = tmp_path / f"{name}-token"
        assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
        assert token_file.read_text().strip() not in done.stdout + done.stderr
