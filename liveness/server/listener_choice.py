"""Chooses what takes calls in at the public port: the native edge, or gRPC's own server in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from liveness.config.settings import LISTENER_EDGE, LISTENER_PYTHON
from liveness.server.edge_listener import EdgeServer, edge_is_installed
from liveness.store.errors import StoreUnusable

if TYPE_CHECKING:
    from liveness.security.listener_tls import ListenerTls  # slow to load, and not needed without TLS


class EdgeMissing(StoreUnusable):
    template = (
        "The native edge is not installed (Python module liveness_edge); build it with make edge, or set "
        "--listener python."
    )


class ListenerChoice(NamedTuple):
    name: str
    """edge or python."""
    make: Callable[..., Any]


def choose_listener(setting: str) -> ListenerChoice:
    """Raises EdgeMissing."""
    if setting != LISTENER_PYTHON and edge_is_installed():
        return ListenerChoice(LISTENER_EDGE, EdgeServer)
    if setting == LISTENER_EDGE:
        raise EdgeMissing
    return ListenerChoice(LISTENER_PYTHON, grpc.aio.server)


def add_port(server: Any, address: str, tls: ListenerTls | None) -> int:
    """Let the server listen at the address, with TLS or without. Returns the port; raises RuntimeError, as gRPC does."""
    if tls is None:
        port = server.add_insecure_port(address)
    elif isinstance(server, EdgeServer):
        port = server.add_tls_port(address, tls)
    else:
        port = server.add_secure_port(address, tls.grpc_credentials())
    return int(port)
