"""`liveness components` on a real server, with a supervisor that reports over gRPC."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from liveness.cli import component_orders, components
from liveness.testing import LocalServer
from liveness.v1 import component_pb2 as pb
from tests.integration.cli.fake_supervisor import HEALTHY, PAUSED, STOPPED, STOPPING, FakeSupervisor
from tests.integration.quiet_logs import quiet as quiet  # the server logs into the output of the command
from tests.system.cli.server_processes import environment, liveness_command
from tests.system.cli.shell import Shell


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalServer]:
    with LocalServer(tmp_path) as server:
        yield server


@pytest.fixture
def shell(local: LocalServer) -> Shell:
    return Shell(local.address)


@pytest.fixture
def supervisor(local: LocalServer) -> Iterator[FakeSupervisor]:
    with FakeSupervisor(local.address) as supervisor:
        yield supervisor


def rows(out: str) -> dict[str, str]:
    """The lines of a table by their first word, without the head."""
    return {line.split()[0]: line for line in out.splitlines()[1:] if line.strip()}


def statuses(result: Result) -> dict[str, str]:
    return {id: line.split()[1] for id, line in rows(result.stdout).items()}


def die(local: LocalServer) -> None:
    """End the supervisor's lease, and with it those of its components."""
    local.advance(301)


# -- list and describe


def test_the_list_shows_each_component_with_its_state(shell: Shell, supervisor: FakeSupervisor) -> None:
    supervisor.start(0, seconds_ago=125, job="photo-17", restart_count=2)
    supervisor.crash(supervisor.start(1, restart_count=5), fail=True)
    supervisor.report(supervisor.start(2), PAUSED, paused=True, by="ann", reason="disk is full")
    out = shell.ok("components", "list")
    assert out.splitlines()[0].split("  ")[0].strip() == "component"
    assert rows(out)["worker:discovery:0"].split() == [
        "worker:discovery:0", "HEALTHY", "5000", "2m5s", "photo-17", "2",
    ]  # fmt: skip
    failed = rows(out)["worker:discovery:1"]
    assert "FAILED" in failed
    assert "exit code 3" in failed
    assert "5 restarts within 5 minutes" in failed
    assert "PAUSED" in rows(out)["worker:discovery:2"]
    assert "disk is full" in rows(out)["worker:discovery:2"]


def test_the_list_can_be_limited_to_a_group_and_to_statuses(
    local: LocalServer, shell: Shell, supervisor: FakeSupervisor
) -> None:
    supervisor.start(0)
    supervisor.crash(supervisor.start(1))
    with FakeSupervisor(local.address, "render") as other:
        other.start(0)
        assert list(rows(shell.ok("components", "list", "render"))) == ["worker:render:0"]
        assert list(rows(shell.ok("components", "list", "--status", "crashed", "--status", "failed"))) == [
            "worker:discovery:1"
        ]
        found = shell.json("components", "list")
    assert [one["component_id"] for one in found] == [
        "worker:discovery:0",
        "worker:discovery:1",
        "worker:render:0",
    ]
    assert found[1]["status"] == "COMPONENT_STATUS_CRASHED"
    assert found[1]["last_exit"]["code"] == 3
    assert found[0]["supervised"] is True


def test_groups_without_a_living_supervisor_are_marked(
    local: LocalServer, shell: Shell, supervisor: FakeSupervisor
) -> None:
    id = supervisor.start(0)
    supervisor.report(id, STOPPING)
    supervisor.report(id, STOPPED)
    supervisor.start(1)
    die(local)
    result = shell.run("components", "list")
    assert "STOPPED (no supervisor)" in rows(result.stdout)["worker:discovery:0"]
    assert "CRASHED (no supervisor)" in rows(result.stdout)["worker:discovery:1"]
    assert result.stderr.startswith("No supervisor runs group discovery; the last one was seen ")
    assert [one["supervised"] for one in shell.json("components", "list")] == [False, False]


def test_an_empty_list_says_how_to_start_a_supervisor(shell: Shell) -> None:
    result = shell.run("components", "list")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "liveness supervise --name discovery -- python worker.py" in result.stderr
    assert shell.json("components", "list") == []


