"""The address on which the HTTP server listens, and the host names that belong to it."""

from __future__ import annotations

import socket
from dataclasses import dataclass

_KEEP_ALIVE_S = 60
_WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""The local address of a server that listens on all addresses."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A bound socket that does not listen yet: connections are refused, not kept waiting, while the server starts."""

    socket: socket.socket
    host: str
    port: int

    @property
    def is_wildcard(self) -> bool:
        return self.host in _WILDCARD_HOSTS

    @property
    def names(self) -> tuple[str, ...]:
        if not self.is_wildcard:
            return (self.host,)
        name = socket.gethostname()
        return (name, name.partition(".")[0])

    @property
    def url(self) -> str:
        """The URL for people on this machine."""
        return f"http://{_with_port(_WILDCARD_HOSTS.get(self.host, self.host), self.port)}/"


def bind_address(host: str, port: int) -> ListenAddress:
    """May raise OSError. Port 0 takes any free one."""
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = min(infos, key=lambda each: each[0] != socket.AF_INET)
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" else 1)
        _enable_keep_alive(bound)
        bound.bind(address)
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return ListenAddress(bound, host, bound.getsockname()[1])


def _enable_keep_alive(bound: socket.socket) -> None:
    """Set TCP keep-alive, which accepted connections inherit. A laptop that goes to sleep closes no connection, which would
    count towards the limit for ever."""
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEP_ALIVE_S)


def loopback_address(grpc_address: str) -> str:
    """The address under which this machine reaches a server that listens on `grpc_address`."""
    host, _, port = grpc_address.rpartition(":")
    return _with_port(_WILDCARD_HOSTS.get(host.strip("[]"), host.strip("[]")), int(port))


def _with_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
