"""HTTP beside gRPC in the same process: the API as JSON, streams as events, the dashboard's files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
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
from starlette.types import Message as AsgiMessage
from starlette.types import Receive, Scope, Send

from liveness.clock import Clock
from liveness.domain.errors import LivenessError, ShuttingDown
from liveness.http import event_streams
from liveness.http.bindings import Elsewise, Match, Routes, bindings_of
from liveness.http.calls import Calls, patience_s, timeout_of, unless_gone
from liveness.http.event_streams import EventStreams
from liveness.http.files import read_files
from liveness.http.guard import HEADERS, Guard, check_content_type
from liveness.http.places import Place
from liveness.http.refusals import Refusal, of_call, of_error, refusal
from liveness.http.transcoding import json_of, plain, request_of
from liveness.v1 import activity_pb2, admin_pb2, service_pb2

SERVICES: tuple[ServiceDescriptor, ...] = (
    service_pb2.DESCRIPTOR.services_by_name["LivenessService"],
    activity_pb2.DESCRIPTOR.services_by_name["ActivityService"],
    admin_pb2.DESCRIPTOR.services_by_name["AdminService"],
)
_HEALTH: ServiceDescriptor = Default().FindServiceByName("grpc.health.v1.Health")
STATIC = Path(__file__).parent.parent / "dashboard" / "static"
BODY_BYTES_MAX = 16 * 1024 * 1024
HEAD_BYTES_MAX = 128 * 1024
"""Of a request. A resume token has a number for each shard."""
STREAMS_MAX = 256
CONNECTIONS_MAX = 2_000
END_S = 2
DATE_MS = 1_000
READINESS = "liveness.readiness"

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
    ) -> None:
        """`hosts`: more names under which it is reached."""
        self.url = place.url
        self._place = place
        self._clock = clock
        self._metrics = metrics
        self._calls = Calls(grpc_address)
        self._guard = Guard(place.names, proxied=hosts, any_ip=place.is_everywhere)
        self._routes = Routes(bindings_of(SERVICES))
        self._files = read_files(static)
        self._streams = EventStreams(clock, streams_max)
        self._closing = False
        self._sides: dict[str, Callable[[], Any]] = {
            "/healthz": self._healthz,
            "/readyz": self._readyz,
        }
        if metrics is not None:
            self._sides["/metrics"] = self._show_metrics

    # -- its life

    async def start(self) -> None:
        config = uvicorn.Config(
            ServerErrorMiddleware(self._serve, handler=_internal),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS_MAX,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            timeout_graceful_shutdown=END_S,
        )
        config.load()
        # Its parts instead of `serve`, which would take the process's signals.
        self._http = uvicorn.Server(config)
        self._http.lifespan = config.lifespan_class(config)
        await self._http.startup(sockets=[self._place.socket])
        self._dating = asyncio.create_task(self._keep_dates())

    async def _keep_dates(self) -> None:
        while True:
            await self._http.on_tick(0)
            await self._clock.sleep(DATE_MS)

    def close_doors(self) -> None:
        """Accept nothing new and end the streams. Calls in flight get their answers as long as there is a node."""
        self._closing = True
        for server in self._http.servers:
            server.close()
        self._streams.close()

    async def stop(self) -> None:
        self.close_doors()
        self._dating.cancel()
        with suppress(asyncio.CancelledError):
            await self._dating
        await self._http.shutdown(sockets=[self._place.socket])
        await self._calls.close()

    # -- a request

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: AsgiMessage) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_ENCODED]
            await send(message)

        request = Request(scope, receive)
        try:
            await self._answer(request, guarded)
        except Refusal as refused:
            await _refused(refused)(scope, receive, guarded)
        except LivenessError as error:
            await _refused(of_error(error))(scope, receive, guarded)

    async def _answer(self, request: Request, send: Send) -> None:
        scope, headers, verb = request.scope, request.headers, request.method
        raw_path: bytes = scope["raw_path"]
        if self._closing:
            raise ShuttingDown
        path = raw_path.decode("ascii", "replace")
        if path not in ("/healthz", "/readyz"):
            self._guard.check_host(headers)
        self._guard.check_origin(verb, headers)
        reading = "GET" if verb == "HEAD" else verb
        file = self._files.get(path)
        if file is not None or path in self._sides:
            if reading != "GET":
                raise _not_allowed(verb, ("GET", "HEAD"))
            response = file.answer(headers) if file is not None else await self._sides[path]()
            await response(scope, request.receive, send)
            return
        found = self._routes.find(reading, raw_path)
        if found is None:
            raise refusal(404, grpc.StatusCode.NOT_FOUND, "PATH_NOT_FOUND", "There is nothing at this path.")
        if isinstance(found, Elsewise):
            raise _not_allowed(verb, found.verbs)
        await self._call(found, request, send)

    async def _call(self, match: Match, request: Request, send: Send) -> None:
        method = match.binding.method
        if match.binding.verb != "GET":
            check_content_type(request.headers)
        timeout_s = timeout_of(request.headers)
        body = await _body(request) if match.binding.body else b""
        message = request_of(match, request.scope["query_string"].decode("latin-1"), body)
        if method.server_streaming:
            if request.method == "HEAD":
                raise _not_allowed("HEAD", ("GET",))
            self._streams.admit()
            event_streams.resume(message, request.headers)
            call = self._calls.begin(method, message, request.headers, timeout_s)
            start = Response(headers=event_streams.HEADERS)
            del start.headers["content-length"]
            await self._streams.carry(call, request.receive, send, lambda: _begin(start, send))
            return
        call = self._calls.begin(method, message, request.headers, timeout_s or patience_s(message))
        try:
            answer = await unless_gone(call, request.receive, call.cancel)
        except grpc.aio.AioRpcError as error:
            raise of_call(error) from error
        if answer is not None:
            await _json(plain(answer))(request.scope, request.receive, send)

    # -- beside the API

    async def _healthz(self) -> Response:
        return _json({"status": "SERVING"})

    async def _readyz(self) -> Response:
        """Whether this node has come to serve the shards that belong to it."""
        method = _HEALTH.methods_by_name["Check"]
        question = health_pb2.HealthCheckRequest(service=READINESS)
        try:
            answer = await self._calls.begin(method, question, Headers(), 5.0)
        except grpc.aio.AioRpcError as error:
            raise of_call(error) from error
        serving = answer.status == health_pb2.HealthCheckResponse.SERVING
        return _json({"status": "SERVING" if serving else "NOT_SERVING"}, code=200 if serving else 503)

    async def _show_metrics(self) -> Response:
        assert self._metrics is not None
        content, media_type = self._metrics()
        return Response(content, media_type=media_type, headers=_FRESH)


_ENCODED = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
_FRESH = {"Cache-Control": "no-store"}


async def _begin(response: Response, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": response.raw_headers})


async def _body(request: Request) -> bytes:
    """Never more of it than is allowed."""
    parts, size = [], 0
    length = request.headers.get("content-length", "")
    if length.isdecimal() and len(length) <= 20 and int(length) > BODY_BYTES_MAX:
        raise _too_large()
    async for part in request.stream():
        size += len(part)
        if size > BODY_BYTES_MAX:
            raise _too_large()
        parts.append(part)
    return b"".join(parts)


def _too_large() -> Refusal:
    return refusal(
        413,
        grpc.StatusCode.INVALID_ARGUMENT,
        "BODY_TOO_LARGE",
        f"A body may have {BODY_BYTES_MAX // 1024 // 1024} MiB at most.",
        headers={"Connection": "close"},
    )


def _not_allowed(verb: str, allowed: Collection[str]) -> Refusal:
    names = ", ".join(allowed)
    return refusal(
        405,
        grpc.StatusCode.UNIMPLEMENTED,
        "METHOD_NOT_ALLOWED",
        f"{verb[:20]} is not possible here; possible: {names}.",
        headers={"Allow": names},
    )


def _json(value: Any, *, code: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(
        json_of(value),
        status_code=code,
        media_type="application/json",
        headers={**_FRESH, **(headers or {})},
    )


def _refused(refused: Refusal) -> Response:
    return _json(refused.as_json(), code=refused.code, headers=refused.headers)


async def _internal(request: Request, error: Exception) -> Response:
    why = refusal(
        500, grpc.StatusCode.INTERNAL, "INTERNAL", "Something went wrong in the server; its log says what."
    )
    response = _refused(why)
    response.headers.update(HEADERS)
    return response
