"""`liveness workers pause`, `resume`, `drain` and `forget` against a real server, and how the list shows such workers."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration

from liveness.v1.worker_pb2 import ActivityRef
from tests.system.cli.scripted_worker import ScriptedWorker
from tests.system.cli.server_processes import running_server
from tests.system.cli.shell import UNUSED_ADDRESS, Shell

STAYS = "because the whole namespace is paused; `liveness workers resume --all` resumes it"


def told(shell: Shell, *args: str) -> list[str]:
    """Return the lines that a command prints for people; stdout stays empty."""
    result = shell.run("workers", *args)
    assert (result.exit_code, result.stdout) == (0, ""), result.output
    return result.stderr.splitlines()


def states(shell: Shell) -> dict[str, str]:
    """Return each worker's state as the list shows it."""
    head, *rows = shell.ok("workers", "list").splitlines()
    begin, end = head.index("state"), head.index("last heartbeat")
    return {row.split()[0]: row[begin:end].strip() for row in rows}


# -- pause and resume


def test_workers_are_paused_and_resumed_by_key(shell: Shell) -> None:
    for key in ("a", "b", "c"):
        shell.heartbeat(key)
    assert told(shell, "pause", "a", "b", "a") == ["Worker a is paused.", "Worker b is paused."]
    assert shell.heartbeat("a").pause
    assert states(shell) == {"a": "ACTIVE (paused)", "b": "ACTIVE (paused)", "c": "ACTIVE"}
    assert told(shell, "pause", "b") == ["Worker b was paused before."]
    assert told(shell, "resume", "b", "c") == ["Worker b is resumed.", "Worker c was not paused."]
    assert states(shell) == {"a": "ACTIVE (paused)", "b": "ACTIVE", "c": "ACTIVE"}
    assert not shell.heartbeat("b").pause


def test_a_reason_is_kept_in_the_history(shell: Shell) -> None:
    shell.heartbeat("w")
    told(shell, "pause", "w", "--reason", "disk is full")
    (event,) = [e for e in shell.json("workers", "history", "w") if e["type"] == "WorkerPaused"]
    assert "disk is full" in event["data_json"]


