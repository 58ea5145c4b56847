"""What becomes of a process's job when the process ends: done, offered to others, or continued by the next process."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from liveness.domain.component import ComponentStatus
from liveness.v1.activity_pb2 import (
    ACTIVITY_STATE_AVAILABLE,
    ACTIVITY_STATE_COMPLETED,
    ACTIVITY_STATE_STARTED,
)
from liveness.v1.component_pb2 import (
    COMPONENT_ACTION_PAUSE,
    COMPONENT_ACTION_RESTART,
    COMPONENT_ACTION_RESUME,
    COMPONENT_ACTION_STOP,
)
from tests.free_ports import free_port
from tests.system.cli.server_processes import child_process, first_address, liveness_command
from tests.system.supervisor.configuration import group
from tests.system.supervisor.supervised import Supervised, eventually, is_running, kill, program

HEALTHY, STOPPED, FAILED = ComponentStatus.HEALTHY, ComponentStatus.STOPPED, ComponentStatus.FAILED
PAUSED = ComponentStatus.PAUSED
ONCE: dict[str, Any] = {"restart__window_limit": 0}


def steps(*todo: str) -> list[str]:
    return [*program("steps"), *todo]


def offered(supervised: Supervised) -> dict[str, int]:
    """The jobs that others may take, with their attempts."""
    return {
        name: activity.attempt
        for name, activity in supervised.activities().items()
        if activity.state == ACTIVITY_STATE_AVAILABLE
    }


@pytest.mark.parametrize("way", ["stopped", "waits"])
def test_a_job_that_is_finished_before_the_process_ends_is_offered_to_nobody(
    supervised: Supervised, way: str
) -> None:
    gate = supervised.folder / "gate"
    supervised.start_config(group([*program("one_job"), way, str(gate)], lease="10m"))
    supervised.when(HEALTHY, wanted=lambda each: each.current_job == f"{way}_job")
    supervised.send_order(COMPONENT_ACTION_STOP)
    supervised.when(ComponentStatus.STOPPING)
    gate.touch()
    supervised.when(STOPPED)
    assert (supervised.folder / "finished").exists()
    # The end of its lease has rescheduled what it still held, in the same commit that stopped it.
    assert supervised.activities() == {}
    assert supervised.end() == 0


def test_a_job_that_raises_is_offered_to_others(supervised: Supervised) -> None:
    gate = supervised.folder / "gate"
    supervised.start_config(group([*program("one_job"), "raises", str(gate)], lease="10m", **ONCE))
    supervised.when(HEALTHY, wanted=lambda each: each.current_job == "raises_job")
    gate.touch()
    assert supervised.when(FAILED).last_exit.code == 1
    eventually(lambda: offered(supervised) == {"raises_job": 2}, "the job was lost")


def test_the_last_words_of_a_process_count(supervised: Supervised) -> None:
    """It names or finishes a job, and ends in the same moment."""
    supervised.start_config(
        group(steps("job=finished", "none=", "exit=0"), "done", lease="10m")
        + group(steps("job=begun", "kill=SIGKILL"), "killed", lease="10m", **ONCE)
        + group(steps("job=first", "job=second", "exit=3"), "exits", lease="10m", **ONCE)
    )
    supervised.when(STOPPED, group="done")
    supervised.when(FAILED, group="killed")
    supervised.when(FAILED, group="exits")
    eventually(lambda: offered(supervised) == {"begun": 2, "second": 2}, lambda: str(offered(supervised)))


def test_a_process_that_continues_the_job_of_the_one_before_claims_it_however_soon_it_comes(
    supervised: Supervised,
) -> None:
    todo = [part for number in range(2) for part in (f"once={supervised.folder}/{number}", "exit=9")]
    supervised.start_config(
        group(steps("job=again", *todo, f"until={supervised.folder}/gate", "none=", "exit=0"), lease="10m",
              exit_codes__9="restart-now")
    )  # fmt: skip
    supervised.when(HEALTHY, wanted=lambda each: each.restart_count == 2)
    eventually(
        lambda: supervised.activities()["again"].state == ACTIVITY_STATE_STARTED,
        lambda: str(supervised.activities()),
    )
    held = supervised.activities()["again"]
    assert held.worker_instance_key == "worker:g:0"
    assert held.attempt > 1  # after three deaths in a row it would be quarantined
    (supervised.folder / "gate").touch()
    supervised.when(STOPPED)
    assert supervised.activities()["again"].state == ACTIVITY_STATE_COMPLETED


def test_a_process_that_starts_while_its_component_is_paused_takes_no_job(supervised: Supervised) -> None:
    supervised.start_config(group(program("takes_jobs"), processes=4))
    supervised.all_have(HEALTHY, 4)
    supervised.order(COMPONENT_ACTION_PAUSE)
    before = [supervised.when(PAUSED, index, lambda each: not each.current_job) for index in range(4)]

    def taken() -> list[int]:
        return [supervised.output(index).count("takes") for index in range(4)]

    count = taken()
    supervised.order(COMPONENT_ACTION_RESTART)
    for old in before:
        supervised.when(
            PAUSED,
            old.index,
            lambda each, old=old: each.process_id not in (0, old.process_id),  # type: ignore[misc]
        )
    assert taken() == count
    supervised.order(COMPONENT_ACTION_RESUME)
    eventually(lambda: all(map(int.__gt__, taken(), count)), "a resumed process takes no job")


def test_a_claimed_job_that_is_finished_without_a_server_is_completed_later(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    serve = liveness_command("serve", "--listen", address, "--shards", "2")
    supervised = Supervised(tmp_path, address, "default")
    todo = (f"once={tmp_path}/first", "kill=SIGKILL", f"until={tmp_path}/gate", "none=")
    try:
        with child_process(serve, tmp_path) as server:
            assert server.stdout is not None
            first_address(server.stdout)
            supervised.start_config(
                group(steps("job=claimed", *todo), lease="10m", restart__min_delay="50ms")
            )
            process = supervised.when(HEALTHY, wanted=lambda each: each.restart_count == 1)
            eventually(
                lambda: supervised.activities()["claimed"].state == ACTIVITY_STATE_STARTED, "not claimed"
            )
            server.send_signal(signal.SIGKILL)
            server.wait()
        (tmp_path / "gate").touch()
        eventually(lambda: "processes go on without it" in supervised.log, "it did not notice")
        assert is_running(process.process_id)
        with child_process(serve, tmp_path) as server:
            assert server.stdout is not None
            first_address(server.stdout)
            eventually(
                lambda: supervised.activities()["claimed"].state == ACTIVITY_STATE_COMPLETED,
                lambda: str(supervised.activities()),
            )
            kill(process)
            eventually(lambda: supervised.when(HEALTHY).restart_count == 2, "it was not restarted")
            assert supervised.activities()["claimed"].attempt == 2
            supervised.end()
    finally:
        supervised.close()
