"""What a supervisor does about real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess

import pytest

from liveness.domain.component import ComponentStatus
from liveness.v1.activity_pb2 import ACTIVITY_STATE_AVAILABLE, ACTIVITY_STATE_STARTED
from liveness.v1.component_pb2 import (
    COMPONENT_ACTION_PAUSE,
    COMPONENT_ACTION_RESET,
    COMPONENT_ACTION_RESTART,
    COMPONENT_ACTION_RESUME,
    COMPONENT_ACTION_ROLLING_RESTART,
    COMPONENT_ACTION_SCALE,
    COMPONENT_ACTION_START,
    COMPONENT_ACTION_STOP,
)
from liveness.v1.service_pb2 import GetDeathCertificateRequest
from liveness.v1.worker_pb2 import INACTIVE_REASON_PROCESS_EXITED
from tests.system.supervisor.configuration import group
from tests.system.supervisor.supervised import LIMIT_S, Supervised, eventually, is_running, kill, program

HEALTHY, CRASHED, FAILED = ComponentStatus.HEALTHY, ComponentStatus.CRASHED, ComponentStatus.FAILED
STOPPED, PAUSED = ComponentStatus.STOPPED, ComponentStatus.PAUSED


def test_the_job_of_a_killed_process_is_offered_at_once_and_the_process_replaced(
    supervised: Supervised,
) -> None:
    supervised.start_config(
        group([*program("framed"), "file_1"], lease="10m", restart__min_delay="5s", restart__jitter=0)
    )
    first = supervised.when(HEALTHY, wanted=lambda component: component.current_job == "file_1")
    kill(first)
    crashed = supervised.when(CRASHED)
    assert crashed.last_exit.signal == "SIGKILL"
    offered = eventually(lambda: supervised.activities().get("file_1"), "the job was not offered")
    assert (offered.state, offered.attempt, offered.task_queue) == (ACTIVITY_STATE_AVAILABLE, 2, "g")
    death = supervised.liveness.GetDeathCertificate(
        GetDeathCertificateRequest(namespace=supervised.namespace, worker_instance_key="worker:g:0"),
        timeout=LIMIT_S,
    )
    assert death.cause == INACTIVE_REASON_PROCESS_EXITED
    assert death.exit.signal == "SIGKILL"
    assert list(death.exit.last_lines) == ["started"]
    second = supervised.when(HEALTHY, wanted=lambda component: component.restart_count == 1)
    assert second.process_id != first.process_id
    assert second.lease_epoch > first.lease_epoch
    assert second.create_time == first.create_time
    # The new process works on the same job: it claims what was offered, so that nobody else gets it.
    eventually(
        lambda: supervised.activities()["file_1"].state == ACTIVITY_STATE_STARTED, "the job was not claimed"
    )


def test_a_process_that_hangs_is_ended_and_replaced(supervised: Supervised) -> None:
    supervised.start_config(
        group(program("framed"), health_timeout="1s", stop_timeout="300ms", restart__min_delay="100ms")
    )
    first = supervised.when(HEALTHY)
    kill(first, signal.SIGSTOP)
    second = supervised.when(HEALTHY, wanted=lambda component: component.process_id != first.process_id)
    assert second.restart_count == 1
    assert not is_running(first.process_id)


@pytest.mark.parametrize(("code", "shown"), [(1, 1), (-1, 255), (3, 3)])
def test_a_crash_loop_ends_as_failed(supervised: Supervised, code: int, shown: int) -> None:
    supervised.start_config(
        group([*program("ends"), str(code)], restart__min_delay="10ms", restart__max_delay="20ms")
    )
    failed = supervised.when(FAILED)
    assert (failed.restart_count, failed.last_exit.code) == (5, shown)
    assert "the last words" in failed.last_exit.last_lines[-1]
    supervised.order(COMPONENT_ACTION_RESET)
    supervised.when(FAILED, wanted=lambda component: component.number > failed.number)
    assert supervised.end() == 1


def test_exit_codes_mean_what_the_configuration_says(supervised: Supervised) -> None:
    supervised.start_config(
        group([*program("ends"), "0"]) + group([*program("ends"), "7"], "h", exit_codes__7="failed")
    )
    for name, status in (("g", STOPPED), ("h", FAILED)):
        supervised.when(status, group=name)
    assert supervised.components("h")[0].restart_count == 0


def test_a_command_that_does_not_exist_fails_with_the_reason(supervised: Supervised) -> None:
    supervised.start_config(group(["no-such-command"], restart__window_limit=0))
    assert "no-such-command" in supervised.when(FAILED).reason + supervised.log


def test_what_ignores_sigterm_is_killed_with_all_that_it_started(supervised: Supervised) -> None:
    supervised.start_config(group(program("stubborn"), stop_timeout="200ms", ready_after="50ms"))
    component = supervised.when(HEALTHY)
    words = eventually(
        lambda: re.search(r"grandchild (\d+)", supervised.output()), "it did not start its grandchild"
    )
    grandchild = int(words[1])
    assert is_running(grandchild)
    assert supervised.end() == 1
    assert not is_running(component.process_id)
    eventually(lambda: not is_running(grandchild), "the grandchild still runs")


def test_garbage_long_lines_and_floods_on_the_health_pipe_are_borne(supervised: Supervised) -> None:
    supervised.start_config(group(program("garbage"), snapshot_interval="1s"))
    supervised.when(HEALTHY, wanted=lambda component: '"round":19' in component.details_json)
    assert supervised.log.count("no health frame") == 1
    component = supervised.component()
    assert component is not None
    assert component.restart_count == 0


def test_a_process_can_speak_the_protocol_of_systemd(supervised: Supervised) -> None:
    supervised.start_config(
        group(program("notifies"), health="notify", snapshot_interval="1s", environment__WAIT_FOR_USR1="1")
    )
    starting = supervised.when(ComponentStatus.STARTING, wanted=lambda each: "loading" in each.details_json)
    kill(starting, signal.SIGUSR1)
    supervised.when(
        HEALTHY, wanted=lambda each: "watched for 30000000 µs" in json.loads(each.details_json)["status_text"]
    )


def test_pause_is_told_to_the_process_and_survives_a_restart(supervised: Supervised) -> None:
    supervised.start_config(group(program("framed"), processes=2))
    supervised.all_have(HEALTHY, 2)
    supervised.order(COMPONENT_ACTION_PAUSE, component_ids=["worker:g:1"])
    paused = supervised.when(PAUSED, 1)
    eventually(lambda: '"paused": true' in supervised.output(1), "the process was not told")
    assert int(supervised.components()[0].status) == HEALTHY
    supervised.order(COMPONENT_ACTION_RESTART, component_ids=["worker:g:1"])
    again = supervised.when(PAUSED, 1, lambda component: component.process_id != paused.process_id)
    assert again.restart_count == 0
    supervised.order(COMPONENT_ACTION_RESUME)
    supervised.all_have(HEALTHY, 2)


def test_a_pause_signal_comes_once_and_not_before_the_process_is_ready(supervised: Supervised) -> None:
    supervised.start_config(group(program("signalled"), pause_signal="SIGUSR1", resume_signal="SIGUSR2"))
    supervised.when(HEALTHY)
    supervised.order(COMPONENT_ACTION_PAUSE)
    first = supervised.when(PAUSED)
    eventually(lambda: supervised.output().count("paused") == 1, "the process was not paused")
    supervised.order(COMPONENT_ACTION_RESTART)
    second = supervised.when(PAUSED, wanted=lambda component: component.process_id != first.process_id)
    assert second.restart_count == 0
    supervised.order(COMPONENT_ACTION_RESUME)
    eventually(lambda: "resumed" in supervised.output(), "the process was not resumed")
    words = [line.split()[-1] for line in supervised.output().splitlines()]
    assert words == ["paused", "paused", "resumed"]


def test_orders_stop_start_and_scale(supervised: Supervised) -> None:
    supervised.start("--name", "g", "--processes", "2", "--", *program("silent"))
    before = {component.index: component.process_id for component in supervised.all_have(HEALTHY, 2)}
    supervised.order(COMPONENT_ACTION_STOP, component_ids=["worker:g:0"], reason="for a test")
    stopped = supervised.when(STOPPED)
    assert "for a test" in stopped.reason
    assert not stopped.wanted
    supervised.order(COMPONENT_ACTION_SCALE, count=3)
    supervised.when(HEALTHY, 2)
    supervised.order(COMPONENT_ACTION_START, component_ids=["worker:g:0"])
    supervised.all_have(HEALTHY, 3)
    supervised.order(COMPONENT_ACTION_ROLLING_RESTART)
    after = {component.index: component.process_id for component in supervised.all_have(HEALTHY, 3)}
    assert before[1] != after[1]
    supervised.order(COMPONENT_ACTION_SCALE, count=1)
    supervised.when(STOPPED, 2)
    assert supervised.end() == 0


def test_a_reload_changes_only_what_differs(supervised: Supervised) -> None:
    process = supervised.start_config(group(program("silent"), processes=1))
    first = supervised.when(HEALTHY)
    supervised.configure(group(program("silent"), processes=2, stop_timeout="1s"))
    process.send_signal(signal.SIGHUP)
    supervised.when(HEALTHY, 1)
    kept = supervised.component()
    assert kept is not None
    assert kept.process_id == first.process_id
    supervised.configure("[group.g]\ncomand = 'x'\n")
    process.send_signal(signal.SIGHUP)
    eventually(lambda: "comand" in supervised.log, "the wrong file was not reported")
    supervised.configure(group([*program("silent"), "changed"], processes=2))
    process.send_signal(signal.SIGHUP)
    supervised.when(HEALTHY, wanted=lambda component: component.process_id != first.process_id)


def test_children_end_with_a_killed_supervisor_and_the_next_one_counts_on(supervised: Supervised) -> None:
    config = group(program("framed"), restart__min_delay="50ms", lease="3s")
    supervised.start_config(config)
    kill(supervised.when(HEALTHY))
    first = supervised.when(HEALTHY, wanted=lambda component: component.restart_count == 1)
    supervised.order(COMPONENT_ACTION_PAUSE)
    supervised.end(signal.SIGKILL)
    eventually(lambda: not is_running(first.process_id), "the process outlived its supervisor")
    supervised.start_config(config)
    second = supervised.when(PAUSED, wanted=lambda component: component.process_id != first.process_id)
    assert second.restart_count == 1
    assert second.create_time == first.create_time


def test_a_second_supervisor_of_a_group_is_refused(supervised: Supervised) -> None:
    supervised.start("--name", "g", "--", *program("silent"))
    first = supervised.when(HEALTHY)
    running = supervised.process
    same_place = supervised.start("--name", "g", "--wait", "0", "--", *program("silent"))
    assert same_place.wait(LIMIT_S) == 1
    assert "A supervisor on this machine runs the group g" in supervised.log
    supervised.process = running
    kept = supervised.when(HEALTHY)
    assert kept.process_id == first.process_id


def test_supervise_ends_when_everything_is_done(supervised: Supervised) -> None:
    process = supervised.start("--name", "g", "--exit-when-done", "--", *program("ends"), "0")
    assert process.wait(LIMIT_S) == 0
    assert int(supervised.components()[0].status) == STOPPED


def test_a_second_ctrl_c_kills(supervised: Supervised) -> None:
    process = supervised.start_config(group(program("stubborn"), stop_timeout="10m", ready_after="50ms"))
    component = supervised.when(HEALTHY)
    eventually(lambda: "grandchild" in supervised.output(), "it does not ignore SIGTERM yet")
    process.send_signal(signal.SIGINT)
    supervised.when(ComponentStatus.STOPPING)
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT_S) == 1
    assert not is_running(component.process_id)


def test_wrong_flags_are_answered_in_one_sentence(supervised: Supervised) -> None:
    for arguments in ((), ("--name", "g"), ("--name", "g/h", "--", "true"), ("--config", "missing.toml")):
        process = supervised.start(*arguments)
        assert process.wait(LIMIT_S) == 2, arguments
    assert "Traceback" not in supervised.log


def test_without_a_server_it_says_what_to_do(supervised: Supervised) -> None:
    supervised.address = "127.0.0.1:1"
    process = supervised.start("--name", "g", "--wait", "0", "--", *program("silent"))
    assert process.wait(LIMIT_S) == 1
    assert "--embedded" in supervised.log


def test_an_embedded_server_whose_address_is_in_use_is_reported_in_one_sentence(
    supervised: Supervised,
) -> None:
    process = supervised.start("--embedded", "--name", "g", "--", *program("silent"))
    assert process.wait(LIMIT_S) == 1
    last = supervised.log.splitlines()[-1]
    assert last.startswith("error: The embedded server did not start: Cannot listen on ")
    assert last.endswith("choose another with --address.")


def test_a_supervisor_without_its_launcher_ends_all_processes_and_itself(supervised: Supervised) -> None:
    """It could not watch them any more. It ends those that ignore signals, too, and reports all of them."""
    process = supervised.start_config(
        group(program("stubborn"), ready_after="50ms", stop_timeout="300ms", lease="10m")
    )
    component = supervised.when(HEALTHY)
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
    eventually(lambda: "grandchild" in supervised.output(), "it does not ignore signals yet")
    os.kill(int(found.stdout.split()[0]), signal.SIGKILL)
    assert process.wait(LIMIT_S) == 1
    assert not is_running(component.process_id)
    assert int(supervised.components()[0].status) == STOPPED
    assert "The launcher, which is the parent of all processes, was killed" in supervised.log
