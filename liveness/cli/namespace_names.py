"""The namespaces that a server knows, and the one that was probably meant."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING

from liveness.cli.durations import from_ms
from liveness.cli.errors import CommandError
from liveness.v1.fleet_pb2 import GetFleetRequest, NamespaceFleet

if TYPE_CHECKING:
    from liveness.cli.client import Client

SHORTEST_RANGE_MS = 1_000


def namespace_fleets(client: Client) -> list[NamespaceFleet]:
    """By name. Raises CommandError if the caller may not read all namespaces."""
    request = GetFleetRequest(range=from_ms(SHORTEST_RANGE_MS))
    return list(client.call(client.admin.GetFleet, request).namespaces)


def namespace_hint(client: Client, *, always: bool = False) -> str:
    """A sentence if the client's namespace has neither workers nor work, and another one was probably meant; with `always`, also if
    none is similar. Else empty."""
    try:
        names = [fleet.namespace for fleet in namespace_fleets(client)]
    except CommandError:
        return ""  # the caller may not read them, or the server is gone; the answer stands without a hint
    if client.namespace in names or not names:
        return ""
    nothing = f"Nothing is in namespace {client.namespace};"
    # Names that differ by a number, shop-1 and shop-2, are rarely mistaken for each other.
    alike = [name for name in names if _digits(name) == _digits(client.namespace)]
    similar = get_close_matches(client.namespace, alike, n=1)
    if similar:
        return f"{nothing} did you mean --namespace {similar[0]}?"
    return f"{nothing} `liveness namespaces list` shows those that there are." if always else ""


def _digits(name: str) -> list[str]:
    return re.findall(r"\d+", name)
