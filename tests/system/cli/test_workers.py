"""`liveness workers` against a real server."""

from __future__ import annotations

import json

import pytest

from liveness.v1.worker_pb2 import ActivityRef
from tests.system.cli.shell import UNUSED_ADDRESS, Shell


def ref(workflow_id: str) -> ActivityRef:
    return ActivityRef(workflow_id=workflow_id, run_id="run", activity_id="activity", task_queue="mail")


def keys(shell: Shell, *options: str) -> list[str]:
    return [worker["worker_instance_key"] for worker in shell.json("workers", "list", *options)]


def test_a_list_shows_each_worker(shell: Shell) -> None:
    shell.heartbeat(
        "w-1", task_queue="mail", host_name="db-3", build_id="b7", bound_activities=[ref("order-1")]
    )
    head, row = shell.ok("workers", "list").splitlines()
    assert " ".join(head.split()) == (
        "worker state last heartbeat lease stream loop lag activities task queue build host"
    )
    assert row.startswith("w-1     ACTIVE")
    for cell in ("30s", "1", "mail", "b7", "db-3"):
        assert cell in row.split()


def test_an_empty_list_is_no_error_and_valid_json(shell: Shell) -> None:
    result = shell.run("workers", "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith(f"No such worker in namespace {shell.namespace}.\n")
    assert shell.json("workers", "list") == []


def test_filters_are_combined(shell: Shell) -> None:
    shell.heartbeat("a-1", task_queue="mail", host_name="h1", build_id="1")
    shell.heartbeat("a-2", task_queue="mail", host_name="h2", build_id="2")
    shell.heartbeat("b-1", task_queue="disk", host_name="h1", build_id="1")
    shell.ok("workers", "expire", "b-1", "--reason", "test", "--yes")
    assert keys(shell) == ["a-1", "a-2", "b-1"]
    assert keys(shell, "--prefix", "a-") == ["a-1", "a-2"]
    assert keys(shell, "--host", "h1") == ["a-1", "b-1"]
    assert keys(shell, "--build-id", "2") == ["a-2"]
    assert keys(shell, "--task-queue", "mail", "--host", "h1") == ["a-1"]
    assert keys(shell, "--state", "inactive") == ["b-1"]
    assert keys(shell, "--state", "inactive", "--state", "active") == ["a-1", "a-2", "b-1"]
    assert keys(shell, "--state", "cleaned-up") == []


def test_a_limited_list_says_that_it_is_limited(shell: Shell) -> None:
    for number in range(5):
        shell.heartbeat(f"w-{number}")
    result = shell.run("workers", "list", "--limit", "3", "--json")
    assert [worker["worker_instance_key"] for worker in json.loads(result.stdout)] == ["w-0", "w-1", "w-2"]
    assert result.stderr == "These are the first 3; --limit 0 shows all.\n"
    exact = shell.run("workers", "list", "--limit", "5")
    assert exact.stderr == ""


def test_a_list_without_limit_reads_all_pages(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("liveness.cli.client.PAGE_MAX", 2)
    for number in range(5):
        shell.heartbeat(f"w-{number}")
    assert keys(shell, "--limit", "0") == [f"w-{number}" for number in range(5)]
    assert keys(shell, "--limit", "3") == [f"w-{number}" for number in range(3)]


def test_workers_are_counted_by_state(shell: Shell) -> None:
    for key in ("a", "b", "c"):
        shell.heartbeat(key)
    shell.ok("workers", "expire", "c", "--reason", "test", "--yes")
    lines = [line.split() for line in shell.ok("workers", "list", "--count").splitlines()]
    assert lines[:4] == [["state", "workers"], ["ACTIVE", "2"], ["INACTIVE", "1"], ["total", "3"]]
    assert ["heartbeats", "3"] in lines
    assert shell.json("workers", "list", "--count")["total"] == "3"


def test_a_namespace_does_not_show_workers_of_another(shell: Shell) -> None:
    shell.heartbeat("w")
    assert keys(shell, "-n", f"{shell.namespace}-other") == []


def test_a_description_shows_the_worker_and_its_activities(shell: Shell) -> None:
    shell.heartbeat("w", session_id="s", sequence=3, labels={"zone": "b"}, bound_activities=[ref("order-1")])
    out = shell.ok("workers", "describe", "w")
    fields = dict(line.split(maxsplit=1) for line in out.splitlines() if line and "  " in line)
    assert fields["state"] == "ACTIVE"
    assert fields["session"] == "s"
    assert fields["labels"] == "zone=b"
    assert "lease           30s, epoch 1" in out
    assert fields["order-1"].split() == ["run", "activity", "1", "mail"]
    described = shell.json("workers", "describe", "w")
    assert described["bound_activities"][0]["workflow_id"] == "order-1"
    assert described["sequence"] == "3"


def test_an_unknown_worker_is_reported_in_one_sentence(shell: Shell) -> None:
    sentence = f"There is no worker w in namespace {shell.namespace} (WORKER_NOT_FOUND)."
    assert shell.sentence("workers", "describe", "w") == sentence


def test_control_characters_in_texts_are_escaped(shell: Shell) -> None:
    shell.heartbeat("[red]w[/red]", host_name="[blink]:smile:", current_job="[link=x]job")
    assert "[red]w[/red]" in shell.ok("workers", "list")
    assert "[blink]:smile:" in shell.ok("workers", "list")
    assert "[link=x]job" in shell.ok("workers", "describe", "[red]w[/red]")


def test_control_characters_in_a_key_are_escaped_in_errors(shell: Shell) -> None:
    assert "\x1b" not in shell.sentence("workers", "describe", "w\x1b[31m")


def test_history_lists_events_in_either_order(shell: Shell) -> None:
    shell.heartbeat("w")
    shell.ok("workers", "expire", "w", "--reason", "host is gone", "--yes")
    shell.heartbeat("w")
    events = [event["type"] for event in shell.json("workers", "history", "w")]
    assert events[0] == "WorkerRegistered"
    assert events[-1] == "WorkerResurrected"
    newest = shell.json("workers", "history", "w", "--newest-first", "--limit", "1")
    assert [event["type"] for event in newest] == ["WorkerResurrected"]
    assert "host is gone" in shell.ok("workers", "history", "w")


def test_expiring_a_worker_reschedules_its_activities(shell: Shell) -> None:
    shell.heartbeat("w", bound_activities=[ref("a"), ref("b")])
    result = shell.json("workers", "expire", "w", "--reason", "test", "--yes")
    assert result == {"state": "WORKER_STATE_INACTIVE", "rescheduled_activities": 2}
    worker = shell.json("workers", "describe", "w")
    assert (worker["inactive_reason"], worker["inactive_detail"]) == ("INACTIVE_REASON_FORCED", "test")


def test_expiring_asks_first(shell: Shell) -> None:
    shell.heartbeat("w", bound_activities=[ref("a")])
    refused = shell.run("workers", "expire", "w", "--reason", "test", stdin="n\n")
    assert refused.exit_code == 1
    question = f"Expire worker w of namespace {shell.namespace} and reschedule its 1 activity?"
    assert question in refused.stderr
    assert "nothing was changed" in refused.stderr
    assert shell.json("workers", "describe", "w")["state"] == "WORKER_STATE_ACTIVE"
    agreed = shell.run("workers", "expire", "w", "--reason", "test", stdin="y\n")
    assert agreed.exit_code == 0
    assert "Worker w is INACTIVE; 1 activity rescheduled." in agreed.stderr


def test_without_confirmation_nothing_expires(shell: Shell) -> None:
    shell.heartbeat("w")
    assert shell.run("workers", "expire", "w", "--reason", "test", stdin="").exit_code == 1
    assert shell.json("workers", "describe", "w")["state"] == "WORKER_STATE_ACTIVE"


def test_expiring_needs_a_reason(shell: Shell) -> None:
    assert shell.run("workers", "expire", "w", "--yes").exit_code == 2


def test_an_unavailable_server_is_reported_in_one_sentence() -> None:
    sentence = f"no liveness server answers at {UNUSED_ADDRESS}; start one with `liveness serve`"
    assert Shell().sentence("workers", "list") == sentence
    assert Shell().sentence("shards", "list") == sentence


@pytest.mark.parametrize(
    ("args", "variables", "sentence"),
    [
        (["--address", "nowhere"], {}, "flag --address is 'nowhere', but must be HOST:PORT"),
        ([], {"LIVENESS_ADDRESS": "nowhere"}, "variable LIVENESS_ADDRESS is 'nowhere', but must be HOST:PORT"),
        (["-n", ""], {}, "flag --namespace is '', but must be the name of a namespace"),
        ([], {"LIVENESS_ADRESS": "x:1"}, "variable LIVENESS_ADRESS is not a setting; did you mean LIVENESS_ADDRESS?"),
    ],
)  # fmt: skip
def test_a_malformed_address_is_reported_in_one_sentence(
    args: list[str], variables: dict[str, str], sentence: str
) -> None:
    assert Shell().sentence("workers", "list", *args, exit_code=2, **variables).startswith(sentence)


def test_flags_win_over_variables(shell: Shell) -> None:
    shell.heartbeat("w")
    lost = Shell(UNUSED_ADDRESS, "elsewhere")
    assert keys(lost, "--address", shell.address, "--namespace", shell.namespace) == ["w"]


@pytest.mark.parametrize("timeout", ["0", "0s", "soon", "-1s"])
def test_an_invalid_timeout_is_rejected(timeout: str) -> None:
    assert Shell().run("workers", "list", "--timeout", timeout).exit_code == 2
