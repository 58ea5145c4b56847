"""Tokens: created once, listed without their secret, at most two per principal, refused everywhere once revoked."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import pytest
import structlog
from google.protobuf.duration_pb2 import Duration

from liveness.security.first_token import create_first_token
from liveness.security.redaction import short_hash
from liveness.store.tokens import AdminTokenExists
from liveness.v1 import access_pb2, activity_pb2, admin_pb2, service_pb2, token_pb2
from tests.databases import PostgresServer
from tests.integration.security.auth_harness import AuthHarness, Client
from tests.integration.security.test_key_ownership import NAMESPACE, beat
from tests.integration.server.server_harness import refusal, unpack

DAY_MS = 86_400_000


async def who(client: Client) -> Any:
    return await client.admin.WhoAmI(token_pb2.WhoAmIRequest())


async def revoke(auth: AuthHarness, token_id: str) -> Any:
    return await auth.admin_client.admin.RevokeToken(token_pb2.RevokeTokenRequest(token_id=token_id))


async def test_a_token_says_who_calls_and_what_it_may_do(auth_on_each_database: AuthHarness) -> None:
    auth = auth_on_each_database
    created = await auth.create_token("ci/build", "reader:shop", "worker:x%3Ay:render-")
    client = auth.client(created.secret)
    me = await who(client)
    assert (me.authenticated, me.principal, me.credential) == (True, "ci/build", "token")
    assert list(me.grants) == ["reader:shop", "worker:x%3Ay:render-"]
    assert me.credential_id == created.token.token_id
    assert me.expire_time.ToMilliseconds() == auth.clock.wall_ms() + 90 * DAY_MS
    for role, namespace, key, allowed in [
        (access_pb2.ROLE_READER, "shop", "", True),
        (access_pb2.ROLE_READER, "other", "", False),
        (access_pb2.ROLE_READER, "*", "", False),
        (access_pb2.ROLE_OPERATOR, "shop", "", False),
        (access_pb2.ROLE_WORKER, "x:y", "render-1", True),
        (access_pb2.ROLE_WORKER, "x:y", "", False),
        (access_pb2.ROLE_WORKER, "x:y", "rend", False),
    ]:
        request = token_pb2.CanIRequest(role=role, target_namespace=namespace, worker_instance_key=key)
        assert (await client.admin.CanI(request)).allowed is allowed, request


async def test_a_principal_has_two_live_tokens_at_most(auth_on_each_database: AuthHarness) -> None:
    auth = auth_on_each_database
    first, second = [await auth.create_token("ci", "reader:shop") for _ in range(2)]
    refused = await refusal(auth.create_token("ci", "reader:shop"))
    assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOKEN_QUOTA_EXCEEDED")
    await revoke(auth, first.token.token_id)
    third = await auth.create_token("ci", "reader:shop", lifetime=Duration(seconds=60))
    await auth.advance(61_000)
    fourth = await auth.create_token("ci", "reader:shop")
    assert len({token.secret for token in (first, second, third, fourth)}) == 4
    listed = (await auth.admin_client.admin.ListTokens(token_pb2.ListTokensRequest(principal="ci"))).tokens
    assert {token.token_id for token in listed} == {
        each.token.token_id for each in (first, second, third, fourth)
    }
    assert [token.token_id for token in listed if token.HasField("revoke_time")] == [first.token.token_id]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"principal": "", "grants": ["reader:shop"]}, "principal"),
        ({"principal": "jwt:alice", "grants": ["reader:shop"]}, "principal"),
        ({"principal": "cert:alice", "grants": ["reader:shop"]}, "principal"),
        ({"principal": "a b", "grants": ["reader:shop"]}, "principal"),
        ({"principal": "a", "grants": []}, "grants"),
        ({"principal": "a", "grants": ["root:shop"]}, "grants"),
        ({"principal": "a", "grants": ["node:*"]}, "grants"),
        ({"principal": "a", "grants": ["reader"]}, "grants"),
        ({"principal": "a", "grants": ["reader:sh*p"]}, "grants"),
        ({"principal": "a", "grants": ["reader:*"], "lifetime": Duration(seconds=367 * 86_400)}, "lifetime"),
        ({"principal": "a", "grants": ["reader:*"], "lifetime": Duration(seconds=0)}, "lifetime"),
    ],
)
async def test_invalid_tokens_are_not_created(auth: AuthHarness, fields: dict[str, Any], field: str) -> None:
    refused = await refusal(auth.admin_client.admin.CreateToken(token_pb2.CreateTokenRequest(**fields)))
    assert refused.violations[0][0] == field
    assert len((await auth.admin_client.admin.ListTokens(token_pb2.ListTokensRequest())).tokens) == 1


async def test_an_expired_and_a_revoked_token_are_refused_alike(auth: AuthHarness) -> None:
    expired = auth.client((await auth.create_token("a", "reader:shop", lifetime=Duration(seconds=60))).secret)
    revoked = await auth.create_token("b", "reader:shop")
    await who(expired)
    await who(auth.client(revoked.secret))
    await revoke(auth, revoked.token.token_id)
    auth.clock.move(60_000)
    unknown = auth.client("lvt_aaaaaaaaaaaa_" + "A" * 43)
    refusals = [await refusal(who(c)) for c in (expired, auth.client(revoked.secret), unknown)]
    assert len(set(map(str, refusals))) == 1
    assert refusals[0].code is grpc.StatusCode.UNAUTHENTICATED


async def test_a_wrong_secret_with_a_right_id_is_refused(auth: AuthHarness) -> None:
    created = await auth.create_token("a", "admin:*")
    other = await auth.create_token("b", "reader:shop")
    forged = f"lvt_{created.token.token_id}_{other.secret.split('_', 2)[2]}"
    assert (await refusal(who(auth.client(forged)))).reason == "UNAUTHENTICATED"


async def test_two_credentials_in_one_call_are_refused(auth: AuthHarness) -> None:
    token = (await auth.create_token("a", "reader:shop")).secret
    call = auth.admin.WhoAmI(
        token_pb2.WhoAmIRequest(),
        metadata=(("authorization", f"Bearer {token}"), ("authorization", f"Bearer {token}")),
    )
    assert (await refusal(call)).reason == "UNAUTHENTICATED"


async def test_revocation_at_one_node_is_effective_at_another_and_cuts_its_streams(
    postgres: PostgresServer, postgres_database: str
) -> None:
    first, second = [AuthHarness(postgres.url(postgres_database)) for _ in range(2)]
    await first.start()
    second.admin_client = None  # type: ignore[assignment]  # the token is that of the first
    second._admin_token = first._admin_token
    await second.start()
    try:
        created = await first.create_token("reader", "reader:shop", "worker:shop")
        await second.tokens.refresh()
        client = second.client(created.secret)
        watching = client.liveness.WatchEvents(service_pb2.WatchEventsRequest(namespace="shop"))
        await watching.read()
        attached = client.liveness.Attach()
        await attached.write(service_pb2.AttachRequest(ping=service_pb2.AttachRequest.Ping(number=1)))
        assert (await attached.read()).pong.number == 1
        await revoke(first, created.token.token_id)
        sleepers = len(second.clock._sleepers)
        polled = asyncio.create_task(second.tokens.run())
        while len(second.clock._sleepers) == sleepers:
            await asyncio.sleep(0)
        second.clock.move(500)
        for stream in (watching, attached):
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await asyncio.wait_for(stream.read(), 10)
            assert unpack(ended.value).reason == "UNAUTHENTICATED"
        assert (await refusal(who(client))).reason == "UNAUTHENTICATED"
        polled.cancel()
    finally:
        await second.stop()
        await first.stop()


async def test_the_first_token_is_created_once(auth: AuthHarness) -> None:
    with pytest.raises(AdminTokenExists):
        await create_first_token(auth.server.store, auth.clock)
    tokens = []
    for _ in range(3):
        auth.clock.move(1)  # the oldest makes room
        tokens.append(await create_first_token(auth.server.store, auth.clock, force=True))
    await auth.tokens.refresh()
    assert (await who(auth.client(tokens[-1].text))).principal == "admin"
    assert (await who(auth.client(tokens[-2].text))).principal == "admin"
    assert (await refusal(who(auth.client(tokens[0].text)))).reason == "UNAUTHENTICATED"


async def test_a_task_of_another_namespace_is_not_found(auth: AuthHarness) -> None:
    worker = await auth.caller("render", f"worker:{NAMESPACE}")
    bound = [{"workflow_id": "wf", "run_id": "r", "activity_id": "a", "task_queue": "q"}]
    await beat(worker, bound_activities=bound)
    admin = auth.admin_client.admin
    await admin.ExpireWorker(admin_pb2.ExpireWorkerRequest(namespace=NAMESPACE, worker_instance_key="w"))
    [task] = (await admin.ListTasks(admin_pb2.ListTasksRequest())).tasks
    stranger = await auth.caller("stranger", "operator:other")
    for request in (task.task_id, 999_999):
        refused = await refusal(stranger.admin.DiscardTask(admin_pb2.DiscardTaskRequest(task_id=request)))
        assert refused.reason == "TASK_NOT_FOUND"
    own = await auth.caller("oncall", f"operator:{NAMESPACE}")
    await own.admin.DiscardTask(admin_pb2.DiscardTaskRequest(task_id=task.task_id))


# -- what is shown


async def test_sessions_are_shown_as_a_short_hash_everywhere(auth: AuthHarness) -> None:
    secret = "session-that-is-a-capability"
    worker = await auth.caller("render", f"worker:{NAMESPACE}")
    reader = auth.admin_client
    await beat(worker, session_id="older", lease_ms=1_000)
    await beat(worker, session_id=secret, lease_ms=1_000)
    named: dict[str, Any] = {"namespace": NAMESPACE, "worker_instance_key": "w"}
    shown = [
        await reader.liveness.DescribeWorker(service_pb2.DescribeWorkerRequest(**named)),
        await reader.liveness.ListWorkers(service_pb2.ListWorkersRequest(namespace=NAMESPACE)),
    ]
    assert shown[0].worker.session_id == shown[1].workers[0].session_id == short_hash(secret)
    await auth.advance(12_000)
    shown.append(await reader.liveness.GetWorkerHistory(service_pb2.GetWorkerHistoryRequest(**named)))
    shown.append(await reader.liveness.GetDeathCertificate(service_pb2.GetDeathCertificateRequest(**named)))
    assert shown[-1].session_id == short_hash(secret)
    shown.append(await reader.liveness.ListRecentEvents(service_pb2.ListRecentEventsRequest()))
    watching = reader.liveness.WatchEvents(
        service_pb2.WatchEventsRequest(namespace=NAMESPACE, from_beginning=True)
    )
    events = await watching.read()
    while not events.events:
        events = await watching.read()
    watching.cancel()
    shown.append(events)
    texts = "".join(map(str, shown))
    assert secret not in texts
    assert texts.count(short_hash(secret)) >= 6
    for request in (
        worker.liveness.ShutdownWorker(service_pb2.ShutdownWorkerRequest(**named, session_id="older")),
        worker.liveness.ShutdownWorker(service_pb2.ShutdownWorkerRequest(**named, session_id="no-such-one")),
        beat(worker, session_id="older"),
    ):
        refused = await refusal(request)
        assert len(refused.fields["session_id"]) == 8
        assert "older" not in refused.message
        assert "no-such-one" not in refused.message


async def test_readers_and_operators_see_no_payloads_and_producers_do(auth: AuthHarness) -> None:
    producer = await auth.caller("shop-web", f"producer:{NAMESPACE}")
    activity: dict[str, Any] = {
        "namespace": NAMESPACE,
        "id": activity_pb2.ActivityId(workflow_id="w", run_id="r", activity_id="a"),
    }
    await producer.activities.ScheduleActivity(
        activity_pb2.ScheduleActivityRequest(**activity, task_queue="q", input=b"card number")
    )
    request = activity_pb2.DescribeActivityRequest(**activity)
    assert (await producer.activities.DescribeActivity(request)).activity.input == b"card number"
    for role in ("reader", "operator"):
        reader = await auth.caller(role, f"{role}:{NAMESPACE}")
        assert (await reader.activities.DescribeActivity(request)).activity.input == b""
        events = await reader.liveness.ListRecentEvents(
            service_pb2.ListRecentEventsRequest(namespace=NAMESPACE)
        )
        [scheduled] = [json.loads(event.data_json) for event in events.events]
        assert "input" not in scheduled
        assert scheduled["task_queue"] == "q"


async def test_a_canary_token_is_in_no_log_event_metric_error_or_table(auth: AuthHarness) -> None:
    with structlog.testing.capture_logs() as logs:
        created = await auth.create_token("canary", f"worker:{NAMESPACE}", f"reader:{NAMESPACE}")
        client = auth.client(created.secret)
        await beat(client)
        errors = [
            await refusal(client.admin.ListTokens(token_pb2.ListTokensRequest())),
            await refusal(who(auth.client(created.secret[:-1]))),
            await refusal(client.liveness.ListWorkers(service_pb2.ListWorkersRequest(namespace="other"))),
        ]
        await auth.server.take_sample()
        metrics, _ = auth.server.metrics()
        listed = await auth.admin_client.admin.ListTokens(token_pb2.ListTokensRequest())
        recent = await auth.admin_client.liveness.ListRecentEvents(service_pb2.ListRecentEventsRequest())
        await revoke(auth, created.token.token_id)
    secret = created.secret.split("_", 2)[2]
    for found in (logs, errors, metrics.decode(), listed, recent, await auth.dump()):
        assert secret not in str(found)
    assert "token created" in str(logs)
    assert "token revoked" in str(logs)
