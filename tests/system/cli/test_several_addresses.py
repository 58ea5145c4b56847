"""Commands with the addresses of several nodes."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.system.cli.shell import UNUSED_ADDRESS, Shell


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Accepts connections and never answers, like a stopped process."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield "{}:{}".format(*listener.getsockname())


def test_a_command_asks_the_first_node_that_answers(shell: Shell, silent_server: str) -> None:
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


def test_a_variable_may_name_several_addresses(shell: Shell) -> None:
    result = shell.run("workers", "list", "--json", LIVENESS_ADDRESS=f"{UNUSED_ADDRESS}, {shell.address}")
    assert (result.exit_code, result.stdout.strip()) == (0, "[]")


def test_a_command_fails_when_no_node_answers(silent_server: str) -> None:
    sentence = Shell().sentence(
        "workers", "list", "--timeout", "1s", "--address", f"{UNUSED_ADDRESS},{silent_server}"
    )
    assert (
        sentence
        == f"no liveness server answers at {UNUSED_ADDRESS} or {silent_server}; start one with `liveness serve`"
    )


def test_a_command_reports_the_rejection_of_the_node_that_answers(shell: Shell) -> None:
    """It asks no other node."""
    sentence = shell.sentence(
        "workers", "describe", "nobody", "--address", f"{UNUSED_ADDRESS},{shell.address}"
    )
    assert "WORKER_NOT_FOUND" in sentence


@pytest.mark.parametrize("address", ["a:1,", ",", "a:1,b"])
def test_a_malformed_list_is_reported(address: str) -> None:
    sentence = Shell().sentence("workers", "list", "--address", address, exit_code=2)
    assert sentence.startswith(f"flag --address is {address!r}, but must be HOST:PORT")
    assert sentence.endswith("or several with commas between them.")


def test_the_doctor_examines_each_node(shell: Shell) -> None:
    result = shell.run(
        "doctor", "--db", "sqlite:///none.db", "--address", f"{UNUSED_ADDRESS},{shell.address}"
    )
    assert f"none answers at {UNUSED_ADDRESS}" in result.stdout
    assert f"{shell.address} serves" in result.stdout
