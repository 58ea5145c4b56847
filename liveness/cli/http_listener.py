"""The HTTP listener of a server or frontend process."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import grpc

from liveness.clock import Clock
from liveness.config.settings import HTTP_OFF, host_port
from liveness.http.listen_address import ListenAddress, bind_address, loopback_address
from liveness.store.errors import StoreUnusable

if TYPE_CHECKING:
    from liveness.http.server import Door, HttpServer
    from liveness.security.http_callers import HttpCallers
    from liveness.security.listener_tls import ListenerTls
    from liveness.security.private_listener import PrivateListener


class HttpListenFailed(StoreUnusable):
    template = "Cannot listen for HTTP on {http}: {why}; choose another address with --http, or --http off."

    http: str
    why: str


def bind_http(http: str) -> ListenAddress | None:
    """Bind the setting `http`; None if it is off."""
    if http == HTTP_OFF:
        return None
    address = host_port(http)
    assert address is not None, http
    try:
        return bind_address(*address)
    except OSError as error:
        raise HttpListenFailed(http=http, why=_describe(error)) from error


class GrpcServer(Protocol):
    """A server or a frontend that has started."""

    address: str
    tls: ListenerTls | None
    private_listener: PrivateListener | None
    http_callers: HttpCallers


async def start_http(
    grpc_server: GrpcServer,
    listen_address: ListenAddress,
    clock: Clock,
    *,
    http: str,
    hosts: Collection[str],
    metrics: Callable[[], tuple[bytes, str]],
    asks_callers: bool = False,
    doors: Sequence[Door] = (),
) -> HttpServer:
    """Serve HTTP as a client of this process's own gRPC listener. `http`: the setting, for the error message."""
    from liveness.http.server import HttpServer

    tls, private_listener = grpc_server.tls, grpc_server.private_listener
    by_tls = tls is not None and private_listener is None
    connect: Callable[..., Any] = grpc.aio.insecure_channel
    if private_listener is not None:
        connect = private_listener.connect
    elif tls is not None:
        connect = tls.connect
    http_server = HttpServer(
        loopback_address(grpc_server.address) if private_listener is None else private_listener.address,
        listen_address,
        clock,
        hosts=hosts,
        metrics=metrics,
        connect=connect,
        ssl_context=None if tls is None else tls.http_context(),
        asks_callers=asks_callers,
        describe_caller=grpc_server.http_callers.describe,
        doors=doors,
    )
    if tls is not None and by_tls:
        tls.on_changed.append(http_server.reconnect)
    try:
        await http_server.start()
    except OSError as error:
        raise HttpListenFailed(http=http, why=_describe(error)) from error
    return http_server


def _describe(error: OSError) -> str:
    return "it is in use" if error.errno == errno.EADDRINUSE else (error.strerror or str(error)).lower()
