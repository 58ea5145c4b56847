"""`liveness registry` on a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from liveness.testing import LocalServer
from tests.integration.quiet_logs import quiet as quiet  # the server logs into the output of the command
from tests.system.cli.shell import Shell


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalServer]:
    with LocalServer(tmp_path) as server:
        yield server


@pytest.fixture
def shell(local: LocalServer) -> Shell:
    return Shell(local.address)


def register(shell: Shell, key: str, *options: str) -> str:
    return shell.ok("registry", "register", key, *options)


def test_the_list_shows_each_component_with_its_state(local: LocalServer, shell: Shell) -> None:
    out = register(
        shell, "broker:nats-1", "--uri", "nats://a:4222", "--interval", "15s", "--host", "h", "--pid", "7"
    )
    assert (
        out
        == "broker:nats-1 is registered; send a heartbeat every 15s: liveness registry heartbeat broker:nats-1\n"
    )
    register(shell, "worker_pool:images", "--capacity", "16", "--label", "zone=b", "--status", "busy")
    shell.ok("registry", "register", "broker:nats-1", "--host", "h", "--pid", "8")
    head, first, second = shell.ok("registry", "list").splitlines()
    assert head.split() == ["component", "status", "capacity", "age", "process", "replicas", "uri", "labels"]
    assert first.split()[:2] == ["broker:nats-1", "ready"]
    assert first.split()[-3:] == ["h:7", "1", "nats://a:4222"]
    assert second.split()[:3] == ["worker_pool:images", "busy", "16"]
    assert second.split()[-1] == "zone=b"
    assert "replicas, which hold no lease:" in (
        described := shell.ok("registry", "describe", "broker:nats-1")
    )
    assert "h:8" in described


def test_the_list_can_be_filtered_and_printed_as_json(local: LocalServer, shell: Shell) -> None:
    register(shell, "broker:a", "--label", "zone=b", "--runtime-json", '{"type":"cpu"}', "--interval", "5s")
    register(shell, "server_api:b", "--lease", "60s")
    local.advance(11)

    def listed(*options: str) -> list[str]:
        found = json.loads(shell.ok("registry", "list", "--json", *options))
        return [entry["worker_instance_key"] for entry in found]

    assert listed() == ["broker:a", "server_api:b"]
    assert listed("--limit", "1") == ["broker:a"]
    assert listed("--kind", "server_api") == ["server_api:b"]
    assert listed("--label", "zone=b", "--runtime", "type=cpu") == listed("--stale") == ["broker:a"]
    assert listed("--status", "offline") == []
    assert "ready (stale)" in shell.ok("registry", "list", "--stale")
    local.advance(20)
    assert listed("--status", "offline") == ["broker:a"]


def test_all_that_is_known_of_a_component_is_described(shell: Shell) -> None:
    register(
        shell, "broker:a", "--capability", "jetstream", "--capability", "kv", "--task-queue", "images", "--capacity", "2",
        "--runtime-json", '{"type":"nats"}', "--interval", "15s", "--session", "s",
    )  # fmt: skip
    shell.ok(
        "registry",
        "heartbeat",
        "broker:a",
        "--sequence",
        "1",
        "--successes",
        "3",
        "--errors",
        "1",
        "--last-error",
        "torn",
    )
    described = shell.ok("registry", "describe", "broker:a")
    fields = [line.split(None, 1) for line in described.splitlines()]
    shown = json.loads(shell.ok("registry", "describe", "broker:a", "--json"))
    for field in (
        ["capabilities", "jetstream kv"], ["capacity", "2"], ["runtime", '{"type":"nats"}'], ["heartbeats", "2"], ["successes", "3"],
        ["errors", "1"],
    ):  # fmt: skip
        assert field in fields
    assert "last error at" in described
    assert (shown["capabilities"], "last_error_time" in shown) == (["jetstream", "kv"], True)


def test_a_component_can_be_kept_alive_and_dismissed(shell: Shell) -> None:
    register(shell, "broker:a")
    assert "broker:a is busy; its lease ends" in shell.ok(
        "registry", "heartbeat", "broker:a", "--status", "busy"
    )
    assert shell.ok("registry", "deregister", "broker:a", "--reason", "done") == "broker:a is deregistered.\n"
    assert "offline" in shell.ok("registry", "list")
    assert "broker:a is busy" in shell.ok("registry", "heartbeat", "broker:a")
    numbered = json.loads(
        shell.ok("registry", "register", "broker:a", "--session", "other", "--on-replica", "number", "--json")
    )
    assert numbered["entry"]["name"] == "a-2"


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("describe", "nats"), 2, "'nats' is no component; write KIND:NAME, such as broker:nats-1"),
        (("list", "--label", "zone"), 2, "'zone' is not NAME=VALUE, such as --label zone=b"),
        (("describe", "broker:nats-2"), 1, "Did you mean broker:nats-1?"),
        (("heartbeat", "borker:nats-1"), 1, "Did you mean broker:nats-1?"),
        (("deregister", "cache:x"), 1, "No component cache:x is registered"),
        (("register", "worker:a:0"), 1, "belongs to supervised processes"),
        (("register", "broker:nats-1", "--status", "offline"), 1, "deregister the component instead"),
        (("register", "broker:nats-1", "--on-replica", "refuse", "--session", "x"), 1, "has a live lease"),
    ],
)
def test_a_wrong_command_says_what_is_wrong(
    shell: Shell, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    register(shell, "broker:nats-1")
    result = shell.run("registry", *arguments)
    assert result.exit_code == code, result.output
    assert sentence in result.stderr


def test_an_empty_list_says_what_to_do(shell: Shell) -> None:
    result = shell.run("registry", "list")
    assert "register one: liveness registry register" in result.stderr
    register(shell, "broker:a")
    assert "Did you mean --kind broker?" in shell.run("registry", "list", "--kind", "brokr").stderr
