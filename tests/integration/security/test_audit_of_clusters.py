"""A change is recorded once, wherever in a cluster it arrives and is made, with the address of its caller."""

from __future__ import annotations

import grpc
import pytest

from liveness.config.frontend_settings import FrontendSettings
from liveness.frontend.app import Frontend
from liveness.v1 import admin_pb2, audit_pb2, service_pb2, worker_pb2
from tests.integration.security.auth_harness import AuthHarness, Client
from tests.integration.security.test_audit import audit_of
from tests.integration.security.test_key_ownership import NAMESPACE, beat
from tests.integration.security.test_nodes_and_frontends import caller, key_on, nodes
from tests.integration.security.test_suspicion import proxy_with_many_addresses
from tests.integration.server.server_harness import refusal

__all__ = ["nodes"]
FIRST_ADDRESS = "127.0.1.1"


async def entries(harness: AuthHarness, principal: str) -> list[audit_pb2.AuditEntry]:
    return await audit_of(harness.admin_client, principal=principal)


@pytest.mark.parametrize("arrives_at", ["node", "frontend"])
async def test_a_forwarded_change_is_recorded_once_with_the_address_of_its_caller(
    nodes: list[AuthHarness], arrives_at: str
) -> None:
    first, second = nodes
    token = await caller(nodes, "oncall", f"operator:{NAMESPACE}")
    key = key_on(second)
    await beat(second.admin_client, key)
    request = admin_pb2.ExpireWorkerRequest(namespace=NAMESPACE, worker_instance_key=key)
    settings = FrontendSettings(nodes=(first.server.cluster_address,), listen="127.0.0.1:0", auth="on")
    async with Frontend(settings) as frontend:
        target = first.server.address if arrives_at == "node" else frontend.address
        async with (
            proxy_with_many_addresses(target) as address,
            grpc.aio.insecure_channel(address) as channel,
        ):
            await Client(channel, token).admin.ExpireWorker(request, timeout=20)
    [entry] = await entries(first, "oncall")
    assert (entry.address, entry.outcome) == (FIRST_ADDRESS, "OK")


async def test_a_change_of_all_nodes_is_recorded_once(nodes: list[AuthHarness]) -> None:
    first, second = nodes
    oncall = first.client(await caller(nodes, "oncall", f"operator:{NAMESPACE}"))
    for harness in nodes:
        await beat(harness.admin_client, key_on(harness))
    where = service_pb2.WorkerFilter()
    where.states.append(worker_pb2.WORKER_STATE_ACTIVE)
    request = admin_pb2.PauseWorkersRequest(namespace=NAMESPACE, filter=where)
    assert (await oncall.admin.PauseWorkers(request)).changed == 2
    [entry] = await entries(second, "oncall")
    assert (entry.method, entry.target) == ("AdminService/PauseWorkers", "filter=(states=1)")


async def test_a_refusal_at_the_owner_is_counted_once(nodes: list[AuthHarness]) -> None:
    first, second = nodes
    key = key_on(second)
    await beat(second.admin_client, key)
    thief = first.client(await caller(nodes, "thief", f"worker:{NAMESPACE}"))
    assert (await refusal(beat(thief, key, sequence=3))).reason == "WORKER_KEY_OWNED"
    for harness in nodes:
        await harness.server.audit.flush()
    [entry] = await entries(first, "thief")
    assert (entry.outcome, entry.calls) == ("PERMISSION_DENIED", 1)
    totals = [harness.server.telemetry.suspicion.totals["foreign_keys"] for harness in nodes]
    assert totals == [0, 1]
