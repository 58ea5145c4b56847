"""Heartbeats of several principals travel from a frontend to a node as one batch, and each stays its sender's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import grpc
import pytest

from liveness.domain.keys import shard_of
from liveness.routing.forwarding import TARGET_NODE_HEADER
from liveness.security.forwarded_callers import ITEM_PRINCIPALS_HEADER, PRINCIPAL_HEADER, item_metadata
from liveness.security.grants import parse_grants
from liveness.security.principal import AUTHORIZATION_HEADER, Principal
from liveness.v1 import service_pb2, token_pb2
from liveness.v1.admin_pb2_grpc import AdminServiceStub
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from tests.databases import PostgresServer
from tests.integration.security.auth_harness import AuthHarness, Client
from tests.integration.security.secured_cluster import SHARDS, SecuredCluster, secured_cluster
from tests.integration.security.test_key_ownership import NAMESPACE, attach, beat
from tests.integration.server.server_harness import REGISTERED, RENEWED, heartbeat, unpack

WORKERS = 100
PRINCIPALS = 20
BATCHES_MAX = 8
"""At each node: four batches may be in flight, and the rest waits for them."""


@pytest.fixture(scope="module")
async def cluster(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SecuredCluster]:
    name = postgres.create_database()
    async with secured_cluster(postgres.url(name), tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
    postgres.drop_database(name)


async def at_the_same_time(
    cluster: SecuredCluster, calls: list[Awaitable[Any]], refused: int = 0
) -> list[Any]:
    """The outcomes of calls that are all at the frontend before a node answers the first. A refusal is an outcome. `refused`:
    how many the frontend itself refuses."""
    cluster.calls.clear()
    cluster.calls.gate = gate = asyncio.Event()
    started = [asyncio.ensure_future(_outcome(call)) for call in calls]
    try:
        async with asyncio.timeout(20):
            while cluster.frontend._gate.calls.count < len(calls) - refused:
                await asyncio.sleep(0.001)
    finally:
        gate.set()
        cluster.calls.gate = None
    return await asyncio.gather(*started)


async def _outcome(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        return unpack(error).reason


async def principal_of(cluster: SecuredCluster, worker: str) -> str:
    request = service_pb2.DescribeWorkerRequest(namespace=NAMESPACE, worker_instance_key=worker)
    described: Any = await cluster.admin.liveness.DescribeWorker(request)
    return str(described.worker.principal)


def check_batches(cluster: SecuredCluster, *, several_principals: bool = True) -> None:
    """All heartbeats came in few batches, which name principals and carry no credential."""
    batches = cluster.calls.of("RecordWorkerHeartbeats")
    assert 0 < len(batches) <= 2 * BATCHES_MAX
    assert not cluster.calls.of("RecordWorkerHeartbeat")
    names = [{name for name, _ in batch.metadata} for batch in batches]
    assert not any(AUTHORIZATION_HEADER in each for each in names)
    assert any(ITEM_PRINCIPALS_HEADER in each for each in names) == several_principals


async def test_each_worker_key_belongs_to_the_principal_whose_heartbeat_was_in_the_batch(
    cluster: SecuredCluster,
) -> None:
    tokens = await cluster.create_tokens(
        {f"team-{number}": (f"worker:{NAMESPACE}:t{number}-",) for number in range(PRINCIPALS)}
    )
    clients = [Client(cluster.channel, tokens[f"team-{number}"]) for number in range(PRINCIPALS)]
    workers = [f"t{number % PRINCIPALS}-{number}" for number in range(WORKERS)]
    for sequence, outcome in ((1, REGISTERED), (2, RENEWED)):
        results = await at_the_same_time(
            cluster,
            [
                beat(clients[number % PRINCIPALS], worker, sequence=sequence)
                for number, worker in enumerate(workers)
            ],
        )
        assert [result if isinstance(result, str) else result.outcome for result in results] == [
            outcome
        ] * WORKERS
        check_batches(cluster)
    for number, worker in enumerate(workers):
        assert await principal_of(cluster, worker) == f"team-{number % PRINCIPALS}"
    # The union of all grants in a batch lets nobody write to the keys of another.
    results = await at_the_same_time(
        cluster,
        [
            beat(clients[(number + (number < 3)) % PRINCIPALS], worker, sequence=3)
            for number, worker in enumerate(workers)
        ],
        refused=3,
    )
    assert [result if isinstance(result, str) else result.outcome for result in results] == [
        "PERMISSION_DENIED"
    ] * 3 + [RENEWED] * (WORKERS - 3)


async def test_a_thiefs_heartbeat_is_refused_alone(cluster: SecuredCluster) -> None:
    tokens = await cluster.create_tokens(dict.fromkeys(("render", "mail", "thief"), (f"worker:{NAMESPACE}",)))
    render, mail, thief = (Client(cluster.channel, token) for token in tokens.values())
    owners = {
        f"{kind}-{number}": client for number in range(10) for kind, client in (("r", render), ("m", mail))
    }
    await at_the_same_time(cluster, [beat(client, key, sequence=1) for key, client in owners.items()])
    results = await at_the_same_time(
        cluster,
        [beat(client, key, sequence=2) for key, client in owners.items()]
        + [beat(thief, key, sequence=3) for key in owners]
        + [beat(mail, key, sequence=3) for key in owners if key.startswith("r-")],
    )
    outcomes = [result if isinstance(result, str) else result.outcome for result in results]
    assert outcomes == [RENEWED] * 20 + ["WORKER_KEY_OWNED"] * 30
    check_batches(cluster)
    for key in owners:
        assert await principal_of(cluster, key) == ("render" if key.startswith("r-") else "mail")


async def test_principals_that_do_not_fit_into_one_batch_are_spread_over_several(
    cluster: SecuredCluster,
) -> None:
    """Names and grants of the greatest length: ten of them exceed what the metadata of one batch may hold."""
    grants = (f"worker:{NAMESPACE}", *(f"worker:{'n' * 50}-{number}" for number in range(10)))
    tokens = await cluster.create_tokens({f"p{number:03}-{'x' * 190}": grants for number in range(60)})
    results = await at_the_same_time(
        cluster,
        [
            beat(Client(cluster.channel, token), f"long-{number}", sequence=1)
            for number, token in enumerate(tokens.values())
        ],
    )
    assert [result if isinstance(result, str) else result.outcome for result in results] == [REGISTERED] * 60
    for number, name in enumerate(tokens):
        assert await principal_of(cluster, f"long-{number}") == name


async def test_a_principal_with_all_the_grants_that_a_token_may_have_is_forwarded(
    cluster: SecuredCluster,
) -> None:
    grants = tuple(f"worker:{NAMESPACE}:{number:03}{'k' * 200}" for number in range(99))
    tokens = await cluster.create_tokens({"everything": (f"worker:{NAMESPACE}", *grants)})
    client = Client(cluster.channel, tokens["everything"])
    for number in range(SHARDS):
        assert (await beat(client, f"many-{number}", sequence=1)).outcome == REGISTERED
        assert await attach(client, worker=f"many-{number}") is None


async def test_nobody_but_a_batch_acts_with_the_grants_of_several(auth: AuthHarness) -> None:
    """Such a caller has no name under which a session could be stored or a change recorded."""
    named = [Principal(name, parse_grants("admin:*")).encoded() for name in ("one", "other")]
    metadata = (*item_metadata(named), (TARGET_NODE_HEADER, auth.server.node.owner))
    admin: Any = AdminServiceStub(auth.cluster_channel)
    for call in (
        admin.CreateSession(token_pb2.CreateSessionRequest(), metadata=metadata),
        admin.WhoAmI(token_pb2.WhoAmIRequest(), metadata=metadata),
    ):
        assert await _outcome(call) == "UNAUTHENTICATED"
    batch = service_pb2.RecordWorkerHeartbeatsRequest(
        namespace=NAMESPACE, heartbeats=[heartbeat(key) for key in ("w1", "w2")]
    )
    liveness: Any = LivenessServiceStub(auth.cluster_channel)
    answer = await liveness.RecordWorkerHeartbeats(batch, metadata=metadata)
    assert [item.result.outcome for item in answer.items] == [REGISTERED, REGISTERED]


# -- what a client says about itself


async def test_metadata_that_names_a_principal_gains_nothing_on_a_public_port(
    cluster: SecuredCluster,
) -> None:
    tokens = await cluster.create_tokens(
        {"owner": (f"worker:{NAMESPACE}",), "mallory": (f"worker:{NAMESPACE}",)}
    )
    owner = Client(cluster.channel, tokens["owner"])
    keys = [key_on(cluster, position, "forged") for position in range(2)]
    for key in keys:
        await beat(owner, key, sequence=1)
    forged = Principal("owner", parse_grants("admin:*")).encoded()
    headers = (
        (PRINCIPAL_HEADER, forged),
        item_metadata([forged, Principal("x", parse_grants("admin:*")).encoded()])[0],
    )
    assert {name for name, _ in headers} == {PRINCIPAL_HEADER, ITEM_PRINCIPALS_HEADER}
    for address in (cluster.frontend.address, *(node.address for node in cluster.nodes)):
        async with grpc.aio.insecure_channel(address) as channel:
            for header in (*((header,) for header in headers), headers):
                await check_forged(channel, keys, header, tokens["mallory"])
    for key in keys:
        assert await principal_of(cluster, key) == "owner"


async def check_forged(channel: Any, keys: list[str], header: Any, token: str) -> None:
    liveness: Any = LivenessServiceStub(channel)
    admin: Any = AdminServiceStub(channel)
    mallory = (*header, (AUTHORIZATION_HEADER, f"Bearer {token}"))
    whoami = await admin.WhoAmI(token_pb2.WhoAmIRequest(), metadata=mallory)
    assert (whoami.principal, list(whoami.grants)) == ("mallory", [f"worker:{NAMESPACE}"])
    listing = token_pb2.ListTokensRequest()
    assert await _outcome(admin.ListTokens(listing, metadata=mallory)) == "PERMISSION_DENIED"
    assert await _outcome(admin.ListTokens(listing, metadata=header)) == "UNAUTHENTICATED"
    for key in keys:
        single = service_pb2.RecordWorkerHeartbeatRequest(
            namespace=NAMESPACE, heartbeat=heartbeat(key, session_id="s1", sequence=9)
        )
        assert await _outcome(liveness.RecordWorkerHeartbeat(single, metadata=mallory)) == "WORKER_KEY_OWNED"
        assert await _outcome(liveness.RecordWorkerHeartbeat(single, metadata=header)) == "UNAUTHENTICATED"
    batch = service_pb2.RecordWorkerHeartbeatsRequest(
        namespace=NAMESPACE, heartbeats=[heartbeat(key, session_id="s1", sequence=9) for key in keys]
    )
    answer = await liveness.RecordWorkerHeartbeats(batch, metadata=mallory)
    assert [item.HasField("status") for item in answer.items] == [True, True]
    assert await _outcome(liveness.RecordWorkerHeartbeats(batch, metadata=header)) == "UNAUTHENTICATED"


def key_on(cluster: SecuredCluster, position: int, prefix: str) -> str:
    """A worker key whose shard this node serves."""
    served = {shard.id for shard in cluster.nodes[position].node.shards()}
    names = (f"{prefix}-{number}" for number in range(1_000))
    return next(name for name in names if shard_of(NAMESPACE, name, SHARDS) in served)


async def test_no_credential_reaches_a_node_in_the_metadata_of_a_forwarded_call(
    cluster: SecuredCluster,
) -> None:
    """Neither from a frontend nor from another node, on unary calls, batches, streams and methods that it does not know."""
    tokens = await cluster.create_tokens({"plain": (f"worker:{NAMESPACE}", f"reader:{NAMESPACE}")})
    secret = tokens["plain"].rpartition("_")[2]
    client = Client(cluster.channel, tokens["plain"])
    cluster.calls.clear()
    await beat(client, "plain-1")
    batch = [heartbeat(f"plain-{number}", session_id="s1") for number in range(20)]
    await client.liveness.RecordWorkerHeartbeats(
        service_pb2.RecordWorkerHeartbeatsRequest(namespace=NAMESPACE, heartbeats=batch)
    )
    assert await attach(client, worker="plain-1") is None
    await client.liveness.ListWorkers(service_pb2.ListWorkersRequest(namespace=NAMESPACE))
    watch = client.liveness.WatchEvents(service_pb2.WatchEventsRequest(namespace=NAMESPACE))
    await watch.read()
    watch.cancel()
    unknown: Any = cluster.channel.unary_unary("/liveness.v1.LivenessService/NewerThanThisFrontend")
    with pytest.raises(grpc.aio.AioRpcError):
        await unknown(b"", metadata=((AUTHORIZATION_HEADER, f"Bearer {tokens['plain']}"),))
    received = list(cluster.calls.received)
    paths = {call.path.rpartition("/")[2] for call in received}
    assert {"RecordWorkerHeartbeats", "ListWorkers", "WatchEvents", "Relay"} <= paths
    for call in received:
        for name, value in call.metadata:
            assert name != AUTHORIZATION_HEADER, call
            assert secret.encode() not in (value if isinstance(value, bytes) else value.encode()), call

    # The same from node to node: only the call at the node's public port has the credential.
    cluster.calls.clear()
    async with grpc.aio.insecure_channel(cluster.nodes[0].address) as channel:
        direct = Client(channel, tokens["plain"])
        await beat(direct, key_on(cluster, 1, "direct"))
    forwarded = [
        call for call in cluster.calls.received if any(name == "liveness-to" for name, _ in call.metadata)
    ]
    assert forwarded
    assert not any(name == AUTHORIZATION_HEADER for call in forwarded for name, _ in call.metadata)
