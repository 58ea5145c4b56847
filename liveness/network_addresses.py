"""Network addresses as text, and the name of the network that they belong to. The server and the SDK share it."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TypeAlias

IpAddress: TypeAlias = IPv4Address | IPv6Address

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK_NAMESPACE = Path("/proc/self/ns/net")


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Split HOST:PORT; the host of an IPv6 address loses its brackets. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon:
        raise ValueError(f"{address!r} has no port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def parse_ip(host: str) -> IpAddress | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def network_name() -> str:
    """Return the same text for all processes to which a loopback address means the same; empty where that cannot be told.

    Containers and tunnels make it matter: the loopback address of one network may lead into another."""
    try:
        return f"{_BOOT_ID.read_text().strip()}/{_NETWORK_NAMESPACE.stat().st_ino}"
    except OSError:  # not Linux
        return ""
