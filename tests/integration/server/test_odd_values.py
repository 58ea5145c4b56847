"""Every RPC takes thousands of random requests with odd values: no UNKNOWN, no INTERNAL, and the event loop stays free."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator
from random import Random

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from liveness.v1 import activity_pb2, admin_pb2, cluster_pb2, service_pb2
from tests.integration.server.random_requests import random_request
from tests.integration.server.server_harness import NAMESPACE, ServerHarness

METHODS = [
    method
    for file in (service_pb2, activity_pb2, admin_pb2, cluster_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
REQUESTS_PER_METHOD = 40
STREAMED = 4
"""Messages per request stream."""
LOOP_S_MAX = 0.05
UNEXPECTED = {
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNAVAILABLE,  # "try again", which does not help: the database refused the value
}


def path_of(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


async def send(harness: ServerHarness, method: MethodDescriptor, requests: list[bytes]) -> grpc.StatusCode:
    """Send the requests, several only to a method that takes a stream, and return the status of the first answer."""
    path = path_of(method)
    try:
        if method.client_streaming:

            async def stream() -> AsyncIterator[bytes]:
                for request in requests:
                    yield request

            call = harness.channel_for(path).stream_stream(path)(stream(), timeout=10)
            async for _ in call:
                pass
        elif method.server_streaming:
            call = harness.channel_for(path).unary_stream(path)(requests[0], timeout=10)
            await call.read()
            call.cancel()
        else:
            await harness.channel_for(path).unary_unary(path)(requests[0], timeout=10)
    except grpc.aio.AioRpcError as error:
        if error.details() == "Internal error from Core":
            return (
                grpc.StatusCode.CANCELLED
            )  # the client's own: it wrote after the server had refused the stream
        return error.code()
    return grpc.StatusCode.OK


def without_waiting(request: Message) -> Message:
    """A poll that is valid would wait; the clock of the server stands still."""
    if isinstance(request, activity_pb2.PollActivityRequest):
        request.wait.CopyFrom(Duration())
    return request


async def prepare(harness: ServerHarness) -> None:
    await harness.beat("w", session_id="s", task_queue="q")
    for workflow_id in ("f", "g"):
        await harness.activities.ScheduleActivity(
            activity_pb2.ScheduleActivityRequest(
                namespace=NAMESPACE,
                id=activity_pb2.ActivityId(workflow_id=workflow_id, run_id="r", activity_id="a"),
                task_queue="q",
            )
        )


async def test_no_odd_value_is_answered_with_unknown_or_internal_or_blocks_the_loop(
    harness: ServerHarness,
) -> None:
    await prepare(harness)
    random = Random(20)
    codes: Counter[grpc.StatusCode] = Counter()
    for method in random.sample(METHODS * REQUESTS_PER_METHOD, len(METHODS) * REQUESTS_PER_METHOD):
        messages = [without_waiting(random_request(method.input_type, random)) for _ in range(STREAMED)]
        requests = [message.SerializeToString() for message in messages]
        used_s = time.thread_time()
        code = await send(harness, method, requests)
        if time.thread_time() - used_s > LOOP_S_MAX:
            # The loop's processor time, not the time of day; and twice, because the garbage collector may have run.
            used_s = time.thread_time()
            await send(harness, method, requests)
            assert time.thread_time() - used_s <= LOOP_S_MAX, (method.name, messages)
        assert code not in UNEXPECTED, (method.name, code, messages)
        codes[code] += 1
    assert codes[grpc.StatusCode.OK] > len(METHODS), "many requests get past validation"
    assert codes[grpc.StatusCode.INVALID_ARGUMENT] > len(METHODS)
