"""Every change by an operator or an admin is recorded with who, from where and with which outcome; denied access is summed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, MethodDescriptor

from liveness.routing.forwarding import CALLER_ADDRESS_HEADER, LOCAL_ONLY_HEADER, TARGET_NODE_HEADER
from liveness.security.audit import DENIED_PER_MINUTE_MAX, TARGET_FIELDS, is_audited
from liveness.store.errors import CommitRejected
from liveness.v1 import activity_pb2, admin_pb2, audit_pb2, service_pb2, token_pb2, worker_pb2
from liveness.v1.admin_pb2_grpc import AdminServiceStub
from tests.integration.security.auth_harness import AuthHarness, Client
from tests.integration.security.test_access_matrix import METHODS, call, request_about
from tests.integration.server.server_harness import ServerHarness, refusal, unpack

CHANGES = [method for method in METHODS if is_audited(method)]
NAMES = [f"{method.containing_service.name}/{method.name}" for method in CHANGES]
NOT_RECORDED = {"namespace", "reason", "page_token"}
"""The fields of changes that have a column of their own, and where a change in several calls goes on."""


async def audit_of(client: Client, **conditions: Any) -> list[audit_pb2.AuditEntry]:
    return list((await client.admin.ListAudit(audit_pb2.ListAuditRequest(**conditions))).entries)


async def register(client: Client, namespace: str, key: str, session: str = "s") -> None:
    await client.liveness.RecordWorkerHeartbeat(
        service_pb2.RecordWorkerHeartbeatRequest(
            namespace=namespace,
            heartbeat=worker_pb2.WorkerHeartbeat(worker_instance_key=key, session_id=session),
        )
    )


def test_the_methods_that_are_recorded_are_those_of_operators_that_change_something() -> None:
    assert set(NAMES) >= {
        "AdminService/ExpireWorker", "AdminService/ForgetWorker", "AdminService/PauseWorkers",
        "AdminService/ResumeWorkers", "AdminService/DrainWorker", "AdminService/ReleaseStorm",
        "AdminService/UpdateConfig", "AdminService/RetryTask", "AdminService/DiscardTask", "AdminService/ReplayRelay",
        "AdminService/CreateToken", "AdminService/RevokeToken", "ActivityService/RetryActivity",
    }  # fmt: skip
    reads = ("Get", "List", "Describe", "Watch")
    assert [name for name in NAMES if name.partition("/")[2].startswith(reads)] == []


@pytest.mark.parametrize("method", CHANGES, ids=NAMES)
def test_every_field_of_a_change_is_recorded(method: MethodDescriptor) -> None:
    """A new field that holds a payload or a secret is left out by not listing it, and then this test must say so."""
    assert set(fields_of(method.input_type)) - NOT_RECORDED <= set(TARGET_FIELDS)


def fields_of(message: Descriptor) -> Iterator[str]:
    """Those of its parts included; of settings, all are recorded."""
    for field in message.fields:
        yield field.name
        part = field.message_type
        if part is not None and field.name != "set" and part.full_name.startswith("liveness."):
            yield from fields_of(part)


@pytest.mark.parametrize("method", CHANGES, ids=NAMES)
async def test_each_change_is_recorded_with_who_and_from_where(
    auth_on_each_database: AuthHarness, method: MethodDescriptor
) -> None:
    harness = auth_on_each_database
    created = await harness.create_token("ann", "admin:*")
    request = request_about(method, "shop")
    outcome = await call(harness, method, request, created.secret)

    [entry] = await audit_of(harness.admin_client, principal="ann")
    assert entry.method == f"{method.containing_service.name}/{method.name}"
    assert (entry.credential, entry.credential_id) == ("token", created.token.token_id)
    assert entry.address == "127.0.0.1"
    assert entry.time.ToMilliseconds() == harness.clock.wall_ms()
    assert entry.namespace == ("shop" if "namespace" in method.input_type.fields_by_name else "")
    if "worker_instance_key" in method.input_type.fields_by_name:
        assert entry.target.startswith("worker_instance_key=w")
    assert (entry.outcome == "OK") == (outcome == "OK")
    assert entry.calls == 1


async def test_metadata_of_a_client_hides_no_change_and_no_origin(auth: AuthHarness) -> None:
    """Only nodes and frontends say to whom a call is forwarded and from where it came, on a port of their own."""
    forged = (
        (TARGET_NODE_HEADER, auth.server.node.owner),
        (LOCAL_ONLY_HEADER, "1"),
        (CALLER_ADDRESS_HEADER, "10.9.9.9"),
        ("authorization", f"Bearer {auth.admin_client.token}"),
    )
    pause = admin_pb2.PauseWorkersRequest(namespace="shop", all=True)
    async with grpc.aio.insecure_channel(auth.server.address) as channel:
        stub: Any = AdminServiceStub(channel)
        await stub.PauseWorkers(pause, metadata=forged)
    [entry] = await audit_of(auth.admin_client, method="AdminService/PauseWorkers")
    assert (entry.outcome, entry.address) == ("OK", "127.0.0.1")


async def test_reads_are_not_recorded(auth: AuthHarness) -> None:
    ann = await auth.caller("ann", "admin:*")
    assert ann.token is not None
    for method in METHODS:
        if method not in CHANGES and method.name.startswith(("Get", "List")):
            await call(auth, method, request_about(method, "shop"), ann.token)
    assert await audit_of(auth.admin_client, principal="ann") == []


async def test_the_target_the_reason_and_the_outcome_of_a_change(auth: AuthHarness) -> None:
    ann = await auth.caller("ann", "admin:*")
    key = "render-farm-1.production.example.com"
    await register(ann, "shop", key)
    await ann.admin.ExpireWorker(
        admin_pb2.ExpireWorkerRequest(namespace="shop", worker_instance_key=key, reason="disk is full")
    )
    with pytest.raises(grpc.aio.AioRpcError):
        await ann.admin.ForgetWorker(
            admin_pb2.ForgetWorkerRequest(namespace="shop", worker_instance_key="no-such")
        )
    config = admin_pb2.NamespaceConfig(max_workers=7)
    config.default_lease.seconds = 20
    await ann.admin.UpdateConfig(admin_pb2.UpdateConfigRequest(namespace="shop", set=config))

    found = sorted(await audit_of(auth.admin_client, principal="ann"), key=lambda entry: entry.method)
    expired, forgotten, updated = found
    assert (expired.target, expired.reason) == (f"worker_instance_key={key}", "disk is full")
    assert (forgotten.target, forgotten.outcome) == ("worker_instance_key=no-such", "NOT_FOUND")
    assert updated.target == "set=(default_lease=20000ms max_workers=7)"


async def test_changes_are_recorded_although_nobody_is_asked(harness: ServerHarness) -> None:
    await harness.admin.PauseWorkers(admin_pb2.PauseWorkersRequest(namespace="shop", all=True))
    [entry] = (await harness.admin.ListAudit(audit_pb2.ListAuditRequest())).entries
    assert (entry.principal, entry.credential, entry.credential_id) == ("", "", "")
    assert (entry.method, entry.target, entry.address) == (
        "AdminService/PauseWorkers",
        "all=True",
        "127.0.0.1",
    )


async def test_a_change_that_cannot_be_recorded_is_not_acknowledged(
    auth: AuthHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is written later, when the database can be written again."""
    ann = await auth.caller("ann", "admin:*")
    store = auth.server.store
    insert = store.insert_audit

    async def fail(rows: object) -> None:
        raise CommitRejected(detail="the disk is full")

    monkeypatch.setattr(store, "insert_audit", fail)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await ann.admin.PauseWorkers(admin_pb2.PauseWorkersRequest(namespace="shop", all=True))
    assert unpack(refused.value).code is grpc.StatusCode.UNAVAILABLE
    monkeypatch.setattr(store, "insert_audit", insert)
    await auth.server.audit.flush()
    [entry] = await audit_of(auth.admin_client, principal="ann")
    assert entry.method == "AdminService/PauseWorkers"


