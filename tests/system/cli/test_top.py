"""`liveness top` on a real terminal, and without one."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from liveness.cli.client import connect
from liveness.cli.fleet.reader import CALLS_MAX, WORKERS_MAX, FleetQuery, read
from liveness.cli.fleet.view_state import parse_filter
from liveness.clock import SystemClock
from liveness.v1.service_pb2 import RecordWorkerHeartbeatsRequest
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from liveness.v1.worker_pb2 import WorkerHeartbeat
from tests.system.cli.server_processes import child_process, first_address, liveness_command, running_server
from tests.system.cli.shell import UNUSED_ADDRESS, Shell
from tests.system.cli.terminal import ALTERNATE_SCREEN, Terminal, terminal

MANY = 10_000
BATCH = 1_000


def command(shell: Shell, *flags: str) -> list[str]:
    options = ("--address", shell.address, "--namespace", shell.namespace)
    return liveness_command("top", *options, "--interval", "200ms", *flags)


def register(shell: Shell, how_many: int) -> None:
    with grpc.insecure_channel(shell.address) as channel:
        for first in range(0, how_many, BATCH):
            beats = [
                WorkerHeartbeat(worker_instance_key=f"worker-{number:05}", host_name=f"host-{number % 50}")
                for number in range(first, min(first + BATCH, how_many))
            ]
            request = RecordWorkerHeartbeatsRequest(namespace=shell.namespace, heartbeats=beats)
            LivenessServiceStub(channel).RecordWorkerHeartbeats(request, timeout=60)


def quits(top: Terminal) -> None:
    top.press("q")
    assert top.ended() == 0
    assert top.is_as_before()


# -- on a terminal


def test_a_user_can_browse_the_fleet_and_gets_the_terminal_back(shell: Shell) -> None:
    for key in ("alpha", "beta", "gamma"):
        shell.heartbeat(key, host_name=f"host-of-{key}")
    shell.ok("workers", "pause", "gamma")
    with terminal(command(shell)) as top:
        frame = top.see("gamma")
        assert f"namespace {shell.namespace}" in frame
        assert "3 active" in frame
        assert frame.index("alpha") < frame.index("beta") < frame.index("gamma")
        assert top.modes() != top.before
        top.press("s")
        frame = top.see("state▼")
        assert frame.index("gamma") < frame.index("alpha"), "paused ones need a look"
        top.press("\x1b[C")
        top.see("lease▼")
        top.press("/host=host-of-beta")
        frame = top.see(lambda frame: "beta" in frame and "alpha" not in frame)
        assert "/host=host-of-beta" in frame
        top.press("\r")
        top.see("filter host=host-of-beta")
        top.press("\x1b")
        top.see("alpha")
        top.press("?")
        top.see("Press any key to go back.")
        top.press("x")
        top.see("alpha")
        quits(top)


def test_the_view_follows_the_fleet_unless_it_is_paused(shell: Shell) -> None:
    shell.heartbeat("first")
    with terminal(command(shell)) as top:
        top.see("first")
        shell.heartbeat("second")
        top.see("second")
        top.press("p")
        top.see("PAUSED")
        shell.heartbeat("third")
        top.press("s")
        assert "third" not in top.see("state▼")
        top.press("p")
        top.see("third")
        quits(top)


def test_the_view_follows_the_size_of_the_terminal(shell: Shell) -> None:
    shell.heartbeat("w", host_name="h")
    with terminal(command(shell), columns=160, rows=50) as top:
        assert top.see("w ").count("\n") == 49
        top.resize(60, 12)
        frame = top.see(lambda frame: "task queue" not in frame)
        lines = frame.splitlines()
        assert len(lines) == 12
        assert max(map(len, lines)) <= 60
        quits(top)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_quitting_restores_the_terminal(shell: Shell, how: signal.Signals) -> None:
    with terminal(command(shell)) as top:
        top.see("q quit")
        top.process.send_signal(how)
        assert top.ended() == 128 + how
        assert top.is_as_before()


def test_ctrl_c_ends_top(shell: Shell) -> None:
    with terminal(command(shell)) as top:
        top.see("q quit")
        top.press("\x03")
        assert top.ended() == 128 + signal.SIGINT
        assert top.is_as_before()


def test_a_closed_terminal_ends_top(shell: Shell) -> None:
    with terminal(command(shell)) as top:
        top.see("q quit")
        top.close_connection()
        assert top.process.wait() == 128 + signal.SIGHUP


def test_an_error_restores_the_terminal() -> None:
    program = (
        "from rich.console import Console\n"
        "from liveness.cli.fleet.screen import _window\n"
        "with _window(Console()) as live:\n"
        "    live.update('a picture', refresh=True)\n"
        "    raise RuntimeError('it went wrong')\n"
    )
    with terminal([sys.executable, "-c", program]) as top:
        assert top.ended() == 1
        assert "it went wrong" in top.said
        assert top.is_as_before()


def test_a_suspended_top_restores_the_terminal_meanwhile(shell: Shell) -> None:
    with terminal(command(shell)) as top:
        top.see("q quit")
        top.press("\x1a")
        top.stopped()
        assert top.is_as_before()
        top.process.send_signal(signal.SIGCONT)
        top.see("q quit")
        quits(top)


def test_top_reports_an_unavailable_server_and_waits_for_it(tmp_path: Path) -> None:
    with ExitStack() as first:
        address = first.enter_context(running_server(tmp_path))
        shell = Shell(address, "orders")
        shell.heartbeat("before")
        with terminal(command(shell, "--timeout", "2s")) as top:
            top.see("before")
            first.close()
            frame = top.see("STALE for")
            assert "before" in frame
            with running_server(tmp_path, "--listen", address):
                shell.heartbeat("after")
                assert "STALE" not in top.see("after")
                quits(top)


def test_a_user_can_quit_while_the_server_does_not_answer(tmp_path: Path) -> None:
    serve = liveness_command("serve", "--listen", "127.0.0.1:0", "--shards", "2")
    with child_process(serve, tmp_path) as server:
        assert server.stdout is not None
        address, _ = first_address(server.stdout)
        with terminal(command(Shell(address), "--timeout", "1h")) as top:
            top.see("q quit")
            server.send_signal(signal.SIGSTOP)
            try:
                assert f"{address} has not answered" in top.see("STALE for")
                quits(top)
            finally:
                server.send_signal(signal.SIGCONT)


# -- without a terminal


def test_without_a_terminal_top_prints_one_uncut_view(shell: Shell) -> None:
    long = "k" * 200
    shell.heartbeat(long, host_name="h[red]\u202e")
    shell.heartbeat("w")
    for flags in ((), ("--once",)):
        out = shell.ok("top", *flags)
        assert out.startswith(f"liveness top  namespace {shell.namespace}  {shell.address}")
        assert "2 active  0 suspect  0 inactive  0 cleaned up" in out
        assert "heartbeats" in out
        assert "h[red]\\u202e" in out
        assert f"\n{long}  active " in out
        assert out.replace("\n", "").isprintable()


def test_once_on_a_terminal_prints_one_view_and_ends(shell: Shell) -> None:
    shell.heartbeat("w")
    with terminal(command(shell, "--once")) as top:
        assert top.ended() == 0
        assert "1 active" in top.text
        assert ALTERNATE_SCREEN[0] not in top.said
        assert top.text.count("\n") <= 24


def test_json_prints_the_fleet_as_the_server_reports_it(shell: Shell) -> None:
    shell.heartbeat("w")
    fleet = shell.json("top")
    assert [(one["namespace"], one["active"]) for one in fleet["namespaces"]] == [(shell.namespace, "1")]
    assert {"samples", "queues", "alerts", "serving_shards"} <= set(fleet)
    everybody = json.loads(shell.ok("top", "--all-namespaces", "--json"))
    assert shell.namespace in [one["namespace"] for one in everybody["namespaces"]]


def test_one_table_shows_all_namespaces(tmp_path: Path) -> None:
    with running_server(tmp_path) as address:
        for number in range(CALLS_MAX + 1):
            Shell(address, f"namespace-{number:02}").heartbeat(f"worker-{number:02}")
        result = Shell(address).run("top", "--all-namespaces")
    for number in range(CALLS_MAX):
        assert f"\nnamespace-{number:02}  worker-{number:02}  active " in result.stdout
    assert f"worker-{CALLS_MAX}" not in result.stdout
    assert result.stderr == f"These are the first {CALLS_MAX} of {CALLS_MAX + 1} workers.\n"


def test_top_does_not_start_without_a_server() -> None:
    sentence = Shell(UNUSED_ADDRESS).sentence("top")
    assert sentence == f"no liveness server answers at {UNUSED_ADDRESS}; start one with `liveness serve`"


# -- ten thousand workers


@pytest.fixture(scope="module")
def many_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with running_server(tmp_path_factory.mktemp("crowd")) as address:
        shell = Shell(address, "crowd")
        register(shell, MANY)
        yield shell


def test_top_reads_only_the_workers_that_it_shows(many_workers: Shell) -> None:
    with connect((many_workers.address,), many_workers.namespace, 30) as client:
        seen = read(client, FleetQuery(namespace="crowd", where=parse_filter(""), workers=70), SystemClock())
        assert (len(seen.workers), seen.total) == (70, MANY)
        seen = read(
            client, FleetQuery(namespace="crowd", where=parse_filter(""), workers=10**9), SystemClock()
        )
        assert (len(seen.workers), seen.total) == (WORKERS_MAX, MANY)


def test_a_filter_finds_workers_beyond_the_first_page(many_workers: Shell) -> None:
    where = parse_filter("worker-09 host=host-7")
    with connect((many_workers.address,), many_workers.namespace, 30) as client:
        seen = read(client, FleetQuery(namespace="crowd", where=where, workers=5), SystemClock())
        assert [worker.worker_instance_key for worker in seen.workers][:2] == ["worker-09007", "worker-09057"]
        assert (len(seen.workers), seen.total) == (5, 20)
        everywhere = read(client, FleetQuery(namespace="", where=where, workers=5), SystemClock())
        assert (len(everywhere.workers), everywhere.total) == (5, None)
        seen = read(client, FleetQuery(namespace="", where=where, workers=100), SystemClock())
        assert (len(seen.workers), seen.total) == (20, 20)


def test_a_user_can_scroll_sort_and_filter_many_workers(many_workers: Shell) -> None:
    with terminal(command(many_workers)) as top:
        frame = top.see("worker-00000")
        assert f"of the first 5,000 of {MANY:,}" in frame
        top.press("\x1b[F")
        top.see("worker-04999")
        top.press("r")
        frame = top.see("worker▲")
        assert f"sorted, of {MANY:,}" in top.see("5,000 sorted")
        top.press("/worker-0999\r")
        top.see(lambda frame: "1–10 of 10" in frame and "worker-09999" in frame)
        quits(top)


def test_a_pipe_gets_the_first_of_many_workers_and_a_notice(many_workers: Shell) -> None:
    result = many_workers.run("top")
    assert result.exit_code == 0
    assert result.stderr == "These are the first 1,000 of 10,000 workers.\n"
