"""`liveness workers release-storm` against a real server, and how the list shows held workers."""

from __future__ import annotations

import time

import grpc
from google.protobuf.duration_pb2 import Duration

from liveness.v1.service_pb2 import RecordWorkerHeartbeatsRequest
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from liveness.v1.worker_pb2 import WorkerHeartbeat
from tests.system.cli.shell import Shell

LEASE_S = 6
WORKERS = 3


def storm(shell: Shell) -> None:
    """Let workers fall silent together, in a namespace where three workers make a storm."""
    shell.ok("config", "set", f"storm_min_workers={WORKERS}", "storm_share=0.5", "storm_hold=1m")
    lease = Duration(seconds=LEASE_S)
    beats = [WorkerHeartbeat(worker_instance_key=f"w{n}", lease_duration=lease) for n in range(WORKERS)]
    with grpc.insecure_channel(shell.address) as channel:
        # In one call, so that their leases end at the same moment.
        answer = LivenessServiceStub(channel).RecordWorkerHeartbeats(
            RecordWorkerHeartbeatsRequest(namespace=shell.namespace, heartbeats=beats)
        )
    assert all(item.HasField("result") for item in answer.items)
    deadline = time.monotonic() + 60
    while "(held)" not in shell.ok("workers", "list"):
        assert time.monotonic() < deadline
    assert shell.ok("workers", "list").count("ACTIVE (held)") == WORKERS


def test_releasing_a_storm_lists_asks_and_ends_held_leases(shell: Shell) -> None:
    storm(shell)
    assert "held until" in shell.ok("workers", "describe", "w1")
    refused = shell.run("workers", "release-storm", stdin="n\n")
    assert refused.exit_code != 0
    assert f"End the held leases of {WORKERS} workers in namespace {shell.namespace}" in refused.output
    assert shell.json("workers", "release-storm", "--yes", "--reason", "known") == {"released": str(WORKERS)}
    deadline = time.monotonic() + 60
    while shell.ok("workers", "list").count("INACTIVE") < WORKERS:
        assert time.monotonic() < deadline
    assert "of it held by a storm" in shell.ok("workers", "why", "w1")


def test_without_a_storm_there_is_nothing_to_release(shell: Shell) -> None:
    shell.heartbeat("w")
    result = shell.run("workers", "release-storm", "--yes")
    assert (result.exit_code, result.stdout) == (0, "")
    assert (
        result.stderr
        == f"Nothing was held in namespace {shell.namespace}; for the next minute nothing will be held.\n"
    )


def test_storm_settings_are_set_and_checked(shell: Shell) -> None:
    shell.ok("config", "set", "storm_hold=0", "storm_pace=50", "storm_share=0.25")
    assert "0.25" in shell.ok("config", "get", "storm_share")
    assert "storm_share must be at most 1" in shell.sentence("config", "set", "storm_share=1.5")
    assert "storm_min_workers must be more than 0" in shell.sentence("config", "set", "storm_min_workers=0")
