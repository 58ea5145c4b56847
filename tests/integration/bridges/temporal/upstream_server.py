"""A gRPC server in Temporal's place that does what its methods' names say, for everything that passes through a bridge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

SERVICE = "/temporal.api.workflowservice.v1.WorkflowService/"
OTHER = "/some.newer.v9.Service/"
UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
DETAILS = b"\x08\x05\x12\x04gone\xff\x00"


class UpstreamServer(grpc.GenericRpcHandler):
    def __init__(self) -> None:
        self.address = ""
        self.metadata: dict[str, str | bytes] = {}
        """Of the last call."""
        self.time_remaining: float | None = None
        self.calls: list[tuple[str, bytes]] = []
        self.cancelled = asyncio.Event()
        self.reached = asyncio.Event()
        self.answers: dict[str, bytes] = {}
        """By method: what it answers at once."""
        self.held: dict[str, asyncio.Event] = {}
        """By method: it answers once this is set."""
        self.refused: set[str] = set()
        self.away: set[str] = set()
        """Methods that answer as if the server behind a load balancer were away."""
        self.unimplemented = {"Unknown"}
        self._server: grpc.aio.Server | None = None

    async def start(self, credentials: grpc.ServerCredentials | None = None, port: int = 0) -> None:
        server = self._server = grpc.aio.server(options=UNLIMITED)
        server.add_generic_rpc_handlers((self,))
        if credentials is None:
            port = server.add_insecure_port(f"127.0.0.1:{port}")
        else:
            port = server.add_secure_port(f"127.0.0.1:{port}", credentials)
        await server.start()
        self.address = f"127.0.0.1:{port}"

    def requests(self, method: str) -> list[bytes]:
        """All requests of a method, oldest first."""
        return [request for called, request in self.calls if called == method]

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.stop(0)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        method = handler_call_details.method.rpartition("/")[2]

        async def serve(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            self.metadata = dict(context.invocation_metadata())
            self.time_remaining = context.time_remaining()
            self.reached.set()
            try:
                async for answer in self._serve(method, requests, context):
                    yield answer
            except asyncio.CancelledError:  # perhaps while the request was still on its way
                self.cancelled.set()
                raise

        return grpc.stream_stream_rpc_method_handler(serve)

    async def _serve(self, method: str, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        if method == "Echo":
            await context.send_initial_metadata((("begins", "now"), ("begins-bin", b"\x00\xfe")))
            async for request in requests:
                yield request
            context.set_trailing_metadata((("ends", "well"), ("ends-bin", b"\x00\xff")))
            return
        request = b"".join([part async for part in requests])
        self.calls.append((method, request))
        if method in self.held:
            await self.held[method].wait()
        if method in self.refused:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "no")
        elif method in self.away:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "away")
        elif method in self.unimplemented:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method")
        elif method in self.answers:
            yield self.answers[method]
        elif method == "GetSystemInfo":
            yield request
        elif method == "DescribeNamespace":
            trailing = (("grpc-status-details-bin", DETAILS), ("more-bin", b"\x01\x80"), ("text", "x"))
            await context.abort(grpc.StatusCode.NOT_FOUND, "it is göne", trailing)
        elif method in ("Hang", "PollWorkflowTaskQueue"):
            await asyncio.get_running_loop().create_future()
