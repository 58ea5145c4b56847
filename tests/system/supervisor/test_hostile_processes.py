"""Processes that do what they must not: nothing of it may reach the supervisor, its other processes or the machine."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from liveness.domain.component import ComponentStatus
from liveness.v1.component_pb2 import (
    COMPONENT_ACTION_PAUSE,
    COMPONENT_ACTION_RESTART,
    COMPONENT_ACTION_RESUME,
    COMPONENT_ACTION_STOP,
)
from tests.system.supervisor.configuration import group
from tests.system.supervisor.supervised import Supervised, eventually, is_running, kill, program

HEALTHY, CRASHED, FAILED = ComponentStatus.HEALTHY, ComponentStatus.CRASHED, ComponentStatus.FAILED
STOPPED, PAUSED = ComponentStatus.STOPPED, ComponentStatus.PAUSED
NEVER = "10m"


def descendants(supervised: Supervised, count: int, index: int = 0) -> dict[str, int]:
    """What a fork bomb says it has left, by kind."""

    def ask() -> dict[str, int] | None:
        found = re.findall(r" ([a-z]+) ([0-9]+)$", supervised.output(index), re.MULTILINE)
        return {kind: int(pid) for kind, pid in found} if len(found) == count else None

    return eventually(ask, lambda: f"not {count} descendants: {supervised.output(index)}")


def running_with(text: bytes) -> list[int]:
    """Processes that have this in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and text in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            pass
    return [pid for pid in found if is_running(pid)]


def test_nothing_that_a_process_left_survives_it(supervised: Supervised) -> None:
    """Not a daemon that forked twice, not a chain of sessions that runs away, and not one that hid its origin."""
    supervised.start_config(
        group([*program("fork_bomb"), "hidden", "runs-away"], ready_after="50ms", restart__min_delay=NEVER,
              restart__max_delay=NEVER)
    )  # fmt: skip
    component = supervised.when(HEALTHY)
    assert supervised.process is not None
    left = descendants(supervised, 6)
    assert set(left) == {"child", "sibling", "session", "daemon", "hidden", "leader"}
    assert all(map(is_running, left.values()))
    mark = f"LIVENESS_ADDRESS={supervised.address}\0LIVENESS_NAMESPACE={supervised.namespace}\0".encode()
    assert running_with(mark)
    kill(component)
    assert supervised.when(CRASHED).last_exit.signal == "SIGKILL"
    eventually(lambda: not any(map(is_running, left.values())), lambda: f"some still run: {left}")
    launcher = children_of(supervised.process.pid)[0]
    eventually(lambda: running_with(mark) == [], "the chain still runs")
    eventually(lambda: not children_of(launcher), "the launcher still has children")


def test_a_stop_ends_the_whole_group_although_it_ignores_sigterm(supervised: Supervised) -> None:
    supervised.start_config(group(program("fork_bomb"), ready_after="50ms", stop_timeout="200ms"))
    supervised.when(HEALTHY)
    left = descendants(supervised, 5)
    supervised.order(COMPONENT_ACTION_STOP)
    supervised.when(STOPPED)
    eventually(lambda: not any(map(is_running, left.values())), lambda: f"some still run: {left}")
    assert supervised.end() == 1


def test_a_killed_supervisor_and_launcher_leave_nothing_for_long(supervised: Supervised) -> None:
    """The processes ignore the signal of the kernel, so the next supervisor ends them before it starts others."""
    config = group(program("fork_bomb"), ready_after="50ms", stop_timeout="200ms", lease=NEVER)
    process = supervised.start_config(config)
    supervised.when(HEALTHY)
    left = descendants(supervised, 5)
    (launcher,) = children_of(process.pid)
    process.send_signal(signal.SIGSTOP)
    os.kill(launcher, signal.SIGKILL)
    process.kill()
    process.wait()
    assert is_running(left["leader"])
    supervised.start_config(config)
    # The lease of the killed one lasts for ten minutes more, but it surely is gone: its lock is free.
    supervised.when(HEALTHY, wanted=lambda each: each.process_id != left["leader"])
    assert not any(map(is_running, left.values()))


def test_what_a_process_does_to_its_pipes_hurts_nobody_else(supervised: Supervised) -> None:
    quick = {"restart__min_delay": NEVER, "restart__max_delay": NEVER, "stop_timeout": "300ms"}
    supervised.start_config(
        group(program("framed"), "good", health_timeout="3s", **quick)
        + group([*program("floods"), "output"], "floods", output__max_bytes=1_000_000, output__files=2,
                snapshot_interval="1s", **quick)
        + group(program("breaks_pipe"), "breaks", **quick)
        + group(program("silent"), "late", health="pipe", start_timeout="300ms", ready_after=0, **quick)
        + group([*program("framed"), "a\nb" + "c" * 300], "names", lease="1s", **quick)
    )  # fmt: skip
    assert "closed its health pipe" in supervised.when(CRASHED, group="breaks").reason
    assert "was not ready within 0.3 s" in supervised.when(CRASHED, group="late").reason
    flooding = supervised.when(
        HEALTHY, group="floods", wanted=lambda each: "malformed_lines" in each.details_json
    )
    named = supervised.when(HEALTHY, group="names", wanted=lambda each: each.current_job)
    assert named.current_job.startswith("a?bccc")
    good = supervised.when(HEALTHY, group="good")
    beat = good.last_seen_time
    for name in ("good", "names"):
        seen = supervised.when(
            HEALTHY, group=name, wanted=lambda each: each.last_seen_time.ToMilliseconds() > beat.ToMilliseconds() + 1_000
        )  # fmt: skip
        assert (seen.restart_count, seen.lease_epoch) == (0, 1)
    assert flooding.restart_count == 0
    assert supervised.log.count("worker:floods:0 wrote a line that is no health frame") == 1
    kept = sum(path.stat().st_size for path in (supervised.folder / "state/output/floods").iterdir())
    assert kept < 2 * 1_000_000 + 1_000_000
    supervised.end()


