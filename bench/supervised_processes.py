"""`liveness supervise` with one group of processes, and the scripts that these run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import grpc

from bench.failover_latency import NAMESPACE
from liveness.v1.component_pb2 import COMPONENT_STATUS_HEALTHY
from liveness.v1.component_service_pb2 import ListComponentsRequest
from liveness.v1.component_service_pb2_grpc import ComponentServiceStub

SECONDS_MAX = 120

SILENT = "exec sleep infinity\n"
FRAME_SECONDS = 5


def framing(job="null"):
    """Return a script that writes a health frame every five seconds, and starts no other process for it."""
    return f"""
exec 2>/dev/null
while :; do
  printf 'HEALTH|{{"component_id":"%s","status":"healthy","current_job":%s}}\\n' "$LIVENESS_COMPONENT_ID" {job} \\
    >&"$LIVENESS_HEALTH_FD"
  read -t {FRAME_SECONDS} -u "$LIVENESS_CONTROL_FD"
done
"""


def announcing(fifo):
    """Return the beginning of a script that writes the number and the id of its process to the fifo."""
    return f'echo "${{LIVENESS_INDEX:-$0}} $$" > {fifo}\n'


@contextmanager
def supervising(folder, address, group, script, processes, *settings):
    """Run the script of bash in each process. `settings`: further lines of the configuration. Yields the process of the
    supervisor."""
    place = Path(folder, group)
    place.mkdir()
    (place / "program.sh").write_text(script)
    config = place / "workers.toml"
    lines = (
        f"[group.{group}]",
        f"command = {json.dumps(['bash', '-c', f'. {place}/program.sh'])}",
        f"processes = {processes}",
        *settings,
    )
    config.write_text("\n".join(lines))
    arguments = ["--address", address, "--namespace", NAMESPACE, "--state-dir", str(place / "state")]
    with (place / "log").open("w") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "liveness",
                "supervise",
                "--no-table",
                *arguments,
                "--config",
                str(config),
            ],
            stdin=subprocess.DEVNULL,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(SECONDS_MAX)


def wait_until_healthy(address, group, processes):
    request = ListComponentsRequest(namespace=NAMESPACE, group=group, page_size=1_000)
    request.statuses.append(COMPONENT_STATUS_HEALTHY)
    end = time.monotonic() + SECONDS_MAX
    with grpc.insecure_channel(address) as channel:
        stub = ComponentServiceStub(channel)
        while len(stub.ListComponents(request, timeout=30, wait_for_ready=True).components) < processes:
            if time.monotonic() > end:
                raise SystemExit(f"not all {processes} processes of {group} became healthy")
            time.sleep(0.2)
