"""Commands that are given the addresses of several nodes."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.system.cli.shell import UNUSED_ADDRESS, Shell


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Accepts connections and says nothing, like a process that is stopped."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield "{}:{}".format(*listener.getsockname())


def test_the_first_that_answers_is_asked(shell: Shell, silent_server: str) -> None:
    shell.heartbeat("w-1")
    for nodes in (
        [shell.address, UNUSED_ADDRESS],
        [UNUSED_ADDRESS, shell.address],
        [silent_server, UNUSED_ADDRESS, shell.address],
    ):
        result = shell.run("workers", "list", "--timeout", "3s", "--address", ",".join(nodes))
        assert result.exit_code == 0, result.output
        assert "w-1" in result.stdout
        assert result.stderr == ""


def test_a_variable_may_name_several_too(shell: Shell) -> None:
    result = shell.run("workers", "list", "--json", LIVENESS_ADDRESS=f"{UNUSED_ADDRESS}, {shell.address}")
    assert (result.exit_code, result.stdout.strip()) == (0, "[]")


def test_none_answers(silent_server: str) -> None:
    sentence = Shell().sentence(
        "workers", "list", "--timeout", "1s", "--address", f"{UNUSED_ADDRESS},{silent_server}"
    )
    assert (
        sentence
        == f"no liveness server answers at {UNUSED_ADDRESS} or {silent_server}; start one with `liveness serve`"
    )


def test_what_the_one_that_answers_refuses_is_told(shell: Shell) -> None:
    """And nobody else is asked."""
    sentence = shell.sentence(
        "workers", "describe", "nobody", "--address", f"{UNUSED_ADDRESS},{shell.address}"
    )
    assert "WORKER_NOT_FOUND" in sentence


@pytest.mark.parametrize("address", ["a:1,", ",", "a:1,b"])
def test_a_bad_list_is_told(address: str) -> None:
    sentence = Shell().sentence("workers", "list", "--address", address, exit_code=2)
    assert sentence.startswith(f"flag --address is {address!r}, but must be HOST:PORT")
    assert sentence.endswith("or several with commas between them.")


def test_the_doctor_looks_at_each(shell: Shell) -> None:
    result = shell.run(
        "doctor", "--db", "sqlite:///none.db", "--address", f"{UNUSED_ADDRESS},{shell.address}"
    )
    assert f"none answers at {UNUSED_ADDRESS}" in result.stdout
    assert f"{shell.address} serves" in result.stdout