async def test_a_caller_that_hangs_up_is_recorded(auth: AuthHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    ann = await auth.caller("ann", "admin:*")
    store = auth.server.store
    insert, reached, go_on = store.insert_audit, asyncio.Event(), asyncio.Event()

    async def wait(rows: Any) -> None:
        reached.set()
        await go_on.wait()
        await insert(rows)

    monkeypatch.setattr(store, "insert_audit", wait)
    pending = ann.admin.PauseWorkers(admin_pb2.PauseWorkersRequest(namespace="shop", all=True))
    await reached.wait()
    pending.cancel()
    go_on.set()
    await auth.server.audit.flush()
    assert [entry.outcome for entry in await audit_of(auth.admin_client, principal="ann")] == ["OK"]


async def test_a_flood_of_denied_calls_makes_a_bounded_number_of_rows(auth: AuthHarness) -> None:
    ann = await auth.caller("ann", "reader:shop")
    for number in range(3 * DENIED_PER_MINUTE_MAX):
        with pytest.raises(grpc.aio.AioRpcError):
            await ann.admin.ExpireWorker(
                admin_pb2.ExpireWorkerRequest(namespace=f"foreign-{number}", worker_instance_key="w")
            )
    for _ in range(50):
        with pytest.raises(grpc.aio.AioRpcError):
            await auth.client("nonsense").admin.ListNodes(admin_pb2.ListNodesRequest())
    await auth.server.audit.flush()
    found = await audit_of(auth.admin_client, page_size=1_000)
    denied = [entry for entry in found if entry.outcome in ("PERMISSION_DENIED", "UNAUTHENTICATED")]
    assert len(denied) <= DENIED_PER_MINUTE_MAX + 2
    assert sum(entry.calls for entry in denied) == 3 * DENIED_PER_MINUTE_MAX + 50
    [failed] = [entry for entry in denied if entry.outcome == "UNAUTHENTICATED"]
    assert (failed.principal, failed.calls) == ("(others)", 50)


async def test_denied_calls_are_summed_by_the_minute(auth: AuthHarness) -> None:
    ann = await auth.caller("ann", "reader:shop")
    request = admin_pb2.ExpireWorkerRequest(namespace="other", worker_instance_key="w")
    for _ in range(2):
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError):
                await ann.admin.ExpireWorker(request)
            with pytest.raises(grpc.aio.AioRpcError):
                await auth.client(None).admin.ExpireWorker(request)
        auth.clock.move(60_000)
    await auth.server.audit.flush()
    denied = [entry for entry in await audit_of(auth.admin_client) if entry.calls == 3]
    assert sorted((entry.principal, entry.address, entry.namespace, entry.outcome) for entry in denied) == [
        ("", "127.0.0.1", "", "UNAUTHENTICATED"),
        ("", "127.0.0.1", "", "UNAUTHENTICATED"),
        ("ann", "", "other", "PERMISSION_DENIED"),
        ("ann", "", "other", "PERMISSION_DENIED"),
    ]


