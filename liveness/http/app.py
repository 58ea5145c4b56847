"""The ASGI app: it checks a request, finds its endpoint, calls the node over gRPC, and writes the response."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import structlog
from google.protobuf.message import Message
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message as AsgiMessage
from starlette.types import Receive, Scope, Send

from liveness.domain.errors import LivenessError, ShuttingDown
from liveness.http.body_reader import BodyReader, body_bytes_max
from liveness.http.client_shares import address_of, client_of
from liveness.http.endpoints import EndpointTable, Match, MethodNotAllowed
from liveness.http.errors import HttpError, from_error, from_rpc_error, http_error
from liveness.http.event_streams import EventStreams, set_resume_token
from liveness.http.grpc_client import (
    GrpcClient,
    HttpClient,
    current_client,
    default_timeout_s,
    requested_timeout_s,
    unless_disconnected,
)
from liveness.http.guard import SECURITY_HEADERS, Guard, check_content_type
from liveness.http.json_output import json_bytes, to_json_value
from liveness.http.static_files import StaticFile
from liveness.http.transcoding import build_request

logger = structlog.get_logger("liveness.http")

EXECUTOR_BYTES_MIN = 8 * 1024
"""JSON of this size and more is parsed and written on a thread, so that heartbeats do not wait for it: 30 KiB of empty
activities take 80 ms."""
CLIENT_CERTIFICATE = "client_certificate"
"""In the state of a request: the certificate that its connection showed."""
ANY_HOST_PATHS = ("/healthz", "/readyz")
"""Paths that reveal nothing and that probes call with any Host header."""

RequestHandler = Callable[[Request], Awaitable[Response]]
PathHandlers = Mapping[str, Mapping[str, RequestHandler]]
"""By path and verb."""


class HttpApp:
    def __init__(
        self,
        guard: Guard,
        endpoints: EndpointTable,
        grpc_client: GrpcClient,
        streams: EventStreams,
        body_reader: BodyReader,
        *,
        files: Mapping[str, StaticFile],
        handlers: PathHandlers,
    ) -> None:
        """`handlers`: of paths outside the API. Those that change something check the type of their content."""
        self._guard = guard
        self._endpoints = endpoints
        self._grpc_client = grpc_client
        self._streams = streams
        self._body_reader = body_reader
        self._files = files
        self._handlers = handlers
        self._executor = ThreadPoolExecutor(1, "liveness-http")
        self._closing = False

    def close(self) -> None:
        """Refuse new requests and end the streams."""
        self._closing = True
        self._streams.close()

    def shutdown_executor(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: AsgiMessage) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        try:
            await self._handle(Request(scope, receive), with_headers)
        except HttpError as failed:
            await error_response(failed)(scope, receive, with_headers)
        except LivenessError as error:
            await error_response(from_error(error))(scope, receive, with_headers)
        except ClientDisconnect:
            pass  # no reader is left for a response

    async def _handle(self, request: Request, send: Send) -> None:
        state = request.scope.get("state", {})
        current_client.set(
            HttpClient(address_of(request.scope.get("client")), state.get(CLIENT_CERTIFICATE, {}))
        )
        raw_path: bytes = request.scope["raw_path"]
        path = raw_path.decode("ascii", "replace")
        if self._closing:
            raise ShuttingDown
        if path not in ANY_HOST_PATHS:
            self._guard.check_host(request.headers)
        self._guard.check_origin(request.method, request.headers)
        self._guard.check_session_origin(request.method, request.headers)
        verb = "GET" if request.method == "HEAD" else request.method
        if (file := self._files.get(path)) is not None:
            if verb != "GET":
                raise _method_not_allowed(verb, ("GET", "HEAD"))
            await file.response(request.headers)(request.scope, request.receive, send)
            return
        if (handlers := self._handlers.get(path)) is not None:
            if verb not in handlers:
                raise _method_not_allowed(verb, (*handlers, *(("HEAD",) if "GET" in handlers else ())))
            response = await handlers[verb](request)
            await response(request.scope, request.receive, send)
            return
        found = self._endpoints.find(verb, raw_path)
        if found is None:
            raise http_error(
                404, grpc.StatusCode.NOT_FOUND, "PATH_NOT_FOUND", "There is nothing at this path."
            )
        if isinstance(found, MethodNotAllowed):
            raise _method_not_allowed(verb, found.verbs)
        if found.endpoint.method.server_streaming:
            await self._stream(found, request, send)
        else:
            await self._call(found, request, send)

    async def _call(self, match: Match, request: Request, send: Send) -> None:
        if match.endpoint.verb != "GET":
            check_content_type(request.headers)
        timeout_s = requested_timeout_s(request.headers)
        message = await self._message(match, request)
        call = self._grpc_client.start_call(
            match.endpoint.method, message, request.headers, timeout_s or default_timeout_s(message)
        )
        try:
            answer = await unless_disconnected(call, request.receive, call.cancel)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        if answer is not None:
            content = await self._run_off_loop_if_large(
                answer.ByteSize(), lambda: json_bytes(to_json_value(answer))
            )
            await json_response(content)(request.scope, request.receive, send)

    async def _message(self, match: Match, request: Request) -> Message:
        query: str = request.scope["query_string"].decode("latin-1")
        if not match.endpoint.body:
            return build_request(match, query, b"")
        async with self._body_reader.read(request, body_bytes_max(match.endpoint.method)) as body:
            return await self._run_off_loop_if_large(len(body), lambda: build_request(match, query, body))  # type: ignore[no-any-return]

    async def _run_off_loop_if_large(self, size: int, work: Callable[[], Any]) -> Any:
        if size < EXECUTOR_BYTES_MIN:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def _stream(self, match: Match, request: Request, send: Send) -> None:
        if request.method == "HEAD":
            raise _method_not_allowed("HEAD", ("GET",))
        with self._streams.reserve(client_of(request.scope.get("client"))):
            timeout_s = requested_timeout_s(request.headers)
            message = await self._message(match, request)
            set_resume_token(message, request.headers)
            call = self._grpc_client.start_call(match.endpoint.method, message, request.headers, timeout_s)
            await self._streams.send_events(call, request.receive, send)


def json_response(content: bytes, code: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        content,
        status_code=code,
        media_type="application/json",
        headers={"Cache-Control": "no-store", **(headers or {})},
    )


def error_response(failed: HttpError) -> Response:
    return json_response(json_bytes(failed.as_json()), failed.code, failed.headers)


async def internal_error(request: Request, error: Exception) -> Response:
    """Log the error. The client learns only that there was one."""
    logger.error("HTTP request failed", verb=request.method, path=request.url.path, exc_info=error)
    message = "The server failed to handle the request; its log says why."
    response = error_response(http_error(500, grpc.StatusCode.INTERNAL, "INTERNAL", message))
    response.headers.update(SECURITY_HEADERS)
    return response


def _method_not_allowed(verb: str, allowed: Collection[str]) -> HttpError:
    names = ", ".join(allowed)
    return http_error(
        405,
        grpc.StatusCode.UNIMPLEMENTED,
        "METHOD_NOT_ALLOWED",
        f"{verb[:20]} is not allowed here; allowed: {names}.",
        headers={"Allow": names},
    )


_HEADERS = [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
