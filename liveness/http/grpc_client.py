"""gRPC calls to the node: deadlines, forwarded headers, and cancellation when the HTTP client disconnects."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NamedTuple

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from starlette.datastructures import Headers
from starlette.types import Receive

from liveness.domain.errors import InvalidField
from liveness.http.session_cookie import sessions_of

DescribeCaller = Callable[[str, Mapping[str, Any]], tuple[tuple[str, bytes], ...]]
"""Returns the metadata that tells the node from which address an HTTP request came and which certificate its client showed."""


class HttpClient(NamedTuple):
    """Who made a request."""

    address: str = ""
    certificate: Mapping[str, Any] = MappingProxyType({})
    """The client certificate that TLS has verified, as `ssl` describes it; empty if there is none."""


NO_CLIENT = HttpClient()
current_client: ContextVar[HttpClient] = ContextVar("current_client", default=NO_CLIENT)
"""The client whose request is being served."""

TIMEOUT_HEADER = "x-timeout"
DEFAULT_TIMEOUT_S = 30.0
TIMEOUT_S_MAX = 600.0
FORWARDED_HEADERS = ("traceparent", "tracestate", "authorization")
"""The node verifies the credential; this server does not look at it."""
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0}
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    (
        "grpc.min_reconnect_backoff_ms",
        10_000,
    ),  # also the time-out of connecting to the node, which is this process
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


class GrpcClient:
    def __init__(
        self,
        address: str,
        connect: Callable[..., Any] = grpc.aio.insecure_channel,
        describe_caller: DescribeCaller | None = None,
    ) -> None:
        """`connect`: opens a channel, given an address and options. `describe_caller`: None if the node need not know."""
        self._address = address
        self._describe_caller = describe_caller
        self._connect = connect
        self._channel = connect(address, options=_OPTIONS)
        self._callables: dict[str, Any] = {}
        self._replaced: list[Any] = []

    def reconnect(self) -> None:
        """Use a new channel for new calls. Calls and streams on the previous ones go on."""
        self._replaced.append(self._channel)
        self._channel = self._connect(self._address, options=_OPTIONS)
        self._callables = {}

    async def close(self) -> None:
        for channel in (*self._replaced, self._channel):
            await channel.close()

    def start_call(
        self, method: MethodDescriptor, request: Message, headers: Headers, timeout_s: float | None
    ) -> Any:
        """Start a call. The caller awaits it, or reads from it if it is a stream."""
        call = self._callables.get(method.full_name)
        if call is None:
            kind = self._channel.unary_stream if method.server_streaming else self._channel.unary_unary
            call = self._callables[method.full_name] = kind(
                f"/{method.containing_service.full_name}/{method.name}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
        # All of them: the node refuses two credentials, and must not be shown only the first.
        metadata = tuple(
            (name, value) for name in FORWARDED_HEADERS for value in headers.getlist(name) if _is_ascii(value)
        )
        sessions = (
            ("authorization", f"Bearer {session}") for session in sessions_of(headers) if _is_ascii(session)
        )
        origin = () if self._describe_caller is None else self._describe_caller(*current_client.get())
        return call(request, timeout=timeout_s, metadata=(*metadata, *sessions, *origin))


def _is_ascii(value: str) -> bool:
    # Plain gRPC metadata must be printable ASCII.
    return value.isascii() and value.isprintable()


def requested_timeout_s(headers: Headers) -> float | None:
    """The time-out that the client asked for."""
    text = headers.get(TIMEOUT_HEADER)
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)(ms|s|m)", text)
    seconds = float(match[1]) * _UNITS_S[match[2]] if match else 0.0
    if not 0 < seconds <= TIMEOUT_S_MAX:
        raise InvalidField(field="X-Timeout", rule="must be a time such as 500ms, 5s or 2m, and at most 10m")
    return seconds


def default_timeout_s(request: Message) -> float:
    """The time-out if the client sets none. The time that a poll asks to wait is added to it."""
    field = request.DESCRIPTOR.fields_by_name.get("wait")
    if field is None or not request.HasField("wait"):
        return DEFAULT_TIMEOUT_S
    wait: Duration = getattr(request, field.name)
    return DEFAULT_TIMEOUT_S + min(max(wait.seconds, 0), TIMEOUT_S_MAX)


async def wait_disconnected(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(answer: Awaitable[Any], receive: Receive, cancel: Callable[[], object]) -> Any:
    """Return the answer. If the client disconnects first, cancel the call and return None."""
    disconnect_task = asyncio.create_task(wait_disconnected(receive))
    reply_task = asyncio.ensure_future(answer)
    try:
        await asyncio.wait({disconnect_task, reply_task}, return_when=asyncio.FIRST_COMPLETED)
        return reply_task.result() if reply_task.done() else None
    finally:
        disconnect_task.cancel()
        if not reply_task.done():
            cancel()
            reply_task.cancel()