def test_describe_shows_the_last_lines_with_escapes(shell: Shell, supervisor: FakeSupervisor) -> None:
    id = supervisor.start(0, details_json='{"queue": 3}')
    supervisor.crash(id, "Traceback:", "\x1b[31m[red]boom[/red]", code=255)
    for name in ("worker:discovery:0", "discovery:0"):
        out = shell.ok("components", "describe", name)
        assert "exit code 255" in out
        assert "queue=3" in out
        assert out.splitlines()[-2:] == ["  Traceback:", "  \\x1b[31m[red]boom[/red]"]
    assert shell.json("components", "describe", "discovery:0")["last_exit"]["last_lines"][0] == "Traceback:"
    assert shell.sentence("components", "describe", "discovery:9") == (
        "There is no component worker:discovery:9 in namespace default (COMPONENT_NOT_FOUND). "
        "`liveness components list discovery` shows those of the group."
    )
    assert "worker:discovery:0" in shell.sentence("components", "describe", "discovery", exit_code=2)


# -- orders


@pytest.mark.parametrize(
    ("command", "action", "status"),
    [
        ("restart", pb.COMPONENT_ACTION_RESTART, "HEALTHY"),
        ("stop", pb.COMPONENT_ACTION_STOP, "STOPPED"),
        ("pause", pb.COMPONENT_ACTION_PAUSE, "PAUSED"),
        ("resume", pb.COMPONENT_ACTION_RESUME, "HEALTHY"),
        ("start", pb.COMPONENT_ACTION_START, "HEALTHY"),
        ("reset", pb.COMPONENT_ACTION_RESET, "HEALTHY"),
    ],
)
def test_an_order_is_carried_out_and_the_states_are_shown(
    shell: Shell, supervisor: FakeSupervisor, command: str, action: int, status: str
) -> None:
    ids = [supervisor.start(index) for index in range(2)]
    if command == "resume":
        supervisor.report(ids[0], PAUSED, paused=True)
    if command in ("start", "reset"):
        supervisor.crash(ids[0], fail=True)
    result = shell.run("components", command, "discovery:0", "--reason", "new build")
    assert result.exit_code == 0, result.output
    assert statuses(result) == {"worker:discovery:0": status}
    [order] = supervisor.orders
    assert (order.action, list(order.component_ids), order.reason) == (action, ids[:1], "new build")


def test_targets_are_ids_groups_or_everything(
    local: LocalServer, shell: Shell, supervisor: FakeSupervisor
) -> None:
    for index in range(3):
        supervisor.start(index)
    with FakeSupervisor(local.address, "render") as other:
        other.start(0)
        shell.ok("components", "pause", "worker:discovery:2", "discovery:0", "render")
        assert [list(order.component_ids) for order in supervisor.orders] == [
            ["worker:discovery:0", "worker:discovery:2"]
        ]
        assert [list(order.component_ids) for order in other.orders] == [[]]
        # A group contains its components.
        shell.ok("components", "resume", "discovery:0", "discovery")
        assert list(supervisor.orders[-1].component_ids) == []
        result = shell.run("components", "restart", "--all", "--yes", "--rolling")
        assert set(statuses(result).values()) == {"HEALTHY"}
        assert len(statuses(result)) == 4
        assert {supervisor.orders[-1].action, other.orders[-1].action} == {
            pb.COMPONENT_ACTION_ROLLING_RESTART
        }


@pytest.mark.parametrize("command", ["stop", "restart", "pause"])
def test_orders_to_everything_ask_first(shell: Shell, supervisor: FakeSupervisor, command: str) -> None:
    supervisor.start(0)
    refused = shell.run("components", command, "--all", stdin="n\n")
    assert refused.exit_code == 1
    assert f"{command.capitalize()} all 1 components of namespace default?" in refused.stderr
    assert "nothing was changed" in refused.stderr
    assert supervisor.orders == []
    assert shell.run("components", command, "--all", stdin="y\n").exit_code == 0
    assert len(supervisor.orders) == 1


def test_a_component_that_failed_makes_the_command_fail(shell: Shell, supervisor: FakeSupervisor) -> None:
    supervisor.start(0)
    supervisor.fails_on_start = True
    result = shell.run("components", "restart", "discovery")
    assert result.exit_code == 1
    assert statuses(result) == {"worker:discovery:0": "FAILED"}
    assert result.stderr == (
        "error: worker:discovery:0 has failed: 5 restarts within 5 minutes; "
        "`liveness components logs worker:discovery:0` shows its output.\n"
    )


def test_an_order_without_a_supervisor_waits_for_the_next_one(
    local: LocalServer, shell: Shell, supervisor: FakeSupervisor
) -> None:
    supervisor.start(0)
    die(local)
    result = shell.run("components", "stop", "discovery")
    assert result.exit_code == 1
    assert "No supervisor runs group discovery; order 1 waits for the next one" in result.stderr
    later = shell.run("components", "start", "discovery", "--no-wait")
    assert later.exit_code == 0
    assert "order 2 waits for the next one" in later.stderr
    assert "order 1 (stop) waits" in shell.run("components", "list").stderr
    waiting = shell.ok("components", "describe", "discovery:0").splitlines()[-2:]
    assert [line.split()[:2] for line in waiting] == [["1", "stop"], ["2", "start"]]


