"""HTTP callers are recorded with their own address, at a node and through a frontend, and sign-ins and sign-outs are recorded."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest

from liveness.frontend.app import Frontend
from liveness.security.http_callers import HTTP_CALLER_HEADER, HttpCaller, HttpCallers
from liveness.v1 import admin_pb2
from liveness.v1 import token_pb2 as pb
from liveness.v1.admin_pb2_grpc import AdminServiceStub
from tests.integration.http.http_client import JSON, Answer
from tests.integration.http.http_client import Client as HttpClient
from tests.integration.security.auth_harness import AuthHarness
from tests.integration.security.test_audit import audit_of
from tests.integration.security.test_key_ownership import NAMESPACE
from tests.integration.security.test_nodes_and_frontends import caller, frontend, nodes
from tests.integration.security.test_revocation import http_of
from tests.integration.server.server_harness import refusal

__all__ = ["frontend", "nodes"]

ADDRESS = "127.0.3.1"
PAUSE = f"/v1/namespaces/{NAMESPACE}/workers/pause"


async def post(http: HttpClient, path: str, value: Any, **headers: str) -> Answer:
    client = HttpClient(http.port, source=ADDRESS)
    origin = {"Origin": f"http://127.0.0.1:{http.port}"}
    return await client.ask("POST", path, JSON | origin | headers, json.dumps(value).encode())


def bearer(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_a_change_over_http_is_recorded_with_the_address_of_the_http_client(auth: AuthHarness) -> None:
    oncall = await auth.caller("oncall", f"operator:{NAMESPACE}")
    async with http_of(auth.server) as http:
        forged = {HTTP_CALLER_HEADER: "AAAA", "X-Forwarded-For": "10.9.9.9"}
        assert (await post(http, PAUSE, {"all": True}, **bearer(oncall.token), **forged)).code == 200
        assert (await post(http, PAUSE, {"all": True}, **bearer("nonsense"))).code == 401
    await auth.server.audit.flush()
    [paused] = await audit_of(auth.admin_client, principal="oncall")
    assert (paused.address, paused.outcome) == (ADDRESS, "OK")
    [denied] = [entry for entry in await audit_of(auth.admin_client) if entry.outcome == "UNAUTHENTICATED"]
    assert denied.address == ADDRESS
    assert auth.server.telemetry.suspicion.totals["failed_sign_ins"] == 1


async def test_nobody_but_this_process_says_from_where_a_call_came(auth: AuthHarness) -> None:
    forged = HttpCallers().metadata(HttpCaller("10.9.9.9", "cert-name"))
    pause = admin_pb2.PauseWorkersRequest(namespace=NAMESPACE, all=True)
    own = ("authorization", f"Bearer {auth.admin_client.token}")
    async with grpc.aio.insecure_channel(auth.server.address) as channel:
        stub: Any = AdminServiceStub(channel)
        for metadata in (forged, ((HTTP_CALLER_HEADER, b"short"),), ((HTTP_CALLER_HEADER, b""),)):
            await stub.PauseWorkers(pause, metadata=(own, *metadata))
        assert (await refusal(stub.WhoAmI(pb.WhoAmIRequest(), metadata=forged))).reason == "UNAUTHENTICATED"
    found = await audit_of(auth.admin_client, method="AdminService/PauseWorkers")
    assert [entry.address for entry in found] == ["127.0.0.1"] * 3


async def test_a_node_is_told_the_address_of_an_http_client_of_a_frontend(
    nodes: list[AuthHarness], frontend: Frontend
) -> None:
    token = await caller(nodes, "oncall", f"operator:{NAMESPACE}")
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(http_of(frontend))
        channel: Any = await stack.enter_async_context(grpc.aio.insecure_channel(frontend.address))
        await channel.channel_ready()
        assert (await post(http, PAUSE, {"all": True}, **bearer(token))).code == 200
    [entry] = await audit_of(nodes[0].admin_client, principal="oncall")
    assert (entry.address, entry.outcome) == (ADDRESS, "OK")


@pytest.mark.parametrize("everywhere", [False, True])
async def test_sign_ins_and_sign_outs_are_recorded(auth: AuthHarness, everywhere: bool) -> None:
    created = await auth.create_token("ann", f"reader:{NAMESPACE}")
    async with http_of(auth.server) as http:
        signed_in = await post(http, "/auth/sign-in", {"token": created.secret})
        assert signed_in.code == 200
        cookie = signed_in.headers["set-cookie"].split(";")[0]
        signed_out = await post(http, "/auth/sign-out", {"everywhere": everywhere}, Cookie=cookie)
        assert signed_out.json() == {"ended": 1}
        assert (await post(http, "/auth/sign-in", {"token": "lvt_aaaaaaaaaaaa_" + "A" * 43})).code == 401
    await auth.server.audit.flush()
    found = {entry.method: entry for entry in await audit_of(auth.admin_client, principal="ann")}
    sign_in, sign_out = found["AdminService/CreateSession"], found["AdminService/EndSession"]
    assert (sign_in.credential, sign_in.credential_id) == ("token", created.token.token_id)
    assert sign_out.credential == "session"
    assert sign_out.target == ("everywhere=True" if everywhere else "")
    assert {(entry.address, entry.outcome, entry.calls) for entry in found.values()} == {(ADDRESS, "OK", 1)}
    rows = await audit_of(auth.admin_client, method="AdminService/CreateSession")
    [failed] = [entry for entry in rows if entry.outcome == "UNAUTHENTICATED"]
    assert (failed.principal, failed.address, failed.calls) == ("", ADDRESS, 1)
