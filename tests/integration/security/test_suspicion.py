"""Calls that look like an attack raise an alert and a metric, and those of ordinary programs do not."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from liveness.security import suspicion
from liveness.security.suspicion import THRESHOLDS
from liveness.v1 import activity_pb2, admin_pb2, fleet_pb2, service_pb2, worker_pb2
from tests.integration.security.auth_harness import AuthHarness, Client


async def heartbeat(client: Client, key: str, session: str = "s", namespace: str = "shop") -> str:
    """OK, or the code of the refusal."""
    try:
        await client.liveness.RecordWorkerHeartbeat(
            service_pb2.RecordWorkerHeartbeatRequest(
                namespace=namespace,
                heartbeat=worker_pb2.WorkerHeartbeat(worker_instance_key=key, session_id=session),
            )
        )
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


@asynccontextmanager
async def proxy_with_many_addresses(target: str) -> AsyncIterator[str]:
    """Passes bytes on to the server, for each connection from another address of 127.0.0.0/8."""
    host, _, port = target.rpartition(":")
    numbers = itertools.count(1)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(
            host, int(port), local_addr=(f"127.0.1.{next(numbers)}", 0)
        )
        await asyncio.gather(copy(reader, to_server), copy(from_server, writer), return_exceptions=True)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield "{}:{}".format(*server.sockets[0].getsockname())
    finally:
        server.close()
        await server.wait_closed()


async def alerts(auth: AuthHarness, namespace: str = "") -> list[fleet_pb2.Alert]:
    fleet = await auth.admin_client.admin.GetFleet(fleet_pb2.GetFleetRequest(namespace=namespace))
    return [alert for alert in fleet.alerts if alert.kind == fleet_pb2.ALERT_KIND_SUSPICIOUS]


def metric(auth: AuthHarness, name: str, label: str) -> float:
    text = auth.server.metrics()[0].decode()
    found = re.search(rf'^{name}{{\w+="{label}"}} (\S+)$', text, re.MULTILINE)
    assert found is not None, text
    return float(found[1])


async def assert_fires(auth: AuthHarness, kind: str, message: str, namespace: str = "") -> None:
    [alert] = await alerts(auth)
    assert re.match(message, alert.message), alert.message
    assert alert.namespace == namespace
    assert metric(auth, "liveness_suspects", kind) == 1
    assert metric(auth, "liveness_suspicious_total", kind) > 0
    if namespace:
        assert await alerts(auth, "another") == []
    auth.clock.move(3 * 3_600_000)
    assert await alerts(auth) == []
    assert metric(auth, "liveness_suspects", kind) == 0


async def test_failed_sign_ins(auth: AuthHarness) -> None:
    for _ in range(THRESHOLDS[suspicion.FAILED_SIGN_INS] + 1):
        assert await heartbeat(auth.client("guess"), "w") == "UNAUTHENTICATED"
    await assert_fires(auth, suspicion.FAILED_SIGN_INS, r"127\.0\.0\.1 failed to sign in 21 times")


@pytest.mark.parametrize("how", ["single", "batch", "attach"])
async def test_attempts_on_foreign_keys(auth: AuthHarness, how: str) -> None:
    ann = await auth.caller("ann", "worker:shop")
    mallory = await auth.caller("mallory", "worker:shop")
    count = THRESHOLDS[suspicion.FOREIGN_KEYS] + 1
    for number in range(count):
        assert await heartbeat(ann, f"w-{number}") == "OK"
    if how == "single":
        for number in range(count):
            assert await heartbeat(mallory, f"w-{number}") == "PERMISSION_DENIED"
    elif how == "batch":
        beats = [worker_pb2.WorkerHeartbeat(worker_instance_key=f"w-{number}") for number in range(count)]
        await mallory.liveness.RecordWorkerHeartbeats(
            service_pb2.RecordWorkerHeartbeatsRequest(namespace="shop", heartbeats=beats)
        )
    else:
        stream = mallory.liveness.Attach(timeout=10)
        for number in range(count):
            attach = service_pb2.AttachRequest.Attach(
                namespace="shop", worker_instance_key=f"w-{number}", session_id="s"
            )
            await stream.write(service_pb2.AttachRequest(attach=attach))
            assert (await stream.read()).attached.HasField("status")
        stream.cancel()
    await assert_fires(auth, suspicion.FOREIGN_KEYS, f"mallory tried {count} times", "shop")


async def test_a_session_that_flaps(auth: AuthHarness) -> None:
    ann = await auth.caller("ann", "worker:shop")
    for number in range(THRESHOLDS[suspicion.SESSION_FLAPS] + 2):
        assert await heartbeat(ann, "w", f"s-{number}") == "OK"
    await assert_fires(
        auth, suspicion.SESSION_FLAPS, "The session of worker w of shop changed 7 times", "shop"
    )


async def test_a_spike_of_fenced_off_calls(auth: AuthHarness) -> None:
    auth.lift_rate_limits("shop")
    ann = await auth.caller("ann", "worker:shop")
    await heartbeat(ann, "w", "new")
    await heartbeat(ann, "w", "newer")
    count = THRESHOLDS[suspicion.FENCED_OFF] + 1
    beats = [worker_pb2.WorkerHeartbeat(worker_instance_key="w", session_id="new")] * count
    await ann.liveness.RecordWorkerHeartbeats(
        service_pb2.RecordWorkerHeartbeatsRequest(namespace="shop", heartbeats=beats)
    )
    await assert_fires(auth, suspicion.FENCED_OFF, f"{count} calls of former holders", "shop")


async def test_a_fenced_off_completion_counts(auth: AuthHarness) -> None:
    ann = await auth.caller("ann", "worker:shop", "producer:shop")
    await heartbeat(ann, "w")
    id = activity_pb2.ActivityId(workflow_id="f", run_id="r", activity_id="a")
    await ann.activities.ScheduleActivity(
        activity_pb2.ScheduleActivityRequest(namespace="shop", id=id, task_queue="q", activity_type="t")
    )
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await ann.activities.CompleteActivity(
            activity_pb2.CompleteActivityRequest(
                namespace="shop", id=id, worker_instance_key="w", lease_epoch=1, attempt=1, session_id="s"
            )
        )
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert metric(auth, "liveness_suspicious_total", suspicion.FENCED_OFF) == 1


async def test_a_token_that_is_used_from_many_addresses(auth: AuthHarness) -> None:
    auth.lift_rate_limits("shop")
    created = await auth.create_token("ann", "worker:shop")
    count = THRESHOLDS[suspicion.SHARED_TOKEN] + 1
    async with proxy_with_many_addresses(auth.server.address) as address:
        for _ in range(count):
            options = (("grpc.use_local_subchannel_pool", 1),)
            async with grpc.aio.insecure_channel(address, options=options) as channel:
                assert await heartbeat(Client(channel, created.secret), "w") == "OK"
    [alert] = await alerts(auth)
    assert re.match(f"The token {created.token.token_id} was used from at least 101 addresses", alert.message)


async def test_ordinary_programs_are_not_suspicious(auth: AuthHarness) -> None:
    """A fleet that starts, restarts once, and has a zombie and a wrong token among its processes."""
    ann = await auth.caller("ann", "worker:shop")
    keys = [f"w-{number}" for number in range(900)]

    async def beat(session: str) -> None:
        beats = [worker_pb2.WorkerHeartbeat(worker_instance_key=key, session_id=session) for key in keys]
        await ann.liveness.RecordWorkerHeartbeats(
            service_pb2.RecordWorkerHeartbeatsRequest(namespace="shop", heartbeats=beats)
        )

    for session in ("first", "second", "second"):
        await beat(session)
        auth.clock.move(10_000)
    await heartbeat(ann, "w-1", "first")
    await heartbeat(auth.client("mistyped"), "w-1")
    assert await alerts(auth) == []
    for kind in suspicion.KINDS:
        assert metric(auth, "liveness_suspects", kind) == 0


async def test_readers_of_one_namespace_do_not_see_who_attacks_others(auth: AuthHarness) -> None:
    for _ in range(THRESHOLDS[suspicion.FAILED_SIGN_INS] + 1):
        await heartbeat(auth.client("guess"), "w")
    reader: Any = await auth.caller("reader", "reader:shop")
    fleet = await reader.admin.GetFleet(fleet_pb2.GetFleetRequest(namespace="shop"))
    assert [alert for alert in fleet.alerts if alert.kind == fleet_pb2.ALERT_KIND_SUSPICIOUS] == []


async def test_operators_requests_are_not_suspicious(auth: AuthHarness) -> None:
    await auth.admin_client.admin.PauseWorkers(admin_pb2.PauseWorkersRequest(namespace="shop", all=True))
    assert await alerts(auth) == []
