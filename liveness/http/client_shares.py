"""Divides connections, body bytes and event streams among clients, so that no client takes them all."""

from __future__ import annotations

import ipaddress
from typing import Any


def address_of(peer: Any) -> str:
    """The address of the other end of a connection, without its port."""
    if not peer:
        return ""
    host = str(peer[0])
    try:
        parsed = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)


def client_of(address: Any) -> str:
    """The client to which a peer's address belongs. One machine has a whole /64 of IPv6, which counts as one client."""
    if not address:
        return ""
    try:
        parsed = ipaddress.ip_address(str(address[0]).partition("%")[0])
    except ValueError:
        return str(address[0])
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))


class ClientShares:
    """A client may hold as much as it leaves free for all others: one alone gets half, and every newcomer gets some.

    A fixed share would have to be small to keep a few hostile clients from taking everything, and would then be too small
    for a proxy, behind which all users have one address.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = total
        self._held: dict[str, int] = {}

    def held(self, client: str) -> int:
        return self._held.get(client, 0)

    def has_room(self, client: str, amount: int = 1) -> bool:
        return self.held(client) + amount <= self.free

    def try_take(self, client: str, amount: int = 1) -> bool:
        """Take `amount` if the client's share allows it. Returns whether it does."""
        if not self.has_room(client, amount):
            return False
        self.take(client, amount)
        return True

    def take(self, client: str, amount: int = 1) -> None:
        """Take `amount`, whatever the client's share is."""
        self._held[client] = self.held(client) + amount
        self.free -= amount

    def give_back(self, client: str, amount: int = 1) -> None:
        self.free += amount
        left = self._held.pop(client, 0) - amount
        if left > 0:
            self._held[client] = left
