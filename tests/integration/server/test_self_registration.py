"""Nodes, frontends and relays are components of the registry, and never in the way of what they are there for."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
import structlog
from structlog.testing import capture_logs

from liveness.config.frontend_settings import FrontendSettings
from liveness.frontend.app import Frontend
from liveness.server import self_registration
from liveness.server.self_registration import NAMESPACE, SelfRegistration
from tests.integration.security.auth_harness import AuthHarness
from tests.integration.security.conftest import auth
from tests.integration.server.registry_client import RegistryClient
from tests.integration.server.server_harness import ServerHarness, refusal

__all__ = ["auth"]

ROUNDS_MAX = 2_000


async def listed(client: RegistryClient, count: int) -> dict[str, str]:
    """Statuses by label, once there are so many components."""
    for _ in range(ROUNDS_MAX):
        entries = (await client.page()).entries
        if len(entries) >= count:
            return {entry.labels["component"]: f"{entry.kind} {entry.status}" for entry in entries}
    raise AssertionError("still missing")


async def start(harness: ServerHarness, url: str = "") -> SelfRegistration:
    registration = harness.server.self_registration(url)
    registration.start()
    client = RegistryClient(harness.channel, NAMESPACE)
    for _ in range(ROUNDS_MAX):
        if registration.registered:
            return registration
        with suppress(grpc.aio.AioRpcError):  # some servers ask who calls
            await client.page()
    raise AssertionError("it does not register")


async def test_a_node_registers_itself_and_says_goodbye(sqlite_harness: ServerHarness) -> None:
    client = RegistryClient(sqlite_harness.channel, NAMESPACE)
    registration = await start(sqlite_harness, "http://127.0.0.1:80/")
    assert await listed(client, 1) == {"node": "server_api ready"}
    [entry] = (await client.page()).entries
    assert entry.uri == f"grpc://{sqlite_harness.server.address}"
    assert '"http": "http://127.0.0.1:80/"' in entry.runtime_json
    await registration.stop()
    assert await listed(client, 1) == {"node": "server_api offline"}
    await (await start(sqlite_harness)).stop()
    [entry] = (await client.page()).entries
    assert (entry.lease_epoch, list(entry.replicas)) == (2, [])


async def test_a_node_that_was_killed_goes_on_as_the_same_component(sqlite_harness: ServerHarness) -> None:
    client = RegistryClient(sqlite_harness.channel, NAMESPACE)
    await start(sqlite_harness)
    await listed(client, 1)
    await start(sqlite_harness)
    [entry] = (await client.page()).entries
    assert (entry.status, entry.lease_epoch, list(entry.replicas)) == ("ready", 1, [])


async def test_a_node_with_a_relay_is_a_server_and_a_broker(tmp_path: Path) -> None:
    harness = ServerHarness(f"sqlite:///{tmp_path}/liveness.db")
    await harness.start(relay=("nats://name:secret@127.0.0.1:1",))
    client = RegistryClient(harness.channel, NAMESPACE)
    await start(harness)
    assert await listed(client, 2) == {"node": "server_api ready", "relay": "broker ready"}
    [relay] = (await client.page(kind="broker")).entries
    assert "127.0.0.1:1" in relay.uri
    assert "secret" not in relay.uri
    await harness.stop()


async def test_a_frontend_registers_at_the_owner(
    sqlite_harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_registration, "GOODBYE_S", 30.0)  # the machine may be busy
    client = RegistryClient(sqlite_harness.channel, NAMESPACE)
    nodes = (sqlite_harness.server.cluster_address,)
    async with Frontend(FrontendSettings(listen="127.0.0.1:0", nodes=nodes)) as frontend:
        registration = frontend.self_registration("")
        registration.start()
        # It takes a moment to learn the owners; a call through it waits for that.
        async with grpc.aio.insecure_channel(frontend.address) as channel:
            assert await listed(RegistryClient(channel, NAMESPACE), 0) in (
                {},
                {"frontend": "server_api ready"},
            )
        assert await listed(client, 1) == {"frontend": "server_api ready"}
        await registration.stop()
    assert await listed(client, 1) == {"frontend": "server_api offline"}


async def test_where_callers_are_asked_a_node_registers_as_itself(auth: AuthHarness) -> None:
    await start(auth)
    token = (await auth.create_token("stranger", "worker:*", "reader:*")).secret
    client = RegistryClient(auth.channel, NAMESPACE, metadata=(("authorization", f"Bearer {token}"),))
    assert await listed(client, 1) == {"node": "server_api ready"}
    [entry] = (await client.page()).entries
    key = entry.worker_instance_key
    refused = await refusal(client.deregister(key, session_id=key.partition(":")[2]))
    assert refused.reason == "WORKER_KEY_OWNED"


async def test_a_refusal_is_logged_once_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_registration, "REFUSED_RETRY_MS", 1_000)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    harness = ServerHarness(f"sqlite:///{tmp_path}/liveness.db")
    await harness.start(namespaces=("orders",))
    with capture_logs() as logs:
        registration = harness.server.self_registration("")
        registration.start()
        for _ in range(3):
            await harness.beat("w")
            await harness.advance(1_000)
    missing = [each["why"] for each in logs if each["event"] == "this process is missing in the registry"]
    assert missing == ["This server does not serve namespace liveness; it serves: orders."]
    await registration.stop()
    await harness.stop()
