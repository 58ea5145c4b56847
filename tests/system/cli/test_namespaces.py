"""Namespaces are listed, lists span them, and a misspelt one is noticed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.cli.server_processes import environment, running_server
from tests.system.cli.shell import Shell


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose namespaces are those of this file only."""
    with running_server(tmp_path_factory.mktemp("namespaces")) as address:
        billing, orders = Shell(address, "billing"), Shell(address, "orders")
        billing.heartbeat("b-1", task_queue="mail", host_name="Host-1")
        billing.heartbeat("b-2", task_queue="disk", host_name="host-2")
        orders.heartbeat("o-1", task_queue="mail")
        billing.ok("workers", "expire", "b-2", "--reason", "test", "--yes")
        orders.ok("activities", "schedule", "order-1", "--type", "pay", "--task-queue", "mail")
        yield address


def test_namespaces_are_listed_with_their_workers(server: str) -> None:
    shell = Shell(server)
    head, *rows = shell.ok("namespaces", "list").splitlines()
    assert head.startswith("namespace")
    cells = {row.split()[0]: row.split()[1:4] for row in rows}
    assert cells["billing"] == ["1", "0", "1"], "one is active, none died, one was forced out"
    assert cells["orders"] == ["1", "0", "0"]
    names = [found["namespace"] for found in shell.json("namespaces", "list")]
    assert names == sorted(names)


@pytest.mark.parametrize("namespace", ["biling", "billings"])
def test_a_misspelt_namespace_is_noticed_by_lists(server: str, namespace: str) -> None:
    shell = Shell(server, namespace)
    for command in (
        "workers",
        "activities",
        "components",
        "registry",
        "progress",
        "tasks",
        "queues",
        "incidents",
    ):
        result = shell.run(command, "list")
        assert result.exit_code == 0
        assert result.stderr.endswith(
            f"Nothing is in namespace {namespace}; did you mean --namespace billing?\n"
        ), command


def test_a_misspelt_namespace_is_noticed_by_errors(server: str) -> None:
    sentence = Shell(server, "biling").sentence("workers", "describe", "b-1")
    assert sentence.endswith("did you mean --namespace billing?")
    assert "did you mean" not in Shell(server, "billing").sentence("workers", "describe", "nobody")
    assert "did you mean" not in Shell(server, "zzz").sentence("workers", "describe", "b-1")
    listed = Shell(server, "zzz").run("workers", "list").stderr
    assert listed.endswith("`liveness namespaces list` shows those that there are.\n")
    numbered = Shell(server, "billing-1").run("workers", "list").stderr
    assert "did you mean" not in numbered, "a number is rarely a mistake"


def test_lists_span_all_namespaces(server: str) -> None:
    shell = Shell(server)
    head, *rows = shell.ok("workers", "list", "-A").splitlines()
    assert head.split()[:2] == ["namespace", "worker"]
    assert [row.split()[:2] for row in rows] == [
        ["billing", "b-1"],
        ["billing", "b-2"],
        ["orders", "o-1"],
    ]
    (activity,) = shell.json("activities", "list", "--all-namespaces")
    assert activity["namespace"] == "orders"
    assert shell.json("registry", "list", "-A") == []
    assert shell.json("components", "list", "-A") == []
    assert shell.json("progress", "list", "-A") == []
    assert shell.json("tasks", "list", "-A") == []
    assert shell.json("incidents", "list", "-A") == []
    queues = [(queue["namespace"], queue["task_queue"]) for queue in shell.json("queues", "list", "-A")]
    assert queues == [("orders", "mail")]
    assert shell.ok("queues", "list", "-A").split()[:3] == ["namespace", "task", "queue"]
    limited = shell.run("workers", "list", "-A", "--limit", "2", "--json")
    assert limited.stderr == "These are the first 2; --limit 0 shows all.\n"
    assert (
        shell.run("workers", "list", "-A", "--prefix", "nobody").stderr
        == "No such worker in any namespace.\n"
    )


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("mail", ["b-1"]),
        ("HOST-1", ["b-1"]),
        ("host:host state:in", ["b-2"]),
        ("queue:disk", ["b-2"]),
        ("key:b- active", ["b-1"]),
        ("inactive", ["b-2"]),
        ("host:mail", []),
        ("b-1 b-2", []),
        ("%", []),
    ],
)
def test_workers_are_filtered_by_words(server: str, words: str, found: list[str]) -> None:
    listed = Shell(server, "billing").json("workers", "list", "--filter", words)
    assert [worker["worker_instance_key"] for worker in listed] == found


def test_a_filter_that_means_nothing_is_refused(server: str) -> None:
    sentence = Shell(server).sentence("workers", "list", "--filter", "state:gone")
    assert "has the state 'gone', and workers are active, inactive, cleaned-up" in sentence


def test_orders_select_by_the_same_words(server: str) -> None:
    shell = Shell(server, "billing")
    result = shell.run("workers", "pause", "--filter", "host:host-1")
    assert result.stderr == "1 worker paused.\n"
    assert shell.run("workers", "resume", "--filter", "host:host-1").stderr == "1 worker resumed.\n"


def test_lists_tell_a_goodbye_from_a_death(server: str) -> None:
    shell = Shell(server, "endings")
    shell.heartbeat("expires", lease_duration={"seconds": 1})
    shell.heartbeat("forced")
    shell.ok("workers", "expire", "forced", "--reason", "test", "--yes")
    while "INACTIVE (died)" not in shell.ok("workers", "list", "--prefix", "expires"):
        pass
    assert "INACTIVE (forced out)" in shell.ok("workers", "list", "--prefix", "forced")


def test_the_history_is_told_in_sentences(server: str) -> None:
    shell = Shell(server, "billing")
    out = shell.ok("workers", "history", "b-2")
    assert "b-2 " in out
    assert "{" not in out
    assert "WorkerRegistered" in shell.ok("workers", "history", "b-2", "--data")


@pytest.mark.parametrize(
    ("words", "offered"),
    [("work", "workers"), ("workers hist", "history"), ("workers list --fil", "--filter")],
)
def test_the_shell_completes_commands_and_options(words: str, offered: str, tmp_path: Path) -> None:
    variables = {
        **environment(),
        "_LIVENESS_COMPLETE": "bash_complete",
        "COMP_WORDS": f"liveness {words}",
        "COMP_CWORD": str(len(words.split())),
    }
    program = Path(sys.executable).with_name("liveness")
    done = subprocess.run([program], env=variables, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f"plain,{offered}" in done.stdout.splitlines(), done.stderr
