"""What a bridge keeps in liveness about workers and what they hold, while time passes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import ActivityType, RetryPolicy, WorkflowExecution
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import request_response_pb2 as pb

from liveness.bridges.temporal import rescuer
from liveness.bridges.temporal.hints import connected_peers, in_table
from liveness.bridges.temporal.rescuer import REFUSALS_MAX
from liveness.bridges.temporal.worker_entry import HELD_MAX
from liveness.testing import ManualClock, Server, Settings
from liveness.v1.activity_pb2 import (
    ACTIVITY_STATE_COMPLETED,
    ACTIVITY_STATE_QUARANTINED,
    ACTIVITY_STATE_WAITING,
    Activity,
    RetryActivityRequest,
)
from liveness.v1.fleet_pb2 import ALERT_KIND_QUARANTINE, GetFleetRequest
from liveness.v1.worker_pb2 import WORKER_STATE_ACTIVE, WORKER_STATE_CLEANED_UP
from tests.integration.bridges.temporal.driven_stage import (
    LIMIT_S,
    LOOK_S,
    NAMESPACE,
    DrivenStage,
    LoadBalancer,
    TemporalWorker,
)
from tests.integration.bridges.temporal.upstream_server import UpstreamServer


@pytest.fixture
async def stage(
    tmp_path: Path, upstream: UpstreamServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[DrivenStage]:
    # The bridge is a worker of liveness itself, by its real clock, which stands still while the test's runs.
    monkeypatch.setattr(rescuer, "LEASE_S", 3_600.0)
    clock = ManualClock()
    settings = Settings(db=f"sqlite:///{tmp_path}/l.db", listen="127.0.0.1:0", shards=2, takeover_grace_ms=0)
    async with Server(settings, clock=clock, self_driven=False) as server:
        stage = DrivenStage(server, clock, upstream)
        upstream.answers |= {
            "RecordWorkerHeartbeat": b"",
            "PollActivityTaskQueue": task(1).SerializeToString(),
            "DescribeWorkflowExecution": pb.DescribeWorkflowExecutionResponse(
                pending_activities=[PendingActivityInfo(activity_id="a1", attempt=1)]
            ).SerializeToString(),
            "UpdateActivityOptions": b"",
            "RespondActivityTaskFailed": b"",
        }
        yield stage
        await stage.stop()


def task(number: int) -> pb.PollActivityTaskQueueResponse:
    return pb.PollActivityTaskQueueResponse(
        task_token=b"token-%d" % number,
        workflow_execution=WorkflowExecution(workflow_id="wf", run_id="run"),
        activity_id=f"a{number}",
        activity_type=ActivityType(name="charge"),
        attempt=1,
        retry_policy=RetryPolicy(maximum_attempts=3),
    )


async def hand_out(worker: TemporalWorker, stage: DrivenStage, number: int = 1) -> None:
    answer = stage.upstream.answers["PollActivityTaskQueue"] = task(number).SerializeToString()
    assert await worker.poll() == answer


async def test_a_rescue_that_temporal_refuses_ten_times_waits_for_an_operator(
    stage: DrivenStage, upstream: UpstreamServer
) -> None:
    bridge = await stage.start_bridge()
    worker = TemporalWorker(stage, bridge.address)
    await worker.live(2_000)
    await hand_out(worker, stage)
    upstream.refused = {"RespondActivityTaskFailed"}
    await stage.advance_until(stage.rescue_activity)

    async def ended(state: Any) -> Activity:
        async with asyncio.timeout(LIMIT_S):
            while (activity := await stage.rescue_activity()) is None or activity.state != state:
                if activity is not None and activity.state == ACTIVITY_STATE_WAITING:
                    wait_ms = activity.due_time.ToMilliseconds() - stage.clock.wall_ms()
                    await stage.server.advance(max(wait_ms, 1))
                await asyncio.sleep(LOOK_S)
        return activity

    failed = await ended(ACTIVITY_STATE_QUARANTINED)
    fleet = await stage.admin.GetFleet(GetFleetRequest(namespace=NAMESPACE), timeout=LIMIT_S)
    assert ALERT_KIND_QUARANTINE in [alert.kind for alert in fleet.alerts]
    assert "Temporal refuses the rescue" in failed.last_failure
    assert len(upstream.requests("RespondActivityTaskFailed")) == REFUSALS_MAX == 10
    assert bridge.statistics.rescues_refused == REFUSALS_MAX
    assert bridge.statistics.rescues == {"given_up": 1}

    upstream.refused.clear()
    await stage.activities.RetryActivity(RetryActivityRequest(namespace=NAMESPACE, id=failed.id))
    await ended(ACTIVITY_STATE_COMPLETED)
    assert bridge.statistics.rescues == {"given_up": 1, "retried": 1}
    assert len(upstream.requests("RespondActivityTaskFailed")) == REFUSALS_MAX + 1
    await worker.close()


async def test_a_rescue_waits_while_temporal_is_away_and_this_is_no_failure(
    stage: DrivenStage, upstream: UpstreamServer
) -> None:
    bridge = await stage.start_bridge()
    worker = TemporalWorker(stage, bridge.address)
    await worker.live(2_000)
    await hand_out(worker, stage)
    upstream.away = {"DescribeWorkflowExecution"}

    async def is_waiting() -> bool:
        text, _ = bridge.metrics()
        return b"liveness_bridge_rescues_waiting 1.0" in text

    await stage.advance_until(is_waiting)
    await stage.advance(60_000)
    assert len(upstream.requests("DescribeWorkflowExecution")) > REFUSALS_MAX
    upstream.away.clear()

    async def is_over() -> bool:
        activity = await stage.rescue_activity()
        return activity is not None and activity.state == ACTIVITY_STATE_COMPLETED

    await stage.advance_until(is_over)
    assert bridge.statistics.rescues == {"retried": 1}
    assert (bridge.statistics.rescues_refused, bridge.statistics.rescues_waiting) == (0, 0)
    await worker.close()


async def test_a_rescue_that_is_retried_after_its_worker_was_cleaned_up_waits_no_longer_than_a_lease(
    stage: DrivenStage, upstream: UpstreamServer
) -> None:
    """The bridge has just started, so that the worker may live and not have been heard. Its heartbeat interval, which tells
    how long that may last, is no longer in liveness."""
    stage.server.node.policies.replace(NAMESPACE, {"cleanup_delay_ms": 5_000})
    first = await stage.start_bridge()
    worker = TemporalWorker(stage, first.address)
    await worker.live(2_000)
    await hand_out(worker, stage)
    upstream.refused = {"RespondActivityTaskFailed"}
    await stage.advance_until(stage.rescue_activity)

    async def is_cleaned_up() -> bool:
        return (await stage.worker()).state == WORKER_STATE_CLEANED_UP

    await stage.advance_until(is_cleaned_up)
    await worker.close()
    stage.bridges.remove(first)
    await first.stop()
    upstream.refused.clear()
    second = await stage.start_bridge()
    other = TemporalWorker(stage, second.address, "w2")
    await other.live(1_000)
    started_ms = stage.clock.monotonic_ms()

    async def is_over() -> bool:
        activity = await stage.rescue_activity()
        return activity is not None and activity.state == ACTIVITY_STATE_COMPLETED

    await stage.advance_until(is_over)
    assert second.statistics.rescues == {"retried": 1}
    assert stage.clock.monotonic_ms() - started_ms < 60_000
    await other.close()


async def test_a_worker_that_liveness_has_cleaned_up_begins_a_new_life_through_every_bridge(
    stage: DrivenStage,
) -> None:
    stage.server.node.policies.replace(NAMESPACE, {"cleanup_delay_ms": 5_000})
    first, second = [await stage.start_bridge() for _ in range(2)]
    worker, elsewhere = [TemporalWorker(stage, bridge.address) for bridge in (first, second)]
    await worker.live(2_000)

    async def is_cleaned_up() -> bool:
        return (await stage.worker()).state == WORKER_STATE_CLEANED_UP

    await stage.advance_until(is_cleaned_up)
    await hand_out(worker, stage, 1)
    await stage.flush()
    assert await stage.bound() == ["a1@1"]
    await hand_out(elsewhere, stage, 2)
    await hand_out(worker, stage, 3)
    await stage.flush()
    assert await stage.bound() == ["a1@1", "a2@1", "a3@1"]
    found = await stage.worker()
    assert (found.state, found.session_id) == (WORKER_STATE_ACTIVE, "temporal-2")
    assert not first.statistics.unrecorded + second.statistics.unrecorded
    for closed in (worker, elsewhere):
        await closed.close()


async def test_an_attempt_that_is_ended_by_its_token_is_unbound(
    stage: DrivenStage, upstream: UpstreamServer
) -> None:
    bridge = await stage.start_bridge()
    worker = TemporalWorker(stage, bridge.address)
    methods = ("Completed", "Failed", "Canceled")
    for number in range(len(methods) + 1):
        await hand_out(worker, stage, number)
    for number, method in enumerate(methods):
        name = f"RespondActivityTask{method}"
        upstream.answers[name] = b""
        request = getattr(pb, f"{name}Request")(
            namespace=NAMESPACE, task_token=b"token-%d" % number, identity="me"
        )
        await worker.call(name, request)
        await stage.flush()
        assert await stage.bound() == [f"a{left}@1" for left in range(number + 1, len(methods) + 1)]
    await worker.close()


async def test_an_attempt_that_is_ended_by_its_ids_is_unbound(
    stage: DrivenStage, upstream: UpstreamServer
) -> None:
    bridge = await stage.start_bridge()
    worker = TemporalWorker(stage, bridge.address)
    for number in range(1, 6):
        await hand_out(worker, stage, number)
    for method in ("Completed", "Failed", "Canceled"):
        upstream.answers[f"RespondActivityTask{method}ById"] = b""

    async def end(method: str, activity_id: str, run_id: str = "run", workflow_id: str = "wf") -> None:
        name = f"RespondActivityTask{method}ById"
        request = getattr(pb, f"{name}Request")(
            namespace=NAMESPACE, workflow_id=workflow_id, run_id=run_id, activity_id=activity_id
        )
        await worker.call(name, request)
        await stage.flush()

    await end("Completed", "a1", workflow_id="another")
    await end("Completed", "a1", run_id="another")
    assert await stage.bound() == ["a1@1", "a2@1", "a3@1", "a4@1", "a5@1"]
    await end("Completed", "a1")
    await end("Failed", "a2")
    await end("Canceled", "a3")
    await end("Completed", "a4", run_id="")  # the current run
    assert await stage.bound() == ["a5@1"]
    assert bridge.statistics.held == 1
    await worker.close()


async def test_an_attempt_that_is_ended_by_its_ids_through_another_bridge_is_unbound_at_once(
    stage: DrivenStage, upstream: UpstreamServer
) -> None:
    """The caller is not the worker, so that its identity does not tell who holds the attempt."""
    first, second = [await stage.start_bridge() for _ in range(2)]
    workers = [TemporalWorker(stage, first.address, f"w{number}") for number in range(3)]
    for number, worker in enumerate(workers):
        await hand_out(worker, stage, number)
    [suspect] = [entry for entry in first.recorder.workers() if entry.key == "w2"]
    first.recorder.suspect(suspect, "connection", 5_000)

    async def is_suspect() -> bool:
        return "temporal-suspected" in (await stage.worker("w2")).labels

    await stage.advance_until(is_suspect)
    upstream.answers["RespondActivityTaskCompletedById"] = b""
    elsewhere = TemporalWorker(stage, second.address, "w9")
    for run_id, activity_id in (("another", "a0"), ("run", "a1"), ("", "a2")):
        request = pb.RespondActivityTaskCompletedByIdRequest(
            namespace=NAMESPACE, workflow_id="wf", run_id=run_id, activity_id=activity_id, identity="you"
        )
        await elsewhere.call("RespondActivityTaskCompletedById", request)

    async def is_unbound() -> bool:
        return not await stage.bound("w1") and not await stage.bound("w2")

    await stage.advance_until(is_unbound)
    await stage.flush()
    assert await stage.bound("w0") == ["a0@1"]
    found = await stage.worker("w2")
    assert found.task_queue == "q"
    assert found.labels["temporal-suspected"] == "connection"
    assert found.granted_lease_duration.ToMilliseconds() == 5_000
    assert not list(second.recorder.workers()), "it keeps workers that call the other bridge alone"
    for connection in (*workers, elsewhere):
        await connection.close()


@pytest.mark.parametrize(("hint_grace_ms", "hints"), [(2_000, {"connection": 1}), (0, {})])
async def test_a_broken_connection_shortens_a_lease_unless_hints_are_off(
    stage: DrivenStage, hint_grace_ms: int, hints: dict[str, int]
) -> None:
    bridge = await stage.start_bridge(hint_grace_ms=hint_grace_ms, lease_ms=60_000)
    worker = TemporalWorker(stage, bridge.address)
    await worker.live(2_000)
    await hand_out(worker, stage)
    [entry] = bridge.recorder.workers()
    [peer] = entry.open_calls
    lease = (await stage.worker()).granted_lease_duration
    await worker.close()
    async with asyncio.timeout(LIMIT_S):
        while in_table(peer) in connected_peers():
            await asyncio.sleep(LOOK_S)

    async def is_noticed() -> bool:
        return bool(bridge.statistics.hints)

    if hints:
        await stage.advance_until(is_noticed)
    await stage.advance(1_000)  # four looks at the table of connections
    assert bridge.statistics.hints == hints
    assert ((await stage.worker()).granted_lease_duration != lease) is bool(hints)


async def test_a_worker_that_was_suspect_and_is_heard_by_an_activity_is_watched_again(
    stage: DrivenStage, upstream: UpstreamServer
) -> None:
    """It sends no heartbeats of its own, so that only a broken connection tells of its end."""
    bridge = await stage.start_bridge(hint_grace_ms=60_000)
    first = TemporalWorker(stage, bridge.address)
    await hand_out(first, stage)
    await first.close()

    async def is_suspect(times: int) -> bool:
        return bridge.statistics.hints == {"connection": times}

    await stage.advance_until(partial(is_suspect, 1))
    upstream.answers["RecordActivityTaskHeartbeat"] = b""
    again = TemporalWorker(stage, bridge.address)
    beat = pb.RecordActivityTaskHeartbeatRequest(task_token=b"token-1", identity="me", namespace=NAMESPACE)
    await again.call("RecordActivityTaskHeartbeat", beat)
    await again.close()
    await stage.advance_until(partial(is_suspect, 2))


async def test_what_a_worker_holds_above_the_limit_passes_unrecorded(
    stage: DrivenStage, upstream: UpstreamServer
) -> None:
    bridge = await stage.start_bridge(bind_timeout_ms=LIMIT_S * 1_000)
    worker = TemporalWorker(stage, bridge.address)
    tasks = [task(number) for number in range(HELD_MAX + 1)]
    eager = pb.RespondWorkflowTaskCompletedResponse(activity_tasks=tasks).SerializeToString()
    upstream.answers["RespondWorkflowTaskCompleted"] = eager
    completion = pb.RespondWorkflowTaskCompletedRequest(
        namespace=NAMESPACE, worker_instance_key="w1", identity="me"
    )
    assert await worker.call("RespondWorkflowTaskCompleted", completion) == eager
    assert bridge.statistics.bindings == {"eager": HELD_MAX}
    assert (await stage.worker()).bound_activity_count == HELD_MAX
    assert bridge.statistics.unrecorded == {"too_many": 1}
    await hand_out(worker, stage, 5_000)
    assert bridge.statistics.unrecorded == {"too_many": 2}
    # The end of one makes room, that of an unrecorded one does not.
    upstream.answers["RespondActivityTaskCompleted"] = b""
    for token in (b"token-5000", b"token-0"):
        done = pb.RespondActivityTaskCompletedRequest(task_token=token, identity="me", namespace=NAMESPACE)
        await worker.call("RespondActivityTaskCompleted", done)
    await stage.flush()
    await hand_out(worker, stage, 5_001)
    assert bridge.statistics.bindings == {"eager": HELD_MAX, "poll": 1}
    assert bridge.statistics.unrecorded == {"too_many": 2}
    await worker.close()


async def test_activities_that_are_completed_from_elsewhere_are_unbound_once_their_worker_was_idle(
    stage: DrivenStage,
) -> None:
    bridge = await stage.start_bridge()
    worker = TemporalWorker(stage, bridge.address)
    await worker.live(1_000)
    await hand_out(worker, stage, 1)
    await worker.live(12_000, used_slots=1)
    await worker.live(9_000, used_slots=0)
    assert await stage.bound() == ["a1@1"]
    await worker.live(1_000, used_slots=1)  # it was busy in between, so that the ten seconds begin again
    await worker.live(9_000, used_slots=0)
    await hand_out(worker, stage, 2)  # its slot shows in a later heartbeat only
    assert await stage.bound() == ["a1@1", "a2@1"]
    await worker.live(3_000, used_slots=0)
    await stage.flush()
    assert await stage.bound() == ["a2@1"]
    await worker.close()


async def test_a_worker_has_the_version_of_its_deployment(stage: DrivenStage) -> None:
    bridge = await stage.start_bridge()
    worker = TemporalWorker(stage, bridge.address)
    await worker.live(1_000)
    found = await stage.worker()
    assert (found.labels["temporal-deployment"], found.build_id) == ("shop", "v1")
    await worker.close()


async def test_the_renewals_of_many_workers_travel_together(stage: DrivenStage) -> None:
    bridge = await stage.start_bridge()
    workers = [TemporalWorker(stage, bridge.address, f"w{number}") for number in range(10)]

    async def beat_all() -> None:
        for worker in workers:
            await worker.beat()
        await stage.advance(1_000)

    await beat_all()  # each is new, and recorded at once
    calls = stage.server.telemetry.calls.method("/liveness.v1.LivenessService/RecordWorkerHeartbeats")
    before = sum(calls.codes.values())
    await beat_all()
    assert 1 <= sum(calls.codes.values()) - before <= 2
    times = {(await stage.worker(f"w{number}")).last_heartbeat_time.ToMilliseconds() for number in range(10)}
    assert stage.clock.wall_ms() - min(times) <= 1_000
    for worker in workers:
        await worker.close()


async def test_two_bridges_behind_a_load_balancer_share_a_worker(
    stage: DrivenStage, upstream: UpstreamServer
) -> None:
    """Calls arrive at either bridge. None ends a lease that the other one renews; a lost activity is rescued once."""
    bridges = [await stage.start_bridge() for _ in range(2)]
    balancer = LoadBalancer(*(bridge.address for bridge in bridges))
    await balancer.start()
    connections = [TemporalWorker(stage, balancer.address) for _ in bridges]
    for _ in range(4):
        for connection in connections:
            await connection.live(1_000)
    beats = [bridge.statistics.calls["RecordWorkerHeartbeat", "OK"] for bridge in bridges]
    assert beats == [4, 4]
    await hand_out(connections[0], stage)
    # Now each bridge in turn hears nothing for two leases.
    for connection in connections:
        await connection.live(6_000)
    found = await stage.worker()
    assert (found.state, found.lease_epoch) == (WORKER_STATE_ACTIVE, 1)
    assert [bridge.statistics.hints for bridge in bridges] == [{}, {}]

    def rescues() -> Counter[str]:
        return sum((bridge.statistics.rescues for bridge in bridges), Counter())

    async def are_rescued() -> bool:
        return bool(rescues())

    await stage.advance_until(are_rescued)
    await stage.advance(20_000)
    assert rescues() == {"retried": 1}
    [request] = upstream.requests("RespondActivityTaskFailed")
    assert pb.RespondActivityTaskFailedRequest.FromString(request).task_token == b"token-1"
    for connection in connections:
        await connection.close()
    await balancer.stop()
