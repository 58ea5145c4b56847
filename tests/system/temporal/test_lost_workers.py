"""Workers that are killed, stopped, busy or shut down in the middle of an activity."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

from liveness.v1.death_pb2 import VERDICT_FALSE
from liveness.v1.service_pb2 import GetDeathCertificateRequest
from liveness.v1.worker_pb2 import (
    INACTIVE_REASON_SHUTDOWN,
    WORKER_STATE_ACTIVE,
    WORKER_STATE_INACTIVE,
)
from tests.system.temporal.conftest import StartWorker
from tests.system.temporal.stage import NAMESPACE, Stage, Temporal, eventually, plan, stuck


def is_retried(stage: Stage, workflow_id: str) -> bool:
    return stage.liveness.rescues(workflow_id) == ["retried"]


def test_another_worker_gets_what_a_killed_one_held(
    stage: Stage, flows: str, task_queue: str, start_worker: StartWorker, until: Path
) -> None:
    first = start_worker(slots=5)  # no slot is free, so no poll is open
    started = {
        maximum: stage.temporal.start(
            plan(task_queue, stuck(f"a{maximum}", until), maximum_attempts=maximum), flows=flows
        )
        for maximum in (0, 1, 3)
    }
    opted_out = stage.temporal.start(plan(task_queue, stuck("off", until)), flows=flows, liveness="off")
    standalone = stage.temporal.start_standalone(task_queue, stuck("alone", until), maximum_attempts=1)
    for _ in range(5):
        first.wait_event("started", attempt=1)
    stage.known_worker(first, task_queue)
    second = start_worker()

    first.kill()

    for _ in range(4):
        second.wait_event("started", attempt=2)
    assert stage.temporal.standalone_result(standalone) == "alone by attempt 2"
    eventually(partial(is_retried, stage, standalone), "no rescue is shown")
    for maximum, workflow_id in started.items():
        assert stage.temporal.result(workflow_id) == [f"a{maximum} by attempt 2"]
        eventually(partial(is_retried, stage, workflow_id), "no rescue is shown")
    eventually(lambda: stage.liveness.rescues(opted_out) == ["opted_out"], "the search attribute is ignored")
    (pending,) = stage.temporal.describe(opted_out).pending_activities
    assert pending.attempt == 1


def test_a_zombie_is_refused_and_its_death_was_a_false_verdict(
    stage: Stage, flows: str, task_queue: str, start_worker: StartWorker, until: Path
) -> None:
    first = start_worker()
    workflow_id = stage.temporal.start(plan(task_queue, stuck("a", until)), flows=flows)
    first.wait_event("started", activity="a", attempt=1)
    key = stage.known_worker(first, task_queue).worker_instance_key
    second = start_worker()

    first.signal(signal.SIGSTOP)
    second.wait_event("started", activity="a", attempt=2)
    assert stage.temporal.result(workflow_id) == ["a by attempt 2"]
    first.signal(signal.SIGCONT)
    until.touch()
    first.wait_event("finished", activity="a", attempt=1)

    def is_back() -> bool:
        worker = stage.liveness.worker(key)
        return worker.state == WORKER_STATE_ACTIVE and not worker.cancel_activities

    eventually(is_back, "the zombie did not come back, or still counts as holding what it lost")
    certificate = stage.liveness.stub.GetDeathCertificate(
        GetDeathCertificateRequest(namespace=NAMESPACE, worker_instance_key=key), timeout=30
    )
    assert certificate.verdict == VERDICT_FALSE, certificate


def test_a_busy_worker_keeps_its_lease_while_it_lives(
    stage: Stage, flows: str, task_queue: str, start_worker: StartWorker
) -> None:
    """Its only slot is in use, so that it has no poll open."""
    busy = start_worker(slots=1)
    workflow_id = stage.temporal.start(plan(task_queue, {"name": "a", "seconds": 5}), flows=flows)
    busy.wait_event("started", activity="a", attempt=1)
    worker = stage.known_worker(busy, task_queue)
    assert [reference.activity_id for reference in worker.bound_activities] == ["1@1"]
    assert stage.temporal.result(workflow_id) == ["a by attempt 1"]
    eventually(
        lambda: not stage.liveness.worker(worker.worker_instance_key).bound_activities, "it stays bound"
    )


def test_another_worker_gets_an_eager_activity_of_a_killed_one(
    stage: Stage, task_queue: str, start_worker: StartWorker, until: Path
) -> None:
    """The worker runs its own workflow, so that Temporal hands the activity out with the answer of the workflow task."""
    first = start_worker(workflows=True)
    before = stage.bindings()
    workflow_id = stage.temporal.start(
        plan(task_queue, stuck("a", until), maximum_attempts=1), flows=task_queue
    )
    first.wait_event("started", activity="a", attempt=1)
    assert stage.bindings().get("eager", 0) == before.get("eager", 0) + 1
    assert stage.bindings().get("poll", 0) == before.get("poll", 0)
    second = start_worker(workflows=True)
    first.kill()
    second.wait_event("started", activity="a", attempt=2)
    eventually(lambda: stage.liveness.rescues(workflow_id) == ["retried"], "no rescue is shown")


def test_a_lost_activity_that_was_to_be_cancelled_is_cancelled(
    stage: Stage, flows: str, task_queue: str, start_worker: StartWorker, until: Path
) -> None:
    first = start_worker()
    workflow_id = stage.temporal.start(plan(task_queue, stuck("a", until)), flows=flows)
    first.wait_event("started", activity="a", attempt=1)
    stage.temporal.cancel(workflow_id)
    eventually(
        lambda: any(
            activity.state == 3 for activity in stage.temporal.describe(workflow_id).pending_activities
        ),
        "the cancellation is not requested",
    )

    first.kill()

    closed = stage.temporal.wait_closed(workflow_id)
    assert closed.HasField("workflow_execution_canceled_event_attributes"), closed
    eventually(lambda: stage.liveness.rescues(workflow_id) == ["cancelled"], "no rescue is shown")


def test_the_heartbeat_timeout_of_an_activity_keeps_working(
    stage: Stage, flows: str, task_queue: str, start_worker: StartWorker, until: Path
) -> None:
    worker = start_worker()
    workflow_id = stage.temporal.start(
        plan(task_queue, stuck("a", until), heartbeat_timeout=2, maximum_attempts=2), flows=flows
    )
    worker.wait_event("started", activity="a", attempt=1)
    assert stage.temporal.result(workflow_id) == ["a by attempt 2"]
    until.touch()
    key = stage.known_worker(worker, task_queue).worker_instance_key
    eventually(lambda: not stage.liveness.worker(key).bound_activities, "the refused attempt stays bound")


def test_a_graceful_shutdown_finishes_its_work_and_is_no_death(
    stage: Stage, flows: str, task_queue: str, start_worker: StartWorker
) -> None:
    worker = start_worker(graceful=30)
    workflow_id = stage.temporal.start(plan(task_queue, {"name": "a", "seconds": 4}), flows=flows)
    worker.wait_event("started", activity="a", attempt=1)
    key = stage.known_worker(worker, task_queue).worker_instance_key

    worker.signal(signal.SIGTERM)

    worker.wait_event("stopped")
    assert stage.temporal.result(workflow_id) == ["a by attempt 1"]

    def has_said_goodbye() -> bool:
        found = stage.liveness.worker(key)
        return found.state == WORKER_STATE_INACTIVE and found.inactive_reason == INACTIVE_REASON_SHUTDOWN

    eventually(has_said_goodbye, "the worker did not say goodbye")


def test_a_worker_that_nobody_could_hear_keeps_its_activity(
    temporal: Temporal, flows: str, task_queue: str, start_worker: StartWorker, tmp_path: Path, until: Path
) -> None:
    """The only bridge is away for longer than its allowance, so that the lease ends. The worker lives all the while."""
    stage = Stage(tmp_path, temporal, "--restart-allowance", "1s")
    try:
        worker = start_worker(stage.address)
        workflow_id = stage.temporal.start(plan(task_queue, stuck("a", until)), flows=flows)
        worker.wait_event("started", activity="a", attempt=1)
        key = stage.known_worker(worker, task_queue).worker_instance_key

        stage.bridge.kill()
        stage.bridge.stop()
        eventually(lambda: stage.liveness.worker(key).state == WORKER_STATE_INACTIVE, "the lease did not end")
        stage.bridge = stage.start_bridge()

        eventually(lambda: stage.liveness.rescues(workflow_id) == ["not_lost"], "the rescue did not look")
        eventually(
            lambda: [ref.activity_id for ref in stage.liveness.worker(key).bound_activities] == ["1@1.2"],
            "it is not bound again",
        )
        until.touch()
        assert stage.temporal.result(workflow_id) == ["a by attempt 1"]
        eventually(lambda: not stage.liveness.worker(key).bound_activities, "it stays bound")
        worker.kill()
    finally:
        stage.stop()
