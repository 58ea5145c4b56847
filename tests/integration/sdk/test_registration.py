"""The SDK's registration on a real server: it comes, beats, counts once, comes back and says goodbye."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from liveness.sdk import CallFailed, InvalidArgument, Registration, ServerAway
from liveness.testing import LocalServer
from liveness.v1.admin_pb2 import ForgetWorkerRequest
from liveness.v1.admin_pb2_grpc import AdminServiceStub
from liveness.v1.registry_pb2 import RegistryEntry
from liveness.v1.registry_service_pb2 import DeregisterRequest, GetEntryRequest
from liveness.v1.registry_service_pb2_grpc import RegistryServiceStub
from tests.integration.quiet_logs import quiet as quiet

KEY = "broker:nats"
TIMEOUT_S = 20


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalServer]:
    with LocalServer(tmp_path) as server:
        yield server


@pytest.fixture
def channel(local: LocalServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(local.address) as channel:
        yield channel


@pytest.fixture
def read(channel: grpc.Channel) -> Callable[..., RegistryEntry]:
    registry: Any = RegistryServiceStub(channel)

    def read(key: str = KEY) -> RegistryEntry:
        entry: RegistryEntry = registry.GetEntry(
            GetEntryRequest(namespace="default", worker_instance_key=key)
        ).entry
        return entry

    return read


def until(
    read: Callable[[], RegistryEntry], is_as_expected: Callable[[RegistryEntry], bool]
) -> RegistryEntry:
    pause = threading.Event()
    for _ in range(TIMEOUT_S * 50):
        if is_as_expected(entry := read()):
            return entry
        pause.wait(0.02)
    raise AssertionError(f"still {read()}")


def registration(local: LocalServer, **fields: Any) -> Registration:
    return Registration(local.address, KEY, **{"expected_interval": 0.05, **fields})


def test_a_program_registers_in_two_lines_and_says_goodbye(
    local: LocalServer, read: Callable[..., RegistryEntry]
) -> None:
    started = registration(
        local, uri="nats://a", capacity=4, labels={"a": "b"}, runtime={"type": "cpu"}
    ).start()
    entry = read()
    assert (entry.uri, entry.capacity, entry.runtime_json, entry.status) == (
        "nats://a",
        4,
        '{"type":"cpu"}',
        "ready",
    )
    assert dict(entry.labels) == {"a": "b"}
    first = entry.last_seen_time.ToMilliseconds()
    local.advance(0.5)
    until(read, lambda entry: entry.last_seen_time.ToMilliseconds() > first)
    started.stop("done")
    assert read().status == "offline"


async def test_async_with_registers_and_deregisters(
    local: LocalServer, read: Callable[..., RegistryEntry]
) -> None:
    async with registration(local) as component:
        assert component.key == KEY
        assert read().status == "ready"
    assert read().status == "offline"


def test_status_counters_and_facts_reach_the_server(
    local: LocalServer, read: Callable[..., RegistryEntry]
) -> None:
    with registration(local) as component:
        component.count(successes=2, errors=1, last_error="disk is full")
        component.count(successes=3)
        component.set(status="draining", capacity=0)
        entry = until(read, lambda entry: entry.successes == 5)
        assert (entry.errors, entry.last_error) == (1, "disk is full")
        assert until(read, lambda entry: entry.status == "draining").capacity == 0


def test_what_was_counted_just_before_the_end_is_added(
    local: LocalServer, read: Callable[..., RegistryEntry]
) -> None:
    with registration(local, expected_interval=15) as component:
        component.count(successes=2)
        component.count(errors=1, last_error="disk is full")
    entry = read()
    assert (entry.status, entry.successes, entry.errors, entry.last_error) == (
        "offline",
        2,
        1,
        "disk is full",
    )


def test_a_component_that_was_forgotten_or_dismissed_comes_back(
    local: LocalServer, channel: grpc.Channel, read: Callable[..., RegistryEntry]
) -> None:
    with registration(local, uri="nats://a"):
        local.expire(KEY)
        until(read, lambda entry: entry.lease_epoch == 2 and entry.status == "ready")
        goodbye: Any = RegistryServiceStub(channel).Deregister
        goodbye(DeregisterRequest(namespace="default", worker_instance_key=KEY))
        until(read, lambda entry: entry.status == "ready")
    forget: Any = AdminServiceStub(channel).ForgetWorker
    forget(ForgetWorkerRequest(namespace="default", worker_instance_key=KEY))
    with registration(local, uri="nats://b"):
        assert read().uri == "nats://b"


def test_a_second_process_is_a_replica_and_takes_the_name_when_the_first_leaves(
    local: LocalServer, read: Callable[..., RegistryEntry]
) -> None:
    first = registration(local, uri="nats://one").start()
    with registration(local, uri="nats://two", capacity=2) as second:
        assert second.is_replica
        assert [replica.uri for replica in read().replicas] == ["nats://two"]
        first.stop()
        entry = until(read, lambda entry: entry.capacity == 2 and entry.status == "ready")
        assert (entry.uri, list(entry.replicas)) == ("nats://two", [])
        assert not second.is_replica


def test_a_replica_adds_what_it_counted_when_it_gets_the_name(
    local: LocalServer, read: Callable[..., RegistryEntry]
) -> None:
    first = registration(local).start()
    with registration(local) as second:
        second.count(successes=3)
        seen_ms = read().replicas[0].last_seen_time.ToMilliseconds()
        local.advance(0.5)
        until(read, lambda entry: entry.replicas[0].last_seen_time.ToMilliseconds() > seen_ms)
        assert read().successes == 0
        second.count(successes=4, errors=1, last_error="disk is full")
        first.stop()
        entry = until(read, lambda entry: entry.successes == 7)
        assert (entry.errors, entry.last_error) == (1, "disk is full")


def test_a_second_process_can_be_refused_or_numbered(local: LocalServer) -> None:
    with registration(local):
        with pytest.raises(CallFailed, match="WORKER_KEY_HELD"):
            registration(local, on_replica="refuse").start()
        with registration(local, on_replica="number") as numbered:
            assert numbered.key == "broker:nats-2"


def test_a_wrong_registration_and_an_absent_server_raise_at_once(local: LocalServer) -> None:
    with pytest.raises(InvalidArgument, match="KIND:NAME"):
        Registration(local.address, "nats").start()
    with pytest.raises(ServerAway):
        Registration("127.0.0.1:1", KEY).start(timeout=0.3)


def test_a_registration_in_the_background_never_raises(caplog: pytest.LogCaptureFixture) -> None:
    absent = Registration("127.0.0.1:1", KEY).start_soon()
    pause = threading.Event()
    for _ in range(TIMEOUT_S * 50):
        if "cannot be registered" in caplog.text:
            break
        pause.wait(0.02)
    absent.stop()
    assert caplog.text.count("cannot be registered, and is tried again") == 1
