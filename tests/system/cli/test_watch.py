"""`liveness watch` prints readable lines, resumes, and survives restarts of the server."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.system.cli.scripted_worker import ScriptedWorker
from tests.system.cli.server_processes import (
    child_process,
    environment,
    first_address,
    liveness_command,
    running_server,
)
from tests.system.cli.shell import UNUSED_ADDRESS, Shell
from tests.system.cli.watch_process import watch_process

HOSTILE = "\x1b[31m\u202e[red]\x07"
SHOWN = r"\x1b[31m\u202e[red]\x07"


def positions(records: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Return the events' positions in the log, by shard, each in the order of output."""
    by_shard = sorted(records, key=lambda record: int(record["shard_id"]))
    return [(record["shard_id"], int(record["sequence"])) for record in by_shard]


def test_watch_prints_sentences(shell: Shell) -> None:
    with watch_process(shell.address, shell.namespace, "--from-beginning") as watch:
        worker = ScriptedWorker(shell, "worker-7", build_id="b-1", host_name="db-3")
        assert watch.line().endswith(
            "Z  worker-7 registered: lease of 30 s, build b-1, host db-3, task queue q"
        )
        shell.ok("activities", "schedule", "photo-17", "--type", "resize", "--task-queue", "q")
        assert watch.line().endswith("Z  photo-17/resize was scheduled as resize on task queue q")
        worker.take()
        lines = {watch.line().split("Z  ")[1] for _ in range(2)}
        assert lines == {
            "worker-7 was handed photo-17/resize",
            "photo-17/resize started on worker-7 (attempt 1)",
        }
        shell.ok("workers", "expire", "worker-7", "--reason", "host db-3 is gone", "--yes")
        lines = {watch.line().split("Z  ")[1] for _ in range(4)}
        assert lines == {
            "worker-7 was forced out: host db-3 is gone",
            "photo-17/resize is taken from worker-7 (attempt 1)",
            "photo-17/resize is no longer held by a worker",
            "photo-17/resize waits for a worker (attempt 2)",
        }


def test_filters_limit_the_output(shell: Shell) -> None:
    with watch_process(
        shell.address, shell.namespace, "--json", "--type", "WorkerDe*", "--type", "WorkerRegistered"
    ) as watch:
        for key in ("a", "b"):
            shell.heartbeat(key)
            shell.ok("workers", "pause", key)
            shell.ok("workers", "expire", key, "--reason", "r", "--yes")
        seen = watch.records(4)
    for key in ("a", "b"):
        kinds = [record["type"] for record in seen if record["worker_instance_key"] == key]
        assert kinds == ["WorkerRegistered", "WorkerDeactivated"]


def test_one_worker_can_be_watched(shell: Shell) -> None:
    with watch_process(shell.address, shell.namespace, "--json", "--worker", "b") as watch:
        for key in ("a", "b"):
            shell.heartbeat(key)
        record = watch.record()
    assert (record["worker_instance_key"], record["text"]) == ("b", "b registered: lease of 30 s")


def test_a_watch_of_all_namespaces_names_each_namespace(shell: Shell) -> None:
    with watch_process(shell.address, "another", "--all-namespaces", "--from-beginning") as watch:
        shell.heartbeat("in-its-namespace")
        while "in-its-namespace" not in (line := watch.line()):
            pass
    assert line.split("Z  ")[1] == f"{shell.namespace}  in-its-namespace registered: lease of 30 s"


def test_a_script_resumes_after_any_line_with_a_token(shell: Shell) -> None:
    with watch_process(shell.address, shell.namespace, "--json") as watch:
        for number in range(5):
            shell.heartbeat(f"w-{number}")
        whole = watch.records(5)
    cuts = [at for at, record in enumerate(whole, 1) if record["resume_token"] and at < len(whole)]
    assert cuts
    for cut in cuts:
        token = whole[cut - 1]["resume_token"]
        with watch_process(shell.address, shell.namespace, "--json", "--resume", token) as rest:
            assert positions(rest.records(5 - cut)) == positions(whole[cut:])


def test_only_the_last_line_of_an_answer_has_a_token(shell: Shell) -> None:
    for number in range(20):
        shell.heartbeat(f"w-{number}")
    with watch_process(shell.address, shell.namespace, "--json", "--from-beginning") as watch:
        records = watch.records(20)
    shards = [record["shard_id"] for record in records]
    ends = [here != after for here, after in zip(shards, [*shards[1:], None], strict=True)]
    assert len(set(shards)) == 2, "an answer is of one shard, and there are two"
    assert [bool(record["resume_token"]) for record in records] == ends


def test_a_filtered_watch_still_reports_its_position(shell: Shell) -> None:
    shell.heartbeat("w", session_id="1")
    shell.ok("workers", "pause", "w")
    flags = ("--json", "--worker", "w", "--type", "WorkerRegistered")
    with watch_process(shell.address, shell.namespace, *flags, "--from-beginning") as watch:
        token = watch.record()["resume_token"]
    with watch_process(shell.address, shell.namespace, "--json", "--worker", "w", "--resume", token) as rest:
        shell.ok("workers", "resume", "w")
        assert rest.record()["type"] == "WorkerResumed"


