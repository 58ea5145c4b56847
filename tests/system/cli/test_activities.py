"""`liveness activities` against a real server."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from liveness.cli.activities import INPUT_BYTES_MAX, parse_activity_id
from liveness.sdk import ActivityRef
from liveness.sdk import Client as SdkClient
from liveness.sdk.values import id_to_proto, to_activity_ref
from liveness.v1.worker_pb2 import ActivityRef as BoundActivity
from tests.system.cli.scripted_worker import ScriptedWorker
from tests.system.cli.shell import Shell

QUEUE = ("--type", "resize", "--task-queue", "q")


def schedule(shell: Shell, *args: str) -> str:
    """Return what a successful command prints."""
    result = shell.run("activities", "schedule", *args)
    assert (result.exit_code, result.stdout) == (0, ""), result.output
    return result.stderr


def names(shell: Shell, *options: str) -> list[str]:
    return [activity["id"]["workflow_id"] for activity in shell.json("activities", "list", *options)]


def described(shell: Shell, id: str) -> dict[str, Any]:
    found: dict[str, Any] = shell.json("activities", "describe", id, "--type", "resize")
    return found


def fields(text: str) -> dict[str, str]:
    """Return the fields, whose names and values two or more spaces separate."""
    pairs = [line.split("  ", 1) for line in text.splitlines()]
    return {name.strip(): value.strip() for name, value in pairs}


# -- names


def test_an_id_alone_has_the_meaning_that_it_has_in_the_sdk() -> None:
    for kind in ("resize", ""):
        assert parse_activity_id(("photo",), kind) == id_to_proto(to_activity_ref("photo", kind))
    assert parse_activity_id(("order", "run", "charge"), "x") == id_to_proto(
        ActivityRef("order", "run", "charge")
    )


def test_an_activity_of_the_sdk_is_found_by_id_and_type_and_by_all_three_names(shell: Shell) -> None:
    with SdkClient(shell.address, namespace=shell.namespace).blocking as client:
        client.schedule("resize", id="photo", input={"width": 200}, task_queue="q")
    for how in (("photo", "--type", "resize"), ("photo", "-", "resize")):
        activity = shell.json("activities", "describe", *how)
        assert json.loads(base64.b64decode(activity["input"])) == {"width": 200}


def test_the_sdk_finds_an_activity_that_the_command_scheduled(shell: Shell) -> None:
    schedule(shell, "photo", *QUEUE, "--input", "text")
    with SdkClient(shell.address, namespace=shell.namespace).blocking as client:
        assert not client.schedule("resize", id="photo", input="text", task_queue="q").created


@pytest.mark.parametrize("command", ["describe", "retry", "cancel"])
def test_an_unknown_activity_is_reported_in_one_sentence(command: str, shell: Shell) -> None:
    unknown = f"in namespace {shell.namespace} (ACTIVITY_NOT_FOUND)"
    assert shell.sentence("activities", command, "a", "b", "c") == f"There is no activity a/b/c {unknown}."
    assert (
        shell.sentence("activities", command, "a", "--type", "t") == f"There is no activity a/-/t {unknown}."
    )


@pytest.mark.parametrize("command", [("describe",), ("retry",), ("cancel",), ("cancel", "--yes")])
def test_a_missing_type_is_mentioned_in_the_error(command: tuple[str, ...], shell: Shell) -> None:
    schedule(shell, "photo", *QUEUE)
    sentence = shell.sentence("activities", *command, "photo")
    assert sentence.startswith(f"There is no activity photo/-/- in namespace {shell.namespace} (ACTIVITY_NOT")
    assert "; add --type if it was scheduled by ID" in sentence


@pytest.mark.parametrize("command", ["describe", "retry", "cancel"])
@pytest.mark.parametrize("given", [("a", "b"), ("a", "b", "c", "d")])
def test_two_or_four_names_are_rejected(command: str, given: tuple[str, ...]) -> None:
    sentence = (
        f"{len(given)} names are given; name an activity by its ID, or by WORKFLOW_ID RUN_ID ACTIVITY_ID"
    )
    assert Shell().sentence("activities", command, *given, exit_code=2) == sentence


def test_a_type_beside_all_three_names_is_rejected() -> None:
    sentence = "--type goes with an ID alone; WORKFLOW_ID RUN_ID ACTIVITY_ID need no type"
    assert Shell().sentence("activities", "describe", "a", "b", "c", "--type", "t", exit_code=2) == sentence


# -- schedule


def test_scheduling_says_whether_the_activity_is_new(shell: Shell) -> None:
    assert schedule(shell, "photo", *QUEUE) == "Activity photo/-/resize is scheduled and AVAILABLE.\n"
    again = "Activity photo/-/resize was scheduled before and is AVAILABLE; nothing was changed.\n"
    assert schedule(shell, "photo", *QUEUE) == again
    assert shell.json("activities", "schedule", "photo", *QUEUE) == {
        "created": False,
        "state": "ACTIVITY_STATE_AVAILABLE",
    }
    assert shell.json("activities", "schedule", "other", *QUEUE)["created"] is True


def test_another_activity_under_the_same_name_is_rejected(shell: Shell) -> None:
    schedule(shell, "photo", *QUEUE, "--input", "a")
    sentence = (
        "Activity photo/-/resize is known already, with another input; schedule it under another id "
        "(ACTIVITY_DIFFERS)."
    )
    assert shell.sentence("activities", "schedule", "photo", *QUEUE, "--input", "b") == sentence


def test_every_option_reaches_the_server(shell: Shell) -> None:
    schedule(
        shell, "order", "run", "charge", *QUEUE, "--input", "größe", "--delay", "59m30s", "--max-attempts", "7",
        "--max-worker-deaths", "0", "--initial-interval", "250ms", "--max-interval", "2m", "--backoff", "1.5",
    )  # fmt: skip
    activity = shell.json("activities", "describe", "order", "run", "charge")
    assert activity["id"] == {"workflow_id": "order", "run_id": "run", "activity_id": "charge"}
    assert (activity["state"], activity["activity_type"]) == ("ACTIVITY_STATE_WAITING", "resize")
    assert base64.b64decode(activity["input"]).decode() == "größe"
    assert activity["retry_policy"] == {
        "initial_interval": "0.250s",
        "backoff_coefficient": 1.5,
        "maximum_interval": "120s",
        "maximum_attempts": 7,
        "maximum_worker_deaths": 0,
    }
    assert "WAITING (due in 59m)" in shell.ok("activities", "list")


def test_omitted_options_are_left_to_the_server(shell: Shell) -> None:
    schedule(shell, "photo", *QUEUE)
    policy = described(shell, "photo")["retry_policy"]
    assert (policy["initial_interval"], policy["backoff_coefficient"]) == ("1s", 2)
    assert "maximum_worker_deaths" not in policy


def test_the_input_may_be_a_file_or_stdin(shell: Shell, tmp_path: Path) -> None:
    content = b"\x00\xff" * (INPUT_BYTES_MAX // 2)
    (tmp_path / "input").write_bytes(content)
    schedule(shell, "file", *QUEUE, "--input-file", str(tmp_path / "input"))
    assert base64.b64decode(described(shell, "file")["input"]) == content
    shell.ok("activities", "schedule", "pipe", *QUEUE, "--input-file", "-", stdin="piped")
    assert base64.b64decode(described(shell, "pipe")["input"]) == b"piped"


@pytest.mark.parametrize(
    ("options", "encoding", "value"),
    [
        ((), "binary/null", None),
        (("--input", '{"width": 200}'), "json/plain", {"width": 200}),
        (("--input", '"größe"'), "json/plain", "größe"),
        (("--input", "größe"), "text/plain", "größe"),
        (("--input", ""), "text/plain", ""),
        (("--input", "17", "--input-encoding", "text/plain"), "text/plain", "17"),
        (("--input", "17", "--input-encoding", "own/number"), "own/number", None),
    ],
)
def test_the_encoding_of_an_input_follows_from_its_content(
    shell: Shell, options: tuple[str, ...], encoding: str, value: object
) -> None:
    schedule(shell, "photo", *QUEUE, *options)
    found = described(shell, "photo")
    assert (found["input_encoding"], found.get("input_value")) == (encoding, value)
    with SdkClient(shell.address, namespace=shell.namespace).blocking as client:
        if encoding != "own/number":
            assert client.describe("photo", type="resize").input_value() == value


def test_results_are_shown_decoded(shell: Shell) -> None:
    schedule(shell, "photo", *QUEUE, "--input", "17", "--input-encoding", "own/number")
    worker = ScriptedWorker(shell)
    worker.complete(worker.take(), b'{"done": true}', "json/plain")
    assert described(shell, "photo")["result_value"] == {"done": True}
    shown = fields(shell.ok("activities", "describe", "photo", "--type", "resize"))
    assert (shown["input"], shown["result"]) == ("17 (encoding own/number)", '{"done": true}')


def test_the_rescue_of_a_temporal_attempt_links_to_its_workflow(shell: Shell) -> None:
    labels = {"temporal-ui": "https://ui.example"}
    reference = BoundActivity(
        workflow_id="order 7", run_id="r", activity_id="1@1", task_queue="temporal-rescue"
    )
    ScriptedWorker(shell, "w", bound_activities=[reference], labels=labels)
    shell.ok("workers", "expire", "w", "--reason", "gone", "--yes")
    shown = shell.ok("activities", "describe", "order 7", "r", "1@1")
    link = f"https://ui.example/namespaces/{shell.namespace}/workflows/order%207/r"
    assert shown.endswith(f"\nin Temporal:\n  {link}\n")


def test_an_input_that_is_too_long_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(bytes(INPUT_BYTES_MAX + 1))
    sentence = Shell().sentence("activities", "schedule", "a", *QUEUE, "--input-file", str(path), exit_code=2)
    assert (
        sentence
        == f"the input in {path} is longer than 262144 bytes; store the data elsewhere and pass its location"
    )


def test_only_one_input_may_be_given(tmp_path: Path) -> None:
    (tmp_path / "input").touch()
    both = ("--input", "", "--input-file", str(tmp_path / "input"))
    sentence = Shell().sentence("activities", "schedule", "a", *QUEUE, *both, exit_code=2)
    assert sentence == "the input is given by --input or by --input-file, not by both"


@pytest.mark.parametrize(
    "options",
    [
        ("--type", "t"),
        ("--task-queue", "q"),
        (*QUEUE, "--delay", "soon"),
        (*QUEUE, "--max-attempts", "-1"),
        (*QUEUE, "--max-attempts", str(2**31)),
        (*QUEUE, "--backoff", "0.5"),
        (*QUEUE, "--input-file", "/nowhere/at/all"),
    ],
)
def test_invalid_options_are_usage_errors(options: tuple[str, ...]) -> None:
    assert Shell().run("activities", "schedule", "a", *options).exit_code == 2


def test_a_rejection_by_the_server_is_reported_in_one_sentence(shell: Shell) -> None:
    intervals = ("--initial-interval", "10s", "--max-interval", "1s")
    assert shell.sentence("activities", "schedule", "a", *QUEUE, *intervals) == (
        "retry_policy.maximum_interval must not be below initial_interval (INVALID_FIELD)."
    )


def test_a_name_that_is_not_utf_8_is_reported_in_one_sentence() -> None:
    sentence = Shell().sentence("activities", "describe", "a\udcff", exit_code=2)
    assert sentence == r"'a\udcff' is not UTF-8, which names and texts must be"
    assert "is not UTF-8" in Shell().sentence("workers", "list", "--prefix", "a\udcff", exit_code=2)


# -- list and describe


def test_a_list_shows_each_activity(shell: Shell) -> None:
    schedule(shell, "photo", *QUEUE)
    ScriptedWorker(shell, "w-1").take()
    head, row = shell.ok("activities", "list").splitlines()
    assert " ".join(head.split()) == (
        "workflow run activity state type task queue attempt failures worker since last failure"
    )
    assert row.split()[:9] == ["photo", "-", "resize", "STARTED", "resize", "q", "1", "0", "w-1"]


def test_an_empty_list_is_no_error_and_valid_json(shell: Shell) -> None:
    result = shell.run("activities", "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith(f"No such activity in namespace {shell.namespace}.\n")
    assert shell.json("activities", "list") == []


def test_filters_are_combined(shell: Shell) -> None:
    for name, queue in (("a", "q"), ("b", "other"), ("c", "other")):
        schedule(shell, name, "--type", "t", "--task-queue", queue)
    schedule(shell, "d", *QUEUE, "--delay", "1h")
    ScriptedWorker(shell, "w").take()
    ScriptedWorker(shell, "v", task_queue="other").take()
    assert names(shell) == ["a", "b", "c", "d"]
    assert names(shell, "--worker", "w") == ["a"]
    assert names(shell, "--task-queue", "other") == ["b", "c"]
    assert names(shell, "--state", "started") == ["a", "b"]
    assert names(shell, "--state", "started", "--state", "waiting") == ["a", "b", "d"]
    assert names(shell, "--state", "started", "--task-queue", "other") == ["b"]
    assert names(shell, "--state", "handed-on") == []


def test_a_list_is_limited_or_paged(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("liveness.cli.client.PAGE_MAX", 2)
    for name in "abcde":
        schedule(shell, name, *QUEUE)
    assert names(shell, "--limit", "0") == list("abcde")
    cut = shell.run("activities", "list", "--limit", "3", "--json")
    assert [activity["id"]["workflow_id"] for activity in json.loads(cut.stdout)] == list("abc")
    assert cut.stderr == "These are the first 3; --limit 0 shows all.\n"


def test_a_description_shows_holder_and_retry_policy(shell: Shell) -> None:
    schedule(
        shell, "photo", *QUEUE, "--input", "in\x1b[31m", "--max-attempts", "3", "--max-worker-deaths", "1"
    )
    ScriptedWorker(shell, "w").take()
    shown = fields(shell.ok("activities", "describe", "photo", "--type", "resize"))
    assert (shown["state"], shown["worker"]) == ("STARTED", "w (epoch 1)")
    assert shown["input"] == r"in\x1b[31m"
    assert shown["retries"] == (
        "3 attempts at most; 1s before the second, then 2 times as long each, up to 1m40s; "
        "quarantined after 1 worker death"
    )


def test_a_description_shows_the_outcome(shell: Shell, tmp_path: Path) -> None:
    scripted_worker = ScriptedWorker(shell)
    (tmp_path / "binary").write_bytes(b"\xff\x00")
    schedule(shell, "photo", *QUEUE, "--input-file", str(tmp_path / "binary"), "--initial-interval", "1ms")
    scripted_worker.fail(scripted_worker.take(), "disk is full")
    scripted_worker.complete(scripted_worker.take(), b"x" * 3_000)
    shown = fields(shell.ok("activities", "describe", "photo", "--type", "resize"))
    assert (shown["state"], shown["attempt"], shown["failures"]) == ("COMPLETED", "2", "1")
    assert shown["last failure"] == "disk is full"
    assert "worker" not in shown
    assert shown["input"] == "2 bytes that are not text; --json shows them"
    assert shown["result"] == f"{'x' * 2_000}… (3000 bytes; --json shows all)"


# -- cancel


def test_cancelling_asks_first_and_notifies_the_worker(shell: Shell) -> None:
    schedule(shell, "photo", *QUEUE)
    scripted_worker = ScriptedWorker(shell)
    scripted_worker.take()
    cancel = ("activities", "cancel", "photo", "--type", "resize", "--reason", "photo was deleted")
    refused = shell.run(*cancel, stdin="n\n")
    assert refused.exit_code == 1
    question = f"Cancel activity photo/-/resize of namespace {shell.namespace} for good? It is STARTED, held by worker w."
    assert question in refused.stderr
    assert "nothing was changed" in refused.stderr
    assert described(shell, "photo")["state"] == "ACTIVITY_STATE_STARTED"
    agreed = shell.run(*cancel, stdin="y\n")
    assert agreed.exit_code == 0
    assert agreed.stderr.endswith(
        "Activity photo/-/resize is cancelled; the worker that held it is told to stop.\n"
    )
    assert scripted_worker.beat() == ["photo"]
    activity = described(shell, "photo")
    assert (activity["state"], activity["last_failure"]) == ("ACTIVITY_STATE_CANCELLED", "photo was deleted")


def test_cancelling_an_activity_without_a_holder_says_so(shell: Shell) -> None:
    for name in ("a", "b"):
        schedule(shell, name, *QUEUE)
    result = shell.run("activities", "cancel", "a", "-", "resize", "--yes")
    assert result.stderr == "Activity a/-/resize is cancelled; no worker held it.\n"
    assert shell.json("activities", "cancel", "b", "-", "resize", "--yes") == {"was_held": False}


def test_a_finished_activity_cannot_be_cancelled(shell: Shell) -> None:
    schedule(shell, "photo", *QUEUE)
    scripted_worker = ScriptedWorker(shell)
    scripted_worker.complete(scripted_worker.take(), b"")
    sentence = shell.sentence("activities", "cancel", "photo", "--type", "resize", "--yes")
    assert sentence == "Activity photo/-/resize is COMPLETED already (ACTIVITY_FINISHED)."


# -- retry


def test_a_failed_activity_starts_again(shell: Shell) -> None:
    schedule(shell, "photo", *QUEUE)
    scripted_worker = ScriptedWorker(shell)
    scripted_worker.fail(scripted_worker.take(), "no such photo", permanently=True)
    assert described(shell, "photo")["state"] == "ACTIVITY_STATE_FAILED"
    result = shell.run("activities", "retry", "photo", "--type", "resize")
    assert result.exit_code == 0
    assert result.stderr == "Activity photo/-/resize starts afresh and is AVAILABLE.\n"
    assert scripted_worker.take().failures == 0


def test_a_quarantined_activity_starts_again(shell: Shell) -> None:
    shell.ok("config", "set", "max_worker_deaths=1")
    schedule(shell, "photo", *QUEUE)
    ScriptedWorker(shell, session_id="before").take()
    ScriptedWorker(shell, session_id="restarted")
    # Each poll is a call; the test's time-out bounds the loop.
    while not names(shell, "--state", "quarantined"):
        pass
    assert "1 in a row" in shell.ok("activities", "describe", "photo", "--type", "resize")
    retried = shell.json("activities", "retry", "photo", "--type", "resize")
    assert retried == {"state": "ACTIVITY_STATE_AVAILABLE"}
    assert names(shell, "--state", "quarantined") == []


def test_an_activity_that_did_not_fail_cannot_be_retried(shell: Shell) -> None:
    schedule(shell, "photo", *QUEUE)
    assert shell.sentence("activities", "retry", "photo", "--type", "resize") == (
        "Activity photo/-/resize is AVAILABLE; only a QUARANTINED or FAILED one can be given a fresh start "
        "(ACTIVITY_NOT_RETRYABLE)."
    )


def test_an_unavailable_server_is_reported_in_one_sentence() -> None:
    assert "no liveness server answers" in Shell().sentence("activities", "list")
    assert "no liveness server answers" in Shell().sentence("activities", "cancel", "a", "--yes")


# -- limits, priorities and history


def test_limits_priority_and_start_are_scheduled_and_shown(shell: Shell) -> None:
    schedule(
        shell, "photo", *QUEUE, "--start-to-close", "10m", "--heartbeat-timeout", "30s", "--priority", "1",
        "--fairness-key", "tenant-9", "--start-at", "2099-12-24T18:00:00+01:00",
    )  # fmt: skip
    shown = fields(shell.run("activities", "describe", "photo", "--type", "resize").stdout)
    assert shown["time limits"] == "start to close 10m, heartbeat 30s"
    assert shown["priority"] == "1; fairness key tenant-9"
    activity = (
        described(shell, "photo")["activity"]
        if "activity" in described(shell, "photo")
        else described(shell, "photo")
    )
    assert activity["due_time"] == "2099-12-24T17:00:00Z"


def test_a_bad_start_is_refused_in_one_sentence(shell: Shell) -> None:
    result = shell.run("activities", "schedule", "photo", *QUEUE, "--start-at", "tomorrow")
    assert result.exit_code == 2
    assert "'tomorrow' is not a time such as 2026-12-24T18:00:00+01:00" in result.stderr
    assert names(shell) == []


def test_the_history_shows_attempts_and_who_moved_the_activity(shell: Shell) -> None:
    schedule(shell, "photo", *QUEUE)
    assert "No worker has held" in shell.run("activities", "history", "photo", "--type", "resize").stderr
    shell.run("activities", "cancel", "photo", "--type", "resize", "--reason", "photo was deleted", "--yes")
    told = shell.run("activities", "history", "photo", "--type", "resize").stdout
    assert "was scheduled as resize on task queue q" in told
    assert "was cancelled: photo was deleted" in told
    found = shell.json("activities", "history", "photo", "--type", "resize")
    assert [event["type"] for event in found["events"]] == ["ActivityScheduled", "ActivityCancelled"]
