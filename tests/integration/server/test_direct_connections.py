"""Which addresses a server recognises as its own, so that a closed port there proves that its process has ended."""

from __future__ import annotations

import socket

import pytest

from liveness.network_addresses import network_name
from liveness.server.direct_connections import ADDRESSES_MAX, OwnAddresses

HERE = network_name()
ELSEWHERE = "another machine/1"


@pytest.mark.parametrize("listen", ["127.0.0.1:7400", "0.0.0.0:7400", "localhost:7400", "[::]:7400"])
def test_a_server_recognises_its_own_address(listen: str) -> None:
    assert OwnAddresses(listen).contain(["127.0.0.1:7400"], HERE)


@pytest.mark.parametrize(
    ("listen", "addresses"),
    [
        ("127.0.0.1:7400", ["127.0.0.1:7401"]),
        ("127.0.0.1:7400", ["127.0.0.2:7400"]),
        ("127.0.0.1:7400", ["127.0.0.1:7400", "127.0.0.2:7400"]),
        ("0.0.0.0:7400", ["192.0.2.1:7400"]),
        ("0.0.0.0:7400", ["0.0.0.0:7400"]),
        ("[::]:7400", ["[2001:db8::1]:7400"]),
        ("127.0.0.1:7400", ["localhost:7400"]),
        ("127.0.0.1:7400", ["127.0.0.1"]),
        ("127.0.0.1:7400", ["127.0.0.1:x"]),
        ("127.0.0.1:7400", [""]),
        ("127.0.0.1:7400", []),
        ("127.0.0.1:7400", ["127.0.0.1:7400"] * (ADDRESSES_MAX + 1)),
    ],
)
def test_a_server_does_not_recognise_other_addresses(listen: str, addresses: list[str]) -> None:
    assert not OwnAddresses(listen).contain(addresses, HERE)


@pytest.mark.parametrize("network", [ELSEWHERE, ""])
def test_a_loopback_address_counts_only_in_the_same_network(network: str) -> None:
    """It leads through a tunnel, or into a container."""
    assert not OwnAddresses("0.0.0.0:7400").contain(["127.0.0.1:7400"], network)


def test_an_address_of_this_machine_counts_from_any_network() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing; the system chooses the interface
        ip = probe.getsockname()[0]
    assert OwnAddresses("0.0.0.0:7400").contain([f"{ip}:7400"], ELSEWHERE)
    assert not OwnAddresses("127.0.0.1:7400").contain([f"{ip}:7400"], ELSEWHERE)
