"""The HTTP server in the server's process: the API as JSON, streams as server-sent events, the dashboard's files."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import uvicorn
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.descriptor_pool import Default
from grpc_health.v1 import health_pb2
from starlette.datastructures import Headers
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.responses import Response

from liveness.background import BackgroundTasks
from liveness.clock import Clock
from liveness.domain.errors import PermissionDenied
from liveness.http.app import HttpApp, PathHandlers, RequestHandler, internal_error, json_response
from liveness.http.body_reader import BodyReader
from liveness.http.connection_protocol import LimitedProtocol
from liveness.http.connections import Connections, LimitedListener, connections_max
from liveness.http.endpoints import EndpointTable, endpoints_of
from liveness.http.errors import from_error, from_rpc_error
from liveness.http.event_streams import STREAMS_MAX, EventStreams
from liveness.http.grpc_client import DescribeCaller, GrpcClient
from liveness.http.guard import Guard
from liveness.http.json_output import json_bytes
from liveness.http.listen_address import ListenAddress
from liveness.http.openapi import SERVICES, document_file
from liveness.http.sign_in import SignIn
from liveness.http.static_files import read_files
from liveness.http.worker_paths import WorkerPaths
from liveness.v1 import access_pb2, admin_pb2, token_pb2

STATIC = Path(__file__).parent.parent / "dashboard" / "static"
SHUTDOWN_TIMEOUT_S = 2
"""How long clients may take to read their last answers when the server stops."""
HEALTH_TIMEOUT_S = 5.0
READINESS = "liveness.readiness"

_CAN_I = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].methods_by_name["CanI"]
_HEALTH: ServiceDescriptor = Default().FindServiceByName("grpc.health.v1.Health")

Metrics = Callable[[], tuple[bytes, str]]
"""Returns the content of /metrics and its content type."""
Door = Callable[[GrpcClient, BodyReader], PathHandlers]
"""Makes the handlers of paths that clients of another system know."""


class _UvicornWithoutSignals(uvicorn.Server):
    """`liveness serve` handles the signals of the process; uvicorn would take them over for as long as it serves."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    def __init__(
        self,
        grpc_address: str,
        listen_address: ListenAddress,
        clock: Clock,
        *,
        hosts: Collection[str] = (),
        metrics: Metrics | None = None,
        asks_callers: bool = False,
        static: Path = STATIC,
        streams_max: int = STREAMS_MAX,
        body_reader: BodyReader | None = None,
        connections: int | None = None,
        connect: Callable[..., Any] = grpc.aio.insecure_channel,
        ssl_context: ssl.SSLContext | None = None,
        describe_caller: DescribeCaller | None = None,
        doors: Sequence[Door] = (),
    ) -> None:
        """`hosts`: further host names under which clients reach the server. `metrics`: None if there is no /metrics.
        `connections`: how many at most; None: as the process's descriptors allow. `connect`: opens the channel to
        `grpc_address`. `ssl_context`: None to serve plain HTTP. `asks_callers`: whether the node asks who calls; then /metrics
        needs a credential, too. `describe_caller`: tells the node from where a request came.
        `doors`: paths that clients of other systems know."""
        self._asks_callers = asks_callers
        self.url = (
            listen_address.url if ssl_context is None else listen_address.url.replace("http:", "https:", 1)
        )
        self._ssl_context = ssl_context
        self._listen_address = listen_address
        self._metrics = metrics
        self._connections = Connections(clock, connections or connections_max())
        self._tasks = BackgroundTasks("http server")
        self._grpc_client = GrpcClient(grpc_address, connect, describe_caller)
        body_reader = body_reader or BodyReader()
        sign_in = SignIn(self._grpc_client, body_reader, clock)
        worker_paths = WorkerPaths(self._grpc_client, body_reader)
        handlers: dict[str, Mapping[str, RequestHandler]] = {
            "/healthz": {"GET": self._healthz},
            "/readyz": {"GET": self._readyz},
            **sign_in.handlers(),
            **worker_paths.handlers(),
        }
        for door in doors:
            handlers.update(door(self._grpc_client, body_reader))
        if metrics is not None:
            handlers["/metrics"] = {"GET": self._metrics_response}
        self._app = HttpApp(
            Guard(listen_address.names, proxy_hosts=hosts, allow_any_ip=listen_address.is_wildcard),
            EndpointTable(endpoints_of(SERVICES)),
            self._grpc_client,
            EventStreams(clock, streams_max),
            body_reader,
            files={**read_files(static), "/openapi.json": document_file()},
            handlers=handlers,
        )

    async def start(self) -> None:
        """May raise OSError."""
        self._uvicorn = _UvicornWithoutSignals(
            uvicorn.Config(
                ServerErrorMiddleware(self._app, handler=internal_error),
                http=partial(LimitedProtocol, connections=self._connections),  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="critical",  # the server's own log has everything that matters
                access_log=False,
                server_header=False,
                proxy_headers=False,
            )
        )
        self._uvicorn.config.load()
        self._uvicorn.config.ssl = self._ssl_context
        listener = LimitedListener(self._listen_address.socket, self._connections)
        self._serve_task = self._tasks.start(self._uvicorn.serve(sockets=[listener]))
        self._tasks.start(self._connections.close_overdue())
        try:
            # uvicorn sets a flag when it listens; it has no event to wait for.
            while not self._uvicorn.started and not self._serve_task.done():  # noqa: ASYNC110
                await asyncio.sleep(0)
            if self._serve_task.done():
                await self._serve_task
        except BaseException:
            await self._tasks.close()
            listener.close()
            await self._grpc_client.close()
            raise

    def reconnect(self) -> None:
        """Use a new channel to the node, with the node's new certificate."""
        self._grpc_client.reconnect()

    def stop_accepting(self) -> None:
        """Accept no connections any more and end the streams. Calls in flight are answered as long as the node runs.

        uvicorn closes the listener at its next tick, within 0.1 s; the app refuses requests until then.
        """
        self._app.close()
        self._uvicorn.should_exit = True

    async def stop(self) -> None:
        self.stop_accepting()
        _, unfinished = await asyncio.wait({self._serve_task}, timeout=SHUTDOWN_TIMEOUT_S)
        if unfinished:
            # uvicorn closes such a connection only after the client has read everything, which may be never.
            for connection in tuple(self._uvicorn.server_state.connections):
                connection.transport.abort()
            self._uvicorn.force_exit = True
        await self._serve_task
        await self._tasks.close()
        self._app.shutdown_executor()
        await self._grpc_client.close()

    # -- paths outside the API

    async def _healthz(self, request: Request) -> Response:
        return json_response(json_bytes({"status": "SERVING"}))

    async def _readyz(self, request: Request) -> Response:
        """Ready: this node serves all shards that are assigned to it."""
        asked = health_pb2.HealthCheckRequest(service=READINESS)
        try:
            response = await self._grpc_client.start_call(
                _HEALTH.methods_by_name["Check"], asked, Headers(), HEALTH_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        ready = response.status == health_pb2.HealthCheckResponse.SERVING
        return json_response(
            json_bytes({"status": "SERVING" if ready else "NOT_SERVING"}), 200 if ready else 503
        )

    async def _metrics_response(self, request: Request) -> Response:
        assert self._metrics is not None
        if self._asks_callers:
            await self._require_reader(request.headers)
        content, media_type = self._metrics()
        return Response(content, media_type=media_type, headers={"Cache-Control": "no-store"})

    async def _require_reader(self, headers: Headers) -> None:
        """Metrics name all namespaces, so that they need the role of a reader in all of them."""
        request = token_pb2.CanIRequest(role=access_pb2.ROLE_READER)
        try:
            answer = await self._grpc_client.start_call(_CAN_I, request, headers, HEALTH_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        if not answer.allowed:
            raise from_error(PermissionDenied(principal="The caller", role="reader", where="all namespaces"))