def test_a_rejected_key_does_not_stop_the_others_from_being_paused(shell: Shell) -> None:
    shell.heartbeat("b")
    result = shell.run("workers", "pause", "a", "b", "c", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {"changed": 1}
    assert result.stderr.splitlines() == [
        f"error: There is no worker {key} in namespace {shell.namespace} (WORKER_NOT_FOUND)."
        for key in ("a", "c")
    ]
    assert states(shell) == {"b": "ACTIVE (paused)"}


def test_workers_are_paused_and_resumed_by_filter(shell: Shell) -> None:
    shell.heartbeat("a", task_queue="mail", build_id="1")
    shell.heartbeat("b", task_queue="mail", build_id="2")
    shell.heartbeat("c", task_queue="disk", build_id="1")
    assert told(shell, "pause", "--task-queue", "mail", "--build-id", "1") == ["1 worker paused."]
    assert states(shell) == {"a": "ACTIVE (paused)", "b": "ACTIVE", "c": "ACTIVE"}
    assert shell.json("workers", "pause", "--state", "active") == {"changed": 2}
    nobody = "No worker was paused: none meets the conditions, or those that do were paused before."
    assert told(shell, "pause", "--prefix", "a") == [nobody]
    assert told(shell, "resume", "--task-queue", "mail") == ["2 workers resumed."]
    assert states(shell) == {"a": "ACTIVE", "b": "ACTIVE", "c": "ACTIVE (paused)"}
    nobody = "No worker was resumed: none meets the conditions, or those that do were not paused."
    assert told(shell, "resume", "--prefix", "a") == [nobody]
    assert shell.json("workers", "resume", "--host", "nowhere") == {"changed": 0}


def test_a_whole_namespace_is_paused_and_resumed(shell: Shell) -> None:
    shell.heartbeat("a")
    shell.heartbeat("b")
    told(shell, "pause", "b")
    name = shell.namespace
    paused = told(shell, "pause", "--all", "--yes", "--reason", "move")
    assert paused == [f"Namespace {name} is paused; that changed 1 worker."], "b was paused before"
    assert shell.heartbeat("joins later").pause
    assert shell.json("config", "get", "paused")["value"] == "1"
    assert told(shell, "resume", "--all", "--yes") == [
        f"Namespace {name} is resumed; that changed 3 workers."
    ]
    assert set(states(shell).values()) == {"ACTIVE"}
    assert shell.json("workers", "resume", "--all", "--yes") == {"changed": 0}


def test_resuming_some_workers_of_a_paused_namespace_says_that_they_stay_paused(shell: Shell) -> None:
    shell.heartbeat("a")
    shell.heartbeat("b")
    told(shell, "pause", "a")
    told(shell, "pause", "--all", "--yes")
    assert told(shell, "resume", "b") == [f"Worker b stays paused, {STAYS}."]
    assert told(shell, "resume", "--prefix", "a") == [
        f"No worker was resumed, {STAYS}; 1 worker will not be paused then."
    ]


@pytest.mark.parametrize("order", ["pause", "resume"])
def test_a_command_for_all_workers_asks_first(order: str, shell: Shell) -> None:
    shell.heartbeat("w")
    if order == "resume":
        told(shell, "pause", "--all", "--yes")
    before = states(shell)
    question = {
        "pause": f"Pause the whole namespace {shell.namespace}, with its 1 worker and all that join later?",
        "resume": f"Resume the whole namespace {shell.namespace}, with every worker that was paused on its own?",
    }[order]
    refused = shell.run("workers", order, "--all", stdin="n\n")
    assert refused.exit_code == 1
    assert question in refused.stderr
    assert "nothing was changed" in refused.stderr
    assert states(shell) == before
    agreed = shell.run("workers", order, "--all", stdin="y\n")
    assert agreed.exit_code == 0
    assert states(shell) != before


@pytest.mark.parametrize("order", ["pause", "resume"])
def test_a_command_needs_exactly_one_selection_of_workers(order: str) -> None:
    nobody = "say which workers: their KEYs, a condition like --task-queue, or --all for the whole namespace"
    assert Shell().sentence("workers", order, exit_code=2) == nobody
    two = "workers are chosen by their KEYs, by conditions, or by --all; use one of these only"
    for ways in (("w", "--all"), ("w", "--host", "h"), ("--host", "h", "--all")):
        assert Shell().sentence("workers", order, *ways, exit_code=2) == two
    assert Shell().run("workers", order, "--state", "cleaned-up").exit_code == 2


def test_a_cleaned_up_worker_cannot_be_paused(shell: Shell) -> None:
    shell.ok("config", "set", "cleanup_delay=0")
    shell.heartbeat("w")
    shell.ok("workers", "expire", "w", "--reason", "test", "--yes")
    # Each poll is a call; the test's time-out bounds the loop.
    while states(shell)["w"] != "CLEANED_UP":
        pass
    assert shell.sentence("workers", "pause", "w").endswith("(WORKER_CLEANED_UP).")
    told(shell, "pause", "--all", "--yes")
    assert states(shell) == {"w": "CLEANED_UP"}


def test_an_unavailable_server_is_reported_in_one_sentence() -> None:
    sentence = f"no liveness server answers at {UNUSED_ADDRESS}; start one with `liveness serve`"
    for order in (("pause", "w"), ("resume", "--host", "h"), ("pause", "--all"), ("drain", "w")):
        assert Shell().sentence("workers", *order) == sentence


# -- drain


def test_draining_prints_the_remaining_activities(shell: Shell) -> None:
    bound = ActivityRef(workflow_id="a", run_id="r", activity_id="a", task_queue="q")
    shell.heartbeat("w", bound_activities=[bound])
    assert told(shell, "drain", "w", "--limit", "5m", "--reason", "host is retired") == [
        "Worker w is draining; it holds 1 activity, and those left after 5m are rescheduled."
    ]
    assert shell.heartbeat("w").drain
    assert states(shell) == {"w": "ACTIVE (draining)"}
    assert "drained at the latest" in shell.ok("workers", "describe", "w")
    assert "host is retired" in shell.ok("workers", "history", "w")
    assert shell.json("workers", "drain", "w") == {"bound_activities": 1}


@pytest.mark.parametrize(
    ("options", "limit"), [((), timedelta(minutes=1)), (("--limit", "2h"), timedelta(hours=2))]
)
def test_a_drain_ends_at_its_time_limit(options: tuple[str, ...], limit: timedelta, shell: Shell) -> None:
    shell.heartbeat("w")
    told(shell, "drain", "w", *options)
    worker = shell.json("workers", "describe", "w")
    begun, over = (datetime.fromisoformat(worker[at]) for at in ("last_heartbeat_time", "drain_deadline"))
    assert limit <= over - begun < limit + timedelta(minutes=1)


def test_a_drain_has_a_default_limit_of_a_minute(shell: Shell) -> None:
    shell.heartbeat("w")
    (line,) = told(shell, "drain", "w")
    assert line == "Worker w is draining; it holds 0 activities, and those left after 1m are rescheduled."


def test_a_drained_worker_is_not_shown_as_draining(shell: Shell) -> None:
    shell.heartbeat("w")
    told(shell, "drain", "w", "--limit", "0")
    # Each poll is a call; the test's time-out bounds the loop.
    while states(shell)["w"] != "INACTIVE (drained)":
        pass
    assert "DRAINED: drained; 0 activities were left at the limit" in shell.ok("workers", "describe", "w")


def test_an_inactive_worker_cannot_be_drained(shell: Shell) -> None:
    shell.heartbeat("w")
    shell.ok("workers", "expire", "w", "--reason", "test", "--yes")
    assert shell.sentence("workers", "drain", "w") == "Worker w is INACTIVE, not ACTIVE (WORKER_NOT_ACTIVE)."


@pytest.mark.parametrize("limit", ["soon", "-1s", "5"])
def test_an_invalid_time_limit_is_rejected(limit: str) -> None:
    assert Shell().run("workers", "drain", "w", "--limit", limit).exit_code == 2


# -- forget


def test_forgetting_frees_the_key_of_an_inactive_worker(tmp_path: Path) -> None:
    """On a server of its own: forgetting raises the lease epochs of other workers of the shard."""
    with running_server(tmp_path) as address:
        _forget_and_register_again(Shell(address, "namespace"))


def _forget_and_register_again(shell: Shell) -> None:
    shell.heartbeat("w")
    refused = shell.sentence("workers", "forget", "w", "--yes")
    assert refused == (
        "Worker w is ACTIVE and is not forgotten; end its lease first, with `liveness workers drain` or "
        "`liveness workers expire` (WORKER_ACTIVE)."
    )
    shell.ok("workers", "expire", "w", "--reason", "test", "--yes")
    assert shell.run("workers", "forget", "w", stdin="n\n").exit_code == 1
    assert told(shell, "forget", "w", "--reason", "host is gone", "--yes") == [
        "Worker w was INACTIVE and is forgotten; the next worker of this key begins above lease epoch 1."
    ]
    assert "host is gone" in shell.ok("workers", "history", "w")
    assert shell.heartbeat("w").lease_epoch == 2
    shell.ok("workers", "expire", "w", "--reason", "test", "--yes")
    assert shell.json("workers", "forget", "w", "--yes") == {
        "previous_state": "WORKER_STATE_INACTIVE",
        "lease_epoch": "2",
    }
    sentence = f"There is no worker w in namespace {shell.namespace} (WORKER_NOT_FOUND)."
    assert shell.sentence("workers", "forget", "w") == sentence


# -- the list


def test_the_list_shows_an_open_and_a_broken_stream(shell: Shell) -> None:
    scripted_worker = ScriptedWorker(shell, "w", lease_duration=Duration(seconds=3_600))
    with scripted_worker.attached(grace_s=600):
        assert states(shell) == {"w": "ACTIVE"}
        assert "attached, grace 10m" in shell.ok("workers", "list")
        assert "attached, grace 10m" in shell.ok("workers", "describe", "w")
    # Each poll is a call; the test's time-out bounds the loop.
    while (shown := states(shell)["w"]) == "ACTIVE":
        pass
    assert shown == "ACTIVE (suspect)"
    assert "broken, grace 10m" in shell.ok("workers", "list")
    told(shell, "pause", "w")
    told(shell, "drain", "w")
    assert states(shell) == {"w": "ACTIVE (suspect, paused, draining)"}
    assert "ACTIVE (suspect, paused, draining)" in shell.ok("workers", "describe", "w")
    scripted_worker.beat()
    assert states(shell) == {"w": "ACTIVE (paused, draining)"}


def test_the_list_shows_loop_lag(shell: Shell) -> None:
    shell.heartbeat("calm")
    shell.heartbeat("w", loop_lag=Duration(seconds=3, nanos=500_000_000))
    head, calm, lagging = shell.ok("workers", "list").splitlines()
    column = head.index("loop lag")
    assert lagging[column:].split()[0] == "3s500ms"
    assert calm[column:].split()[0] == "0"
    assert "3s500ms" in shell.ok("workers", "describe", "w")
    assert "loop lag" not in shell.ok("workers", "describe", "calm")