def test_waiting_ends_after_the_timeout(shell: Shell, supervisor: FakeSupervisor) -> None:
    supervisor.start(0)
    supervisor.carries_out = False
    result = shell.run("components", "stop", "discovery", "--timeout", "1s")
    assert result.exit_code == 1
    assert "Order 1 to group discovery was not carried out within 1s" in result.stderr
    unfinished = json.loads(shell.run("components", "stop", "discovery", "--timeout", "1s", "--json").stdout)
    assert unfinished["orders"] == [
        {"group": "discovery", "order_number": "2", "supervised": True, "done": False}
    ]


def test_without_waiting_the_order_is_only_given(shell: Shell, supervisor: FakeSupervisor) -> None:
    supervisor.start(0)
    result = shell.run("components", "pause", "discovery", "--no-wait")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "Group discovery was given order 1.\n"


def test_scale_asks_for_another_number_of_processes(shell: Shell, supervisor: FakeSupervisor) -> None:
    supervisor.start(0)
    result = shell.run("components", "scale", "discovery", "3")
    assert list(statuses(result)) == [f"worker:discovery:{index}" for index in range(3)]
    assert (supervisor.orders[0].action, supervisor.orders[0].count) == (pb.COMPONENT_ACTION_SCALE, 3)
    assert shell.run("components", "scale", "discovery", "20000").exit_code == 2


def test_json_has_the_orders_and_the_components(shell: Shell, supervisor: FakeSupervisor) -> None:
    supervisor.start(0)
    answer = shell.json("components", "restart", "discovery:0")
    assert answer["orders"] == [{"group": "discovery", "order_number": "1", "supervised": True, "done": True}]
    assert answer["components"][0]["restart_count"] == 1


def test_wrong_targets_give_one_sentence_and_change_nothing(shell: Shell, supervisor: FakeSupervisor) -> None:
    supervisor.start(0)
    assert "say which components" in shell.sentence("components", "stop", exit_code=2)
    assert "not both" in shell.sentence("components", "stop", "discovery", "--all", exit_code=2)
    assert "is neither a component" in shell.sentence("components", "stop", "a b", exit_code=2)
    assert shell.sentence("components", "stop", "discovery:0", "discovery:7") == (
        "there is no component worker:discovery:7 in namespace default; "
        "`liveness components list discovery` shows those of the group"
    )
    assert "No supervisor ever ran a group nowhere" in shell.sentence("components", "stop", "nowhere")
    assert supervisor.orders == []


def test_one_refused_group_does_not_stop_the_others(shell: Shell, supervisor: FakeSupervisor) -> None:
    supervisor.start(0)
    result = shell.run("components", "pause", "nowhere", "discovery")
    assert result.exit_code == 1
    assert statuses(result) == {"worker:discovery:0": "PAUSED"}
    assert "No supervisor ever ran a group nowhere" in result.stderr


# -- output


def test_logs_show_the_last_lines_with_escapes(shell: Shell, supervisor: FakeSupervisor) -> None:
    id = supervisor.start(0)
    supervisor.output[id] = ["first", "a\ttab", "\x1b]0;title\x07[bold]x[/bold]"]
    assert shell.ok("components", "logs", "discovery:0", "--lines", "2").splitlines() == [
        "a\ttab",
        "\\x1b]0;title\\x07[bold]x[/bold]",
    ]
    assert shell.json("components", "logs", "discovery:0")["lines"][0] == "first"


def test_logs_of_a_silent_supervisor_give_one_sentence(
    local: LocalServer, shell: Shell, supervisor: FakeSupervisor
) -> None:
    supervisor.start(0)
    die(local)
    assert "The supervisor of group discovery does not run" in shell.sentence(
        "components", "logs", "discovery:0"
    )
    result = shell.run("components", "logs", "nowhere:0")
    assert "No supervisor ever ran a group nowhere" in result.stderr


