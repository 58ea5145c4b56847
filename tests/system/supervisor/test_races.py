"""Orders, reloads and ends that come while another is still under way."""

from __future__ import annotations

import signal

from liveness.domain.component import ComponentStatus
from liveness.v1.component_pb2 import (
    COMPONENT_ACTION_ROLLING_RESTART,
    COMPONENT_ACTION_SCALE,
    COMPONENT_ACTION_STOP,
)
from liveness.v1.service_pb2 import DescribeWorkerRequest
from tests.system.supervisor.configuration import group
from tests.system.supervisor.supervised import LIMIT_S, Supervised, eventually, is_running, program

HEALTHY, STARTING, STOPPED = ComponentStatus.HEALTHY, ComponentStatus.STARTING, ComponentStatus.STOPPED
CRASHED = ComponentStatus.CRASHED


def test_a_stop_that_comes_during_a_rolling_restart_is_the_last_word(supervised: Supervised) -> None:
    gate = supervised.folder / "gate"
    gate.touch()
    supervised.start_config(
        group(
            ["sleep", "1000"],
            processes=3,
            readiness__command=["test", "-e", str(gate)],
            readiness__interval="50ms",
        )
    )
    before = {each.index: each.process_id for each in supervised.all_have(HEALTHY, 3)}
    gate.unlink()
    supervised.send_order(COMPONENT_ACTION_ROLLING_RESTART)
    supervised.when(STARTING, wanted=lambda each: each.process_id != before[0])
    supervised.order(COMPONENT_ACTION_STOP)  # returns when both are carried out
    for component in supervised.components():
        assert (int(component.status), component.wanted) == (STOPPED, False)
    assert supervised.log.count("is starting") == 4


def test_a_supervisor_that_stops_during_a_reload_starts_nothing_more(supervised: Supervised) -> None:
    supervised.start("--name", "h", "--", *program("silent"), state="other")
    supervised.when(HEALTHY, group="h")
    other = supervised.process
    assert other is not None
    config = group(program("stubborn"), ready_after="50ms", stop_timeout="1s")
    process = supervised.start_config(config)
    supervised.when(HEALTHY)
    eventually(lambda: "grandchild" in supervised.output(), "it does not ignore SIGTERM yet")
    # The new group waits for the supervisor that it has.
    supervised.configure(config + group(program("silent"), "h"))
    process.send_signal(signal.SIGHUP)
    eventually((supervised.folder / "state" / supervised.namespace / "h.lock").exists, "it does not reload")
    process.send_signal(signal.SIGTERM)
    supervised.when(ComponentStatus.STOPPING)
    other.send_signal(signal.SIGTERM)
    assert other.wait(LIMIT_S) == 0
    assert process.wait(LIMIT_S) == 1
    assert int(supervised.when(STOPPED, group="h").number) == 4
    assert not (supervised.folder / "state" / "output" / "h").exists()
    request = DescribeWorkerRequest(namespace=supervised.namespace, worker_instance_key="supervisor:h")
    assert not supervised.liveness.DescribeWorker(request, timeout=LIMIT_S).worker.component_group.supervised


def test_a_scale_that_comes_with_the_end_of_the_supervisor_leaves_no_process(supervised: Supervised) -> None:
    process = supervised.start_config(
        group(program("stubborn"), processes=2, ready_after="50ms", stop_timeout="500ms")
    )
    supervised.all_have(HEALTHY, 2)
    eventually(lambda: "grandchild" in supervised.output(1), "it does not ignore SIGTERM yet")
    supervised.send_order(COMPONENT_ACTION_SCALE, count=1)
    supervised.when(ComponentStatus.STOPPING, 1)
    supervised.send_order(COMPONENT_ACTION_SCALE, count=3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 1
    assert all(int(component.status) == STOPPED for component in supervised.components())


def test_a_reload_changes_leases_and_limits_of_what_runs(supervised: Supervised) -> None:
    process = supervised.start_config(
        group(program("stubborn"), ready_after="50ms", lease="10m", stop_timeout="10m")
    )
    first = supervised.when(HEALTHY)
    eventually(lambda: "grandchild" in supervised.output(), "it does not ignore SIGTERM yet")
    supervised.configure(group(program("stubborn"), ready_after="50ms", lease="1s", stop_timeout="100ms"))
    process.send_signal(signal.SIGHUP)
    request = DescribeWorkerRequest(namespace=supervised.namespace, worker_instance_key="worker:g:0")

    def lease_ms() -> int:
        worker = supervised.liveness.DescribeWorker(request, timeout=LIMIT_S).worker
        return worker.granted_lease_duration.ToMilliseconds()

    eventually(lambda: lease_ms() == 1_000, lambda: f"the lease is {lease_ms()} ms")
    kept = supervised.when(HEALTHY)
    assert kept.process_id == first.process_id
    supervised.end(signal.SIGKILL)
    # The launcher knows the new limit, too.
    eventually(lambda: not is_running(first.process_id), "the process outlived its supervisor")
    supervised.when(CRASHED)
