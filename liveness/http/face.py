"""HTTP beside gRPC in the same process: the API as JSON, streams as events, the dashboard's files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

import grpc
import uvicorn
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.descriptor_pool import Default
from grpc_health.v1 import health_pb2
from starlette.datastructures import Headers
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.responses import Response

from liveness.clock import Clock
from liveness.http.bindings import Routes, bindings_of
from liveness.http.bodies import Bodies
from liveness.http.calls import Calls
from liveness.http.event_streams import STREAMS_MAX, EventStreams
from liveness.http.files import read_files
from liveness.http.guard import Guard
from liveness.http.openapi import SERVICES, document_file
from liveness.http.places import Place
from liveness.http.printing import json_of
from liveness.http.reception import Reception, Side, json_response, went_wrong
from liveness.http.refusals import of_call

STATIC = Path(__file__).parent.parent / "dashboard" / "static"
HEAD_BYTES_MAX = 128 * 1024
"""Of a request. A resume token has a number for each shard."""
CONNECTIONS_MAX = 2_000
END_S = 2
"""How long clients may take to read what they were answered before we left."""
DATE_MS = 1_000
HEALTH_S = 5.0
READINESS = "liveness.readiness"

_HEALTH: ServiceDescriptor = Default().FindServiceByName("grpc.health.v1.Health")

Metrics = Callable[[], tuple[bytes, str]]
"""What /metrics says, and its content type."""


class Face:
    def __init__(
        self,
        grpc_address: str,
        place: Place,
        clock: Clock,
        *,
        hosts: Collection[str] = (),
        metrics: Metrics | None = None,
        static: Path = STATIC,
        streams_max: int = STREAMS_MAX,
        bodies: Bodies | None = None,
    ) -> None:
        """`hosts`: more names under which it is reached."""
        self.url = place.url
        self._place = place
        self._clock = clock
        self._metrics = metrics
        self._calls = Calls(grpc_address)
        sides: dict[str, Side] = {"/healthz": self._healthz, "/readyz": self._readyz}
        if metrics is not None:
            sides["/metrics"] = self._show_metrics
        self._reception = Reception(
            Guard(place.names, proxied=hosts, any_ip=place.is_everywhere),
            Routes(bindings_of(SERVICES)),
            self._calls,
            EventStreams(clock, streams_max),
            bodies or Bodies(),
            files={**read_files(static), "/openapi.json": document_file()},
            sides=sides,
        )

    async def start(self) -> None:
        """May raise OSError."""
        config = uvicorn.Config(
            ServerErrorMiddleware(self._reception, handler=went_wrong),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # what matters is in our own log
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS_MAX,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            timeout_graceful_shutdown=END_S,
        )
        config.load()
        # Its parts instead of `serve`, which would take the process's signals and wake up ten times a second.
        self._http = uvicorn.Server(config)
        self._http.lifespan = config.lifespan_class(config)
        try:
            await self._http.startup(sockets=[self._place.socket])
        except BaseException:
            self._place.socket.close()
            await self._calls.close()
            raise
        self._dating = asyncio.create_task(self._keep_dates())

    async def _keep_dates(self) -> None:
        while True:
            await self._http.on_tick(0)
            await self._clock.sleep(DATE_MS)

    def close_doors(self) -> None:
        """Accept nothing new and end the streams. Calls in flight get their answers as long as there is a node."""
        for server in self._http.servers:
            server.close()
        self._reception.close()

    async def stop(self) -> None:
        self.close_doors()
        self._dating.cancel()
        with suppress(asyncio.CancelledError):
            await self._dating
        await self._http.shutdown(sockets=[self._place.socket])
        for left in tuple(self._http.server_state.connections):
            left.transport.abort()  # it did not read to the end
        self._reception.release()
        await self._calls.close()

    # -- beside the API

    async def _healthz(self) -> Response:
        return json_response(json_of({"status": "SERVING"}))

    async def _readyz(self) -> Response:
        """Whether this node has come to serve the shards that belong to it."""
        question = health_pb2.HealthCheckRequest(service=READINESS)
        try:
            answer = await self._calls.begin(_HEALTH.methods_by_name["Check"], question, Headers(), HEALTH_S)
        except grpc.aio.AioRpcError as error:
            raise of_call(error) from error
        ready = answer.status == health_pb2.HealthCheckResponse.SERVING
        return json_response(
            json_of({"status": "SERVING" if ready else "NOT_SERVING"}), 200 if ready else 503
        )

    async def _show_metrics(self) -> Response:
        assert self._metrics is not None
        content, media_type = self._metrics()
        return Response(content, media_type=media_type, headers={"Cache-Control": "no-store"})
