"""A server that answers only calls with a certain token: a real server behind a check of the authorization metadata."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from liveness.app import Server
from liveness.config.settings import Settings
from liveness.server.platform import Platform


class TokenCheck(grpc.aio.ServerInterceptor):
    def __init__(self) -> None:
        self.accepted: set[str] = set()
        """The tokens that are good."""
        self.denied_methods: set[str] = set()
        """Methods that nobody may call."""
        self.received: list[tuple[str, str | None]] = []
        """Each call: the method and its authorization."""

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        method = handler_call_details.method.rpartition("/")[2]
        authorization = dict(handler_call_details.invocation_metadata).get("authorization")
        if method != "Receive":  # the server's calls to itself
            self.received.append((method, authorization))
            if (authorization or "").removeprefix("Bearer ") not in self.accepted:
                return _refuse(await continuation(handler_call_details), grpc.StatusCode.UNAUTHENTICATED)
            if method in self.denied_methods:
                return _refuse(await continuation(handler_call_details), grpc.StatusCode.PERMISSION_DENIED)
        return await continuation(handler_call_details)

    def count(self, method: str, token: str) -> int:
        return self.received.count((method, f"Bearer {token}"))


def _refuse(
    handler: grpc.RpcMethodHandler[Any, Any], code: grpc.StatusCode
) -> grpc.RpcMethodHandler[Any, Any]:
    async def refuse(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        await context.abort(code, "the test refuses it")

    if handler.request_streaming:
        return grpc.stream_stream_rpc_method_handler(refuse)
    return grpc.unary_unary_rpc_method_handler(refuse)


@asynccontextmanager
async def token_server(folder: Path, check: TokenCheck, **settings: Any) -> AsyncIterator[Server]:
    def listener(**options: Any) -> Any:
        return grpc.aio.server(interceptors=[check], **options)

    values = {"shards": 2, "commit_interval_ms": 0.0, "shutdown_timeout_s": 2.0, **settings}
    configured = Settings(db=f"sqlite:///{folder}/liveness.db", listen="127.0.0.1:0", **values)
    async with Server(configured, platform=Platform(listener=listener)) as server:
        yield server
