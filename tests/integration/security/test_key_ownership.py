"""A worker key belongs to the principal that registered it, and within a principal to the session."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from liveness.v1 import activity_pb2, admin_pb2, component_metrics_service_pb2, service_pb2
from tests.integration.security.auth_harness import AuthHarness, Client
from tests.integration.server.server_harness import (
    ACTIVE,
    REGISTERED,
    RENEWED,
    RESURRECTED,
    SESSION_REPLACED,
    heartbeat,
    refusal,
    unpack_status,
)

NAMESPACE = "shop"
ID = activity_pb2.ActivityId(workflow_id="wf", run_id="r", activity_id="a")


async def beat(client: Client, worker: str = "w", **fields: Any) -> Any:
    fields.setdefault("session_id", "s1")
    return await client.liveness.RecordWorkerHeartbeat(
        service_pb2.RecordWorkerHeartbeatRequest(namespace=NAMESPACE, heartbeat=heartbeat(worker, **fields))
    )


async def attach(client: Client, session_id: str = "s1", worker: str = "w") -> Any:
    stream = client.liveness.Attach()
    request = service_pb2.AttachRequest.Attach(
        namespace=NAMESPACE, worker_instance_key=worker, session_id=session_id
    )
    await stream.write(service_pb2.AttachRequest(attach=request))
    answer = await stream.read()
    stream.cancel()
    return unpack_status(answer.attached.status) if answer.attached.HasField("status") else None


@pytest.fixture
async def owner(auth: AuthHarness) -> Client:
    client = await auth.caller("render", f"worker:{NAMESPACE}")
    assert (await beat(client, sequence=1)).outcome == REGISTERED
    return client


@pytest.fixture
async def thief(auth: AuthHarness) -> Client:
    """Has the same role in the same namespace, and knows everything but the owner's token."""
    return await auth.caller("thief", f"worker:{NAMESPACE}")


async def test_the_owner_is_stored_and_shown(auth: AuthHarness, owner: Client) -> None:
    worker = await describe(auth)
    assert worker.principal == "render"
    await auth.restart()
    assert (await describe(auth)).principal == "render"


async def describe(auth: AuthHarness, worker: str = "w") -> Any:
    response = await auth.admin_client.liveness.DescribeWorker(
        service_pb2.DescribeWorkerRequest(namespace=NAMESPACE, worker_instance_key=worker)
    )
    return response.worker


@pytest.mark.parametrize("session_id", ["s1", "s2", ""])
async def test_another_principal_cannot_heartbeat_for_the_key(
    auth: AuthHarness, owner: Client, thief: Client, session_id: str
) -> None:
    before = await describe(auth)
    refused = await refusal(beat(thief, session_id=session_id, sequence=9, new_incarnation=True))
    assert (refused.code, refused.reason) == (grpc.StatusCode.PERMISSION_DENIED, "WORKER_KEY_OWNED")
    assert await describe(auth) == before


async def test_the_short_path_of_equal_heartbeats_is_closed_to_others(
    auth: AuthHarness, owner: Client, thief: Client
) -> None:
    """A heartbeat that equals the owner's last one except for its number is not decided again, but renewed."""
    for sequence in (2, 3, 4):
        assert (await beat(owner, sequence=sequence)).outcome == RENEWED
    assert (await refusal(beat(thief, sequence=5))).reason == "WORKER_KEY_OWNED"
    assert (await beat(owner, sequence=5)).outcome == RENEWED


