"""Client certificates say who calls: over gRPC, over HTTP, and through a frontend."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from liveness.config.frontend_settings import FrontendSettings
from liveness.frontend.app import Frontend
from liveness.security.first_token import create_first_token
from liveness.v1 import admin_pb2, service_pb2
from tests.certificates import Authority, Issued, TlsFolder, make_tls_folder
from tests.databases import PostgresServer
from tests.integration.cluster.test_two_nodes import settled
from tests.integration.security.auth_harness import AuthHarness, Client
from tests.integration.security.test_audit import audit_of
from tests.integration.security.test_key_ownership import NAMESPACE, beat
from tests.integration.security.test_nodes_and_frontends import key_on
from tests.integration.security.test_revocation import http_of
from tests.integration.security.test_tokens import revoke, who
from tests.integration.security.tls_server import client_context, connect, tls_server
from tests.integration.server.server_harness import REGISTERED, refusal

RULES = (
    f"cert=spiffe://example.org/render/*=>worker:{NAMESPACE}",
    f"cert=spiffe://example.org/render/*=>reader:{NAMESPACE}",
    f"cert=oncall=>operator:{NAMESPACE}",
)
EVERYBODY = "cert=*=>admin:*"
RENDER = "cert:spiffe://example.org/render/1"
SESSION = "/auth/session"


class Parties(NamedTuple):
    servers: Authority
    clients: Authority
    render: Issued
    oncall: Issued
    files: TlsFolder
    settings: dict[str, Any]
    """Those of a listener that asks clients for certificates."""


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    servers, clients = Authority(), Authority("client CA")
    files = make_tls_folder(tmp_path / "tls", servers)
    settings = {
        **files.settings,
        "tls_client_ca_file": str(clients.write(tmp_path / "clients.pem")),
        "tls_client_auth": "required",
    }
    render = clients.issue_client("ignored", "spiffe://example.org/render/1")
    return Parties(servers, clients, render, clients.issue_client("oncall"), files, settings)


def channel_of(address: str, parties: Parties, issued: Issued | None) -> Any:
    pair = () if issued is None else (issued.cert_pem, issued.key_pem())
    return connect(address, parties.servers.cert_pem, *pair)


async def get(
    port: int, path: str, parties: Parties, issued: Issued | None, folder: Path, **headers: str
) -> tuple[int, Any]:
    context = client_context(parties.servers.cert_pem)
    if issued is not None:
        issued.write(folder / "own.pem", folder / "own.key")
        context.load_cert_chain(folder / "own.pem", folder / "own.key")
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{lines}Connection: close\r\n\r\n"
    return await _answer(port, context, head.encode())


async def _answer(port: int, context: ssl.SSLContext, request: bytes) -> tuple[int, Any]:
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        try:
            writer.write(request)
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
    return int(head.split(b" ", 2)[1]), json.loads(body)


async def test_a_node_knows_a_caller_by_its_certificate_over_grpc_and_http(
    tmp_path: Path, parties: Parties
) -> None:
    settings = {**parties.settings, "auth": "on", "auth_jwt_grants": RULES}
    async with tls_server(tmp_path, **settings) as server:
        async with channel_of(server.address, parties, parties.render) as channel:
            me = await who(Client(channel, None))
            assert (me.principal, me.credential) == (RENDER, "certificate")
            assert list(me.grants) == [f"worker:{NAMESPACE}", f"reader:{NAMESPACE}"]
        status, session = await get(server.http_port, SESSION, parties, parties.render, tmp_path)
        assert (status, session["principal"], session["credential"]) == (200, RENDER, "certificate")
        status, _ = await get(
            server.http_port, f"/v1/namespaces/{NAMESPACE}/workers", parties, parties.render, tmp_path
        )
        assert status == 200
        status, _ = await get(server.http_port, "/v1/namespaces/x/workers", parties, parties.render, tmp_path)
        assert status == 403
        status, session = await get(server.http_port, SESSION, parties, parties.oncall, tmp_path)
        assert (status, session["principal"]) == (200, "cert:oncall")


async def test_http_asks_for_a_certificate_and_takes_a_token_instead(
    tmp_path: Path, parties: Parties
) -> None:
    """With `optional`, which the gRPC listener does not know."""
    settings = {**parties.settings, "tls_client_auth": "optional", "auth": "on", "auth_jwt_grants": RULES}
    async with tls_server(tmp_path, **settings) as server:
        port = server.http_port
        assert (await get(port, SESSION, parties, None, tmp_path))[0] == 401
        assert (await get(port, SESSION, parties, parties.render, tmp_path))[1]["principal"] == RENDER
        token = await create_first_token(server.server.store, server.server._clock)
        assert server.server.authenticator is not None
        await server.server.authenticator.tokens.refresh()
        for issued in (None, parties.render):
            status, session = await get(
                port, SESSION, parties, issued, tmp_path, Authorization=f"Bearer {token.text}"
            )
            assert (status, session["principal"]) == (200, "admin"), "a token goes first"
        wrong = {"Authorization": "Bearer nonsense"}
        assert (await get(port, SESSION, parties, parties.render, tmp_path, **wrong))[0] == 401


async def test_http_is_not_its_own_caller_where_it_uses_the_public_listener(
    tmp_path: Path, parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it shows the certificate of this process, which says nothing about who made the request."""
    too_long = tmp_path / ("d" * 100)
    too_long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(too_long))
    nobody = parties.clients.issue_client("a\nb")
    settings = {**parties.settings, "auth": "on", "auth_jwt_grants": (EVERYBODY,)}
    async with tls_server(tmp_path, **settings) as server:
        assert server.server.private_listener is None
        assert (await get(server.http_port, SESSION, parties, nobody, tmp_path))[0] == 401
        status, session = await get(server.http_port, SESSION, parties, parties.oncall, tmp_path)
        assert (status, session["principal"]) == (200, "cert:oncall")