def test_a_watch_continues_across_a_restart_without_gap_or_repetition(tmp_path: Path) -> None:
    with ExitStack() as first:
        address = first.enter_context(running_server(tmp_path))
        shell = Shell(address, "orders")
        with watch_process(address, "orders", "--json") as watch:
            for number in range(5):
                shell.heartbeat(f"before-{number}")
            seen = watch.records(5)
            first.close()
            assert watch.next_error_line().startswith("The stream broke: ")
            with running_server(tmp_path, "--listen", address):
                for number in range(5):
                    shell.heartbeat(f"after-{number}")
                seen += watch.records(5)
                assert watch.next_error_line() == f"Continuing where the stream broke, at {address}."
                shell.heartbeat("last")
                seen.append(watch.record())
                with watch_process(address, "orders", "--json", "--from-beginning") as anew:
                    assert positions(seen) == positions(anew.records(11))
                assert watch.end() == (130, "", "")


def test_a_watch_detects_a_hanging_server_and_waits_for_it(tmp_path: Path) -> None:
    command = liveness_command("serve", "--listen", "127.0.0.1:0", "--shards", "2")
    with child_process(command, tmp_path) as server:
        assert server.stdout is not None
        address, _ = first_address(server.stdout)
        with watch_process(address, "orders", "--json", "--timeout", "500ms") as watch:
            server.send_signal(signal.SIGSTOP)
            try:
                assert (
                    watch.next_error_line()
                    == f"The stream broke: {address} did not answer within 500ms. Trying again."
                )
            finally:
                server.send_signal(signal.SIGCONT)
            Shell(address, "orders").heartbeat("w")
            assert watch.record()["type"] == "WorkerRegistered"


def test_ctrl_c_ends_the_watch_silently(shell: Shell) -> None:
    with watch_process(shell.address, shell.namespace, "--json") as watch:
        assert watch.end() == (130, "", "")


def test_a_closed_pipe_ends_the_watch_at_once_and_silently(shell: Shell) -> None:
    with watch_process(shell.address, shell.namespace, "--json") as watch:
        assert watch.process.stdout is not None
        assert watch.process.stderr is not None
        watch.process.stdout.close()
        assert watch.process.stderr.read() == ""
        assert watch.process.wait() == 1


def test_control_characters_are_escaped(shell: Shell) -> None:
    shell.heartbeat("w")
    shell.ok("workers", "expire", "w", "--reason", HOSTILE, "--yes")
    flags = ("--from-beginning", "--type", "WorkerDeactivated")
    with watch_process(shell.address, shell.namespace, *flags) as watch:
        assert watch.line().endswith(f"Z  w was forced out: {SHOWN}")
    with watch_process(shell.address, shell.namespace, *flags, "--json") as watch:
        line = watch.line()
    assert line.isascii()
    assert line.isprintable()
    assert HOSTILE in json.loads(line)["text"]


def test_a_terminal_shows_colours_and_the_date(shell: Shell) -> None:
    shell.heartbeat("w")
    shell.ok("workers", "expire", "w", "--reason", HOSTILE, "--yes")
    master, slave = pty.openpty()
    with subprocess.Popen(
        liveness_command(
            "watch", "--address", shell.address, "--namespace", shell.namespace, "--from-beginning"
        ),
        env=environment(TERM="xterm-256color"),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    ) as process:
        os.close(slave)
        try:
            shown = ""
            while not shown.endswith("\n") or "forced" not in shown:
                shown += os.read(master, 10_000).decode()
        finally:
            process.kill()
            os.close(master)
    date, registered, forced, _ = shown.split("\r\n")
    assert re.fullmatch(r"\x1b\[1m20[0-9-]+\x1b\[0m", date)
    assert "\x1b[32m registered: lease of 30 s\x1b[0m" in registered
    assert f"\x1b[33m was forced out: {SHOWN}\x1b[0m" in forced


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--resume", "x", "--from-beginning"), "--resume and --from-beginning contradict each other; give one of them"),
        (("--worker", "w", "--all-namespaces"), "a worker belongs to one namespace: --worker cannot be combined with --all-namespaces"),
        (("--type", "WorkerDeactivate"), "there is no event WorkerDeactivate; did you mean WorkerDeactivated?"),
    ],
)  # fmt: skip
def test_contradictory_options_are_reported(flags: tuple[str, ...], sentence: str) -> None:
    assert Shell().sentence("watch", *flags, exit_code=2) == sentence


def test_a_token_of_another_watch_is_rejected(shell: Shell) -> None:
    with watch_process(shell.address, shell.namespace, "--json") as watch:
        shell.heartbeat("w")
        token = watch.record()["resume_token"]
    assert "RESUME_TOKEN_INVALID" in shell.sentence("watch", "--all-namespaces", "--resume", token)


def test_watch_does_not_start_without_a_server() -> None:
    sentence = Shell(UNUSED_ADDRESS).sentence("watch")
    assert sentence == f"no liveness server answers at {UNUSED_ADDRESS}; start one with `liveness serve`"
