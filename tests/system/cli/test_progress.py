"""`liveness progress`, and the counters that `liveness workers` shows, against a real server."""

from __future__ import annotations

from typing import Any

import grpc

from liveness.v1.progress_service_pb2 import ReportProgressRequest
from liveness.v1.progress_service_pb2_grpc import ProgressServiceStub
from tests.system.cli.shell import Shell


def report(shell: Shell, unit: str, **fields: Any) -> None:
    with grpc.insecure_channel(shell.address) as channel:
        ProgressServiceStub(channel).ReportProgress(
            ReportProgressRequest(namespace=shell.namespace, worker_instance_key="w", unit=unit, **fields)
        )


def test_units_are_listed_described_and_forgotten(shell: Shell) -> None:
    empty = shell.run("progress", "list")
    assert empty.stderr.startswith(f"No such unit of work in namespace {shell.namespace}.\n")
    report(shell, "orders.items", successes=3)
    report(shell, "orders.users", error="torn\x1b[31m")
    report(shell, "stock", successes=1)
    assert [unit["unit"] for unit in shell.json("progress", "list", "orders.")] == [
        "orders.items",
        "orders.users",
    ]
    failing = shell.ok("progress", "list", "--failing")
    assert "orders.users" in failing
    assert "stock" not in failing
    assert "\x1b" not in failing
    described = shell.ok("progress", "describe", "orders.items")
    assert "3 successes" in described
    assert shell.json("progress", "describe", "stock")["successes"] == "1"
    assert "not confirmed" in shell.run("progress", "forget", "stock").stderr
    shell.ok("progress", "forget", "stock", "--yes", "--reason", "gone")
    assert (
        shell.sentence("progress", "describe", "stock")
        == f"Nobody has reported progress of unit stock in namespace {shell.namespace} (UNIT_NOT_FOUND)."
    )


def test_a_script_reports_and_a_repeated_report_counts_once(shell: Shell) -> None:
    reported = ("progress", "report", "w-1", "orders", "--successes", "250", "--report-id", "batch-17")
    assert shell.ok(*reported) == "orders has 250 successes and 0 errors.\n"
    assert shell.ok(*reported).startswith("This report was counted before: orders has 250 successes")
    failed = shell.json("progress", "report", "w-2", "orders", "--error", "torn", "--errors", "2")
    assert (failed["progress"]["errors"], failed["progress"]["last_error_worker"]) == ("2", "w-2")
    wrong = shell.run("progress", "report", "w", "orders", "--errors", "2")
    assert (wrong.exit_code, "--errors needs --error" in wrong.stderr) == (2, True)
    assert shell.run("progress", "report", "w", "orders", "--successes", "-1").exit_code == 2


def test_workers_show_what_they_counted(shell: Shell) -> None:
    for sequence in (1, 2, 2):
        shell.heartbeat("w", session_id="s", sequence=sequence, successes=2, errors=1, last_error="torn")
    fields = dict(
        line.split(None, 1) for line in shell.ok("workers", "describe", "w").splitlines() if line.strip()
    )
    assert fields["heartbeats"] == "2"
    assert fields["successes"] == "4"
    assert "last error at" in shell.ok("workers", "describe", "w")
    counted = shell.ok("workers", "list", "--count")
    assert [line.split() for line in counted.splitlines()[-3:]] == [
        ["heartbeats", "2"],
        ["successes", "4"],
        ["errors", "2"],
    ]
    assert shell.json("workers", "describe", "w")["heartbeat_count"] == "2"
