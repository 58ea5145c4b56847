"""The addresses a program is given: one, or those of several nodes that serve the same."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from liveness.sdk.errors import InvalidArgument

Addresses: TypeAlias = str | Sequence[str]
"""`"a:7400"`, `"a:7400,b:7400"` or `["a:7400", "b:7400"]`."""

_PORT_MAX = 65_535
_HOST_PORT = re.compile(r"(?:\[[^\s,\[\]]+\]|[^\s,:/\[\]]+):([0-9]{1,5})")
_TARGET = re.compile(r"(?:dns|ipv4|ipv6|unix|unix-abstract|vsock|xds):\S+")
"""What gRPC understands besides."""
_RULE = 'must be HOST:PORT, like "a:7400", or several, like "a:7400,b:7400" or ["a:7400", "b:7400"]'


def addresses_of(given: Addresses) -> tuple[str, ...]:
    """Each once. A single one is left to gRPC to understand; among several, one without its port would be tried on a
    port that nobody meant, and nobody would notice while the others work."""
    texts = [given] if isinstance(given, str) else list(given)
    for text in texts:
        if not isinstance(text, str):
            raise InvalidArgument(detail=f"the address {text!r} is no text; an address {_RULE}.")
    parts = [part.strip() for text in texts for part in text.split(",")]
    if not parts:
        raise InvalidArgument(detail=f"no address was given; it {_RULE}.")
    if "" in parts:
        raise InvalidArgument(detail=f"an address in {given!r} is empty; each {_RULE}.")
    several = tuple(dict.fromkeys(parts))
    if len(several) > 1:
        for part in several:
            if not _is_address(part):
                raise InvalidArgument(detail=f"the address {part!r} cannot be used; it {_RULE}.")
    return several


def said(addresses: Sequence[str]) -> str:
    """For people: "a", "a or b", "a, b or c"."""
    *others, last = addresses
    return f"{', '.join(others)} or {last}" if others else last


def _is_address(text: str) -> bool:
    match = _HOST_PORT.fullmatch(text)
    if match is not None:
        return 0 < int(match[1]) <= _PORT_MAX
    return _TARGET.fullmatch(text) is not None
