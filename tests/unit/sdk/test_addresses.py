"""Server addresses that a program may pass to the SDK."""

from __future__ import annotations

from typing import Any

import pytest

from liveness.sdk import Client, InvalidArgument, Worker
from liveness.sdk.addresses import find_addresses, find_namespace, format_addresses, parse_addresses


@pytest.mark.parametrize(
    ("given", "parsed"),
    [
        ("a:7400", ("a:7400",)),
        ("a:7400,b:7400", ("a:7400", "b:7400")),
        (" a:7400 , b.example:7401", ("a:7400", "b.example:7401")),
        (["a:7400", "b:7400"], ("a:7400", "b:7400")),
        (("a:7400",), ("a:7400",)),
        (["a:7400,b:7400", "c:7400"], ("a:7400", "b:7400", "c:7400")),
        ("[::1]:7400,127.0.0.1:7400", ("[::1]:7400", "127.0.0.1:7400")),
        ("b:7400,a:7400,b:7400", ("b:7400", "a:7400")),
        ("dns:///nodes.example:7400,unix:/run/liveness", ("dns:///nodes.example:7400", "unix:/run/liveness")),
        ("localhost", ("localhost",)),
    ],
)
def test_one_or_several_addresses_are_parsed(given: Any, parsed: tuple[str, ...]) -> None:
    assert parse_addresses(given) == parsed


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("", "empty"),
        ([], "no address"),
        ("a:7400,", "empty"),
        (["a:7400", ""], "empty"),
        ("a:7400,b", "'b'"),
        ("a:7400,b:0", "'b:0'"),
        ("a:7400,b:65536", "'b:65536'"),
        ("a:7400 b:7400,c:7400", "'a:7400 b:7400'"),
        ("a:7400;b:7400,c:7400", "'a:7400;b:7400'"),
        ("http://a:7400,b:7400", "'http://a:7400'"),
        (["a:7400", 7401], "7401"),
    ],
)
def test_an_invalid_address_list_is_refused_with_the_problem(given: Any, problem: str) -> None:
    for make in (Worker, Client):
        with pytest.raises(InvalidArgument) as caught:
            make(given)
        assert problem in str(caught.value)
        assert "HOST:PORT" in str(caught.value)


def test_format_addresses_lists_all_addresses() -> None:
    assert format_addresses(("a:1",)) == "a:1"
    assert format_addresses(("a:1", "b:2")) == "a:1 or b:2"
    assert format_addresses(("a:1", "b:2", "c:3")) == "a:1, b:2 or c:3"


def test_the_environment_names_the_server_if_the_program_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIVENESS_ADDRESS", raising=False)
    assert find_addresses(None) == ("127.0.0.1:7400",)
    monkeypatch.setenv("LIVENESS_ADDRESS", "a:7400,b:7400")
    assert find_addresses(None) == ("a:7400", "b:7400")
    assert find_addresses("c:7400") == ("c:7400",)
    monkeypatch.setenv("LIVENESS_ADDRESS", "")
    with pytest.raises(InvalidArgument, match="LIVENESS_ADDRESS cannot be used"):
        find_addresses(None)


def test_the_environment_names_the_namespace_if_the_program_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIVENESS_NAMESPACE", raising=False)
    assert find_namespace(None) == "default"
    monkeypatch.setenv("LIVENESS_NAMESPACE", "billing")
    assert (find_namespace(None), find_namespace("orders")) == ("billing", "orders")
    monkeypatch.setenv("LIVENESS_NAMESPACE", "")
    with pytest.raises(InvalidArgument, match="LIVENESS_NAMESPACE is empty"):
        find_namespace(None)
