"""Answers of polls: bound before they are released, passed while liveness is away, given back if nobody is there any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from temporalio.api.activity.v1 import ActivityOptions
from temporalio.api.common.v1 import ActivityType, Header, Payload, RetryPolicy, WorkflowExecution
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.worker.v1 import WorkerHeartbeat
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import request_response_pb2 as pb

from liveness.app import Server
from liveness.bridges.temporal.bridge import TemporalBridge
from liveness.config.settings import Settings
from liveness.v1.service_pb2 import DescribeWorkerRequest, RecordWorkerHeartbeatRequest
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from liveness.v1.worker_pb2 import WorkerHeartbeat as OwnHeartbeat
from tests.integration.bridges.temporal.conftest import StartBridge
from tests.integration.bridges.temporal.upstream_server import SERVICE, UpstreamServer

LIMIT_S = 30
POLL = pb.PollActivityTaskQueueRequest(
    namespace="shop", worker_instance_key="w1", identity="me", task_queue=TaskQueue(name="q")
).SerializeToString()
TASK = pb.PollActivityTaskQueueResponse(
    task_token=b"token-1",
    workflow_execution=WorkflowExecution(workflow_id="wf", run_id="run"),
    activity_id="7",
    activity_type=ActivityType(name="charge"),
    attempt=2,
    retry_policy=RetryPolicy(maximum_attempts=3),
)
DESCRIBED = pb.DescribeWorkflowExecutionResponse(
    pending_activities=[PendingActivityInfo(activity_id="7", attempt=2)]
).SerializeToString()


@pytest.fixture
async def liveness(tmp_path: Any) -> AsyncIterator[Server]:
    async with Server(Settings(db=f"sqlite:///{tmp_path}/l.db", listen="127.0.0.1:0", shards=2)) as server:
        yield server


@pytest.fixture
async def silent_liveness() -> AsyncIterator[str]:
    """An address that accepts connections and never answers."""
    accepted = []
    server = await asyncio.start_server(lambda reader, writer: accepted.append(writer), "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    for writer in accepted:
        writer.close()


async def poll(bridge: TemporalBridge) -> bytes:
    async with grpc.aio.insecure_channel(bridge.address) as channel:
        call: Any = channel.unary_unary(SERVICE + "PollActivityTaskQueue")
        answer: bytes = await call(POLL, timeout=LIMIT_S)
        return answer


async def describe(liveness: Server, key: str = "w1") -> Any:
    async with grpc.aio.insecure_channel(liveness.address) as channel:
        stub: Any = LivenessServiceStub(channel)
        request = DescribeWorkerRequest(namespace="shop", worker_instance_key=key)
        return (await stub.DescribeWorker(request, timeout=LIMIT_S)).worker


async def test_a_hand_out_is_bound_before_its_answer_is_released(
    liveness: Server, start_bridge: StartBridge, upstream: UpstreamServer
) -> None:
    bridge = await start_bridge(liveness=(liveness.address,))
    upstream.answers["PollActivityTaskQueue"] = TASK.SerializeToString()
    assert await poll(bridge) == TASK.SerializeToString()
    worker = await describe(liveness)
    assert [
        (ref.workflow_id, ref.run_id, ref.activity_id, ref.attempt) for ref in worker.bound_activities
    ] == [("wf", "run", "7@2", 2)]
    assert bridge.statistics.bindings == {"poll": 1}


async def test_an_attempt_that_ends_through_another_bridge_is_unbound(
    liveness: Server, start_bridge: StartBridge, upstream: UpstreamServer
) -> None:
    first, second = [await start_bridge(liveness=(liveness.address,)) for _ in range(2)]
    upstream.answers["PollActivityTaskQueue"] = TASK.SerializeToString()
    upstream.answers["RespondActivityTaskCompleted"] = b""
    await poll(first)
    done = pb.RespondActivityTaskCompletedRequest(task_token=b"token-1", identity="me", namespace="shop")
    async with grpc.aio.insecure_channel(second.address) as channel:
        call: Any = channel.unary_unary(SERVICE + "RespondActivityTaskCompleted")
        await call(done.SerializeToString(), timeout=LIMIT_S)
    async with asyncio.timeout(LIMIT_S):
        while (await describe(liveness)).bound_activities:
            await asyncio.sleep(0.01)


async def test_hand_outs_pass_unrecorded_while_liveness_is_away(
    bridge: TemporalBridge, upstream: UpstreamServer
) -> None:
    upstream.answers["PollActivityTaskQueue"] = TASK.SerializeToString()
    for _ in range(3):
        assert await poll(bridge) == TASK.SerializeToString()
    assert sum(bridge.statistics.unrecorded.values()) == 3
    assert b'liveness_bridge_unrecorded_total{reason="away"}' in bridge.metrics()[0]


async def test_a_standalone_activity_that_is_handed_to_who_started_it_is_counted_as_unrecorded(
    bridge: TemporalBridge, upstream: UpstreamServer
) -> None:
    answers = (
        pb.StartActivityExecutionResponse(),
        pb.StartActivityExecutionResponse(eager_activity_task=TASK),
    )
    async with grpc.aio.insecure_channel(bridge.address) as channel:
        call: Any = channel.unary_unary(SERVICE + "StartActivityExecution")
        for answer in answers:
            upstream.answers["StartActivityExecution"] = answer.SerializeToString()
            assert await call(b"", timeout=LIMIT_S) == answer.SerializeToString()
    assert bridge.statistics.unrecorded == {"no_worker": 1}


async def test_activities_that_opt_out_are_not_recorded(
    liveness: Server, start_bridge: StartBridge, upstream: UpstreamServer
) -> None:
    off = pb.PollActivityTaskQueueResponse()
    off.CopyFrom(TASK)
    off.header.CopyFrom(Header(fields={"liveness": Payload(data=b'"off"')}))
    for task, settings in (
        (off, {}),
        (TASK, {"skip": ("type:ch*",)}),
        (TASK, {"only": ("other-queue",)}),
    ):
        bridge = await start_bridge(liveness=(liveness.address,), **settings)
        upstream.answers["PollActivityTaskQueue"] = task.SerializeToString()
        assert await poll(bridge) == task.SerializeToString()
        assert not bridge.statistics.bindings
        assert not bridge.statistics.unrecorded


async def test_a_hand_out_whose_client_is_gone_is_given_back_at_once(
    start_bridge: StartBridge, upstream: UpstreamServer, silent_liveness: str
) -> None:
    bridge = await start_bridge(bind_timeout_ms=LIMIT_S * 1_000, liveness=(silent_liveness,))
    upstream.answers |= {
        "PollActivityTaskQueue": TASK.SerializeToString(),
        "DescribeWorkflowExecution": DESCRIBED,
        "UpdateActivityOptions": b"",
        "RespondActivityTaskFailed": b"",
    }
    async with grpc.aio.insecure_channel(bridge.address) as channel:
        method: Any = channel.unary_unary(SERVICE + "PollActivityTaskQueue")
        call = method(POLL, timeout=LIMIT_S)
        async with asyncio.timeout(LIMIT_S):
            while not any(worker.to_bind for worker in bridge.recorder.workers()):
                await asyncio.sleep(0)
            call.cancel()
            while bridge.statistics.failed_back == 0:
                await asyncio.sleep(0.01)
    assert not any(worker.held for worker in bridge.recorder.workers())
    failed = pb.RespondActivityTaskFailedRequest.FromString(dict(upstream.calls)["RespondActivityTaskFailed"])
    assert failed.task_token == b"token-1"
    assert failed.failure.application_failure_info.next_retry_delay.ToMilliseconds() == 1
    options = pb.UpdateActivityOptionsRequest.FromString(dict(upstream.calls)["UpdateActivityOptions"])
    assert options.activity_options == ActivityOptions(retry_policy=RetryPolicy(maximum_attempts=4))
    assert list(options.update_mask.paths) == ["retry_policy.maximum_attempts"]


async def test_the_time_for_which_a_poll_waited_at_temporal_is_not_what_the_bridge_added(
    bridge: TemporalBridge, upstream: UpstreamServer
) -> None:
    """Its client gives up first, as every worker does that stops."""
    waits_s = 0.5
    upstream.held["PollActivityTaskQueue"] = asyncio.Event()
    async with grpc.aio.insecure_channel(bridge.address) as channel:
        call: Any = channel.unary_unary(SERVICE + "PollActivityTaskQueue")
        with pytest.raises(grpc.aio.AioRpcError):
            await call(POLL, timeout=waits_s)
    statistics = bridge.statistics
    async with asyncio.timeout(LIMIT_S):
        while not sum(statistics.added_s.counts):
            await asyncio.sleep(0.01)
    assert statistics.added_s.sum < waits_s / 2


async def test_a_bridge_that_stops_finishes_what_it_is_giving_back(
    start_bridge: StartBridge, upstream: UpstreamServer, silent_liveness: str
) -> None:
    bridge = await start_bridge(bind_timeout_ms=LIMIT_S * 1_000, liveness=(silent_liveness,))
    upstream.answers |= {
        "PollActivityTaskQueue": TASK.SerializeToString(),
        "DescribeWorkflowExecution": DESCRIBED,
        "UpdateActivityOptions": b"",
        "RespondActivityTaskFailed": b"",
    }
    released = upstream.held["DescribeWorkflowExecution"] = asyncio.Event()
    async with asyncio.timeout(LIMIT_S):
        polling = asyncio.ensure_future(poll(bridge))
        while not any(worker.to_bind for worker in bridge.recorder.workers()):
            await asyncio.sleep(0)
        polling.cancel()
        while not upstream.requests("DescribeWorkflowExecution"):
            await asyncio.sleep(0.01)
        stopping = asyncio.ensure_future(bridge.stop())
        while await is_listening(bridge.address):
            await asyncio.sleep(0.01)
        for _ in range(100):
            await asyncio.sleep(0)
        released.set()
        await stopping
    assert bridge.statistics.failed_back == 1
    assert len(upstream.requests("RespondActivityTaskFailed")) == 1


async def is_listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.close()
    return True


async def test_the_worker_api_is_answered_from_liveness_where_the_server_has_none(
    liveness: Server, start_bridge: StartBridge, upstream: UpstreamServer
) -> None:
    bridge = await start_bridge(liveness=(liveness.address,))
    upstream.answers |= {"PollActivityTaskQueue": TASK.SerializeToString(), "ListWorkers": b"\x12\x01x"}
    upstream.unimplemented = {"DescribeWorker", "CountWorkers"}
    await poll(bridge)
    async with grpc.aio.insecure_channel(bridge.address) as channel:

        async def call(method: str, request: Any) -> bytes:
            answer: bytes = await channel.unary_unary(SERVICE + method)(
                request.SerializeToString(), timeout=LIMIT_S
            )
            return answer

        assert await call("ListWorkers", pb.ListWorkersRequest(namespace="shop")) == b"\x12\x01x"
        upstream.unimplemented.add("ListWorkers")
        for refused in ({"DescribeNamespace"}, set()):  # without it, the namespace is unknown to Temporal
            upstream.refused = refused
            for method in ("ListWorkers", "CountWorkers", "DescribeWorker"):
                request = pb.DescribeWorkerRequest(namespace="shop", worker_instance_key="w1")
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await call(
                        method,
                        request if method == "DescribeWorker" else pb.ListWorkersRequest(namespace="shop"),
                    )
                assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED, method
        upstream.answers["DescribeNamespace"] = b""
        listed = pb.ListWorkersResponse.FromString(
            await call("ListWorkers", pb.ListWorkersRequest(namespace="shop"))
        )
        assert [info.worker_heartbeat.worker_instance_key for info in listed.workers_info] == ["w1"]
        assert [(info.worker_identity, info.task_queue) for info in listed.workers] == [("me", "q")]
        counted = pb.CountWorkersResponse.FromString(
            await call("CountWorkers", pb.CountWorkersRequest(namespace="shop"))
        )
        assert counted.count == 1
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call("CountWorkers", pb.CountWorkersRequest(namespace="shop", query=" " * 300_000))
        assert "at most 1000 characters" in str(raised.value.details())
        for query, count in (
            ("TaskQueue = 'q' AND Status='Running'", 1),
            ('WorkerIdentity="me"', 1),
            ("TaskQueue != 'q'", 0),
            ("BuildId = 'v1'", 0),
        ):
            asked = pb.CountWorkersRequest(namespace="shop", query=query)
            assert pb.CountWorkersResponse.FromString(await call("CountWorkers", asked)).count == count, query
            of_list = pb.ListWorkersRequest(namespace="shop", query=query)
            answer = pb.ListWorkersResponse.FromString(await call("ListWorkers", of_list))
            assert len(answer.workers_info) == len(answer.workers) == count, query
        for query in ("StartTime > '2026-01-01'", "TaskQueue = 'q' OR TaskQueue = 'p'", "nonsense"):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call("ListWorkers", pb.ListWorkersRequest(namespace="shop", query=query))
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        described = pb.DescribeWorkerResponse.FromString(
            await call("DescribeWorker", pb.DescribeWorkerRequest(namespace="shop", worker_instance_key="w1"))
        )
        assert described.worker_info.worker_heartbeat.task_queue == "q"
        async with grpc.aio.insecure_channel(liveness.address) as own:
            beat = RecordWorkerHeartbeatRequest(
                namespace="shop", heartbeat=OwnHeartbeat(worker_instance_key="other")
            )
            await LivenessServiceStub(own).RecordWorkerHeartbeat(beat)
        for key in ("x", "other"):  # unknown, and none of Temporal's
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call(
                    "DescribeWorker", pb.DescribeWorkerRequest(namespace="shop", worker_instance_key=key)
                )
            assert raised.value.code() is grpc.StatusCode.NOT_FOUND, key


async def test_nobody_is_recorded_whom_temporal_refuses(
    liveness: Server, start_bridge: StartBridge, upstream: UpstreamServer
) -> None:
    bridge = await start_bridge(liveness=(liveness.address,))
    beat = pb.RecordWorkerHeartbeatRequest(
        namespace="shop", worker_heartbeat=[WorkerHeartbeat(worker_instance_key="w1", task_queue="q")]
    )
    upstream.refused = {"RecordWorkerHeartbeat", "ShutdownWorker", "PollActivityTaskQueue"}
    async with grpc.aio.insecure_channel(bridge.address) as channel:
        for method, request in (
            ("RecordWorkerHeartbeat", beat.SerializeToString()),
            (
                "ShutdownWorker",
                pb.ShutdownWorkerRequest(namespace="shop", worker_instance_key="w1").SerializeToString(),
            ),
            ("PollActivityTaskQueue", POLL),
        ):
            call: Any = channel.unary_unary(SERVICE + method)
            with pytest.raises(grpc.aio.AioRpcError):
                await call(request, timeout=LIMIT_S)
        assert not list(bridge.recorder.workers())
        upstream.refused.clear()
        upstream.answers["RecordWorkerHeartbeat"] = b""
        heartbeat: Any = channel.unary_unary(SERVICE + "RecordWorkerHeartbeat")
        await heartbeat(beat.SerializeToString(), timeout=LIMIT_S)
        assert [worker.key for worker in bridge.recorder.workers()] == ["w1"]


async def test_a_worker_whose_connection_breaks_right_after_its_first_poll_becomes_suspect(
    liveness: Server, start_bridge: StartBridge, upstream: UpstreamServer
) -> None:
    """Temporal has not served its connection before, so that the poll itself is not yet a call of a known worker."""
    bridge = await start_bridge(liveness=(liveness.address,))
    upstream.answers["PollActivityTaskQueue"] = TASK.SerializeToString()
    await poll(bridge)  # and closes the connection
    async with asyncio.timeout(LIMIT_S):
        while not any(worker.suspected for worker in bridge.recorder.workers()):
            await asyncio.sleep(0.01)
    assert bridge.statistics.hints == {"connection": 1}