async def test_of_a_batch_with_mixed_keys_only_ones_own_are_recorded(
    auth: AuthHarness, owner: Client
) -> None:
    limited = await auth.caller("limited", f"worker:{NAMESPACE}:mine-")
    request = service_pb2.RecordWorkerHeartbeatsRequest(
        namespace=NAMESPACE,
        heartbeats=[
            heartbeat("mine-1"),
            heartbeat("w"),
            heartbeat("other"),
            heartbeat("mine-2"),
            heartbeat(""),
        ],
    )
    items = (await limited.liveness.RecordWorkerHeartbeats(request)).items
    assert [unpack_status(item.status).reason if item.HasField("status") else "OK" for item in items] == [
        "OK",
        "PERMISSION_DENIED",
        "PERMISSION_DENIED",
        "OK",
        "PERMISSION_DENIED",
    ]
    whole = await auth.caller("whole", f"worker:{NAMESPACE}")
    items = (await whole.liveness.RecordWorkerHeartbeats(request)).items
    reasons = [unpack_status(item.status).reason if item.HasField("status") else "OK" for item in items]
    assert reasons == ["WORKER_KEY_OWNED", "WORKER_KEY_OWNED", "OK", "WORKER_KEY_OWNED", "INVALID_FIELD"]


async def test_another_principal_cannot_report_metrics_of_the_key(
    auth: AuthHarness, owner: Client, thief: Client
) -> None:
    request = component_metrics_service_pb2.ReportMetricsRequest(
        namespace=NAMESPACE,
        worker_instance_key="w",
        samples=[component_metrics_service_pb2.MetricSample(name="depth", value=1)],
    )
    refused = await refusal(thief.metrics.ReportMetrics(request))
    assert (refused.code, refused.reason) == (grpc.StatusCode.PERMISSION_DENIED, "WORKER_KEY_OWNED")
    assert (await owner.metrics.ReportMetrics(request)).stored_samples == 1
    request.worker_instance_key = "not registered"
    assert (await thief.metrics.ReportMetrics(request)).stored_samples == 1
    found = await auth.admin_client.metrics.QueryMetrics(
        component_metrics_service_pb2.QueryMetricsRequest(namespace=NAMESPACE)
    )
    assert [series.worker_instance_key for series in found.series] == ["not registered", "w"]


async def test_another_principal_cannot_attach_shut_down_poll_or_claim(
    auth: AuthHarness, owner: Client, thief: Client
) -> None:
    refused = await attach(thief)
    assert (refused.code, refused.reason) == (grpc.StatusCode.PERMISSION_DENIED, "WORKER_KEY_OWNED")
    worker: dict[str, Any] = {"namespace": NAMESPACE, "worker_instance_key": "w", "session_id": "s1"}
    calls = [
        thief.liveness.ShutdownWorker(service_pb2.ShutdownWorkerRequest(**worker)),
        thief.activities.PollActivity(activity_pb2.PollActivityRequest(**worker, task_queue="q")),
        thief.activities.ClaimActivity(activity_pb2.ClaimActivityRequest(**worker, id=ID, task_queue="q")),
    ]
    for call in calls:
        refused = await refusal(call)
        assert (refused.code, refused.reason) == (grpc.StatusCode.PERMISSION_DENIED, "WORKER_KEY_OWNED")
    assert (await describe(auth)).state == ACTIVE
    assert await attach(owner) is None


async def claim(owner: Client) -> Any:
    answer = await owner.activities.ClaimActivity(
        activity_pb2.ClaimActivityRequest(
            namespace=NAMESPACE, worker_instance_key="w", session_id="s1", id=ID, task_queue="q"
        )
    )
    return answer.activity


@pytest.mark.parametrize("verb", ["Complete", "Fail", "Release"])
async def test_another_principal_cannot_end_an_attempt_with_the_right_fencing_token(
    auth: AuthHarness, owner: Client, thief: Client, verb: str
) -> None:
    task = await claim(owner)
    request = getattr(activity_pb2, f"{verb}ActivityRequest")(
        namespace=NAMESPACE,
        id=ID,
        worker_instance_key="w",
        lease_epoch=task.lease_epoch,
        attempt=task.attempt,
        session_id="s1",
    )
    method = f"{verb}Activity"
    refused = await refusal(getattr(thief.activities, method)(request))
    assert (refused.code, refused.reason) == (grpc.StatusCode.PERMISSION_DENIED, "WORKER_KEY_OWNED")
    request.session_id = ""
    assert (await refusal(getattr(owner.activities, method)(request))).violations[0][0] == "session_id"
    request.session_id = "guessed"
    assert (await refusal(getattr(owner.activities, method)(request))).reason == "SESSION_NOT_CURRENT"
    request.session_id = "s1"
    await getattr(owner.activities, method)(request)