def test_logs_follow_new_lines_until_they_are_interrupted(
    local: LocalServer, supervisor: FakeSupervisor
) -> None:
    id = supervisor.start(0)
    supervisor.output[id] = ["before"]
    command = liveness_command("components", "logs", "discovery:0", "-f", "--address", local.address)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "before\n"
        for line in ("second", "third"):
            supervisor.output[id].append(line)
            assert process.stdout.readline() == f"{line}\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_logs_name_the_stream_only_of_errors(shell: Shell, supervisor: FakeSupervisor) -> None:
    time = "2026-01-01T10:00:00.000Z"
    id = supervisor.start(0)
    supervisor.output[id] = [f"{time} o ready", f"{time} e disk is full", "o is no prefix"]
    assert shell.ok("components", "logs", id).splitlines() == [
        f"{time} ready", f"{time} stderr: disk is full", "o is no prefix",
    ]  # fmt: skip


# -- names that do not exist


@pytest.mark.parametrize(
    ("arguments", "end"),
    [
        (("list", "discvery"), "Did you mean discovery?"),
        (("list", "other"), "No supervisor ever ran a group other in namespace default."),
        (("list", "other", "--json"), "No supervisor ever ran a group other in namespace default."),
        (("describe", "discvery:0"), "Did you mean worker:discovery:0?"),
        (("describe", "discovery:7"), "`liveness components list discovery` shows those of the group."),
        (("logs", "discvery:0"), "Did you mean worker:discovery:0?"),
        (("history", "discvery:0"), "Did you mean worker:discovery:0?"),
        (("stop", "discvery"), "Did you mean discovery?"),
        (("scale", "discvery", "2"), "Did you mean discovery?"),
    ],
)
def test_a_name_that_does_not_exist_is_answered_with_one_that_does(
    shell: Shell, supervisor: FakeSupervisor, arguments: tuple[str, ...], end: str
) -> None:
    supervisor.start(0)
    assert shell.sentence("components", *arguments).endswith(end)
    assert supervisor.orders == []


def test_a_list_without_matches_says_so(shell: Shell, supervisor: FakeSupervisor) -> None:
    assert shell.run("components", "list").stderr == "No component was started yet.\n"
    supervisor.start(0)
    result = shell.run("components", "list", "--status", "failed", "--status", "crashed")
    assert (result.stdout, result.stderr) == ("", "No component is failed or crashed.\n")


# -- history


def test_snapshots_in_the_history_show_what_the_process_told(
    shell: Shell, supervisor: FakeSupervisor
) -> None:
    id = supervisor.start(0)
    for files in (3, 8):
        told = {"files_processed": files, "stage": "tagging"}
        supervisor.report(id, HEALTHY, reason="healthy", details_json=json.dumps(told))
    first, second = shell.ok("components", "history", id).splitlines()[-2:]
    assert first.endswith("files_processed=3 stage=tagging")
    assert second.endswith("files_processed=8 stage=tagging")
    assert second.split()[2:4] == ["HEALTHY", "5000"], "the reason would only repeat the status"


def test_the_history_is_a_time_line_of_the_states(
    local: LocalServer, shell: Shell, supervisor: FakeSupervisor
) -> None:
    id = supervisor.start(0)
    shell.ok("components", "pause", "discovery:0", "--reason", "disk is full")
    local.advance(1)
    supervisor.crash(id, code=3)
    out = shell.ok("components", "history", "discovery:0")
    lines = out.splitlines()
    assert lines[0].split() == ["time", "status", "reason", "by", "pid", "restarts", "exit", "details"]
    words = [line.split()[2] for line in lines[1:]]
    assert [word for word in words if word.isupper()] == ["STARTING", "HEALTHY", "PAUSED", "CRASHED"]
    assert "disk is full" in out
    [crash] = [line for line in lines if "CRASHED" in line]
    assert crash.startswith("2025-06-15 15:06:41.000Z")
    assert crash.endswith("exit code 3")


def test_the_history_can_be_limited_to_its_end(shell: Shell, supervisor: FakeSupervisor) -> None:
    supervisor.crash(supervisor.start(0), code=3)
    everything: list[dict[str, Any]] = shell.json("components", "history", "discovery:0")
    assert [one["type"] for one in everything] == [
        "WorkerRegistered", "ComponentChanged", "ComponentChanged", "ComponentChanged", "WorkerDeactivated",
    ]  # fmt: skip
    assert everything[3]["status"] == "CRASHED"
    assert everything[3]["last_exit"]["code"] == 3
    result = shell.run("components", "history", "discovery:0", "--limit", "2", "--json")
    assert json.loads(result.stdout) == everything[-2:]
    assert result.stderr == "These are the newest 2; --limit 0 shows all.\n"


def test_help_of_every_command_has_an_example(shell: Shell) -> None:
    for name in components.components.commands:
        assert f"liveness components {name}" in shell.ok("components", name, "--help"), name
    assert component_orders.ORDER_TIMEOUT in shell.ok("components", "stop", "--help")
