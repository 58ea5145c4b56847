"""Where a server may listen: beyond loopback only with TLS and authentication."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from liveness.security.posture import check_posture, exposed_settings, is_loopback


class Posture(NamedTuple):
    listen: str = "127.0.0.1:7400"
    http: str = "127.0.0.1:7480"
    auth: str = "off"
    tls_cert_file: str = ""
    tls_key_file: str = ""
    insecure: bool = False


TLS: dict[str, Any] = {"tls_cert_file": "cert.pem", "tls_key_file": "key.pem"}


@pytest.mark.parametrize(
    "address", ["127.0.0.1:7400", "127.8.9.1:0", "[::1]:7400", "localhost:7400", "::1", "127.0.0.1"]
)
def test_loopback(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize(
    "address", ["0.0.0.0:7400", "[::]:7400", "10.0.0.7:7400", "liveness.example:7400", "192.0.2.1"]
)
def test_beyond_loopback(address: str) -> None:
    assert not is_loopback(address)


@pytest.mark.parametrize(
    "posture",
    [
        Posture(),
        Posture(http="off"),
        Posture(auth="on"),
        Posture(listen="0.0.0.0:7400", auth="on", **TLS),
        Posture(listen="0.0.0.0:7400", insecure=True),
        Posture(http="0.0.0.0:7480", insecure=True),
    ],
    ids=str,
)
def test_a_server_may_start(posture: Posture) -> None:
    assert check_posture(posture) is None


@pytest.mark.parametrize(
    ("posture", "why"),
    [
        (Posture(listen="0.0.0.0:7400"), "listen 0.0.0.0:7400 has no TLS and no authentication"),
        (Posture(listen="0.0.0.0:7400", auth="on"), "listen 0.0.0.0:7400 has no TLS"),
        (Posture(listen="10.0.0.7:7400", **TLS), "listen 10.0.0.7:7400 has no authentication"),
        (Posture(http="[::]:7480", auth="on"), "http [::]:7480 has no TLS"),
    ],
    ids=str,
)
def test_a_server_may_not_start_and_is_told_the_way_out(posture: Posture, why: str) -> None:
    text = check_posture(posture)
    assert text is not None
    assert text.startswith(why)
    assert "--insecure" in text
    assert text.count(". ") == 0, "one sentence"


def test_what_insecure_allows_is_named() -> None:
    found = exposed_settings(Posture(listen="0.0.0.0:7400", http="0.0.0.0:7480", insecure=True))
    assert [exposed.listener.setting for exposed in found] == ["listen", "http"]
