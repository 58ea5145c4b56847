"""Only a refused connection proves that nobody listens."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from liveness.sdk.server_process import is_refused, serving_addresses


@pytest.fixture
def listening() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def refusing() -> Iterator[str]:
    """A port that is taken, so that no other test listens there, and at which nobody listens."""
    with socket.socket() as idle:
        idle.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{idle.getsockname()[1]}"


def test_an_address_at_which_nobody_listens_refuses(refusing: str) -> None:
    assert is_refused([refusing])


def test_one_address_that_accepts_is_enough_to_prove_nothing(refusing: str, listening: str) -> None:
    assert not is_refused([listening])
    assert not is_refused([refusing, listening])
    assert not is_refused([])


def test_an_address_that_cannot_be_reached_proves_nothing() -> None:
    assert not is_refused(["240.0.0.1:7400"]), "reserved: no route leads there"


def test_a_name_stands_for_the_addresses_at_which_the_server_answers(listening: str) -> None:
    """Most machines know `localhost` under two addresses, and the server listens at one of them."""
    port = listening.rpartition(":")[2]
    assert serving_addresses(f"localhost:{port}") == (listening,)
    assert serving_addresses(listening) == (listening,)


@pytest.mark.parametrize("target", ["unix:/tmp/socket", "dns:///host", "no.such.host.invalid:7400", "host"])
def test_other_targets_have_no_addresses(target: str) -> None:
    assert serving_addresses(target) == ()
