"""The HTTP listener of a server or frontend process."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from liveness.clock import Clock
from liveness.config.settings import HTTP_OFF, host_port
from liveness.http.listen_address import ListenAddress, bind_address, loopback_address
from liveness.store.errors import StoreUnusable

if TYPE_CHECKING:
    from liveness.http.server import HttpServer


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


async def start_http(
    grpc_address: str,
    listen_address: ListenAddress,
    clock: Clock,
    *,
    http: str,
    hosts: Collection[str],
    metrics: Callable[[], tuple[bytes, str]],
    asks_callers: bool = False,
) -> HttpServer:
    """Serve HTTP as a client of this process's own gRPC listener. `http`: the setting, for the error message."""
    from liveness.http.server import HttpServer

    http_server = HttpServer(
        loopback_address(grpc_address),
        listen_address,
        clock,
        hosts=hosts,
        metrics=metrics,
        asks_callers=asks_callers,
    )
    try:
        await http_server.start()
    except OSError as error:
        raise HttpListenFailed(http=http, why=_describe(error)) from error
    return http_server


def _describe(error: OSError) -> str:
    return "it is in use" if error.errno == errno.EADDRINUSE else (error.strerror or str(error)).lower()
