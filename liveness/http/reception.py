"""The way of a request: is it ours, which call is it, ask the node, answer."""

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
from liveness.http.bindings import Elsewise, Match, Routes
from liveness.http.bodies import Bodies
from liveness.http.calls import Calls, patience_s, timeout_of, unless_gone
from liveness.http.event_streams import EventStreams, resume
from liveness.http.files import File
from liveness.http.guard import HEADERS, Guard, check_content_type
from liveness.http.printing import json_of, plain
from liveness.http.refusals import Refusal, of_call, of_error, refusal
from liveness.http.transcoding import request_of

logger = structlog.get_logger("liveness.http")

LARGE_BYTES = 32 * 1024
"""From here on, JSON is read and written beside the event loop, which has leases to look after."""
OPEN_TO_ALL = ("/healthz", "/readyz")
"""What tells nothing to a stranger, and is asked by machines that use any name."""

Side = Callable[[], Awaitable[Response]]


class Reception:
    def __init__(
        self,
        guard: Guard,
        routes: Routes,
        calls: Calls,
        streams: EventStreams,
        bodies: Bodies,
        *,
        files: Mapping[str, File],
        sides: Mapping[str, Side],
    ) -> None:
        """`sides`: what is answered beside the API, by path."""
        self._guard = guard
        self._routes = routes
        self._calls = calls
        self._streams = streams
        self._bodies = bodies
        self._files = files
        self._sides = sides
        self._thread = ThreadPoolExecutor(1, "liveness-http")
        self._closing = False

    def close(self) -> None:
        """Refuse what comes from now on, and end the streams."""
        self._closing = True
        self._streams.close()

    def release(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: AsgiMessage) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        try:
            await self._answer(Request(scope, receive), with_headers)
        except Refusal as refused:
            await refused_response(refused)(scope, receive, with_headers)
        except LivenessError as error:
            await refused_response(of_error(error))(scope, receive, with_headers)
        except ClientDisconnect:
            pass  # in the middle of its own request

    async def _answer(self, request: Request, send: Send) -> None:
        raw_path: bytes = request.scope["raw_path"]
        path = raw_path.decode("ascii", "replace")
        if self._closing:
            raise ShuttingDown
        if path not in OPEN_TO_ALL:
            self._guard.check_host(request.headers)
        self._guard.check_origin(request.method, request.headers)
        verb = "GET" if request.method == "HEAD" else request.method
        file = self._files.get(path)
        if file is not None or path in self._sides:
            if verb != "GET":
                raise _not_allowed(verb, ("GET", "HEAD"))
            response = file.answer(request.headers) if file is not None else await self._sides[path]()
            await response(request.scope, request.receive, send)
            return
        found = self._routes.find(verb, raw_path)
        if found is None:
            raise refusal(404, grpc.StatusCode.NOT_FOUND, "PATH_NOT_FOUND", "There is nothing at this path.")
        if isinstance(found, Elsewise):
            raise _not_allowed(verb, found.verbs)
        if found.binding.method.server_streaming:
            await self._stream(found, request, send)
        else:
            await self._call(found, request, send)

    async def _call(self, match: Match, request: Request, send: Send) -> None:
        if match.binding.verb != "GET":
            check_content_type(request.headers)
        timeout_s = timeout_of(request.headers)
        message = await self._message(match, request)
        call = self._calls.begin(
            match.binding.method, message, request.headers, timeout_s or patience_s(message)
        )
        try:
            answer = await unless_gone(call, request.receive, call.cancel)
        except grpc.aio.AioRpcError as error:
            raise of_call(error) from error
        if answer is not None:
            content = await self._aside(answer.ByteSize(), lambda: json_of(plain(answer)))
            await json_response(content)(request.scope, request.receive, send)

    async def _message(self, match: Match, request: Request) -> Message:
        query: str = request.scope["query_string"].decode("latin-1")
        if not match.binding.body:
            return request_of(match, query, b"")
        async with self._bodies.read(request) as body:
            return await self._aside(len(body), lambda: request_of(match, query, body))  # type: ignore[no-any-return]

    async def _aside(self, size: int, work: Callable[[], Any]) -> Any:
        if size < LARGE_BYTES:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _stream(self, match: Match, request: Request, send: Send) -> None:
        if request.method == "HEAD":
            raise _not_allowed("HEAD", ("GET",))
        self._streams.admit()
        timeout_s = timeout_of(request.headers)
        message = await self._message(match, request)
        resume(message, request.headers)
        call = self._calls.begin(match.binding.method, message, request.headers, timeout_s)
        await self._streams.carry(call, request.receive, send)


def json_response(content: bytes, code: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        content,
        status_code=code,
        media_type="application/json",
        headers={"Cache-Control": "no-store", **(headers or {})},
    )


def refused_response(refused: Refusal) -> Response:
    return json_response(json_of(refused.as_json()), refused.code, refused.headers)


async def went_wrong(request: Request, error: Exception) -> Response:
    """Told in the log, and to the client only that there was something."""
    logger.error("HTTP request failed", verb=request.method, path=request.url.path, exc_info=error)
    message = "Something went wrong in the server; its log says what."
    response = refused_response(refusal(500, grpc.StatusCode.INTERNAL, "INTERNAL", message))
    response.headers.update(HEADERS)
    return response


def _not_allowed(verb: str, allowed: Collection[str]) -> Refusal:
    names = ", ".join(allowed)
    return refusal(
        405,
        grpc.StatusCode.UNIMPLEMENTED,
        "METHOD_NOT_ALLOWED",
        f"{verb[:20]} is not possible here; possible: {names}.",
        headers={"Allow": names},
    )


_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
