"""Where a program finds its server: the addresses of one or several nodes of one cluster, and the namespace."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TypeAlias

from liveness.sdk.errors import InvalidArgument

Addresses: TypeAlias = str | Sequence[str]
"""`"a:7400"`, `"a:7400,b:7400"` or `["a:7400", "b:7400"]`."""

ADDRESS_VARIABLE = "LIVENESS_ADDRESS"
NAMESPACE_VARIABLE = "LIVENESS_NAMESPACE"
DEFAULT_ADDRESS = "127.0.0.1:7400"
DEFAULT_NAMESPACE = "default"
"""Those of the commands, too."""

_PORT_MAX = 65_535
_HOST_PORT = re.compile(r"(?:\[[^\s,\[\]]+\]|[^\s,:/\[\]]+):([0-9]{1,5})")
_GRPC_TARGET = re.compile(r"(?:dns|ipv4|ipv6|unix|unix-abstract|vsock|xds):\S+")
"""Other target formats that gRPC accepts."""
_FORMAT_HINT = 'must be HOST:PORT, like "a:7400", or several, like "a:7400,b:7400" or ["a:7400", "b:7400"]'


def find_addresses(addresses: Addresses | None) -> tuple[str, ...]:
    """The addresses that a program passes in; None: those of LIVENESS_ADDRESS, or the address on which a server listens by default."""
    if addresses is not None:
        return parse_addresses(addresses)
    try:
        return parse_addresses(os.environ.get(ADDRESS_VARIABLE, DEFAULT_ADDRESS))
    except InvalidArgument as error:
        raise InvalidArgument(detail=f"{ADDRESS_VARIABLE} cannot be used: {error.detail}") from None


def find_namespace(namespace: str | None) -> str:
    """The namespace that a program passes in; None: that of LIVENESS_NAMESPACE, or `default`."""
    if namespace is not None:
        return namespace
    found = os.environ.get(NAMESPACE_VARIABLE, DEFAULT_NAMESPACE)
    if not found:
        raise InvalidArgument(detail=f"{NAMESPACE_VARIABLE} is empty; set it to a namespace, or unset it.")
    return found


def parse_addresses(addresses: Addresses) -> tuple[str, ...]:
    """The addresses without duplicates.

    gRPC validates a single address. With several addresses each one needs a port: gRPC would try a default port for an
    address without one, and the mistake would stay hidden while the other nodes work."""
    texts = [addresses] if isinstance(addresses, str) else list(addresses)
    for text in texts:
        if not isinstance(text, str):
            raise InvalidArgument(detail=f"the address {text!r} is not a string; an address {_FORMAT_HINT}.")
    parts = [part.strip() for text in texts for part in text.split(",")]
    if not parts:
        raise InvalidArgument(detail=f"no address was given; it {_FORMAT_HINT}.")
    if "" in parts:
        raise InvalidArgument(detail=f"an address in {addresses!r} is empty; each {_FORMAT_HINT}.")
    unique = tuple(dict.fromkeys(parts))
    if len(unique) > 1:
        for part in unique:
            if not _is_address(part):
                raise InvalidArgument(detail=f"the address {part!r} cannot be used; it {_FORMAT_HINT}.")
    return unique


def format_addresses(addresses: Sequence[str]) -> str:
    """The addresses as text for messages: "a", "a or b", "a, b or c"."""
    *others, last = addresses
    return f"{', '.join(others)} or {last}" if others else last


def _is_address(text: str) -> bool:
    match = _HOST_PORT.fullmatch(text)
    if match is not None:
        return 0 < int(match[1]) <= _PORT_MAX
    return _GRPC_TARGET.fullmatch(text) is not None
