"""A supervised program with a worker of the SDK: both are one worker, in one session."""

from __future__ import annotations

import signal

from liveness.domain.component import ComponentStatus
from liveness.v1.activity_pb2 import ACTIVITY_STATE_AVAILABLE
from liveness.v1.service_pb2 import DescribeWorkerRequest, GetDeathCertificateRequest
from liveness.v1.worker_pb2 import INACTIVE_REASON_PROCESS_EXITED, WORKER_STATE_ACTIVE, Worker
from tests.system.supervisor.configuration import group
from tests.system.supervisor.supervised import LIMIT_S, Supervised, eventually, kill, program

HEALTHY, CRASHED = ComponentStatus.HEALTHY, ComponentStatus.CRASHED
KEY = "worker:g:0"


def worker(supervised: Supervised) -> Worker:
    request = DescribeWorkerRequest(namespace=supervised.namespace, worker_instance_key=KEY)
    return supervised.liveness.DescribeWorker(request, timeout=LIMIT_S).worker


def held(supervised: Supervised) -> list[str]:
    return [activity.workflow_id for activity in worker(supervised).bound_activities]


def test_what_a_killed_program_held_through_the_sdk_is_rescheduled_at_once(supervised: Supervised) -> None:
    supervised.start_config(
        group([*program("binds"), "flow-1"], lease="10m", restart__min_delay="60s", restart__jitter=0)
    )
    eventually(lambda: held(supervised) == ["flow-1"], "it bound nothing")
    first = supervised.when(HEALTHY)
    assert f"key {KEY}" in supervised.output()
    described = worker(supervised)
    assert (described.labels["group"], described.lease_epoch) == ("g", 1)
    assert described.granted_lease_duration.seconds == 600
    assert described.sdk_name == "liveness-python"
    kill(first)
    supervised.when(CRASHED)
    offered = eventually(lambda: supervised.activities().get("flow-1"), "the activity was not rescheduled")
    assert (offered.state, offered.attempt) == (ACTIVITY_STATE_AVAILABLE, 2)
    death = supervised.liveness.GetDeathCertificate(
        GetDeathCertificateRequest(namespace=supervised.namespace, worker_instance_key=KEY), timeout=LIMIT_S
    )
    assert (death.cause, death.exit.signal) == (INACTIVE_REASON_PROCESS_EXITED, "SIGKILL")


def test_a_program_that_ends_its_worker_goes_on_as_a_component(supervised: Supervised) -> None:
    supervised.start_config(group([*program("binds"), "flow-2"], lease="2s"))
    eventually(lambda: held(supervised) == ["flow-2"], "it bound nothing")
    component = supervised.when(HEALTHY)
    count = worker(supervised).heartbeat_count
    eventually(lambda: worker(supervised).heartbeat_count > count + 2, "the SDK sends no heartbeats")
    kill(component, signal.SIGUSR1)
    eventually(lambda: "without a worker" in supervised.output(), "it did not end its worker")
    assert held(supervised) == []
    count = worker(supervised).heartbeat_count
    eventually(
        lambda: worker(supervised).heartbeat_count > count + 2, "the supervisor sends no heartbeats again"
    )
    found = worker(supervised)
    assert (found.state, found.lease_epoch) == (WORKER_STATE_ACTIVE, 1)
    assert supervised.when(HEALTHY).process_id == component.process_id
    assert supervised.end() == 0