async def test_a_certificate_that_expires_ends_its_streams_and_calls(
    tmp_path: Path, parties: Parties
) -> None:
    """On a connection that goes on."""
    uri = "spiffe://example.org/render/9"
    short = parties.clients.issue_client("short", uri, ends_in=timedelta(seconds=4))
    settings = {**parties.settings, "auth": "on", "auth_jwt_grants": RULES}
    request = service_pb2.WatchEventsRequest(namespace=NAMESPACE)
    async with (
        tls_server(tmp_path, **settings) as server,
        channel_of(server.address, parties, short) as channel,
        channel_of(server.address, parties, parties.render) as other,
    ):
        stream = Client(channel, None).liveness.WatchEvents(request)
        kept = Client(other, None).liveness.WatchEvents(request)
        for opened in (stream, kept):
            await opened.read()
        assert await asyncio.wait_for(stream.code(), 30) is grpc.StatusCode.UNAUTHENTICATED
        assert (await refusal(who(Client(channel, None)))).reason == "UNAUTHENTICATED"
        assert not kept.done()
        kept.cancel()


@pytest.fixture
async def cluster(postgres: PostgresServer, postgres_database: str) -> AsyncIterator[list[AuthHarness]]:
    first, second = [AuthHarness(postgres.url(postgres_database)) for _ in range(2)]
    await first.start(auth_jwt_grants=RULES)
    second._admin_token, second.admin_client = first._admin_token, first.admin_client
    await second.start(auth_jwt_grants=RULES)
    await settled(first, second)
    yield [first, second]
    await second.stop()
    await first.stop()


async def test_a_frontend_passes_on_who_showed_a_certificate(
    tmp_path: Path, parties: Parties, cluster: list[AuthHarness]
) -> None:
    first, second = cluster
    settings = FrontendSettings(
        nodes=tuple(node.server.cluster_address for node in cluster),
        listen="127.0.0.1:0",
        auth="on",
        **parties.settings,
    )
    stranger = parties.clients.issue_client("stranger")
    other = parties.clients.issue_client("other", "spiffe://example.org/render/2")
    async with AsyncExitStack() as stack:
        frontend = await stack.enter_async_context(Frontend(settings))
        channels: list[Any] = [
            await stack.enter_async_context(channel_of(frontend.address, parties, issued))
            for issued in (parties.render, other, parties.oncall, stranger)
        ]
        await channels[0].channel_ready()
        render, thief, oncall, nobody = [Client(channel, None) for channel in channels]
        while not frontend.routes.members():
            await asyncio.sleep(0.01)
        for node in cluster:
            key = key_on(node)
            assert (await beat(render, key)).outcome == REGISTERED
            assert (await refusal(beat(thief, key, sequence=2))).reason == "WORKER_KEY_OWNED"
            assert (await refusal(beat(nobody, key))).reason == "PERMISSION_DENIED"
        assert (await who(render)).principal == RENDER
        expire = admin_pb2.ExpireWorkerRequest(namespace=NAMESPACE, worker_instance_key=key_on(second))
        assert (await refusal(render.admin.ExpireWorker(expire))).reason == "PERMISSION_DENIED"
        await oncall.admin.ExpireWorker(expire)
        [entry] = await audit_of(first.admin_client, principal="cert:oncall")
        assert (entry.credential, entry.credential_id, entry.outcome) == ("certificate", "oncall", "OK")

        http = await stack.enter_async_context(http_of(frontend))
        status, session = await get(http.port, SESSION, parties, parties.oncall, tmp_path)
        assert (status, session["principal"]) == (200, "cert:oncall")
        await _check_streams(first, second, channels[0], render)


async def _check_streams(first: AuthHarness, second: AuthHarness, channel: Any, render: Client) -> None:
    """A frontend asks about the tokens of open streams again and again; a stream without one goes on."""
    created = await first.create_token("ann", f"reader:{NAMESPACE}")
    await second.tokens.refresh()
    request = service_pb2.WatchEventsRequest(namespace=NAMESPACE)
    streams = [
        Client(channel, created.secret).liveness.WatchEvents(request),
        render.liveness.WatchEvents(request),
    ]
    for stream in streams:
        await stream.read()
    await revoke(first, created.token.token_id)
    await second.tokens.refresh()
    assert await asyncio.wait_for(streams[0].code(), 30) is grpc.StatusCode.UNAUTHENTICATED
    assert not streams[1].done()
    streams[1].cancel()