async def test_denied_items_of_a_batch_are_counted(auth: AuthHarness) -> None:
    ann = await auth.caller("ann", "worker:shop:ann-")
    beats = [worker_pb2.WorkerHeartbeat(worker_instance_key=key) for key in ("ann-1", "bob-1", "bob-2")]
    await ann.liveness.RecordWorkerHeartbeats(
        service_pb2.RecordWorkerHeartbeatsRequest(namespace="shop", heartbeats=beats)
    )
    await auth.server.audit.flush()
    [denied] = await audit_of(auth.admin_client, principal="ann")
    assert (denied.method, denied.calls) == ("LivenessService/RecordWorkerHeartbeats", 2)


async def test_no_credential_enters_the_audit(auth_on_each_database: AuthHarness) -> None:
    harness = auth_on_each_database
    canary = (await harness.create_token("ann", "admin:*")).secret
    jwt = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJlLXRoYXQtaXMtc2VjcmV0"
    ann = harness.client(canary)
    for secret in (canary, jwt, f"x{canary}"):
        for method, request in (
            ("RevokeToken", token_pb2.RevokeTokenRequest(token_id=secret)),
            (
                "ExpireWorker",
                admin_pb2.ExpireWorkerRequest(namespace=secret, worker_instance_key=secret, reason=secret),
            ),
        ):
            with pytest.raises(grpc.aio.AioRpcError):
                await getattr(ann.admin, method)(request)
    with pytest.raises(grpc.aio.AioRpcError):
        await harness.client(canary + "x").admin.ExpireWorker(admin_pb2.ExpireWorkerRequest(namespace=canary))
    await ann.admin.CreateToken(token_pb2.CreateTokenRequest(principal="bob", grants=["worker:shop"]))
    await harness.server.audit.flush()
    rows = str((await harness.dump())["audit"])
    assert "bob" in rows
    secret = canary.rpartition("_")[2]
    assert secret not in rows
    assert secret[:20] not in rows
    assert "c2lnbmF0dXJl" not in rows