async def test_within_a_principal_the_session_id_is_needed(auth: AuthHarness, owner: Client) -> None:
    worker: dict[str, Any] = {"namespace": NAMESPACE, "worker_instance_key": "w"}
    for call in (
        owner.liveness.ShutdownWorker(service_pb2.ShutdownWorkerRequest(**worker)),
        owner.activities.PollActivity(activity_pb2.PollActivityRequest(**worker, task_queue="q")),
        owner.activities.ClaimActivity(activity_pb2.ClaimActivityRequest(**worker, id=ID, task_queue="q")),
    ):
        assert (await refusal(call)).violations == [("session_id", "must be set")]
    await owner.liveness.ShutdownWorker(service_pb2.ShutdownWorkerRequest(**worker, session_id="s1"))


async def test_a_token_of_the_same_principal_owns_the_key_too(auth: AuthHarness, owner: Client) -> None:
    second = await auth.caller("render", f"worker:{NAMESPACE}")
    assert (await beat(second, sequence=2)).outcome == RENEWED


async def test_a_key_stays_owned_while_its_worker_is_dead_and_until_an_operator_frees_it(
    auth: AuthHarness, owner: Client, thief: Client
) -> None:
    operator = await auth.caller("oncall", f"operator:{NAMESPACE}")
    worker: dict[str, Any] = {"namespace": NAMESPACE, "worker_instance_key": "w"}
    await operator.admin.ExpireWorker(admin_pb2.ExpireWorkerRequest(**worker))
    assert (await refusal(beat(thief, session_id="s2"))).reason == "WORKER_KEY_OWNED"
    assert (await beat(owner, session_id="s1", sequence=2)).outcome == RESURRECTED
    await operator.admin.ExpireWorker(admin_pb2.ExpireWorkerRequest(**worker))
    await operator.admin.ForgetWorker(admin_pb2.ForgetWorkerRequest(**worker))
    assert (await beat(thief, session_id="s2")).outcome == REGISTERED
    assert (await refusal(beat(owner, session_id="s3"))).reason == "WORKER_KEY_OWNED"


async def test_a_worker_from_before_is_adopted_by_whoever_knows_its_session(auth: AuthHarness) -> None:
    await auth.restart(auth="off")
    await auth.beat("w", namespace=NAMESPACE, session_id="s1", sequence=1)
    await auth.restart(auth="on")
    owner, thief = (
        await auth.caller("render", f"worker:{NAMESPACE}"),
        await auth.caller("thief", f"worker:{NAMESPACE}"),
    )
    assert (await refusal(beat(thief, session_id="s2", sequence=1))).reason == "WORKER_KEY_OWNED"
    assert (await beat(owner, sequence=2)).outcome == RENEWED
    assert (await describe(auth)).principal == "render"
    assert (await refusal(beat(thief, sequence=3))).reason == "WORKER_KEY_OWNED"
    await auth.restart()
    assert (await describe(auth)).principal == "render"
    owner = auth.client(owner.token)
    assert (await beat(owner, session_id="s2", sequence=1)).outcome == SESSION_REPLACED


async def test_with_authentication_off_again_the_owner_stays_recorded(
    auth: AuthHarness, owner: Client
) -> None:
    await auth.restart(auth="off")
    assert (await auth.beat("w", namespace=NAMESPACE, session_id="s2")).outcome == SESSION_REPLACED
    assert (await auth.describe("w", NAMESPACE)).principal == "render"
