"""A real server with authentication on, and callers with tokens of their own."""

from __future__ import annotations

from typing import Any

import grpc

from liveness.security.first_token import create_first_token
from liveness.security.token_table import TokenTable
from liveness.v1 import token_pb2
from liveness.v1.activity_pb2_grpc import ActivityServiceStub
from liveness.v1.admin_pb2_grpc import AdminServiceStub
from liveness.v1.component_metrics_service_pb2_grpc import ComponentMetricsServiceStub
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from tests.integration.server.server_harness import ServerHarness


class _WithToken:
    """Passes the token with every call of a stub."""

    def __init__(self, stub: object, token: str | None) -> None:
        self._stub = stub
        self._metadata = () if token is None else (("authorization", f"Bearer {token}"),)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._stub, name)
        return lambda *args, **options: method(*args, metadata=self._metadata, **options)


class Client:
    """A caller: the server's stubs with a credential."""

    def __init__(self, channel: grpc.aio.Channel, token: str | None) -> None:
        self.token = token
        self.channel = channel
        self.liveness: Any = _WithToken(LivenessServiceStub(channel), token)
        self.activities: Any = _WithToken(ActivityServiceStub(channel), token)
        self.metrics: Any = _WithToken(ComponentMetricsServiceStub(channel), token)
        self.admin: Any = _WithToken(AdminServiceStub(channel), token)


class AuthHarness(ServerHarness):
    admin_client: Client

    async def start(self, **settings: Any) -> AuthHarness:
        await super().start(**{"auth": "on", **settings})
        if not hasattr(self, "admin_client"):
            token = await create_first_token(self.server.store, self.clock)
            await self.tokens.refresh()
            self._admin_token = token.text
        self.admin_client = self.client(self._admin_token)
        return self

    @property
    def tokens(self) -> TokenTable:
        assert self.server.authenticator is not None
        return self.server.authenticator.tokens

    def client(self, token: str | None) -> Client:
        return Client(self.channel, token)

    async def create_token(self, principal: str, *grants: str, **fields: Any) -> Any:
        return await self.admin_client.admin.CreateToken(
            token_pb2.CreateTokenRequest(principal=principal, grants=grants, **fields)
        )

    async def caller(self, principal: str, *grants: str) -> Client:
        return self.client((await self.create_token(principal, *grants)).secret)