async def test_odd_characters_are_recorded_on_each_database(auth_on_each_database: AuthHarness) -> None:
    harness = auth_on_each_database
    ann = await harness.caller("ann", "admin:*")
    with pytest.raises(grpc.aio.AioRpcError):
        await ann.admin.ExpireWorker(
            admin_pb2.ExpireWorkerRequest(
                namespace="a\0b", worker_instance_key="\0" * 10_000, reason="é\n" * 10_000
            )
        )
    [entry] = await audit_of(harness.admin_client, principal="ann")
    assert entry.outcome == "INVALID_ARGUMENT"
    assert (len(entry.target), len(entry.reason)) == (1_000, 1_000)


async def test_an_operator_reads_the_audit_of_its_own_namespace_only(auth: AuthHarness) -> None:
    for namespace in ("shop", "mail"):
        await auth.admin_client.admin.PauseWorkers(
            admin_pb2.PauseWorkersRequest(namespace=namespace, all=True)
        )
    oncall = await auth.caller("oncall", "operator:shop")
    assert {entry.namespace for entry in await audit_of(oncall, namespace="shop")} == {"shop"}
    for namespace in ("", "mail"):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await audit_of(oncall, namespace=namespace)
        assert unpack(refused.value).reason == "PERMISSION_DENIED"


async def test_pages_and_filters_of_the_audit(auth_on_each_database: AuthHarness) -> None:
    harness = auth_on_each_database
    admin = harness.admin_client
    for number in range(7):
        await admin.admin.PauseWorkers(admin_pb2.PauseWorkersRequest(namespace=f"n{number % 2}", all=True))
        harness.clock.move(1_000 if number != 3 else 0)
    request = audit_pb2.ListAuditRequest(page_size=3)
    found: list[audit_pb2.AuditEntry] = []
    while True:
        page = await admin.admin.ListAudit(request)
        found += page.entries
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    times = [entry.time.ToMilliseconds() for entry in found]
    assert len(found) == 7
    assert times == sorted(times, reverse=True)
    assert len(await audit_of(admin, namespace="n0")) == 4
    assert len(await audit_of(admin, method="AdminService/ResumeWorkers")) == 0
    assert len(await audit_of(admin, since=found[1].time)) == 2
    assert len(await audit_of(admin, until=found[-1].time)) == 1
    request.namespace = "n1"
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await admin.admin.ListAudit(request)
    assert unpack(refused.value).code is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_audit_has_a_retention_of_its_own(auth_on_each_database: AuthHarness) -> None:
    harness = auth_on_each_database
    admin = harness.admin_client.admin
    await admin.PauseWorkers(admin_pb2.PauseWorkersRequest(namespace="old", all=True))
    harness.clock.move(40 * 86_400_000)
    await admin.PauseWorkers(admin_pb2.PauseWorkersRequest(namespace="new", all=True))
    await harness.server.maintenance.apply_retention()
    assert len(await audit_of(harness.admin_client)) == 2
    await harness.stop()
    await harness.start(audit_retention_s=30 * 86_400.0)
    await harness.server.maintenance.apply_retention()
    assert [entry.namespace for entry in await audit_of(harness.admin_client)] == ["new"]


async def test_a_change_of_many_takes_the_role_that_changes_one(auth: AuthHarness) -> None:
    operator = await auth.caller("oncall", "operator:shop")
    request = activity_pb2.BulkUpdateActivitiesRequest(
        namespace="shop", filter=activity_pb2.ActivityFilter(workflow_id_prefix="site-17-")
    )
    request.action = activity_pb2.BULK_ACTION_RETRY
    await operator.activities.BulkUpdateActivities(request)
    request.action = activity_pb2.BULK_ACTION_CANCEL
    refused = await refusal(operator.activities.BulkUpdateActivities(request))
    assert refused.reason == "PERMISSION_DENIED"
    both = await auth.caller("lead", "operator:shop", "producer:shop")
    await both.activities.BulkUpdateActivities(request)
    found = await audit_of(auth.admin_client, namespace="shop", method="ActivityService/BulkUpdateActivities")
    assert {(entry.principal, entry.target) for entry in found if entry.outcome == "OK"} == {
        ("lead", "filter=(workflow_id_prefix=site-17-) action=2"),
        ("oncall", "filter=(workflow_id_prefix=site-17-) action=1"),
    }
