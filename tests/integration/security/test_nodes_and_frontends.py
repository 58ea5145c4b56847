"""Identity where calls are forwarded: two nodes on one PostgreSQL, and a frontend before them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from liveness.config.frontend_settings import FrontendSettings
from liveness.domain.keys import shard_of
from liveness.frontend.app import Frontend
from liveness.v1 import activity_pb2, admin_pb2, service_pb2, token_pb2
from tests.databases import PostgresServer
from tests.integration.cluster.test_two_nodes import owned, settled
from tests.integration.security.auth_harness import AuthHarness, Client
from tests.integration.security.test_key_ownership import NAMESPACE, attach, beat
from tests.integration.server.server_harness import (
    REGISTERED,
    RENEWED,
    SHARDS,
    heartbeat,
    refusal,
    unpack_status,
)


@pytest.fixture
async def nodes(postgres: PostgresServer, postgres_database: str) -> AsyncIterator[list[AuthHarness]]:
    first, second = [AuthHarness(postgres.url(postgres_database)) for _ in range(2)]
    await first.start()
    second._admin_token = first._admin_token
    second.admin_client = first.admin_client  # so that it creates no token of its own
    await second.start()
    await settled(first, second)
    yield [first, second]
    await second.stop()
    await first.stop()


def key_on(harness: AuthHarness, prefix: str = "w") -> str:
    """A worker key whose shard this node serves."""
    names = (f"{prefix}{number}" for number in range(1_000))
    return next(name for name in names if shard_of(NAMESPACE, name, SHARDS) in owned(harness))


async def caller(nodes: list[AuthHarness], principal: str, *grants: str) -> str:
    token = (await nodes[0].create_token(principal, *grants)).secret
    for node in nodes:
        await node.tokens.refresh()
    return token


async def test_the_owner_of_a_shard_knows_who_called_another_node(nodes: list[AuthHarness]) -> None:
    first, second = nodes
    owner = first.client(await caller(nodes, "render", f"worker:{NAMESPACE}"))
    thief = first.client(await caller(nodes, "thief", f"worker:{NAMESPACE}"))
    for key in (key_on(first), key_on(second)):
        assert (await beat(owner, key, sequence=1)).outcome == REGISTERED
        assert (await beat(owner, key, sequence=2)).outcome == RENEWED
        assert (await refusal(beat(thief, key, sequence=3))).reason == "WORKER_KEY_OWNED"
        refused = await attach(thief, worker=key)
        assert refused.reason == "WORKER_KEY_OWNED"
        assert await attach(owner, worker=key) is None
        assert (await attach(first.admin_client, worker=key)).reason == "WORKER_KEY_OWNED"


async def test_a_batch_over_both_nodes_is_checked_item_by_item(nodes: list[AuthHarness]) -> None:
    first, second = nodes
    limited = first.client(await caller(nodes, "limited", f"worker:{NAMESPACE}:mine-"))
    keys = [
        key_on(first, "mine-"),
        key_on(second, "mine-"),
        key_on(first, "other-"),
        key_on(second, "other-"),
    ]
    request = service_pb2.RecordWorkerHeartbeatsRequest(
        namespace=NAMESPACE, heartbeats=[heartbeat(key) for key in keys]
    )
    items = (await limited.liveness.RecordWorkerHeartbeats(request)).items
    assert [unpack_status(item.status).reason if item.HasField("status") else "OK" for item in items] == [
        "OK",
        "OK",
        "PERMISSION_DENIED",
        "PERMISSION_DENIED",
    ]


async def test_an_attempt_is_ended_by_its_own_worker_only_wherever_that_lives(
    nodes: list[AuthHarness],
) -> None:
    first, second = nodes
    owner_token = await caller(nodes, "render", f"worker:{NAMESPACE}")
    thief = first.client(await caller(nodes, "thief", f"worker:{NAMESPACE}"))
    owner = first.client(owner_token)
    for number, key in enumerate((key_on(first), key_on(second))):
        await beat(owner, key)
        id = activity_pb2.ActivityId(workflow_id="wf", run_id="r", activity_id=str(number))
        fields: dict[str, Any] = {
            "namespace": NAMESPACE,
            "worker_instance_key": key,
            "session_id": "s1",
            "id": id,
        }
        claim = activity_pb2.ClaimActivityRequest(**fields, task_queue="q")
        assert (await refusal(thief.activities.ClaimActivity(claim))).reason == "WORKER_KEY_OWNED"
        task = (await owner.activities.ClaimActivity(claim)).activity
        complete = activity_pb2.CompleteActivityRequest(
            **fields, lease_epoch=task.lease_epoch, attempt=task.attempt
        )
        assert (await refusal(thief.activities.CompleteActivity(complete))).reason == "WORKER_KEY_OWNED"
        await owner.activities.CompleteActivity(complete)


async def test_calls_that_concern_all_nodes_are_made_in_the_callers_name(nodes: list[AuthHarness]) -> None:
    first = nodes[0]
    operator = first.client(await caller(nodes, "oncall", f"operator:{NAMESPACE}"))
    request = admin_pb2.PauseWorkersRequest(namespace=NAMESPACE, all=True)
    await operator.admin.PauseWorkers(request)
    await operator.admin.ReleaseStorm(admin_pb2.ReleaseStormRequest(namespace=NAMESPACE))
    request.namespace = "other"
    assert (await refusal(operator.admin.PauseWorkers(request))).reason == "PERMISSION_DENIED"
    everywhere = first.client(await caller(nodes, "everywhere", "reader:*"))
    shards = (await everywhere.admin.ListShards(admin_pb2.ListShardsRequest())).shards
    assert all(shard.serving for shard in shards)


@pytest.fixture
async def frontend(nodes: list[AuthHarness]) -> AsyncIterator[Frontend]:
    settings = FrontendSettings(
        nodes=tuple(node.server.cluster_address for node in nodes), listen="127.0.0.1:0", auth="on"
    )
    async with Frontend(settings) as frontend:
        yield frontend


async def test_a_frontend_asks_a_node_who_calls(nodes: list[AuthHarness], frontend: Frontend) -> None:
    first, second = nodes
    async with grpc.aio.insecure_channel(frontend.address) as channel:
        owner = Client(channel, await caller(nodes, "render", f"worker:{NAMESPACE}"))
        thief = Client(channel, await caller(nodes, "thief", f"worker:{NAMESPACE}"))
        stranger = Client(channel, await caller(nodes, "stranger", "worker:other", "reader:other"))
        await channel.channel_ready()
        for key in (key_on(first), key_on(second)):
            assert (await beat(owner, key, sequence=1)).outcome == REGISTERED
            assert (await beat(owner, key, sequence=2)).outcome == RENEWED
            assert (await refusal(beat(thief, key, sequence=3))).reason == "WORKER_KEY_OWNED"
            assert (await refusal(beat(stranger, key))).reason == "PERMISSION_DENIED"
            assert (await attach(thief, worker=key)).reason == "WORKER_KEY_OWNED"
            assert (await attach(stranger, worker=key)).reason == "PERMISSION_DENIED"
            assert await attach(owner, worker=key) is None
        listing = service_pb2.ListWorkersRequest(namespace=NAMESPACE)
        assert (await refusal(stranger.liveness.ListWorkers(listing))).reason == "PERMISSION_DENIED"
        for token in (None, "nonsense", "lvt_aaaaaaaaaaaa_" + "A" * 43):
            nobody = Client(channel, token)
            assert (await refusal(nobody.liveness.ListWorkers(listing))).reason == "UNAUTHENTICATED"
            assert (await refusal(beat(nobody))).reason == "UNAUTHENTICATED"
        assert (await owner.admin.WhoAmI(token_pb2.WhoAmIRequest())).principal == "render"
