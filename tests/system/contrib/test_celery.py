"""The tasks of a killed Celery worker are requeued within seconds; real Celery on a real Redis-compatible broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from liveness.sdk import Client
from tests.system.contrib.celery_stage import Broker, CeleryWorker
from tests.system.contrib.valkey import running_valkey
from tests.system.sdk.server_process import LivenessServer, running_server, until

Start = Callable[..., CeleryWorker]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivenessServer]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with running_valkey(tmp_path) as (url, client):
        yield Broker(url, client)


@pytest.fixture
def namespace(tmp_path: Path) -> str:
    return tmp_path.name


@pytest.fixture
def start(broker: Broker, server: LivenessServer, namespace: str, tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def start(name: str, **variables: str) -> CeleryWorker:
            own = {"LIVENESS_ADDRESS": server.address, "LIVENESS_NAMESPACE": namespace}
            worker = CeleryWorker(name, broker, tmp_path / f"{name}.log", **(own | variables))
            stack.callback(worker.end)
            return worker

        yield start


@pytest.fixture
def client(server: LivenessServer, namespace: str) -> Iterator[Client]:
    client = Client(server.address, namespace=namespace)
    yield client
    client.close()


def bound(client: Client) -> int:
    return sum(worker.activity_count for worker in client.blocking.workers())


def test_the_tasks_of_a_killed_worker_run_elsewhere_within_seconds(
    start: Start, broker: Broker, client: Client
) -> None:
    """Those that it runs, those that it has fetched in advance, and what it received before it had a lease. The broker alone would wait for an hour."""
    broker.send("a")
    first = start("first")
    until(lambda: broker.begun() == ["a by first"])
    until(lambda: len(client.blocking.workers()) == 1)
    broker.send("b", "c")
    until(lambda: bound(client) == 3)
    until(lambda: len(broker.begun()) == 1)
    (running,) = broker.begun()
    first.kill()
    start("second")
    broker.finish("a", "b", "c")
    until(lambda: broker.results() == 3)
    begun = broker.begun()
    assert running in begun
    assert sorted(text for text in begun if text.endswith("by second")) == [
        f"{name} by second" for name in "abc"
    ]
    until(lambda: broker.unacknowledged() == 0)
    until(lambda: bound(client) == 0)


def test_a_task_that_was_acknowledged_is_not_run_again(start: Start, broker: Broker, client: Client) -> None:
    first = start("first")
    until(lambda: len(client.blocking.workers()) == 1)
    broker.finish("done")
    broker.send("done", "left")
    until(lambda: len(broker.begun()) == 2)
    first.kill()
    start("second")
    until(lambda: "left by second" in broker.begun())
    assert broker.begun() == ["done by first", "left by first", "left by second"]
    broker.finish("left")
    until(lambda: broker.results() == 2)


def test_a_warm_shutdown_says_goodbye_and_repeats_nothing(
    start: Start, broker: Broker, client: Client
) -> None:
    worker = start("first")
    until(lambda: len(client.blocking.workers()) == 1)
    broker.finish("a")
    broker.send("a")
    until(lambda: broker.results() == 1)
    worker.end()
    (seen,) = client.blocking.workers()
    assert (seen.inactive_reason, seen.died) == ("SHUTDOWN", False)
    assert broker.begun() == ["a by first"]


def test_a_drained_worker_shuts_down_warmly(start: Start, broker: Broker, client: Client) -> None:
    worker = start("first")
    until(lambda: len(client.blocking.workers()) == 1)
    (seen,) = client.blocking.workers()
    client.blocking.drain(seen.key)
    worker.wait()


def test_tasks_run_without_a_server_of_liveness(start: Start, broker: Broker) -> None:
    start("alone", LIVENESS_ADDRESS="127.0.0.1:1")
    broker.finish("a")
    broker.send("a")
    until(lambda: broker.results() == 1)