@pytest.mark.parametrize("way", ["SIGSTOP", "SIGTERM"])
def test_signals_from_strangers(supervised: Supervised, way: str) -> None:
    """A process that somebody stops hangs; one that somebody ends has crashed."""
    supervised.start_config(
        group(program("framed"), health_timeout="500ms", stop_timeout="100ms", restart__min_delay="50ms")
    )
    first = supervised.when(HEALTHY)
    kill(first, signal.Signals[way])
    again = supervised.when(HEALTHY, wanted=lambda each: each.process_id != first.process_id)
    assert again.restart_count == 1
    assert again.last_exit.signal == {"SIGSTOP": "SIGKILL", "SIGTERM": "SIGTERM"}[way]


def test_exits_are_told_as_they_were(supervised: Supervised) -> None:
    once = {"restart__window_limit": 0}
    ends = {"minus2": "-2", "minus3": "-3", "seven": "7"}
    supervised.start_config(
        "".join(group([*program("ends"), code], name, **once) for name, code in ends.items())
        + group(["sh", "-c", "kill -SEGV $$"], "segv", **once)
        + group(["sh", "-c", "kill -ABRT $$"], "abrt", exit_codes__SIGABRT="failed")
        + group([*program("ends"), "4"], "now", exit_codes__4="restart-now", restart__min_delay=NEVER,
                restart__max_delay=NEVER)
        + group(["./not-a-program"], "missing", **once)
        + group(["/etc/passwd"], "forbidden", **once)
        + group(["true"], "nowhere", directory="/no/such/folder", **once)
    )  # fmt: skip
    found = {
        name: supervised.when(FAILED, group=name)
        for name in (*ends, "segv", "abrt", "now", "missing", "forbidden", "nowhere")
    }
    assert [found[name].last_exit.code for name in ends] == [254, 253, 7]
    assert (found["segv"].last_exit.signal, found["abrt"].last_exit.signal) == ("SIGSEGV", "SIGABRT")
    assert (found["now"].restart_count, found["abrt"].restart_count) == (5, 0)
    for name, cause in {
        "missing": "cannot run ./not-a-program: No such file or directory",
        "forbidden": "cannot run /etc/passwd: Permission denied",
        "nowhere": "cannot change to the folder /no/such/folder: No such file or directory",
    }.items():
        assert f"worker:{name}:0 is crashed: could not be started: {cause}" in supervised.log


def test_signals_that_pause_come_once_and_never_before_the_process_is_ready(supervised: Supervised) -> None:
    supervised.start_config(
        group([*program("counts_signals"), "0.3"], pause_signal="SIGUSR1", resume_signal="SIGUSR2",
              restart__window_limit=0)
    )  # fmt: skip
    first = supervised.when(HEALTHY)
    supervised.order(COMPONENT_ACTION_PAUSE)
    supervised.when(PAUSED)
    supervised.order(COMPONENT_ACTION_RESTART)
    supervised.when(PAUSED, wanted=lambda each: each.process_id != first.process_id)
    supervised.order(COMPONENT_ACTION_RESUME)
    supervised.when(HEALTHY)
    wanted = ["SIGUSR1", "SIGUSR1", "SIGUSR2"]
    eventually(lambda: re.findall(r"got (\w+)", supervised.output()) == wanted, supervised.output)


def test_checks_judge_and_leave_nothing(supervised: Supervised) -> None:
    """One sees the environment of its group, one ends in time and leaves a daemon, one never ends."""
    leaves = ["sh", "-c", "setsid sleep 1001 & test -e broken && sleep 1002; true"]
    supervised.start_config(
        group(["sleep", "1000"], directory=str(supervised.folder), environment__READY="yes",
              readiness__command=["sh", "-c", 'test "$READY" = yes'], readiness__interval="50ms",
              liveness__command=leaves, liveness__interval="50ms", liveness__timeout="200ms",
              liveness__failures=1, restart__window_limit=0)
        + group(["sleep", "1000"], "never", readiness__command=["false"], start_timeout="300ms", ready_after=0,
                readiness__interval="50ms", restart__window_limit=0)
    )  # fmt: skip
    supervised.when(HEALTHY)
    assert "was not ready within 0.3 s" in supervised.when(FAILED, group="never").reason + supervised.log
    (supervised.folder / "broken").touch()
    supervised.when(FAILED)
    assert "its check failed: no answer within 0.2 s" in supervised.log
    mark = f"LIVENESS_ADDRESS={supervised.address}\0LIVENESS_NAMESPACE={supervised.namespace}\0".encode()
    eventually(lambda: running_with(mark) == [], "a check has left a process")


def children_of(pid: int) -> list[int]:
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
