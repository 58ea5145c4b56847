"""Recognises whether a client is connected to this process directly, with no proxy, balancer or tunnel in between.

A client that is connected directly can tell that this process has ended: nobody listens at its address any more. What a
proxy's closed port says about this process is nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from liveness.network_addresses import IpAddress, network_name, parse_ip, split_address

ADDRESSES_MAX = 16


class OwnAddresses:
    """The addresses at which this process, and no other, accepts connections."""

    def __init__(self, listen: str) -> None:
        """`listen`: HOST:PORT, with the port that is in use."""
        host, self._port = split_address(listen)
        self._ips = _resolve(host)
        self._is_wildcard = any(ip.is_unspecified for ip in self._ips)

    def contain(self, addresses: Sequence[str], network: str) -> bool:
        """Return whether each of these addresses, of a client in that network, leads to this process."""
        return 0 < len(addresses) <= ADDRESSES_MAX and all(
            self._contain(address, network) for address in addresses
        )

    def _contain(self, address: str, network: str) -> bool:
        try:
            host, port = split_address(address)
        except ValueError:
            return False
        ip = parse_ip(host)
        if ip is None or port != self._port or (ip.is_loopback and network != (network_name() or None)):
            return False
        # Nobody else listens at the same port of another address while this process listens at all of them.
        return _is_of_this_machine(ip) if self._is_wildcard else ip in self._ips


def _resolve(host: str) -> frozenset[IpAddress]:
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return frozenset()
    return frozenset(ip for text in found if (ip := parse_ip(text)) is not None)


def _is_of_this_machine(ip: IpAddress) -> bool:
    """Return whether the address belongs to a network interface here: only then can a socket be bound to it."""
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(ip), 0))
    except OSError:
        return False
    return not ip.is_unspecified
