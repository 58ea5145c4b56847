"""A worker tells its log and its server what happens to it."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from liveness.sdk import ActivityLost, ActivityRef, Client, InvalidArgument, Task, Worker, WorkerStatus
from liveness.v1.worker_pb2 import WORKER_STATUS_PAUSED, WORKER_STATUS_STOPPING
from tests.system.sdk.conftest import Make
from tests.system.sdk.running_worker import running, wait_finished
from tests.system.sdk.server_process import SECONDS_MAX, LivenessServer, until


class Lines(logging.Handler):
    """Collects what the SDK logs."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: SimpleQueue[logging.LogRecord] = SimpleQueue()

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.put(record)

    def wait_for(self, *texts: str) -> logging.LogRecord:
        """Skip lines until one contains all the texts."""
        while True:
            record = self._lines.get(timeout=SECONDS_MAX)
            if all(text in record.getMessage() for text in texts):
                return record


@pytest.fixture
def lines() -> Iterator[Lines]:
    logger, handler = logging.getLogger("liveness.sdk"), Lines()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


async def test_the_log_tells_the_life_of_a_worker(
    make: Make, client: Client, lines: Lines, server: LivenessServer, namespace: str
) -> None:
    async with make(instance_key="teller", lease=60) as worker:
        lines.wait_for("teller is registered in namespace", namespace, server.address, "60 s")

        @worker.activity("work")
        async def work(task: Task) -> str:
            return "done"

        async with running(worker):
            await client.schedule("work", id="a", task_queue="queue")
            await wait_finished(client, "work", "a")
            await asyncio.to_thread(lines.wait_for, "teller: completed activity a/work (attempt 1)")
            await client.pause("teller")
            await asyncio.to_thread(lines.wait_for, "teller is paused")
            await client.resume("teller")
            await asyncio.to_thread(lines.wait_for, "teller is resumed")
            await client.drain("teller", limit=60)
            await asyncio.to_thread(lines.wait_for, "teller is drained")
            stopped = await asyncio.to_thread(lines.wait_for, "teller has stopped")
            assert stopped.levelno == logging.INFO


def test_the_log_tells_that_the_server_is_away_and_back(own_server: LivenessServer, lines: Lines) -> None:
    with Worker(own_server.address, instance_key="w", lease=3):
        lines.wait_for("w is registered")
        own_server.end(signal.SIGKILL)
        away = lines.wait_for("the server is away", own_server.address)
        assert away.levelno == logging.WARNING
        own_server.start()
        lines.wait_for("the server is back")


def test_the_log_tells_of_lost_work_and_of_the_lease_that_follows(
    make: Make, server: LivenessServer, namespace: str, lines: Lines
) -> None:
    with make(instance_key="w") as worker:
        binding = worker.bind(ActivityRef("a"))
        binding.__enter__()
        server.expire(namespace, "w")
        lines.wait_for("w: lost activity a (attempt 1)")
        with pytest.raises(ActivityLost):
            binding.__exit__(None, None, None)
        lines.wait_for("w is registered again, under lease epoch 2")


def test_a_worker_reports_its_job_status_labels_and_counters(
    make: Make, server: LivenessServer, namespace: str
) -> None:
    with make(instance_key="w", labels={"zone": "a"}) as worker:
        worker.report(
            successes=3, errors=1, last_error="no disk", status=WorkerStatus.PAUSED, current_job="photo-17"
        )
        until(lambda: server.worker(namespace, "w").current_job)
        seen = server.worker(namespace, "w")
        assert (seen.current_job, seen.status, dict(seen.labels)) == (
            "photo-17",
            WORKER_STATUS_PAUSED,
            {"zone": "a"},
        )
        assert (seen.successes, seen.errors, seen.last_error) == (3, 1, "no disk")
        worker.report(current_job="", labels={"zone": "b", "gpu": "a100"})
        until(lambda: server.worker(namespace, "w").labels.get("gpu"))
        seen = server.worker(namespace, "w")
        assert (seen.current_job, seen.status) == ("", WORKER_STATUS_PAUSED), "what is not given stays"


@pytest.mark.parametrize(
    ("report", "complaint"),
    [
        ({"successes": -1}, "successes must be a whole number"),
        ({"current_job": "x" * 20_000}, "at most 12288 bytes"),
        ({"labels": {"a": "\ud800"}}, "valid Unicode"),
        ({"labels": {str(number): "" for number in range(1_001)}}, "at most 1000 labels"),
        ({"status": WorkerStatus.UNKNOWN}, "no status that a worker can report"),
    ],
)
def test_a_report_that_the_server_would_refuse_changes_nothing(
    make: Make, server: LivenessServer, namespace: str, report: dict[str, object], complaint: str
) -> None:
    with make(instance_key="w") as worker:
        with pytest.raises(InvalidArgument, match=complaint):
            worker.report(**report)  # type: ignore[arg-type]  # the point of the test
        worker.report(current_job="goes on")
        until(lambda: server.worker(namespace, "w").current_job == "goes on")


async def test_a_worker_that_stops_says_so_while_its_activities_end(
    make: Make, client: Client, server: LivenessServer, namespace: str
) -> None:
    begun, finish = asyncio.Event(), asyncio.Event()
    async with make(instance_key="w", stop_timeout=SECONDS_MAX) as worker:

        @worker.activity("slow")
        async def slow(task: Task) -> None:
            begun.set()
            await finish.wait()

        async with running(worker):
            await client.schedule("slow", id="a", task_queue="queue")
            await asyncio.wait_for(begun.wait(), SECONDS_MAX)
            worker.stop()
            await asyncio.to_thread(
                until, lambda: server.worker(namespace, "w").status == WORKER_STATUS_STOPPING
            )
            finish.set()
