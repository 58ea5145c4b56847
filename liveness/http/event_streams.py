"""Streaming calls as server-sent events: one event per response, with the resume token as its id.

    retry: 1000                       how long a browser waits before it reconnects
    id: WyJ…                          the response's resume_token, sent back as Last-Event-ID
    data: {"events": […], …}

A comment line is sent every 15 s, so that proxies do not close a silent connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.message import Message
from starlette.datastructures import Headers
from starlette.types import Receive, Send

from liveness.clock import Clock
from liveness.domain.errors import ShuttingDown
from liveness.http.client_shares import ClientShares
from liveness.http.errors import HttpError, from_rpc_error, http_error
from liveness.http.grpc_client import wait_disconnected
from liveness.http.json_output import json_bytes, to_json_value

KEEP_ALIVE_MS = 15_000
RETRY_MS = 1_000
START_TIMEOUT_S = 30.0
STREAMS_MAX = 256
RESUME_FIELD = "resume_token"
"""The field of requests and responses that says where a stream continues."""
_TRANSIENT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # a proxy must not buffer events
]


def set_resume_token(request: Any, headers: Headers) -> None:
    """Continue where a reconnecting browser stopped: it requests the same URL and sends the id of the last event."""
    last = headers.get("last-event-id")
    if last and RESUME_FIELD in request.DESCRIPTOR.fields_by_name:
        setattr(request, RESUME_FIELD, last)


class EventStreams:
    def __init__(self, clock: Clock, streams_max: int) -> None:
        self._clock = clock
        self._shares = ClientShares(streams_max)
        self._open: set[Any] = set()
        self._closing = asyncio.Event()

    @contextmanager
    def reserve(self, client: str) -> Iterator[None]:
        """Count a stream of the client for as long as the block lasts."""
        if self._closing.is_set():
            raise ShuttingDown
        if not self._shares.try_take(client):
            raise self._too_many(client)
        try:
            yield
        finally:
            self._shares.give_back(client)

    def _too_many(self, client: str) -> HttpError:
        in_use = self._shares.total - self._shares.free
        return http_error(
            503,
            grpc.StatusCode.UNAVAILABLE,
            "TOO_MANY_STREAMS",
            f"Of the {self._shares.total} event streams of this server {in_use} are in use, {self._shares.held(client)} of them "
            "by this client's address; close some, or use another node.",
            retry_after_s=10,
        )

    def close(self) -> None:
        """End all streams, also those whose clients do not read."""
        self._closing.set()
        for call in self._open:
            call.cancel()

    async def send_events(self, call: Any, receive: Receive, send: Send) -> None:
        """Send the responses of a call as events. The HTTP response starts with the first of them, so that a refusal before it
        has its own status code."""
        self._open.add(call)
        disconnect_task = asyncio.create_task(wait_disconnected(receive))
        try:
            first = await self._read_first(call, disconnect_task)
            if first is None:
                return
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await _write(send, f"retry: {RETRY_MS}\n".encode() + _event(first))
            await self._send_rest(call, disconnect_task, send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._open.discard(call)
            call.cancel()
            disconnect_task.cancel()

    async def _read_first(self, call: Any, disconnect_task: asyncio.Task[None]) -> Message | None:
        """Read the first response, or raise the node's refusal. None: the client has disconnected."""
        reading = asyncio.create_task(call.read())
        done, _ = await asyncio.wait(
            {reading, disconnect_task}, timeout=START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
        )
        if reading not in done:
            reading.cancel()
            if disconnect_task in done:
                return None
            raise http_error(504, grpc.StatusCode.DEADLINE_EXCEEDED, "", "The stream did not start in time.")
        try:
            first = reading.result()
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        except asyncio.CancelledError:
            if reading.cancelled():  # and not this task
                raise ShuttingDown from None
            raise
        if first is grpc.aio.EOF:
            raise ShuttingDown
        return first  # type: ignore[no-any-return]

    async def _send_rest(self, call: Any, disconnect_task: asyncio.Task[None], send: Send) -> None:
        closing = asyncio.create_task(self._closing.wait())
        reading = asyncio.create_task(call.read())
        keep_alive = asyncio.create_task(self._clock.sleep(KEEP_ALIVE_MS))
        try:
            while True:
                ends: set[asyncio.Task[Any]] = {disconnect_task, closing, reading, keep_alive}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if disconnect_task.done() or closing.done() or reading.cancelled():
                    return
                if reading.done():
                    answer = reading.result()
                    if answer is grpc.aio.EOF:
                        return
                    await _write(send, _event(answer))
                    reading = asyncio.create_task(call.read())
                elif keep_alive.done():
                    await _write(send, b":\n\n")
                if keep_alive.done():
                    keep_alive = asyncio.create_task(self._clock.sleep(KEEP_ALIVE_MS))
        except grpc.aio.AioRpcError as error:
            if error.code() not in _TRANSIENT:
                await _write(send, _error_event(from_rpc_error(error)))
        finally:
            for task in (closing, reading, keep_alive):
                task.cancel()


async def _write(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


def _event(answer: Message) -> bytes:
    token: str = getattr(answer, RESUME_FIELD, "")
    id_line = f"id: {token}\n".encode() if token else b""
    return id_line + b"data: " + json_bytes(to_json_value(answer)) + b"\n\n"


def _error_event(error: HttpError) -> bytes:
    """The last event of a stream that would fail again if the client reconnected."""
    return b"event: refusal\ndata: " + json_bytes(error.as_json()) + b"\n\n"
