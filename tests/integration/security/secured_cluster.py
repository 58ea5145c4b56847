"""Two nodes that ask who calls, with mutual TLS on the cluster's port, and a frontend before them: as they are deployed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from liveness.app import Server
from liveness.clock import SystemClock
from liveness.config.frontend_settings import FrontendSettings
from liveness.config.settings import Settings
from liveness.frontend.app import Frontend
from liveness.security.certificates import create_certificates
from liveness.security.first_token import create_first_token
from liveness.server.platform import Platform
from liveness.v1 import token_pb2
from tests.integration.security.auth_harness import Client

SHARDS = 8
CALLS_PREFIX = "/liveness.v1."


class ReceivedCall(NamedTuple):
    path: str
    metadata: tuple[tuple[str, str | bytes], ...]


class CallLog(grpc.aio.ServerInterceptor):
    """Records the calls that arrive at the listeners of a node, with their metadata."""

    def __init__(self) -> None:
        self.received: list[ReceivedCall] = []
        self.gate: asyncio.Event | None = None
        """While it is not set, heartbeats are not answered."""

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        path = handler_call_details.method
        if path.startswith(CALLS_PREFIX):
            self.received.append(ReceivedCall(path, tuple(handler_call_details.invocation_metadata)))
            if self.gate is not None and path.endswith("/RecordWorkerHeartbeats"):
                await self.gate.wait()
        return await continuation(handler_call_details)

    def clear(self) -> None:
        """Forget all calls but those that go on."""
        self.received = self.of("Relay")

    def of(self, method: str) -> list[ReceivedCall]:
        return [call for call in self.received if call.path.endswith(f"/{method}")]


class SecuredCluster:
    def __init__(self, nodes: list[Server], frontend: Frontend, channel: Any, calls: CallLog) -> None:
        self.nodes = nodes
        self.frontend = frontend
        self.channel = channel
        """To the frontend."""
        self.calls = calls
        """What arrived at the nodes, at any of their listeners."""
        self.admin: Client

    async def create_tokens(self, grants: dict[str, tuple[str, ...]]) -> dict[str, str]:
        """The tokens of new principals, known to all nodes."""
        tokens = {
            principal: (
                await self.admin.admin.CreateToken(
                    token_pb2.CreateTokenRequest(principal=principal, grants=given)
                )
            ).secret
            for principal, given in grants.items()
        }
        await self.refresh_tokens()
        return tokens

    async def refresh_tokens(self) -> None:
        for node in self.nodes:
            assert node.authenticator is not None
            await node.authenticator.tokens.refresh()


@asynccontextmanager
async def secured_cluster(
    url: str, folder: Path, frontend_settings: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[SecuredCluster]:
    """`frontend_settings`: of the frontend only; `settings`: of the nodes."""
    certificates = folder / "cluster"
    create_certificates(certificates, ["127.0.0.1"], datetime.now(UTC), days=1)
    calls = CallLog()
    platform = Platform(listener=lambda **options: grpc.aio.server(interceptors=[calls], **options))
    async with AsyncExitStack() as stack:
        nodes = []
        for _ in range(2):
            values = {
                "shards": SHARDS,
                "takeover_grace_ms": 0,
                "auth": "on",
                **cluster_files(certificates, "node"),
                **settings,
            }
            server = Server(Settings(db=url, listen="127.0.0.1:0", **values), platform=platform)
            nodes.append(await stack.enter_async_context(server))
        while not all(node.membership.is_fully_serving and node.node.shards() for node in nodes):
            await nodes[0].routes.wait_for_change(SystemClock(), 50)
        token = await create_first_token(nodes[0].store, SystemClock())
        values = {
            "nodes": tuple(node.cluster_address for node in nodes),
            "auth": "on",
            **cluster_files(certificates, "frontend"),
            **(frontend_settings or {}),
        }
        frontend = await stack.enter_async_context(Frontend(FrontendSettings(listen="127.0.0.1:0", **values)))
        channel: Any = await stack.enter_async_context(grpc.aio.insecure_channel(frontend.address))
        cluster = SecuredCluster(nodes, frontend, channel, calls)
        direct: Any = await stack.enter_async_context(_channel(nodes[0], settings))
        cluster.admin = Client(direct, token.text)
        await cluster.refresh_tokens()
        while not frontend.routes.members():
            await asyncio.sleep(0.01)
        yield cluster


def _channel(node: Server, settings: dict[str, Any]) -> Any:
    if "tls_cert_file" not in settings:
        return grpc.aio.insecure_channel(node.address)
    assert node.tls is not None
    return node.tls.connect(node.address)


def cluster_files(folder: Path, kind: str) -> dict[str, str]:
    return {
        "cluster_cert_file": f"{folder}/{kind}.pem",
        "cluster_key_file": f"{folder}/{kind}.key",
        "cluster_ca_file": f"{folder}/ca.pem",
    }
