"""Calls from an event loop, for programs that are no worker themselves: the Temporal bridge and the supervisor."""

from __future__ import annotations

import asyncio
from typing import Any

from google.protobuf.message import Message

from liveness.client_credentials import Credentials
from liveness.sdk.connection import Connection, SelectMethod
from liveness.sdk.rpc_failures import RpcFailed, RpcFailure

__all__ = ["LivenessClient", "RpcFailed", "RpcFailure"]


class LivenessClient:
    def __init__(self, addresses: tuple[str, ...], credentials: Credentials) -> None:
        self._connection = Connection.acquire(addresses, credentials)

    async def call(
        self, select_method: SelectMethod, request: Message, timeout_ms: int, *, is_long_poll: bool = False
    ) -> Any:
        """Make one call. Raises RpcFailed. `is_long_poll`: one node may take the whole time to answer."""
        deadline_ms = self._connection.clock.monotonic_ms() + timeout_ms
        timeout_s = timeout_ms / 1_000
        future = self._connection.call(
            select_method,
            request,
            timeout_s=timeout_s if is_long_poll else self._connection.call_timeout_s(timeout_s),
            deadline_ms=deadline_ms,
            # Another node may serve it at once; a lone server that is away is not waited for.
            should_retry=lambda failure: failure.should_fail_over and len(self._connection.endpoints) > 1,
        )
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        self._connection.release()
