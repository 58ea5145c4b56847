"""A worker reports progress of units of work; each report counts once, also when the server is away meanwhile."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

import grpc
import pytest

from liveness.sdk import InvalidArgument, Worker, WorkerStopped
from liveness.v1.progress_service_pb2 import GetProgressRequest, ListProgressRequest, UnitProgress
from liveness.v1.progress_service_pb2_grpc import ProgressServiceStub
from tests.system.sdk.server_process import LivenessServer

Make = Callable[..., Worker]


def progress_of(server: LivenessServer, namespace: str, unit: str = "table") -> UnitProgress:
    with grpc.insecure_channel(server.address) as channel:
        request = GetProgressRequest(namespace=namespace, unit=unit)
        return ProgressServiceStub(channel).GetProgress(request, wait_for_ready=True).progress


async def test_progress_is_sent_before_the_worker_has_stopped(
    server: LivenessServer, namespace: str, make: Make
) -> None:
    async with make(instance_key="mine") as worker:
        for _ in range(50):
            worker.progress("table", successes=2)
        worker.progress("table", error="torn")
        worker.progress("other", successes=1)
    found = progress_of(server, namespace)
    assert (found.successes, found.errors, found.last_error) == (100, 1, "torn")
    assert found.last_success_worker == found.last_error_worker == "mine"
    assert progress_of(server, namespace, "other").successes == 1
    with pytest.raises(WorkerStopped):
        worker.progress("table", successes=1)


def test_threads_report_without_an_event_loop(server: LivenessServer, namespace: str, make: Make) -> None:
    def report(worker: Worker) -> None:
        for _ in range(25):
            worker.progress("table", successes=1)
            worker.progress("table", successes=1, error="torn")

    with make() as worker:
        threads = [threading.Thread(target=report, args=(worker,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = progress_of(server, namespace)
    assert (found.successes, found.errors) == (200, 100)


def test_reports_wait_while_the_server_is_away_and_count_once(
    own_server: LivenessServer, namespace: str
) -> None:
    with Worker(own_server.address, namespace=namespace, lease=60) as worker:
        worker.progress("table", successes=1)
        own_server.end(signal.SIGKILL)
        for _ in range(10):
            worker.progress("table", successes=1, error="torn")
        own_server.start()
    found = progress_of(own_server, namespace)
    assert (found.successes, found.errors) == (11, 10)


def test_an_impossible_report_is_refused_at_once(server: LivenessServer, namespace: str, make: Make) -> None:
    with make() as worker:
        for unit, successes in (("", 1), ("x" * 201, 1), ("table", -1), ("table", 2**40 + 1)):
            with pytest.raises(InvalidArgument):
                worker.progress(unit, successes=successes)
    with grpc.insecure_channel(server.address) as channel:
        listed = ProgressServiceStub(channel).ListProgress(ListProgressRequest(namespace=namespace))
    assert not listed.units
