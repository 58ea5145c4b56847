"""`liveness supervise` as a process of its machine: under systemd, in a terminal, as process 1, and when something is missing."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from liveness.domain.component import ComponentStatus
from liveness.v1.component_pb2 import (
    COMPONENT_ACTION_PAUSE,
    COMPONENT_ACTION_ROLLING_RESTART,
    COMPONENT_ACTION_SCALE,
)
from liveness.v1.service_pb2 import DescribeWorkerRequest
from liveness.v1.worker_pb2 import WORKER_STATE_CLEANED_UP
from tests.free_ports import free_port
from tests.system.cli.server_processes import environment, liveness_command
from tests.system.supervisor.configuration import group
from tests.system.supervisor.supervised import LIMIT_S, Supervised, eventually, is_running, kill, program

HEALTHY, CRASHED, FAILED = ComponentStatus.HEALTHY, ComponentStatus.CRASHED, ComponentStatus.FAILED
STOPPED, PAUSED = ComponentStatus.STOPPED, ComponentStatus.PAUSED


def test_systemd_is_told_of_each_phase(supervised: Supervised) -> None:
    path = str(supervised.folder / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(path)
        systemd.settimeout(LIMIT_S)
        told: list[str] = []

        def hear(*fields: str) -> None:
            while not set(fields) <= {field for message in told for field in message.splitlines()}:
                told.append(systemd.recv(4_096).decode())
            told.clear()

        config = group(program("silent"))
        process = supervised.start_config(config, NOTIFY_SOCKET=path, WATCHDOG_USEC="200000")
        hear("READY=1", "STATUS=supervising 1 processes")
        hear("WATCHDOG=1")
        supervised.configure(config.replace("]", "]\nprocesses = 2", 1))
        process.send_signal(signal.SIGHUP)
        hear("RELOADING=1")
        hear("READY=1", "STATUS=supervising 2 processes")
        process.send_signal(signal.SIGTERM)
        hear("STOPPING=1")
        assert process.wait(LIMIT_S) == 0


@pytest.mark.parametrize("way", ["ctrl-c", "closed"])
def test_in_a_terminal_there_is_a_table_until_the_user_leaves(supervised: Supervised, way: str) -> None:
    controller, terminal = pty.openpty()
    command = liveness_command(
        "supervise", "--address", supervised.address, "--namespace", supervised.namespace,
        "--state-dir", str(supervised.folder / "state"), "--name", "g", "--", *program("silent"),
    )  # fmt: skip
    variables = {**environment(), "TERM": "xterm", "COLUMNS": "140", "LINES": "40"}
    process = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env=variables, cwd=supervised.folder,
        preexec_fn=lead_terminal,
    )  # fmt: skip
    os.close(terminal)
    seen = b""

    def read_until(text: str) -> None:
        nonlocal seen
        deadline = time.monotonic() + LIMIT_S
        while not re.search(text.encode(), seen):
            assert time.monotonic() < deadline, seen
            if select.select([controller], [], [], 0.1)[0]:
                seen += os.read(controller, 65_536)

    try:
        read_until(r"worker:g:0 .*healthy")
        read_until(r"Ctrl-C stops all")
        component = supervised.when(HEALTHY)
        if way == "ctrl-c":
            os.write(controller, b"\x03")
            read_until(r"stopped")
        else:
            os.close(controller)
        assert process.wait(LIMIT_S) == 0
        assert not is_running(component.process_id)
        assert int(supervised.components()[0].status) == STOPPED
    finally:
        process.kill()
        process.wait()
        if way == "ctrl-c":
            os.close(controller)


def lead_terminal() -> None:
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


UNSHARE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]


def may_unshare() -> bool:
    return shutil.which("unshare") is not None and subprocess.run([*UNSHARE, "true"]).returncode == 0


def test_as_process_1_it_reaps_orphans_and_passes_signals_on(supervised: Supervised) -> None:
    if not may_unshare():
        pytest.skip("this machine allows no process namespaces")
    # An orphan that no launcher adopts: its parent is a process that entered the container from outside.
    orphan = "import os, sys; os.fork() and os._exit(0)"
    process = supervised.start(
        "--name", "g", "--", "sh", "-c", "echo parent $(cut -d' ' -f4 /proc/self/stat); exec sleep 1000",
        before=UNSHARE,
    )  # fmt: skip
    supervised.when(HEALTHY)
    (init,) = children_of(process.pid)
    enter = ["nsenter", "--target", str(init), "--user", "--pid", "--preserve-credentials", sys.executable]
    subprocess.run([*enter, "-S", "-c", orphan], check=True)
    (supervisor,) = eventually(lambda: only_one(children_of(init)), lambda: str(children_of(init)))
    assert supervisor != init
    os.kill(init, signal.SIGTERM)
    assert process.wait(LIMIT_S) == 0
    assert int(supervised.components()[0].status) == STOPPED


def only_one(pids: list[int]) -> list[int] | None:
    return pids if len(pids) == 1 else None


def children_of(pid: int) -> list[int]:
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


def test_it_can_be_stopped_while_it_waits(supervised: Supervised) -> None:
    address, supervised.address = supervised.address, "127.0.0.1:1"
    process = supervised.start("--name", "g", "--wait", "600", "--", *program("silent"))
    lock = supervised.folder / "state" / supervised.namespace / "g.lock"
    eventually(lock.exists, "it did not begin")
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 0
    supervised.address = address


def test_another_state_directory_does_not_take_a_living_group(supervised: Supervised) -> None:
    config = group(program("silent"), lease="10m")
    first = supervised.start_config(config)
    component = supervised.when(HEALTHY)
    other = supervised.start("--name", "g", "--wait", "0", "--", *program("silent"), state="other")
    assert other.wait(LIMIT_S) == 1
    assert "A supervisor on" in supervised.log
    assert is_running(component.process_id)
    assert first.poll() is None
    supervised.process = first


def test_what_cannot_be_written_is_said_in_one_sentence(supervised: Supervised) -> None:
    (supervised.folder / "state").touch()
    process = supervised.start("--name", "g", "--", *program("silent"))
    assert process.wait(LIMIT_S) == 1
    assert "The supervisor cannot write to its state directory" in supervised.log
    output = supervised.folder / "full" / "output" / "g"
    output.mkdir(parents=True)
    (output / "0.log").symlink_to("/dev/full")
    process = supervised.start("--name", "g", "--", *program("silent"), state="full")
    supervised.when(HEALTHY)
    eventually(lambda: "is not kept: [Errno 28] No space left on device" in supervised.log, "nothing said")
    kill(supervised.when(HEALTHY))
    assert supervised.when(CRASHED).last_exit.last_lines == ["started"]
    supervised.end()
    assert "Traceback" not in supervised.log


def test_a_rolling_restart_ends_with_the_first_that_fails(supervised: Supervised) -> None:
    supervised.start_config(
        group(["sh", "-c", "test -e broken && exit 3; exec sleep 1000"], processes=3, ready_after="300ms",
              exit_codes__3="failed", directory=str(supervised.folder))
    )  # fmt: skip
    before = [each.process_id for each in supervised.all_have(HEALTHY, 3)]
    (supervised.folder / "broken").touch()
    supervised.order(COMPONENT_ACTION_ROLLING_RESTART)
    supervised.when(FAILED)
    assert [each.process_id for each in supervised.components()[1:]] == before[1:]
    assert "worker:g:0 failed, so 2 processes were not restarted" in supervised.log


def test_scaling_down_and_up_at_once_starts_nothing_twice(supervised: Supervised) -> None:
    supervised.start_config(
        group(program("stubborn"), processes=2, stop_timeout="500ms", ready_after="50ms", lease="5s")
    )
    first = supervised.all_have(HEALTHY, 2)[1]
    supervised.send_order(COMPONENT_ACTION_SCALE, count=1)
    supervised.order(COMPONENT_ACTION_SCALE, count=2)
    second = supervised.when(HEALTHY, 1)
    assert second.process_id != first.process_id
    assert re.search("refuse|taken over|is crashed", supervised.log) is None
    # What a killed supervisor had beyond the configuration is told to be gone.
    supervised.end(signal.SIGKILL)
    supervised.start_config(group(program("stubborn"), stop_timeout="500ms", ready_after="50ms"))
    assert "fewer processes" in supervised.when(STOPPED, 1).reason
    supervised.when(HEALTHY)


@pytest.mark.parametrize("way", ["threads", "asyncio"])
def test_a_program_with_the_sdk_finishes_its_job_when_its_supervisor_dies(
    supervised: Supervised, way: str
) -> None:
    gate = supervised.folder / "gate"
    supervised.start_config(group([*program("works"), way, str(gate)], stop_timeout="30s"))
    component = supervised.when(HEALTHY, wanted=lambda each: each.current_job == f"{way}_job")
    supervised.end(signal.SIGKILL)
    gate.touch()
    eventually((supervised.folder / f"{way}-finished").exists, "the job was not finished")
    eventually((supervised.folder / f"{way}-left").exists, "it did not leave its loop")
    eventually(lambda: not is_running(component.process_id), "it did not end")


def test_a_supervisor_that_was_asleep_for_long_goes_on(supervised: Supervised) -> None:
    """As on a laptop: its leases and those of its processes have ended meanwhile, or were even cleaned up."""
    process = supervised.start_config(group(program("framed"), lease="1s"))
    first = supervised.when(HEALTHY)
    process.send_signal(signal.SIGSTOP)
    supervised.when(CRASHED)
    assert is_running(first.process_id)
    process.send_signal(signal.SIGCONT)
    again = supervised.when(HEALTHY)
    assert (again.process_id, again.restart_count) == (first.process_id, 0)
    assert again.lease_epoch > first.lease_epoch
    connection = ("--address", supervised.address, "--namespace", supervised.namespace)
    subprocess.run(
        liveness_command("config", "set", *connection, "cleanup_delay=0"), check=True, env=environment()
    )
    process.send_signal(signal.SIGSTOP)
    for key in ("worker:g:0", "supervisor:g"):
        eventually(partial(is_cleaned_up, supervised, key), f"{key} was not cleaned up")
    process.send_signal(signal.SIGCONT)
    anew = supervised.when(HEALTHY)
    assert (anew.process_id, anew.restart_count) == (first.process_id, 0)
    supervised.order(COMPONENT_ACTION_PAUSE)
    supervised.when(PAUSED)
    assert supervised.end() == 0


def is_cleaned_up(supervised: Supervised, key: str) -> bool:
    request = DescribeWorkerRequest(namespace=supervised.namespace, worker_instance_key=key)
    worker = supervised.liveness.DescribeWorker(request, timeout=LIMIT_S).worker
    return worker.state == WORKER_STATE_CLEANED_UP


def test_an_embedded_server_is_replaced_when_it_dies_and_dies_with_its_supervisor(
    supervised: Supervised,
) -> None:
    address = f"127.0.0.1:{free_port()}"
    embedding = Supervised(supervised.folder, address, "default")
    try:
        process = embedding.start("--embedded", "--name", "g", "--", *program("silent"))
        first = embedding.when(HEALTHY)
        (server,) = servers(process.pid, address)
        os.kill(server, signal.SIGKILL)
        (another,) = eventually(lambda: servers(process.pid, address, but=server), "it was not replaced")
        kept = embedding.when(HEALTHY)
        assert kept.process_id == first.process_id
        embedding.end(signal.SIGKILL)
        eventually(lambda: not is_running(another), "the server outlived its supervisor")
    finally:
        embedding.close()


def servers(pid: int, address: str, but: int = 0) -> list[int]:
    return [
        child
        for child in children_of(pid)
        if child != but and address.encode() in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def test_a_supervisor_that_lost_its_group_ends(supervised: Supervised) -> None:
    """It slept for so long that another one, which does not share its lock, has taken over."""
    config = group(program("silent"), lease="1s", stop_timeout="100ms")
    sleeper = supervised.start_config(config)
    first = supervised.when(HEALTHY)
    sleeper.send_signal(signal.SIGSTOP)
    supervised.start("--config", str(supervised.folder / "workers.toml"), state="other")
    second = supervised.when(HEALTHY, wanted=lambda each: each.process_id != first.process_id)
    assert not is_running(first.process_id)
    sleeper.send_signal(signal.SIGCONT)
    assert sleeper.wait(LIMIT_S) == 1
    assert "Another supervisor has taken the group g" in supervised.log
    kept = supervised.when(HEALTHY)
    assert (kept.process_id, kept.restart_count) == (second.process_id, 0)
    assert supervised.end() == 0


def test_two_hundred_processes_start_and_stop_together(supervised: Supervised) -> None:
    supervised.start_config(group(["sleep", "1000"], processes=200, ready_after="100ms"))
    supervised.all_have(HEALTHY, 200)
    assert supervised.end() == 0
    assert all(int(each.status) == STOPPED for each in supervised.components())
